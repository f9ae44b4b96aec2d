"""Every scalar rule in the C family's code against the reference bodies.

The code is run, so that a platform to run it on is needed. All ops of one dtype are one program: compiling is what
takes the time here.
"""

from __future__ import annotations

from typing import Any

import pytest

from opencl_regions import make
from scalar_calls import Read, calls, check, operands
from values import Array
from yosegi._graph.graph import Graph
from yosegi._run.device import Absent
from yosegi._schedule.fuse import Region, RegionKind
from yosegi._tensor.dtype import ALL, DType, bool_, float16, float32, float64, int32
from yosegi._tensor.node import spec
from yosegi._tensor.op import leaf_call
from yosegi.codegen.c.builder import CBuilder
from yosegi.devices.opencl.dialect import OPENCL

DEVICE: Any = make()
needs_device = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))


def _run(read: list[Read], arrays: list[Array], dtype: DType) -> list[Array]:
    """All calls as one loop region on the device."""
    size = arrays[0].size
    leaves = [leaf_call(spec((size,), dtype if n < len(arrays) - 1 else bool_)) for n in range(len(arrays))]
    sized = [call.op.call(tuple(spec((size,), s.dtype) for s in call.inputs), call.attrs) for call, _ in read]
    nodes = tuple(range(len(leaves), len(leaves) + len(read)))
    graph = Graph((*leaves, *sized), ((),) * len(leaves) + tuple(places for _, places in read), nodes)
    region = Region(graph, RegionKind.LOOP, nodes, tuple(range(len(leaves))), nodes)
    assert DEVICE.supports(region) is None
    results = DEVICE.compile(region)(*[DEVICE.from_host(a) for a in arrays])
    return [DEVICE.to_host(r) for r in results]


@needs_device
@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_rules_give_what_the_reference_gives(dtype: DType, arity: int) -> None:
    read = calls(dtype, arity)
    arrays = operands(dtype, arity, 1)
    check(read, arrays, _run(read, arrays, dtype))


def test_equal_expressions_are_written_once() -> None:
    k = CBuilder(OPENCL)
    x, y = k.literal(2, float32), k.literal(3, float32)
    assert k.add(x, y) == k.add(x, y)
    assert len(k.lines) == 3


def test_a_block_forgets_what_was_known_inside() -> None:
    k = CBuilder(OPENCL)
    x = k.literal(2, float32)
    with k.block("if (1)"):
        inside = k.mul(x, x)
    assert k.mul(x, x) != inside


@pytest.mark.parametrize(("dtype", "text"), [(float64, "double"), (int32, "int"), (float16, "float")])
def test_values_have_the_type_they_are_computed_in(dtype: DType, text: str) -> None:
    k = CBuilder(OPENCL)
    k.add(k.literal(1, dtype), k.literal(2, dtype))
    assert all(line.startswith(f"const {text} ") for line in k.lines)
