"""The precision contract: how errors are found, and what happens to kernels that make too large ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes.reduced import Reduced
from native_code import region_of
from yosegi.contract import Guarded, relative_error
from yosegi.device import Kernel, host_device
from yosegi.errors import ToleranceMissed
from yosegi.fuse import Region
from yosegi.op import REGISTRY
from yosegi.precision import Precision
from yosegi.rows import rows_of
from yosegi.wide import wide_outputs, widened

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def wide_kernel(region: Region) -> Kernel:
    """The region in float64, rounded in the end."""
    return host_device().compile(widened(region))


X, W, B, R = normal(200, 32), normal(32, 48), normal(48), normal(200, 48)
PROGRAMS = {
    "linear": (lambda x, w, b, r: ys.maximum(x @ w + b + r, 0.0), [X, W, B, R]),
    "row sums": (lambda x, w: ys.sum(x @ w, axis=1), [X, W]),
    "by row means": (lambda x, w: (x @ w) / ys.mean(ys.abs(x @ w), axis=-1, keepdims=True), [X, W]),
    "turned": (lambda x, w: (w.T @ x.T) * 2.0, [X, W]),
    "stacks": (lambda x, w: x @ w, [normal(80, 5, 6), normal(80, 6, 7)]),
    "stack by matrix": (lambda x, w: x @ w, [normal(80, 5, 6), normal(6, 7)]),
    "convolution": (lambda x, w: REGISTRY["conv"](x, w), [normal(80, 3, 9), normal(4, 3, 3)]),
}
UNCUT = {
    "a total": (lambda x: ys.sum(x), [X]),
    "reshaped": (lambda x, w: ys.reshape(x @ w, (100, 96)), [X, W]),
    "wanted whole and in rows": (lambda x: x @ x.T, [normal(70, 70)]),
    "with itself": (lambda x: ys.cumulative_sum(x, axis=0), [X]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_the_inputs_give_rows_of_the_outputs(name: str) -> None:
    program, given = PROGRAMS[name]
    region, arrays = region_of(program(*map(ys.asarray, given)))
    rows = rows_of(region)
    assert rows
    picked = np.array([3, 5, 47])
    cut = [np.take(a, picked, axis=rows[e]) if e in rows else a for e, a in zip(region.inputs, arrays, strict=True)]
    whole, part = wide_outputs(region, arrays)[0], wide_outputs(region, cut)[0]
    assert whole.dtype == np.float64
    np.testing.assert_allclose(part, whole[picked], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(whole, program(*map(ys.asarray, given)).numpy(), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", UNCUT)
def test_what_cannot_be_cut_is_looked_at_whole(name: str) -> None:
    program, given = UNCUT[name]
    region, arrays = region_of(program(*map(ys.asarray, given)))
    assert rows_of(region) is None
    np.testing.assert_allclose(
        wide_kernel(region)(*arrays)[0], program(*map(ys.asarray, given)).numpy(), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("got", "wanted", "by_norm", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], True, 0.0),
        ([3.0, 4.5], [3.0, 4.0], True, 0.1),
        ([3.0, 4.5], [3.0, 4.0], False, 0.125),
        ([np.inf, np.nan, 1.0], [np.inf, np.nan, 1.0], True, 0.0),
        ([np.inf, 1.0], [-np.inf, 1.0], True, np.inf),
        ([np.nan, 1.0], [2.0, 1.0], True, np.inf),
        ([1.0, 1.0], [np.nan, 1.0], False, np.inf),
        ([np.inf, 1.0], [1e39, 1.0], True, 0.0),
        ([1e-3, 0.0], [0.0, 0.0], False, np.inf),
        ([], [], True, 0.0),
    ],
)
def test_errors_are_those_of_the_whole(got: Any, wanted: Any, by_norm: bool, error: float) -> None:
    found = relative_error(np.array(got, np.float32), np.array(wanted, np.float64), by_norm=by_norm)
    assert found == pytest.approx(error, rel=1e-6)


def _kernels(off: float) -> tuple[Kernel, Any, list[Any]]:
    region, arrays = region_of(PROGRAMS["linear"][0](*map(ys.asarray, PROGRAMS["linear"][1])))
    right = wide_kernel(region)
    return lambda *a: tuple(m * np.float32(1 + off) for m in right(*a)), region, arrays


def test_a_kernel_that_is_good_enough_is_let_through() -> None:
    kernel, region, arrays = _kernels(1e-4)
    guarded = Guarded(kernel, region, lambda a: a, 1e-3)
    for _ in range(70):
        guarded(*arrays)
    assert guarded.error == pytest.approx(1e-4, rel=0.05)


def test_one_that_is_not_raises() -> None:
    kernel, region, arrays = _kernels(1e-4)
    with pytest.raises(ToleranceMissed, match=r"an error of 1.0e-04 of its rows, for a tolerance of 5.0e-05"):
        Guarded(kernel, region, lambda a: a, 5e-5)(*arrays)


def test_one_that_gets_worse_is_found_out() -> None:
    _, region, arrays = _kernels(0)
    right, off = wide_kernel(region), [0.0]
    guarded = Guarded(lambda *a: tuple(m * np.float32(1 + off[0]) for m in right(*a)), region, lambda a: a, 1e-3)
    for _ in range(100):
        guarded(*arrays)
    off[0] = 0.01

    def more() -> None:
        for _ in range(64):
            guarded(*arrays)

    with pytest.raises(ToleranceMissed):
        more()


def test_a_single_bad_row_of_large_values_is_among_those_looked_at() -> None:
    a, b = normal(3000, 64), normal(64, 64)
    a[1234] *= 1e6
    region, arrays = region_of(ys.asarray(a) @ ys.asarray(b))

    def kernel(x: Any, y: Any) -> tuple[Any, ...]:
        made = x @ y
        made[1234] *= 1.01
        return (made,)

    with pytest.raises(ToleranceMissed):
        Guarded(kernel, region, lambda a: a, 1e-3)(*arrays)


@pytest.mark.parametrize(
    ("precision", "most"),
    [(Precision.BF16, 6e-3), (Precision.F16, 1e-3), (Precision.TF32, 1e-3), (Precision.BF16X2, 2e-5),
     (Precision.BF16X3, 1e-6)],
)  # fmt: skip
def test_the_fake_device_rounds_as_its_precisions_say(precision: Precision, most: float) -> None:
    region, arrays = region_of(ys.asarray(normal(64, 64)) @ ys.asarray(normal(64, 64)))
    device = Reduced(precision)
    (made,) = device.compile(replace(region, precision=precision))(*map(device.from_host, arrays))
    error = relative_error(made.array, wide_outputs(region, arrays)[0], by_norm=True)
    assert most / 20 < error < most
