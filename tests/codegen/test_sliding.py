"""Windows without a product, as CUDA C and as MSL, built for the host: against NumPy, in memory full of NaN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emulation
import yosegi as ys
from kernel_code import TARGET, computed
from values import Array
from yosegi._graph.graph import Graph, capture, graph_of
from yosegi._graph.reference import bind
from yosegi._tensor.op import REGISTRY
from yosegi.codegen.c.dialect import Dialect
from yosegi.codegen.c.expressions import Read
from yosegi.codegen.c.frames import inputs_of
from yosegi.codegen.c.kernel_source import Kernel
from yosegi.codegen.c.sliding import slide_kernel, slide_of
from yosegi.errors import ShapeError
from yosegi.ops.windows import Windows

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(13)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sliding")


def rendered(graph: Graph, dialect: Dialect) -> tuple[Kernel, Sequence[int], Sequence[Any], Sequence[int]]:
    slide = slide_of(graph, graph.outputs[0])
    inputs = inputs_of(graph, slide.reads)
    return slide_kernel(graph, slide, dialect, TARGET), inputs.entries, inputs.constants, graph.outputs[:1]


def agree(name: str, arrays: Array | tuple[Array, ...], attrs: dict[str, Any], language: str, folder: Path) -> None:
    arrays = arrays if isinstance(arrays, tuple) else (arrays,)
    made = REGISTRY[name](*map(ys.asarray, arrays), **attrs)
    expected = np.asarray(bind(made._node.call)(*arrays))
    got = computed(made, language, rendered, folder)
    if name in ("overlapped", "max_pool_gradient") and arrays[0].dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, expected)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], Windows]:
    """Lengths, and windows over them; some of them hold none."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    kernel, dilation = each(1, 3), each(1, 2)
    half = [((k - 1) * d + 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    pads = tuple((draw(st.integers(0, h)), draw(st.integers(0, h))) for h in half)
    return each(1, 6 if rank < 3 else 4), Windows(kernel, each(1, 3), pads, dilation, (1,) * rank)


@pytest.mark.parametrize("language", ["cuda", "msl"])
@pytest.mark.parametrize("dtype", [ys.float32, ys.int16], ids=lambda d: d.name)
def test_any_windows(dtype: Any, language: str, folder: Path) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(windows())
    def check(case: tuple[tuple[int, ...], Windows]) -> None:
        lengths, w = case
        try:
            counts = w.counts(lengths)
        except ShapeError:
            return

        def some(*shape: int) -> Array:
            return (RNG.normal(size=shape) * 9).astype(dtype.numpy)

        x = some(2, 3, *lengths)
        pool = {"kernel_size": w.kernel, "stride": w.stride, "padding": w.padding, "dilation": w.dilation}
        agree("max_pool", x, pool, language, folder)
        if dtype is ys.float32:
            few = np.round(x / 9)  # with ties
            largest = REGISTRY["max_pool"].body(few, **pool)
            agree("max_pool_gradient", (few, largest, some(*largest.shape)), pool, language, folder)
        for lowest in (False, True):
            agree("windowed", x, {"windows": w, "lowest": lowest}, language, folder)
        agree("overlapped", some(2, 3, *counts, *w.kernel), {"windows": w, "lengths": lengths}, language, folder)

    check()


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16], ids=lambda d: d.name)
def test_halves(dtype: Any, folder: Path) -> None:
    x = RNG.normal(size=(2, 3, 7, 9)).astype(dtype.numpy)
    attrs = {"kernel_size": (3, 2), "stride": (2, 1), "padding": ((1, 1), (0, 1)), "dilation": (1, 2)}
    agree("max_pool", x, attrs, "cuda", folder)


def test_a_nan_is_the_largest_and_so_is_minus_infinity_where_nothing_else_is(folder: Path) -> None:
    x = np.full((1, 1, 6), -np.inf, np.float32)
    x[0, 0, 2] = np.nan
    made = ys.nn.max_pool1d(ys.asarray(x), 3, stride=1, padding=1)
    got = computed(made, "cuda", rendered, folder)
    np.testing.assert_array_equal(got[0, 0], [-np.inf, np.nan, np.nan, np.nan, -np.inf, -np.inf])


def test_windows_that_stay_inside_are_strides() -> None:
    x = ys.asarray(np.ones((2, 3, 8, 8), np.float32))
    graph = graph_of(capture([ys.nn.max_pool2d(x, 2)._node])[0])
    assert isinstance(slide_of(graph, graph.outputs[0]).reads[0], Read)
