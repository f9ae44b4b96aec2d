"""Composites that OpenVINO takes whole, against their parts: NaN, infinities and long rows included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, needed, reason, reference, run
from yosegi.devices.openvino.ops import TABLE

pytestmark = needed
RNG = np.random.default_rng(12)
EPS = float(np.finfo(np.float32).eps)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def odd_rows(length: int) -> Any:
    """Rows with one value that breaks things, of nothing else, far from 0, and close together."""
    x = 3 * numbers(12, length)
    x[1, 1], x[2, 2], x[3, 0] = np.nan, np.inf, -np.inf
    x[4], x[5], x[6] = -np.inf, np.inf, np.nan
    x[7, :2] = 3e38, -3e38
    x[8], x[9, 0] = 1e-30, 200
    x[10] = x[10] * 1e-3 + 1
    return x


def check(made: ys.Tensor, *, atol: float) -> None:
    """Equal to the parts' result up to an error; what is no number, or infinite, in the same places."""
    (got,), (expected,) = run(made), reference(made)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, expected))
    np.testing.assert_allclose(got[finite], expected[finite], rtol=8 * EPS, atol=atol)


ROWS: dict[str, Callable[[ys.Tensor, int], ys.Tensor]] = {
    "softmax": lambda x, axis: ys.nn.softmax(x, axis=axis),
    "log_softmax": lambda x, axis: ys.nn.log_softmax(x, axis=axis),
    "layer_norm": lambda x, axis: ys.nn.layer_norm(x, axis=axis),
}


@pytest.mark.parametrize("length", [3, 16, 61, 400])
@pytest.mark.parametrize("name", list(ROWS))
def test_rows_and_columns_that_are_odd(name: str, length: int) -> None:
    x = odd_rows(length)
    if name == "layer_norm":
        x = x[[0, 1, 2, 3, 4, 5, 6, 11]]  # where numbers are close together, or far from 0, no two orders agree
    check(ROWS[name](ys.asarray(x), 1), atol=8 * EPS)
    check(ROWS[name](ys.asarray(np.ascontiguousarray(x.T)), 0), atol=8 * EPS)
    stacked = np.ascontiguousarray(np.stack([x, x[::-1]]).transpose(0, 2, 1))
    check(ROWS[name](ys.asarray(stacked), 1), atol=8 * EPS)


@pytest.mark.parametrize("offset", [0.0, 30.0, 1e4])
@pytest.mark.parametrize("length", [61, 1000, 16384])
def test_norms_are_as_exact_as_their_parts(length: int, offset: float) -> None:
    x = numbers(5, length) + np.float32(offset)
    centred = x.astype(np.float64) - x.astype(np.float64).mean(axis=1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    error = np.max(np.abs(run(ys.nn.layer_norm(ys.asarray(x)))[0] - exact))
    assert error < 4 * EPS * max(4, offset)  # a mean is known to so many digits of what it is the mean of


def test_norms_with_parameters() -> None:
    x, w, b = (ys.asarray(numbers(*shape)) for shape in ((2, 6, 5, 7), (5, 7), (5, 7)))
    check(ys.nn.layer_norm(x, w, b, axis=(2, 3)), atol=1e-6)
    check(ys.nn.layer_norm(x, ys.asarray(numbers(6, 7)), axis=(1, 3), eps=0.1), atol=1e-6)
    scale, shift = ys.asarray(numbers(6)), ys.asarray(numbers(6))
    for groups in (1, 2, 6):
        check(ys.nn.group_norm(x, groups, scale, shift), atol=1e-6)
    check(ys.nn.group_norm(x, 3, bias=shift), atol=1e-6)
    check(ys.nn.layer_norm(ys.asarray(np.full((2, 8), 5, np.float32)), eps=1e-5), atol=1e-6)


def test_too_long_to_be_added_up() -> None:
    long = ys.asarray(np.ones((2, 20000), np.float32))
    for made in (ys.nn.softmax(long), ys.nn.log_softmax(long), ys.nn.layer_norm(long), ys.nn.group_norm(long, 1)):
        assert reason(made) == "it would lose digits over 20000 elements"


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_everywhere(approximate: str) -> None:
    x = np.concatenate([np.linspace(-12, 12, 10_001), np.geomspace(1e-30, 3e38, 501), [np.inf, -np.inf, np.nan, -0.0]])
    x = x.astype(np.float32)
    made = ys.nn.gelu(ys.asarray(x), approximate=approximate)
    (got,), (expected,) = run(made), reference(made)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, expected))
    assert np.all(np.abs(got[finite] - expected[finite]) <= 4 * EPS * np.abs(x[finite]))


