"""Convolutions as CUDA C and as MSL, built for the host: against float64, in memory that holds NaN before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emulation
import yosegi as ys
from cuda_code import compiler, translates
from kernel_code import computed, product_by
from values import Array
from yosegi._graph.graph import capture, graph_of
from yosegi.codegen.c.contractions import FusedContraction, contraction
from yosegi.codegen.c.expressions import Read, Windowed
from yosegi.devices.cuda.dialect import CUDA
from yosegi.errors import ShapeError, Unsupported
from yosegi.ops.conv import conv

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(6)
WAYS = [
    ("cuda", ys.float32, "naive"), ("cuda", ys.float64, "16"), ("cuda", ys.float32, "32"), ("cuda", ys.float32, "64"),
    ("msl", ys.float32, "naive"), ("msl", ys.float16, "16"), ("msl", ys.bfloat16, "32"),
    ("cuda", ys.float16, "unit 32"), ("cuda", ys.bfloat16, "unit 64"), ("cuda", ys.float16, "unit 128"),
    ("cuda", ys.float32, "tf32x3 32"), ("cuda", ys.float32, "tf32x3 64"),
    ("msl", ys.float32, "unit 32"), ("msl", ys.float16, "unit 64"),
]  # fmt: skip

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same": ((2, 3, 9, 10), (5, 3, 3, 3), {"padding": 1}),
    "inside": ((2, 3, 9, 10), (5, 3, 3, 3), {}),
    "whole packets": ((1, 8, 4, 16), (8, 8, 3, 3), {"padding": 1}),
    "many windows": ((2, 3, 17, 16), (4, 3, 3, 3), {"padding": 1}),
    "strided": ((1, 3, 21, 23), (4, 3, 7, 7), {"stride": 2, "padding": 3}),
    "strided inside": ((1, 2, 12, 20), (3, 2, 3, 8), {"stride": (1, 4)}),
    "uneven": ((1, 4, 7, 7), (6, 2, 3, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2),
                                           "groups": 2}),
    "depthwise": ((2, 5, 11, 6), (5, 1, 3, 3), {"padding": 1, "groups": 5}),
    "two of each": ((1, 3, 6, 6), (6, 1, 3, 3), {"padding": 1, "groups": 3}),
    "groups": ((2, 32, 5, 5), (64, 16, 3, 3), {"padding": 1, "groups": 2}),
    "1 x 1": ((2, 12, 5, 7), (9, 12, 1, 1), {}),
    "1 x 1, strided": ((2, 12, 5, 8), (9, 12, 1, 1), {"stride": 2}),
    "1 x 1, padded": ((1, 2, 3, 3), (3, 2, 1, 1), {"padding": 2}),
    "one length": ((2, 3, 40), (33, 3, 5), {"padding": ((4, 1),), "dilation": 2}),
    "one channel": ((1, 1, 300), (1, 1, 4), {}),
    "three lengths": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
    "spread": ((2, 3, 4, 5), (4, 3, 3, 2), {"padding": 2, "spread": (2, 3)}),
    "spread and strided": ((2, 3, 5), (4, 3, 3), {"stride": 2, "spread": 3, "padding": 1}),
    "cropped": ((2, 3, 7, 9), (4, 3, 3, 3), {"padding": ((-1, 0), (-2, 1))}),
    "a kernel larger than the input": ((1, 2, 3, 2), (3, 2, 5, 6), {"padding": ((2, 2), (3, 2))}),
    "one window": ((3, 4, 3, 3), (5, 4, 3, 3), {}),
    "batch and channels changed places": ((6, 2, 8, 8), (5, 2, 6, 6), {"padding": ((1, 1), (0, 2))}),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convolutions")


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype.numpy)


def exact(x: Array, w: Array, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
          spread: Any = 1) -> Array:  # fmt: skip
    """By the definition: an element of the input, a place of the kernel, and where their product belongs."""
    rank = x.ndim - 2
    stride, dilation, spread = (v if isinstance(v, tuple) else (v,) * rank for v in (stride, dilation, spread))
    pads = padding if isinstance(padding, tuple) else ((padding, padding),) * rank
    spans = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], spread, strict=True)]
    counts = [(n + sum(p) - (k - 1) * d - 1) // s + 1
              for n, p, k, d, s in zip(spans, pads, w.shape[2:], dilation, stride, strict=True)]  # fmt: skip
    made = np.zeros((x.shape[0], w.shape[0], *counts))
    outputs, channels = w.shape[0] // groups, w.shape[1]
    for window in np.ndindex(*counts):
        for place in np.ndindex(*w.shape[2:]):
            at = [i * s + k * d - p[0] for i, s, k, d, p in zip(window, stride, place, dilation, pads, strict=True)]
            whole = [divmod(a, s) for a, s in zip(at, spread, strict=True)]
            if any(r or not 0 <= q < n for (q, r), n in zip(whole, x.shape[2:], strict=True)):
                continue
            element = x[(slice(None), slice(None), *[q for q, _ in whole])].astype(np.float64)
            weight = w[(slice(None), slice(None), *place)].astype(np.float64)
            for group in range(groups):
                rows = slice(group * outputs, (group + 1) * outputs)
                own = element[:, group * channels : (group + 1) * channels]
                made[(slice(None), rows, *window)] += own @ weight[rows].T
    return made


def close(got: Array, expected: Array, dtype: Any) -> None:
    """Within some roundings of the largest value."""
    assert got.shape == expected.shape
    size = max(float(np.abs(expected).max()), 1e-30)
    error = np.abs(got.astype(np.float64) - expected).max() / size
    assert error <= (2 if dtype.is_half else 32) * ys.finfo(dtype).eps, f"off by {error} of the largest"


def product_of(tensor: ys.Tensor) -> FusedContraction:
    graph = graph_of(capture([tensor._node])[0])
    return contraction(graph, graph.outputs[0], graph.outputs[:1])


@pytest.mark.parametrize(("language", "dtype", "variant"), WAYS)
def test_convolutions(language: str, dtype: Any, variant: str, folder: Path) -> None:
    for name, (image, kernel, attrs) in CASES.items():
        x, w = normal(dtype, *image), normal(dtype, *kernel)
        try:
            got = computed(conv(ys.asarray(x), ys.asarray(w), **attrs), language, product_by(variant), folder)
            close(got, exact(x, w, **attrs), dtype)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize(("language", "dtype", "variant"), [
    ("cuda", ys.float32, "naive"), ("msl", ys.float32, "16"), ("cuda", ys.float16, "unit 32"),
    ("msl", ys.float32, "unit 32"),
])  # fmt: skip
def test_what_is_behind_a_convolution_is_in_its_kernel(language: str, dtype: Any, variant: str, folder: Path) -> None:
    for name in ("same", "groups", "one window", "whole packets", "1 x 1"):
        image, kernel, attrs = CASES[name]
        x, w = normal(dtype, *image), normal(dtype, *kernel)
        expected = exact(x, w, **attrs)
        b, c, r = normal(dtype, kernel[0], 1, 1), normal(dtype, kernel[0], 1, 1), normal(dtype, *expected.shape)
        made = conv(ys.asarray(x), ys.asarray(w), **attrs) * ys.asarray(c) + ys.asarray(b) + ys.asarray(r)
        B, C, R = (a.astype(np.float64) for a in (b, c, r))
        got = computed(ys.nn.relu(made), language, product_by(variant), folder)
        wanted = np.maximum(expected * C + B + R, 0)
        assert got.shape == wanted.shape
        largest = np.abs(expected * C).max() + np.abs(B).max() + np.abs(R).max()  # each op behind it rounds
        assert np.abs(got - wanted).max() <= (4 if dtype.is_half else 32) * ys.finfo(dtype).eps * largest, name


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes and attributes, of few elements; some of them hold no window."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    groups, channels, outputs = (draw(st.integers(1, 3)) for _ in range(3))
    image = (draw(st.integers(1, 3)), groups * channels, *each(1, 6 if rank < 3 else 4))
    kernel = (groups * outputs, channels, *each(1, 3))
    attrs = {"stride": each(1, 3), "dilation": each(1, 2), "spread": each(1, 3), "groups": groups,
             "padding": tuple(zip(each(-1, 3), each(-1, 3), strict=True))}  # fmt: skip
    return image, kernel, attrs


@pytest.mark.parametrize(("language", "dtype", "variant"), [
    ("msl", ys.float32, "naive"), ("cuda", ys.float32, "16"), ("cuda", ys.float16, "unit 32"),
])  # fmt: skip
def test_any_windows(language: str, dtype: Any, variant: str, folder: Path) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(convolutions())
    def check(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
        image, kernel, attrs = case
        x, w = normal(dtype, *image), normal(dtype, *kernel)
        try:
            tensor = conv(ys.asarray(x), ys.asarray(w), **attrs)
        except ShapeError:
            return
        close(computed(tensor, language, product_by(variant), folder), exact(x, w, **attrs), dtype)

    check()


def test_nothing_outside_of_the_input_is_read_and_nothing_inside_is_left_out(folder: Path) -> None:
    x, w = np.ones((1, 2, 4, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    got = computed(conv(ys.asarray(x), ys.asarray(w), padding=1), "cuda", product_by("16"), folder)
    down, across = np.minimum(2, [1, 2, 2, 1]) + 1, np.minimum(2, [1, 2, 2, 2, 1]) + 1
    np.testing.assert_array_equal(got, np.broadcast_to(2 * np.outer(down, across), got.shape))  # the places inside


def test_integers_wrap(folder: Path) -> None:
    x = RNG.integers(-100, 100, (2, 3, 6, 5)).astype(np.int8)
    w = RNG.integers(-100, 100, (4, 3, 3, 3)).astype(np.int8)
    for variant in ("naive", "16"):
        got = computed(conv(ys.asarray(x), ys.asarray(w), padding=1), "cuda", product_by(variant), folder)
        np.testing.assert_array_equal(got, exact(x, w, padding=1).astype(np.int64).astype(np.int8))


def test_windows_that_stay_inside_are_strides() -> None:
    x, w = (ys.asarray(np.ones(s, np.float32)) for s in ((2, 8, 6, 6), (4, 8, 1, 1)))
    plain = product_of(conv(x, w))
    assert isinstance(plain.right, Read)
    assert [len(runs) for runs in (plain.rows, plain.columns, plain.depth)] == [1, 2, 1]
    assert plain.extents == (4, 72, 8)
    assert isinstance(product_of(conv(x, w, stride=2)).right, Read)
    assert isinstance(product_of(conv(x, w, padding=1)).right, Windowed)


def test_weights_and_results_go_in_packets() -> None:
    x, w = (ys.asarray(np.ones(s, np.float32)) for s in ((1, 16, 12, 7), (16, 16, 3, 3)))
    product = product_of(conv(x, w, padding=1))
    assert len(product.left_runs.depth) == 1 < len(product.right_runs.depth)
    assert product.has_neighbours
    kernel, *_ = product_by("32")(graph_of(capture([conv(x, w, padding=1)._node])[0]), CUDA)
    assert "float_x4*)(a0 +" in kernel.source
    assert "float_x4*)(b0 +" in kernel.source
    assert "float_x4*)(a1 +" not in kernel.source


def test_one_program_for_every_size_of_a_kind() -> None:
    sources = set()
    for channels, length in ((3, 9), (5, 21)):
        x, w = (ys.asarray(np.ones(s, np.float32)) for s in ((2, channels, length, 7), (4, channels, 3, 3)))
        graph = graph_of(capture([conv(x, w, padding=1)._node])[0])
        sources.add(product_by("16")(graph, CUDA)[0].source)
    assert len(sources) == 1


def test_kernels_as_long_as_the_data_are_no_reason_for_another_program() -> None:
    sources = set()
    for length in (20, 30):
        x, w = (ys.asarray(np.ones(s, np.float32)) for s in ((3, 2, length, 7), (4, 2, length, 3)))
        graph = graph_of(capture([conv(x, w, padding=1)._node])[0])
        sources.add(product_by("16")(graph, CUDA)[0].source)
    assert len(sources) == 1


def test_complex_numbers_are_refused() -> None:
    x, w = (ys.asarray(np.ones(s, np.complex64)) for s in ((1, 2, 4, 4), (3, 2, 3, 3)))
    with pytest.raises(Unsupported, match="no product of complex64"):
        product_of(conv(x, w))


@pytest.mark.skipif(compiler() is None, reason="there is no NVRTC")
def test_the_compiler_of_gpus_takes_them() -> None:
    sources = []
    for dtype, variant in (
        (ys.float32, "naive"),
        (ys.float32, "64"),
        *[(dtype, name) for unit in CUDA.matrix_units for dtype in {**unit.names} for name in unit.tiles],
    ):
        for image, kernel, attrs in CASES.values():
            x, w = (ys.asarray(np.ones(s, dtype.numpy)) for s in (image, kernel))
            graph = graph_of(capture([conv(x, w, **attrs)._node])[0])
            sources.append(product_by(variant)(graph, CUDA)[0].source)
    translates(sources)
