"""Generated convolutions, against sums over windows in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from native_code import NATIVES, needs_llvm, region_of
from yosegi._run.trace import trace
from yosegi._tensor.op import REGISTRY
from yosegi._tune.records import TuningRecords
from yosegi.errors import ShapeError
from yosegi.ops.windows import Windows, convolved

pytestmark = needs_llvm


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Windows, int]:
    """The shapes of an input and a kernel, how windows move, and groups."""
    rank = draw(st.integers(1, 3))
    numbers = [draw(st.tuples(*[st.integers(1, 3)] * rank)) for _ in range(4)]
    padding = draw(st.tuples(*[st.tuples(st.integers(-1, 3), st.integers(-1, 3))] * rank))
    kernel = draw(st.tuples(*[st.integers(1, 5)] * rank))
    lengths = draw(st.tuples(*[st.integers(1, 40 if rank == 1 else 12)] * rank))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    outputs = groups * draw(st.sampled_from([1, 2, 3, 5, 8, 11]))
    channels = draw(st.integers(1, 4))
    x = (draw(st.integers(1, 3)), groups * channels, *lengths)
    return x, (outputs, channels, *kernel), Windows(kernel, numbers[0], padding, numbers[1], numbers[2]), groups


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda a: a,
    "channels last": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    "backwards": lambda a: np.flip(np.flip(a).copy()),
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
}


@given(convolutions(), st.sampled_from(["float32", "float64"]), st.sampled_from(list(LAYOUTS)), st.integers(0, 99))
def test_any_windows(case: Any, dtype: str, layout: str, seed: int) -> None:
    x_shape, w_shape, windows, groups = case
    try:
        windows.counts(x_shape[2:])
    except ShapeError:
        return
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape))
    x = LAYOUTS[layout](x)
    expected = convolved(x.astype(np.float64), w.astype(np.float64), windows, groups)
    got = NATIVES._convolutions.bound(x, w, windows, groups)(x, w)
    assert (got.shape, got.dtype) == (expected.shape, x.dtype)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13 * w[0].size)


def test_nothing_of_what_was_in_the_memory_before_shows() -> None:
    windows = Windows((3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    x, w = np.ones((2, 3, 9, 9), np.float32), np.ones((5, 3, 3, 3), np.float32)
    convolution = NATIVES._convolutions
    bound = convolution.bound(x, w, windows, 1)
    first = bound(x, w)
    for block in convolution.spare._blocks.values():
        block[:] = 0xFF
    np.testing.assert_array_equal(bound(x, w), first)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_where_it_is(value: float) -> None:
    windows = Windows((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    x, w = np.zeros((1, 2, 20, 20), np.float32), np.ones((8, 2, 3, 3), np.float32)
    x[0, 1, 10, 10] = value
    expected = convolved(x, w, windows, 1)
    np.testing.assert_array_equal(NATIVES._convolutions.bound(x, w, windows, 1)(x, w), expected)


def _layer(x: Any, w: Any) -> Any:
    return ys.nn.relu(ys.nn.conv2d(x, w, padding=1))


def test_a_jitted_layer_and_its_gradients() -> None:
    rng = np.random.default_rng(0)
    x, w = (ys.asarray(rng.standard_normal(s, np.float32)) for s in ((2, 8, 28, 28), (16, 8, 3, 3)))
    with ys.options(device="cpu"):
        made = ys.jit(_layer)(x, w)
        wide = convolved(x.numpy().astype(np.float64), w.numpy().astype(np.float64),
                         Windows((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)), 1)  # fmt: skip
        np.testing.assert_allclose(made.numpy(), np.maximum(wide, 0), atol=2e-5)
        loss = ys.grad(lambda x, w: ys.sum(_layer(x, w) ** 2), argnums=(0, 1))
        for got, expected in zip(ys.jit(loss)(x, w), loss(x, w), strict=True):
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-2)


def test_code_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    convolution = NATIVES._convolutions
    monkeypatch.setattr(convolution, "records", TuningRecords("a test"))
    for way in ("bound", "squared"):
        monkeypatch.setattr(convolution, way, lambda *a, **b: lambda x, w: np.zeros((1, 16, 28, 28), np.float32))
    x, w = (np.ones(s, np.float32) for s in ((1, 8, 30, 30), (16, 8, 3, 3)))
    region, _ = region_of(REGISTRY["conv"](ys.asarray(x), ys.asarray(w)))
    body = convolution.body(region.graph, region.nodes[0])
    assert body is not None
    np.testing.assert_array_equal(body(x, w), np.full((1, 16, 28, 28), 72, np.float32))
    for record, way in zip(list(trace.records)[-2:], ("generated", "winograd"), strict=True):
        assert record.failures[0].message.startswith(f"{way}: 12544 elements of result 0 were wrong")
