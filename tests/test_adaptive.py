"""`precision="adaptive"`: the fastest precision within the tolerance, found on the real inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hostile
import yosegi as ys
from fakes import installed
from fakes.reduced import Reduced
from yosegi._tensor.precision import Precision
from yosegi.errors import ArgumentError, FallbackWarning

RNG = np.random.default_rng(7)
A, B = (RNG.standard_normal((96, 96), np.float32) for _ in range(2))
CANCELLING = np.concatenate([A, -A], axis=1), np.concatenate([B, B * (1 + 1e-6)], axis=0).astype(np.float32)


def product(device: Reduced, tol: float, a: Any = A, b: Any = B) -> Any:
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=tol):
        return (ys.asarray(a) @ ys.asarray(b)).numpy()


@pytest.mark.parametrize(
    ("tol", "precision"),
    [(1e-1, Precision.BF16), (1e-2, Precision.BF16), (1e-3, Precision.F16), (1e-4, Precision.BF16X2),
     (5e-6, Precision.BF16X3), (9e-7, Precision.FULL)],
)  # fmt: skip
def test_the_coarsest_precision_within_the_tolerance(tol: float, precision: Precision) -> None:
    device = Reduced(*hostile.ALL)
    got = product(device, tol)
    assert device.ran == [precision]
    assert hostile.true_error(got, A.astype(float) @ B.astype(float), by_norm=True) <= tol


@pytest.mark.parametrize("strategy", ["f32", "f16"])
def test_without_it_nobody_looks(strategy: str) -> None:
    device = Reduced(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision=strategy):
        (ys.asarray(CANCELLING[0]) @ ys.asarray(CANCELLING[1])).numpy()
    assert device.ran == [Precision.FULL if strategy == "f32" else Precision.BF16]


def test_a_miss_raises_the_precision_for_good_and_is_told() -> None:
    device = Reduced(Precision.BF16, Precision.BF16X2)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2, on_fallback="warn"):
        f = ys.jit(lambda a, b: a @ b)
        x, y = map(ys.asarray, CANCELLING)
        with pytest.warns(FallbackWarning, match=r"ToleranceMissed: bf16: an error of"):
            got = f(x, y).numpy()
        wide = [Precision.BF16, Precision.BF16X2, Precision.FULL, Precision.FULL]  # the last of them in float64
        assert device.ran == wide
        told = str(f.plans[0].explain())
        assert f"{name} in f64" in told
        assert "bf16: an error of" in told
        chosen, *others = f.plans[0].explain().to_json()["steps"][0]["candidates"]
        assert chosen["error"] < 1e-2 < min(c["error"] for c in others if c["error"] is not None)
        again = f(x, y).numpy()  # warnings are errors here
    assert device.ran == [*wide, Precision.FULL]
    truth = CANCELLING[0].astype(float) @ CANCELLING[1].astype(float)
    assert hostile.true_error(got, truth, by_norm=True) <= 1e-2
    np.testing.assert_array_equal(got, again)


def _scanned(a: Any, b: Any) -> Any:
    return ys.scan(lambda c, ab: (c, ab[0] @ ab[1]), ys.asarray(0.0), (a[None], b[None]))[1][0]


def _in_a_branch_of_a_loop(a: Any, b: Any) -> Any:
    def body(i: Any, c: Any) -> Any:
        return ys.cond(i >= 0, lambda a, b: a @ b, lambda a, b: c, a, b)

    return ys.fori_loop(0, 2, body, ys.zeros((a.shape[0], b.shape[1]), dtype=a.dtype))


def _terms(a: Any) -> Any:
    return ys.concat([a[:, :96] * 1024, a[:, :96], a[:, :96] * -1024], axis=1)


CONTROL = {
    "scan": _scanned,
    "cond in fori_loop": _in_a_branch_of_a_loop,
    "sum": lambda a, b: ys.cond(ys.asarray(True), lambda v: ys.sum(v, axis=1), lambda v: v[:, 0], _terms(a)),
    "mapped": lambda a, b: ys.vmap(_scanned)(a[None], b[None])[0],
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", CONTROL)
def test_products_and_sums_in_loops_and_branches_are_within_the_tolerance(name: str, jitted: bool) -> None:
    function = ys.jit(CONTROL[name]) if jitted else CONTROL[name]
    x, y = map(ys.asarray, CANCELLING)
    with ys.options(device="cpu", precision="adaptive", tol=1e-6):
        got = function(x, y).numpy()
    with ys.options(device="cpu"):
        truth = CONTROL[name](x.astype(ys.float64), y.astype(ys.float64)).numpy()
    assert got.dtype == np.float32
    assert hostile.true_error(got, truth, by_norm=True) <= 1e-6


def test_inputs_that_get_worse_are_found_out() -> None:
    device = Reduced(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        for inputs in ((A, B), CANCELLING):
            shape = [np.resize(i, (96, 192)[:: 1 if n == 0 else -1]) for n, i in enumerate(inputs)]
            got = (ys.asarray(shape[0]) @ ys.asarray(shape[1])).numpy()
            truth = shape[0].astype(float) @ shape[1].astype(float)
            assert hostile.true_error(got, truth, by_norm=True) <= 1e-2


def test_a_tolerance_that_nothing_meets_gets_the_best_there_is() -> None:
    device = Reduced(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-12):
        y = ys.asarray(A) @ ys.asarray(B)
        plan = ys.plan(y)
        got = y.numpy()
    np.testing.assert_array_equal(got, (A.astype(float) @ B.astype(float)).astype(np.float32))
    assert "f64: an error of" in str(plan.explain())


def test_loops_beside_products_run_as_always() -> None:
    device = Reduced(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        y = ys.exp(ys.tanh(ys.asarray(A) @ ys.asarray(B)) * 2)
        plan = ys.plan(y)
        y.numpy()
    assert [s.candidate.precision for s in plan.steps] == [Precision.BF16, Precision.FULL]


def test_products_inside_composites_are_looked_at_too() -> None:
    device = Reduced(Precision.BF16, natives=frozenset({"linear"}))
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        ys.nn.linear(ys.asarray(A), ys.asarray(B)).numpy()
        assert Precision.BF16 in device.ran
        left, right = CANCELLING
        got = ys.nn.linear(ys.asarray(left), ys.asarray(right.T.copy())).numpy()
    assert hostile.true_error(got, left.astype(float) @ right.astype(float), by_norm=True) <= 1e-2


def test_float64_is_not_looked_at() -> None:
    device = Reduced(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        got = (ys.asarray(A.astype(float)) @ ys.asarray(B.astype(float))).numpy()
    np.testing.assert_allclose(got, A.astype(float) @ B.astype(float), rtol=1e-12)
    assert device.ran == [Precision.FULL]


def test_options_are_a_decorator_too() -> None:
    device = Reduced(Precision.BF16)
    with installed(device) as name:

        @ys.options(device=name, precision="adaptive", tol=1e-2)
        def layer(a: Any, b: Any) -> Any:
            return (ys.asarray(a) @ ys.asarray(b)).numpy()

        layer(A, B)
    assert device.ran == [Precision.BF16]


@pytest.mark.parametrize("tol", [0, -1, float("inf"), float("nan"), "much"])
def test_tolerances_that_are_none(tol: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[options\] expected a positive number for tol"), ys.options(tol=tol):
        pass


@pytest.mark.parametrize("seed", [99, 492, *range(5_000, 5_150)])  # in 99 and 492, only sums of squares overflow
def test_a_hostile_program_is_within_its_tolerance(seed: int) -> None:
    hostile.check(seed)