@pytest.mark.parametrize("slope", [0.01, -0.5, 2.0])
def test_leaky_relu(slope: float) -> None:
    x = np.array([np.nan, 0, -0.0, 1, -1, np.inf, -np.inf, 3e38, -1e-3], np.float32)
    check(ys.nn.leaky_relu(ys.asarray(x), slope), atol=0)
    assert reason(ys.nn.leaky_relu(ys.asarray(x), 0.0)) == "with a slope of 0 it loses NaN"


# Attention


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_attention(leading: tuple[int, ...]) -> None:
    q, k, v = (ys.asarray(numbers(*leading, *shape)) for shape in ((20, 16), (24, 16), (24, 8)))
    for more in ({}, {"is_causal": True}, {"scale": 0.3}, {"mask": ys.asarray(numbers(20, 24))}):
        check(ys.nn.scaled_dot_product_attention(q, k, v, **more), atol=2e-6)


def test_attention_masks() -> None:
    q, k, v = (ys.asarray(numbers(2, 3, *shape)) for shape in ((20, 16), (24, 16), (24, 8)))
    allowed = RNG.random((2, 1, 20, 24)) < 0.5
    allowed[:, :, 3] = False  # a row that may look nowhere
    check(ys.nn.scaled_dot_product_attention(q, k, v, ys.asarray(allowed)), atol=2e-6)
    hidden = np.where(allowed, 0, -np.inf).astype(np.float32)
    check(ys.nn.scaled_dot_product_attention(q, k, v, ys.asarray(hidden)), atol=2e-6)
    wider = ys.asarray(RNG.random((4, 2, 3, 20, 24)) < 0.7)
    check(ys.nn.scaled_dot_product_attention(q, k, v, wider), atol=2e-6)


def test_attention_to_what_is_no_number() -> None:
    q, k, v = numbers(2, 20, 16), numbers(2, 24, 16), numbers(2, 24, 8)
    q[0, 3, 4], k[1, 5, 0], v[0, 7, 2], q[1, 9, 1] = np.nan, np.inf, np.nan, -np.inf
    tensors = [ys.asarray(a) for a in (q, k, v)]
    check(ys.nn.scaled_dot_product_attention(*tensors), atol=2e-6)
    check(ys.nn.scaled_dot_product_attention(*tensors, is_causal=True), atol=2e-6)


# In the plan


def test_it_gets_them_whole() -> None:
    x = ys.asarray(numbers(2, 4, 8, 8))
    made = {
        "softmax": ys.nn.softmax(x), "log_softmax": ys.nn.log_softmax(x), "layer_norm": ys.nn.layer_norm(x),
        "group_norm": ys.nn.group_norm(x, 2), "gelu": ys.nn.gelu(x), "leaky_relu": ys.nn.leaky_relu(x),
        "avg_pool": ys.nn.avg_pool2d(x, 2), "scaled_dot_product_attention": ys.nn.scaled_dot_product_attention(x, x, x),
    }  # fmt: skip
    assert set(made) == set(TABLE.natives) == set(DEVICE.limits.natives)
    for name, tensor in made.items():
        with ys.options(device=DEVICE.name, on_fallback="error"):
            (step,) = ys.explain(tensor).to_json()["steps"]
        assert (step["device"], step["ops"]) == (DEVICE.name, [name])


@pytest.mark.parametrize("name", ["silu", "softplus", "elu", "rms_norm", "batch_norm", "linear_residual_relu"])
def test_others_come_in_parts_and_stay_together(name: str) -> None:
    x, w, one = ys.asarray(numbers(8, 16)), ys.asarray(numbers(16, 16)), ys.asarray(np.ones(16, np.float32))
    more = {"batch_norm": (one, one), "linear_residual_relu": (w, x)}.get(name, ())
    function = getattr(ys.nn, name)
    with ys.options(device=DEVICE.name, on_fallback="error"):
        made = function(x, *more)
        (step,) = ys.plan(made).steps
        assert step.device.name == DEVICE.name
        got = made.numpy()
    with ys.options(device="cpu"):
        np.testing.assert_allclose(got, function(x, *more).numpy(), rtol=1e-5, atol=1e-5)
