"""CUDA C without a GPU: its kernels built for the host, against the references; and read by NVIDIA's compiler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_code
import emulation
import yosegi as ys
from opencl_regions import numbers, regions
from program_cases import INDEXING
from samples import SAMPLES, calls
from scalar_calls import Read, check, operands
from scalar_calls import calls as scalar_calls
from values import Array, same
from yosegi._graph.expand import expand
from yosegi._graph.graph import Graph, capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._schedule.fuse import Region, RegionKind, fuse
from yosegi._tensor.dtype import ALL, DType, bfloat16, bool_, float16
from yosegi._tensor.node import spec
from yosegi._tensor.op import REGISTRY, leaf_call
from yosegi.codegen.c.attention import plain_attention
from yosegi.codegen.c.contractions import FusedContraction
from yosegi.codegen.c.copies import copy_kernel
from yosegi.codegen.c.dialect import Target
from yosegi.codegen.c.fused_kernels import Rest, planned_kernels, product_variants, rendered
from yosegi.codegen.c.kernel_source import Inputs
from yosegi.codegen.c.loop_kernels import loop
from yosegi.codegen.c.moves import moves
from yosegi.codegen.c.op_programs import has_program, program
from yosegi.codegen.c.op_programs import refusal as program_refusal
from yosegi.codegen.c.reductions import reduction, second_stage
from yosegi.codegen.c.stages import Setting
from yosegi.codegen.c.unit_attention import unit_attention, unit_shapes
from yosegi.devices.cuda.dialect import CUDA
from yosegi.devices.cuda.library_products import split_kernel

H200 = Target(group=256, cooperating=256, units=1056)

builds = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
translates = pytest.mark.skipif(cuda_code.compiler() is None, reason="there is no NVRTC")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def region_of(read: list[Read], arrays: list[Array], dtype: DType) -> Region:
    """All calls as one loop region."""
    size = arrays[0].size
    leaves = [leaf_call(spec((size,), dtype if n < len(arrays) - 1 else bool_)) for n in range(len(arrays))]
    sized = [call.op.call(tuple(spec((size,), s.dtype) for s in call.inputs), call.attrs) for call, _ in read]
    nodes = tuple(range(len(leaves), len(leaves) + len(read)))
    graph = Graph((*leaves, *sized), ((),) * len(leaves) + tuple(places for _, places in read), nodes)
    return Region(graph, RegionKind.LOOP, nodes, tuple(range(len(leaves))), nodes)


def computed(region: Region, given: dict[int, Array], folder: Path, target: Target = cuda_code.TARGET) -> list[Array]:
    """A region's outputs, by kernels that run on the host."""
    inputs = Inputs.of(region)
    arrays = [emulation.padded(a) for a in (*[given[e] for e in region.inputs], *inputs.constants)]
    specs = [region.graph.calls[e].spec for e in region.outputs]
    made = [emulation.padded(np.full(s.shape, 77, s.dtype.numpy)) for s in specs]
    if region.kind is RegionKind.LOOP:
        cuda_code.run(loop(region, inputs, cuda_code.HOSTED, cuda_code.TARGET), arrays, made, folder)
        return made
    stages = reduction(region, inputs, cuda_code.HOSTED, target)
    place = region.outputs.index(region.nodes[-1])
    if stages.slices == 1:
        cuda_code.run(stages.first, arrays, made, folder)
        assert all(map(emulation.is_intact, made))
        return made
    partials = emulation.padded(np.full((stages.slices, stages.results), 77, stages.fold.accumulated.numpy))
    cuda_code.run(stages.first, arrays, [*made[:place], partials, *made[place + 1 :]], folder)
    cuda_code.run(second_stage(stages, cuda_code.HOSTED, target), [partials], [made[place]], folder)
    assert all(map(emulation.is_intact, [*made, partials]))
    return made


@builds
@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_rules_give_what_the_reference_gives(dtype: DType, arity: int, folder: Path) -> None:
    read = scalar_calls(dtype, arity)
    arrays = [a[:2049] for a in operands(dtype, arity, 2049)]
    region = region_of(read, arrays, dtype)
    check(read, arrays, computed(region, dict(enumerate(arrays)), folder))


SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((), ()), ((7,), (7,)), ((129,), ()), ((1003,), (1003,)), ((10, 3, 24), (24,)), ((10, 3, 25), (3, 1)),
    ((10, 1, 24), (3, 1)), ((50, 3), (3,)), ((1, 1), (40, 1)),
]  # fmt: skip


@builds
@pytest.mark.parametrize("dtype", [ys.float32, ys.float16, ys.complex64, ys.bool], ids=lambda d: d.name)
@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_broadcasting(first: tuple[int, ...], second: tuple[int, ...], dtype: Any, folder: Path) -> None:
    a, b = numbers(dtype, *first), numbers(dtype, *second)
    x, y = ys.asarray(a), ys.asarray(b)
    made = ys.logical_xor(x, y) if dtype is ys.bool else x + y
    (region,) = regions(made)
    given = dict(zip(region.inputs, (a, b), strict=True))
    (got,) = computed(region, given, folder)
    same(got, np.logical_xor(a, b) if dtype is ys.bool else a + b)


@pytest.mark.parametrize(("dtype", "bits"), [(ys.float16, "half_bits"), (ys.bfloat16, "bfloat_bits")])
def test_what_is_stored_is_rounded_once(dtype: Any, bits: str) -> None:
    (region,) = regions(ys.exp(ys.asarray(numbers(dtype, 64, 64))))
    lines = loop(region, Inputs.of(region), CUDA, H200).source.splitlines()
    (stored,) = [line for line in lines if line.startswith("q0.lane[lane] =")]
    (value,) = re.fullmatch(rf"q0\.lane\[lane\] = {bits}\((\w+)\);", stored).groups()  # type: ignore[union-attr]
    (made,) = [line for line in lines if line.startswith(f"const float {value} =")]
    assert "exp" in made


REDUCTIONS: list[tuple[tuple[int, ...], Any]] = [
    ((7,), 0), ((12, 16), 0), ((12, 16), 1), ((4, 3, 50), (0, 2)), ((4, 3, 52), 1), ((3000,), None), ((3, 1001), 1),
    ((1001, 3), 0), ((6, 100, 20), 1), ((4000, 40), 0), ((700, 44), 0), ((300, 5, 33), (0, 1)), ((3, 2000, 7), 1),
    ((1, 17), 0), ((1, 5), 0),
]  # fmt: skip
IN_ROWS = Target(group=128, cooperating=64, units=8)
"""Groups that are rows of teams, where the innermost dimension is kept."""


@builds
@pytest.mark.parametrize("target", [cuda_code.TARGET, IN_ROWS], ids=["small", "rows"])
@pytest.mark.parametrize("dtype", [ys.float32, ys.float16, ys.bfloat16, ys.float64, ys.complex64, ys.int8],
                         ids=lambda d: d.name)  # fmt: skip
@pytest.mark.parametrize(("shape", "axis"), REDUCTIONS)
def test_reductions(shape: tuple[int, ...], axis: Any, dtype: Any, target: Target, folder: Path) -> None:
    a = numbers(dtype, *shape)
    x = ys.asarray(a)
    squares = x * x
    for made, shown in (
        (ys.sum(squares, axis=axis, dtype=dtype), False),
        (ys.sum(squares, axis=axis, dtype=dtype), True),
    ):
        (region,) = regions(made, *([squares] if shown else []))
        got = computed(region, {region.inputs[0]: a}, folder, target)
        wide = (a * a).astype(np.clongdouble if dtype.is_complex else np.longdouble)
        total = got[region.outputs.index(region.nodes[-1])]
        same(total, np.sum(wide, axis=axis).astype(dtype.numpy), ulps=16)
        if shown:
            same(got[1 - region.outputs.index(region.nodes[-1])], a * a)


