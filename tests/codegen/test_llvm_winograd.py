"""Convolutions in Winograd's way, against sums over windows in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from native_code import NATIVES, RESULTS, needs_llvm, region_of
from values import Array
from yosegi._tune.records import TuningRecords
from yosegi.codegen.llvm.minimal_filters import FILTERS
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.convolutions import Convolutions
from yosegi.devices.cpu.winograd_calls import can_be_squared
from yosegi.errors import ShapeError
from yosegi.ops.windows import Pads, Windows, convolved

pytestmark = needs_llvm

SIZES = (1, 2, 3, 5, 7, 57)
CHANNELS = (1, 3, 17, 65)
SIDES = tuple(FILTERS)
ROUNDINGS = {2: 16, 4: 100}
"""That a result may have for each channel. Those of 4 × 4 windows have most with few channels, where none are used."""
EACH_SIDE = pytest.mark.parametrize("side", SIDES)
PADDINGS: tuple[Pads, ...] = (
    ((0, 0), (0, 0)), ((1, 1), (1, 1)), ((2, 2), (2, 2)), ((0, 2), (1, 0)), ((3, 0), (0, 4)), ((-1, 2), (1, -1)),
)  # fmt: skip


def dense(padding: Pads = ((1, 1), (1, 1))) -> Windows:
    """Windows of 3 × 3 at every place."""
    return Windows((3, 3), (1, 1), padding, (1, 1), (1, 1))


@cache
def convolutions(threads: int, model: str = "") -> Convolutions:
    host = HostMachine.host()
    machine = HostMachine(host.triple, model, "", host.version) if model else host
    return Convolutions(Runtime(Compiler(machine), threads), RESULTS)


def normal(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wide(x: Array, w: Array, windows: Windows) -> Array:
    """In float64."""
    return convolved(x.astype(np.float64), w.astype(np.float64), windows, 1)


def check(x: Array, w: Array, windows: Windows, owner: Convolutions, *, kept: bool) -> None:
    """Within a few roundings of a sum of so many numbers of a normal distribution, in squares of any size."""
    expected = wide(x, w, windows)
    for side in SIDES:
        got = owner.squared(x, w, windows, kept=kept, side=side)(x, w)
        assert (got.shape, got.dtype) == (expected.shape, x.dtype)
        tolerance = ROUNDINGS[side] * float(np.finfo(x.dtype).eps) * (1 + x.shape[1])
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_sizes(padding: Pads) -> None:
    owner = convolutions(2)
    for n, (high, across) in enumerate(product(SIZES, SIZES)):
        channels, outputs = CHANNELS[n % 4], CHANNELS[n // 4 % 4]
        x, w = normal((1 + n % 3, channels, high, across)), normal((outputs, channels, 3, 3), seed=1)
        try:
            dense(padding).counts(x.shape[2:])
        except ShapeError:
            continue
        check(x, w, dense(padding), owner, kept=n % 2 == 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("channels", "outputs"), list(product(CHANNELS, CHANNELS)))
def test_channels(channels: int, outputs: int, kept: bool, dtype: Any) -> None:
    x, w = normal((2, channels, 9, 40), dtype), normal((outputs, channels, 3, 3), dtype, 1)
    check(x, w, dense(), convolutions(2), kept=kept)


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.integers(1, 80)), st.integers(1, 20),
    st.tuples(*[st.tuples(st.integers(-2, 4), st.integers(-2, 4))] * 2), st.booleans(), st.booleans(),
)  # fmt: skip
def test_any_windows(shape: Any, outputs: int, padding: Pads, backwards: bool, kept: bool) -> None:
    try:
        dense(padding).counts(shape[2:])
    except ShapeError:
        return
    x, w = normal(shape), normal((outputs, shape[1], 3, 3), seed=1)
    if backwards:  # all but the last dimension
        x = np.flip(np.flip(x, (0, 1, 2)).copy(), (0, 1, 2))
    check(x, w, dense(padding), convolutions(2), kept=kept)


@pytest.mark.parametrize("kept", [True, False])
def test_weights_in_any_order(kept: bool) -> None:
    """Those of a gradient by the input are a view: channels and outputs exchanged, places reversed."""
    x, stored = normal((2, 17, 9, 40)), normal((17, 30, 3, 3), seed=1)
    for w in (np.flip(stored.swapaxes(0, 1), (2, 3)), stored.T.copy().T.swapaxes(0, 1), stored[:, ::-2].swapaxes(0, 1)):
        check(x, w, dense(), convolutions(2), kept=kept)
    owner, w = convolutions(2), np.flip(stored.swapaxes(0, 1), (2, 3))
    squared, x[1, 1, 1, 1] = owner.squared(x, w, dense(), kept=kept), np.inf
    np.testing.assert_array_equal(squared(x, w), owner.bound(x, w.copy(), dense(), 1)(x, w.copy()))


@EACH_SIDE
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "length"), [(3, 20, 24, 56), (1, 200, 190, 7)], ids=["blocks", "parts of panels"]
)
def test_threads(batch: int, channels: int, outputs: int, length: int, threads: int, side: int) -> None:
    x, w = normal((batch, channels, length, length)), normal((outputs, channels, 3, 3), seed=1)
    check(x, w, dense(), convolutions(threads), kept=True)
    first = convolutions(1).squared(x, w, dense(), kept=True, side=side)(x, w)
    np.testing.assert_array_equal(convolutions(threads).squared(x, w, dense(), kept=False, side=side)(x, w), first)


def test_several_callers_at_once() -> None:
    x, w = normal((3, 20, 56, 56)), normal((24, 20, 3, 3), seed=1)
    squared = convolutions(2).squared(x, w, dense(), kept=False)
    expected = squared(x, w)
    with ThreadPoolExecutor(6) as pool:
        for got in pool.map(lambda _: squared(x, w), range(60)):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.skipif(
    not HostMachine.host().triple.startswith("x86_64"), reason="names a processor of another architecture"
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", ["x86-64-v3", "x86-64"])
def test_lesser_processors(model: str, dtype: Any) -> None:
    for n, (channels, outputs) in enumerate(product(CHANNELS, CHANNELS)):
        x, w = normal((2, channels, 5 + n, 21 - n), dtype), normal((outputs, channels, 3, 3), dtype, 1)
        check(x, w, dense(PADDINGS[n % len(PADDINGS)]), convolutions(2, model), kept=n % 2 == 0)


@pytest.mark.parametrize("channels", [32, 64, 256])
def test_the_error_beside_that_of_plain_sums(channels: int) -> None:
    """Squares of 2 × 2 have less, those of 4 × 4 about twice as much."""
    x, w = normal((1, channels, 28, 28)), normal((64, channels, 3, 3), seed=1)
    owner, expected = convolutions(2), wide(x, w, dense())
    plain, *squared = (
        float(np.sqrt(np.mean((way(x, w) - expected) ** 2)))
        for way in (owner.bound(x, w, dense(), 1), *[owner.squared(x, w, dense(), kept=True, side=s) for s in SIDES])
    )
    assert SIDES == (2, 4)
    assert squared[0] < plain < 1e-6 * float(np.std(expected))
    assert squared[1] < 2.3 * plain


# What is not finite


@EACH_SIDE
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (10, 10), (10, 11), (11, 10), (20, 20)])
def test_what_is_no_number_stays_where_it_is(place: tuple[int, int], value: float, side: int) -> None:
    owner, x, w = convolutions(2), normal((2, 3, 21, 21)), normal((8, 3, 3, 3), seed=1)
    squared = owner.squared(x, w, dense(), kept=True, side=side)
    x[1, 1, *place] = value
    np.testing.assert_array_equal(squared(x, w), owner.bound(x, w, dense(), 1)(x, w))
    x[1, 1, *place] = 1
    assert np.isfinite(squared(x, w)).all()  # nothing is left of the call before


@EACH_SIDE
def test_weights_that_are_not_finite(side: int) -> None:
    owner, x, w = convolutions(2), normal((2, 3, 21, 21)), normal((8, 3, 3, 3), seed=1)
    w[5, 2, 1, 1] = np.inf
    expected = owner.bound(x, w, dense(), 1)(x, w)
    for kept in (True, False):
        np.testing.assert_array_equal(owner.squared(x, w, dense(), kept=kept, side=side)(x, w), expected)


@EACH_SIDE
def test_numbers_near_the_largest(side: int) -> None:
    """Differences of them overflow, where their sums over windows would not."""
    owner, x, w = convolutions(2), np.zeros((1, 3, 21, 21), np.float32), np.full((8, 3, 3, 3), 0.25, np.float32)
    x[0, 1, 4, 4], x[0, 1, 4, 6] = 3e38, -3e38
    got = owner.squared(x, w, dense(), kept=True, side=side)(x, w)
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, owner.bound(x, w, dense(), 1)(x, w))
    np.testing.assert_allclose(got, wide(x, w, dense()), rtol=1e-6)


@EACH_SIDE
def test_an_infinity_that_no_window_sees_is_not_looked_at(side: int) -> None:
    owner, x, w = convolutions(2), normal((1, 3, 20, 20)), normal((8, 3, 3, 3), seed=1)
    windows = dense(((0, -1), (0, -1)))  # an odd number of windows: the last squares are not all there
    squared = owner.squared(x, w, windows, kept=True, side=side)
    squared._direct = _must_not_run
    expected = wide(x, w, windows)
    for unseen in (np.inf, 1e30):
        x[0, 1, 19, 19] = x[0, 2, 19, 3] = x[0, 0, 2, 19] = unseen
        np.testing.assert_allclose(squared(x, w), expected, atol=1e-4)


def _must_not_run(x: Array, w: Array) -> Array:
    raise AssertionError("everything was finite")


# Who is asked


def test_what_it_is_asked_for() -> None:
    x = normal((1, 4, 9, 9))
    assert can_be_squared(x, dense(), 1)
    assert not can_be_squared(x, dense(), 2)
    assert not can_be_squared(np.moveaxis(x, 1, -1), dense(), 1)
    assert not can_be_squared(x, Windows((3, 3), (2, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)), 1)
    assert not can_be_squared(x, Windows((3, 3), (1, 1), ((0, 0), (0, 0)), (2, 2), (1, 1)), 1)
    assert not can_be_squared(x, Windows((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), (2, 2)), 1)
    assert not can_be_squared(x, Windows((3, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)), 1)
    assert not can_be_squared(x[0], Windows((3,), (1,), ((0, 0),), (1,), (1,)), 1)


def test_it_is_among_those_that_are_chosen_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    owner = NATIVES._convolutions
    monkeypatch.setattr(owner, "records", TuningRecords("a test"))
    x, w = normal((1, 32, 40, 40)), normal((32, 32, 3, 3), seed=1)
    region, _ = region_of(ys.nn.conv2d(ys.asarray(x), ys.asarray(w), padding=1))
    body = owner.body(region.graph, region.nodes[0])
    assert body is not None
    np.testing.assert_allclose(body(x, w), wide(x, w, dense()), atol=1e-4)
    (verdict,) = owner.records._known.values()
    assert {"generated", "winograd"} <= set(verdict.seconds)
    channels_last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    np.testing.assert_allclose(body(channels_last, w), wide(x, w, dense()), atol=1e-4)
    first, second = owner.records._known.values()
    assert first is verdict, "what has fewer ways is another kind"
    assert "winograd" not in second.seconds


def test_constant_weights_are_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    owner = Convolutions.squared

    def squared(self: Convolutions, *arrays: Any, kept: bool, side: int = 2) -> Any:
        asked.append((kept, side))
        return owner(self, *arrays, kept=kept, side=side)

    monkeypatch.setattr(Convolutions, "squared", squared)
    x, w = normal((1, 32, 41, 40)), normal((32, 32, 3, 3), seed=1)
    constant = ys.asarray(w)
    for function, arguments in (
        (lambda x: ys.nn.conv2d(x, constant, padding=1), (x,)),
        (lambda x, w: ys.nn.conv2d(x, w, padding=1), (x, w)),
    ):
        with ys.options(device="cpu"):
            got = ys.jit(function)(*map(ys.asarray, arguments)).numpy()
        np.testing.assert_allclose(got, wide(x, w, dense()), atol=1e-4)
    assert asked == [(True, 2), (True, 4), (False, 2)]
