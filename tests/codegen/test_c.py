"""Every scalar rule in the C family's code, scalar and on vectors, against the reference bodies.

The code is run, so that a platform to run it on is needed. All ops of one dtype are one program: compiling is what
takes the time here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from values import Array, same, specials
from yosegi import reference
from yosegi.codegen.builder import Builder
from yosegi.codegen.c import CBuilder
from yosegi.codegen.kernels import SMALL
from yosegi.device import Absent
from yosegi.devices.opencl import discover
from yosegi.devices.opencl.dialect import OPENCL
from yosegi.dtype import ALL, DType, bool_, float16, float32, float64, int32
from yosegi.errors import DTypeError
from yosegi.fuse import Region, RegionKind
from yosegi.graph import Graph
from yosegi.node import Call, spec
from yosegi.op import REGISTRY, leaf_call

DEVICE: Any = next(iter(discover()))
needs_device = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))

RULES = {name: op for name, op in REGISTRY.items() if op.scalar is not None and name != "broadcast_to"}
WIDTHS = {"scalar": 1, "vector": SMALL + 1}

LOOSE = {"pow": 16, "sinh": 6, "cosh": 6, "tan": 8, "tanh": 8, "asin": 8, "acos": 8, "atan": 8, "asinh": 8, "acosh": 8,
         "atanh": 8, "sqrt": 6, "expm1": 8, "exp": 6, "log2": 8, "log10": 8, "log": 6, "sin": 6, "cos": 6,
         "log1p": 6, "divide": 6, "reciprocal": 6, "sign": 6}  # fmt: skip
"""Units in the last place that complex functions may be off by: NumPy's own errors are in them too."""


def _values(dtype: DType, more: int) -> Array:
    values = specials(dtype)
    if dtype.is_complex:
        values = values[np.isfinite(values)]  # infinite complex numbers have no one rule
    if dtype.is_inexact:
        rng = np.random.default_rng(3)
        extra = rng.uniform(-4, 4, more) + (1j * rng.uniform(-4, 4, more) if dtype.is_complex else 0)
        values = np.concatenate([values, extra.astype(dtype.numpy)])
    return values


def _calls(dtype: DType, arity: int) -> list[tuple[Call, tuple[int, ...]]]:
    """Every call with a rule on this many inputs of this dtype, and which of the arrays it reads; the last is bool."""
    found = []
    for name, op in RULES.items():
        inputs = sum(op._is_tensor)
        truths = op.promotes_from or 0
        if inputs - truths != arity:
            continue
        specs = (spec((), bool_),) * truths + (spec((), dtype),) * arity
        for attrs in [{"dtype": d} for d in ALL] if name == "convert" else [{}]:
            if attrs and dtype.is_complex and not attrs["dtype"].is_complex:
                continue  # astype never builds it
            try:
                call = op.call(specs, attrs)
            except DTypeError:
                continue
            if call.inputs == specs:
                found.append((call, (arity,) * truths + tuple(range(arity))))
    return found


def _operands(dtype: DType, arity: int, least: int) -> list[Array]:
    """Every value with every other, and a truth value with each."""
    values = _values(dtype, 40 if arity == 1 else 10)
    pairs = np.meshgrid(*[values] * arity, indexing="ij")
    arrays = [np.asarray(p).ravel() for p in pairs]
    size = max(arrays[0].size, least) | 1
    truth = np.random.default_rng(1).integers(0, 2, size).astype(bool)
    return [*[np.resize(a, size) for a in arrays], truth]


def _run(calls: list[tuple[Call, tuple[int, ...]]], arrays: list[Array], dtype: DType) -> list[Array]:
    """All calls as one loop region on the device."""
    size = arrays[0].size
    leaves = [leaf_call(spec((size,), dtype if n < len(arrays) - 1 else bool_)) for n in range(len(arrays))]
    sized = [call.op.call(tuple(spec((size,), s.dtype) for s in call.inputs), call.attrs) for call, _ in calls]
    nodes = tuple(range(len(leaves), len(leaves) + len(calls)))
    graph = Graph((*leaves, *sized), ((),) * len(leaves) + tuple(read for _, read in calls), nodes)
    region = Region(graph, RegionKind.LOOP, nodes, tuple(range(len(leaves))), nodes)
    assert DEVICE.supports(region) is None
    results = DEVICE.compile(region)(*[DEVICE.from_host(a) for a in arrays])
    return [DEVICE.to_host(r) for r in results]


def _allowed(call: Call) -> float:
    source = call.inputs[-1].dtype
    if source.is_complex:
        return LOOSE.get(call.op.name, 2)
    if call.spec.dtype.is_half:
        return 1
    if call.op.name == "logaddexp":
        return 64  # where the sum is near 1 the result is near 0, and NumPy's own error is relative to the inputs
    return 4 if source.is_float and call.op.name not in EXACT else 0


EXACT = {"add", "subtract", "multiply", "divide", "negative", "positive", "abs", "sign", "sqrt", "floor",
         "ceil", "trunc", "round", "nextafter", "copysign", "where", "square", "reciprocal", "floor_divide",
         "remainder"}  # fmt: skip


def _in_range(call: Call, arrays: list[Array]) -> Array:
    """Where the reference is defined: not every float can be an integer."""
    target = call.spec.dtype
    x = arrays[0]
    if call.op.name != "convert" or not target.is_integer or not call.inputs[0].dtype.is_float:
        return np.ones(x.shape, bool)
    info = np.iinfo(target.numpy)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (wide > float(info.min) - 1 if target.bits < 64 else wide >= float(info.min)) & (
            wide < 2.0 ** (info.bits - (info.min < 0))
        )


@needs_device
@pytest.mark.parametrize("width", list(WIDTHS))
@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_rules_give_what_the_reference_gives(dtype: DType, arity: int, width: str) -> None:
    calls = _calls(dtype, arity)
    arrays = _operands(dtype, arity, WIDTHS[width])
    if width == "scalar":
        arrays = [a[:SMALL] for a in arrays]
    wrong = defaultdict(list)
    for (call, read), got in zip(calls, _run(calls, arrays, dtype), strict=True):
        given = [arrays[n] for n in read]
        with np.errstate(all="ignore"):
            expected = np.asarray(reference.bind(call)(*given))
        at = _in_range(call, given)
        try:
            same(got[at], expected[at], ulps=_allowed(call), zero_signs=call.op.name not in ("maximum", "minimum"))
        except AssertionError as error:
            wrong[repr(call)].append(str(error)[:600])
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def test_the_builder_has_every_primitive() -> None:
    primitives = {name for name in vars(Builder) if name.rstrip("_").isalnum() and not name.startswith("_")}
    assert primitives <= set(dir(CBuilder))


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


@pytest.mark.parametrize(("dtype", "text"), [(float32, "0x"), (float64, "double"), (int32, "int"), (float16, "float")])
def test_values_have_the_type_they_are_computed_in(dtype: DType, text: str) -> None:
    k = CBuilder(OPENCL, 16)
    k.add(k.literal(1, dtype), k.literal(2, dtype))
    assert text == "0x" or any(line.startswith(f"const {text}16 ") for line in k.lines)