@builds
@pytest.mark.parametrize("shape", [(5, 1000), (1000, 5), (130,)])
def test_truths_of_slices_without_elements(shape: tuple[int, ...], folder: Path) -> None:
    many = Target(group=8, cooperating=2, units=64)
    zeros = numbers(float16, *shape) * 0
    for axis in (0, len(shape) - 1):
        for made, given in (
            (ys.any(ys.asarray(zeros), axis=axis), zeros),
            (ys.all(ys.asarray(zeros), axis=axis), zeros + 1),
        ):
            (region,) = regions(made)
            (got,) = computed(region, {region.inputs[0]: given}, folder, many)
            same(got, np.any(given, axis=axis) if given is zeros else np.all(given, axis=axis))


def test_a_group_shares_what_every_gpu_has() -> None:
    (region,) = regions(ys.sum(ys.astype(ys.asarray(np.zeros((4000, 512), np.int8)), ys.complex128), axis=0))
    for source in kernels_of(region):
        shared = [(kind, int(size)) for kind, size in re.findall(r"__shared__ (\w+) \w+\[(\d+)\]", source)]
        assert 0 < sum(8 * size for _, size in shared) <= 32 << 10


@translates
def test_the_compiler_takes_every_kernel() -> None:
    sources = [split_kernel(1000, 3, bfloat16, CUDA, H200).source, split_kernel(1000, 1, float16, CUDA, H200).source]
    for name, number in calls():
        op, sample = REGISTRY[name], SAMPLES[name][number]
        node = op._node(tuple(ys.asarray(a) for a in sample.arrays), sample.attrs)
        if op.decomposition is None and len(node.call.outputs) == 1:
            for region in fuse(simplify(graph_of(capture([node])[0]))):
                sources += kernels_of(region)
    big = ys.asarray(np.zeros((4096, 4096), np.float16))
    (region,) = regions(ys.sum(ys.exp(big) * big, axis=1))
    sources += kernels_of(region)
    sources += templates()
    for case in INDEXING.values():
        (region,) = [r for r in regions(case()) if has_program(r.calls[-1])]
        sources += kernels_of(region)
    cuda_code.translates(list(dict.fromkeys(sources)))


def templates() -> list[str]:
    """Every way to compute a product, with work around it; rows; and attention."""
    x, w = (ys.asarray(np.zeros(s, np.float16)) for s in ((200, 64), (80, 64)))
    mask = ys.asarray(np.zeros((200, 80), bool))
    sources = []
    for tensor in (
        ys.nn.scaled_dot_product_attention(x, w, w, is_causal=True),
        ys.nn.scaled_dot_product_attention(x, w, w, mask),
    ):
        call = tensor._node.call
        sources.append(plain_attention(call, CUDA).source)
        sources += [unit_attention(call, CUDA, shape).source for shape in unit_shapes(call).values()]
    patterns = [ys.nn.gelu_linear(x, w), ys.nn.layer_norm_linear(x, w), ys.nn.dropout_linear(x, w, rng=1),
                ys.nn.attention_scores(x, w, is_causal=True), ys.nn.layer_norm(x)]  # fmt: skip
    for tensor in patterns:
        graph = simplify(expand(graph_of(capture([tensor._node])[0]), ()))
        for planned in planned_kernels(graph):
            assert not isinstance(planned, Rest)
            names = product_variants([planned] if isinstance(planned, FusedContraction) else [], CUDA, H200)
            sources += [rendered(graph, planned, CUDA, H200, name).kernel.source for name in names]
    return sources


def kernels_of(region: Region) -> list[str]:
    """The sources of all kernels of a region; none for what is not generated."""
    call = region.calls[-1]
    if not all(s.size for c in region.calls for s in (*c.inputs, *c.outputs)):
        return []
    if region.kind is RegionKind.LOOP:
        return [loop(region, Inputs.of(region), CUDA, H200).source]
    if region.kind is RegionKind.REDUCTION:
        made = reduction(region, Inputs.of(region), CUDA, H200)
        return [made.first.source, second_stage(made, CUDA, H200).source]
    if has_program(call) and program_refusal(call) is None:
        made = [program(call, Setting(CUDA, H200, lambda bound: 5, ordered)) for ordered in (True, False)]
        return [stage.kernel.source for each in made for stage in each.stages]
    return [copy_kernel(copy, call.spec.dtype, CUDA, H200).source for _, copy in moves(call) or []]
