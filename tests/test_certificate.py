"""The precision contract: every product under a tolerance is certified on every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import exp, gamma, sqrt
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import yosegi as ys
from certificates import HOSTILE, pair
from fakes import installed
from fakes.reduced import Reduced
from hostile import ALL
from native_code import region_of
from yosegi._graph.float64 import float64_outputs, widened
from yosegi._run.device import Kernel, host_device
from yosegi._run.trace import trace
from yosegi._schedule.fuse import Region
from yosegi._tensor.op import REGISTRY
from yosegi._tensor.options import policy_of
from yosegi._tensor.precision import Precision
from yosegi._tune.certificate import (
    Certified,
    error_bound,
    fused_vectors,
    is_delicate_sum,
    precisions_for,
    projector_for,
    random_matrix,
    random_vectors,
    relative_error,
)
from yosegi._tune.projection import VECTORS, Projected, operations, projection_of, projects, width_of
from yosegi.errors import LaunchFailure, PlanRefused, ToleranceMissed

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def product(a: Any, b: Any) -> Region:
    return region_of(ys.asarray(a) @ ys.asarray(b))[0]


# Projections

PRODUCTS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "matrices": (lambda x, w: x @ w, [normal(90, 70), normal(70, 50)]),
    "left transposed": (lambda x, w: x @ w, [normal(70, 90).T, normal(70, 50)]),
    "right transposed": (lambda x, w: x @ w, [normal(90, 70), normal(50, 70).T]),
    "both transposed": (lambda x, w: x @ w, [normal(70, 300).T, normal(50, 70).T]),
    "strided": (lambda x, w: x @ w, [normal(90, 140)[:, ::2], normal(140, 100)[::2, ::2]]),
    "stack by matrix": (lambda x, w: x @ w, [normal(8, 9, 70), normal(70, 50)]),
    "stacks": (lambda x, w: x @ w, [normal(3, 90, 70), normal(3, 70, 50)]),
    "a convolution": (
        lambda x, w: REGISTRY["conv"](x, w, stride=(2, 1), padding=((1, 1), (0, 2))),
        [normal(4, 32, 17, 13), normal(48, 32, 3, 3)],
    ),
    "einsum": (lambda x, w: ys.einsum("ijk,klj->il", x, w), [normal(60, 9, 8), normal(8, 50, 9)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_projection_of_a_product_is_the_projection_of_its_operands(name: str) -> None:
    program, given = PRODUCTS[name]
    region = region_of(program(*map(ys.asarray, given)))[0]
    (call,) = region.calls
    right = float64_outputs(region, given)[0].astype(np.float32)
    width = width_of(call)
    assert width is not None
    drawn = random_matrix(width, VECTORS, is_fixed=True)
    check = projection_of(call, VECTORS)
    off = normal(*right.shape) * np.float32(0.01)
    for kernel in (host_device().compile(check), lambda *a: float64_outputs(check, a)):
        (sums,) = kernel(*given, right, drawn)
        assert error_bound(np.asarray(sums), 1e-3) < 1e-4
        (sums,) = kernel(*given, right + off, drawn)
        true = relative_error(right + off, right.astype(np.float64))
        assert true < error_bound(np.asarray(sums), 1e-3) < 10 * true


@pytest.mark.parametrize(
    "make",
    [
        lambda: normal(5, 100) @ normal(100, 3),
        lambda: ys.asarray(normal(100, 100)) @ ys.asarray(normal(100)),
        lambda: REGISTRY["conv"](ys.asarray(normal(2, 64, 9, 9)), ys.asarray(normal(64, 1, 3, 3)), groups=64),
        lambda: ys.einsum("ij,ij->i", ys.asarray(normal(50, 50)), ys.asarray(normal(50, 50))),
        lambda: ys.einsum("ij,jk,kl->il", *[ys.asarray(normal(50, 50))] * 3),
    ],
)
def test_products_without_a_cheap_projection_stay_in_full_precision(make: Callable[[], Any]) -> None:
    made = make()
    region = region_of(
        made if isinstance(made, ys.Tensor) else ys.asarray(normal(5, 100)) @ ys.asarray(normal(100, 3))
    )[0]
    assert not projects(region.calls[0])
    assert precisions_for(region, policy_of("adaptive", 1e-2)) == (Precision.FULL, Precision.F64)


def test_operations_are_counted() -> None:
    assert operations(region_of(ys.asarray(normal(3, 4)) @ ys.asarray(normal(4, 5)))[0].calls[0]) == 60
    assert (
        operations(region_of(ys.einsum("ij,jk->k", ys.asarray(normal(3, 4)), ys.asarray(normal(4, 5))))[0].calls[0])
        == 60
    )


# Probabilities


def _chi_squared(x: float, degrees: int) -> float:
    """The probability that a chi-squared variable of some degrees of freedom is below x, by a series."""
    half = degrees / 2
    return exp(-x / 2) * sum((x / 2) ** (half + i) / gamma(half + i + 1) for i in range(50))


def _sums(gram: Any, squares: float = 1.0) -> Any:
    return np.append(gram.ravel(), squares)


FIRST, FURTHER = 8e-7, 1e-7
"""Probabilities of accepting an error beyond the tolerance: of a run's first estimate, and of each of two more."""


def test_an_error_beyond_the_tolerance_is_accepted_with_a_probability_of_one_in_a_million() -> None:
    assert FIRST + 2 * FURTHER <= 1e-6
    first, further = {4: 912.0, 5: 211.6, 6: 78.8, 7: 38.42, 8: 22.17}, {8: 37.75, 16: 3.622}
    for vectors, counts, most in [(*f, FIRST) for f in first.items()] + [(*f, FURTHER) for f in further.items()]:
        # Even noise of share e beside an error of rank one, of which the vectors see q: for one that is just accepted,
        # the mean eigenvalue is m = q / vectors + e and their standard deviation q √(vectors - 1) / vectors.
        for e in np.linspace(0, 0.999, 50):
            q = (1 - e) * vectors / (1 + counts * sqrt(vectors - 1))
            gram = np.diag([q + e, *[e] * (vectors - 1)])
            assert error_bound(_sums(gram), 0.0, is_first=most == FIRST) == pytest.approx(1.0)
            assert 0.98 * most < _chi_squared(q / (1 - e), vectors) < most


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_errors_of_low_rank_are_bounded(rank: int) -> None:
    error = RNG.standard_normal((100, rank)) @ RNG.standard_normal((rank, 80))
    for _ in range(300):
        seen = error @ RNG.standard_normal((80, VECTORS))
        assert error_bound(_sums(seen.T @ seen), 0.0) > np.linalg.norm(error)


def test_even_errors_are_bounded_closely() -> None:
    error = RNG.standard_normal((512, 512))
    for _ in range(50):
        for vectors, most in ((4, 18.0), (6, 5.2), (8, 3.0)):
            seen = error @ random_vectors(RNG, 512, vectors)
            assert np.linalg.norm(error) < error_bound(_sums(seen.T @ seen), 0.0) < most * np.linalg.norm(error)


@pytest.mark.parametrize("squares", [np.nan, np.inf, 0.0, 1e-38])
def test_nothing_is_concluded_from_sums_that_left_the_range(squares: float) -> None:
    assert error_bound(_sums(np.eye(VECTORS) * 1e-20, squares), 1e-2) == float("inf")
    assert error_bound(_sums(np.full((VECTORS, VECTORS), np.nan)), 1e-2) == float("inf")


# Certified kernels


def certified(kernel: Kernel, region: Region, tolerance: float, **how: Any) -> Certified:
    host = host_device()
    make = partial(projector_for, region, host.compile, host, tolerance, is_fixed=False)
    return Certified(kernel, region, host, tolerance, projector=make(), closer=partial(make, closely=True), **how)


def _spoiled(where: tuple[Any, Any], error: float) -> tuple[Kernel, Region, list[Any]]:
    """A product with an error of that norm, relative to the whole, in some places alone."""
    a, b = normal(1024, 160), normal(160, 128)
    right = a.astype(np.float64) @ b

    def kernel(*_: Any) -> tuple[Any, ...]:
        made = right.copy()
        noise = RNG.standard_normal(made[where].shape)
        made[where] += noise * (error * np.linalg.norm(right) / np.linalg.norm(noise))
        return (made.astype(np.float32),)

    return kernel, product(a, b), [a, b]


PLACES = {
    "all": (slice(None), slice(None)),
    "one row": (slice(7, 8), slice(None)),
    "twelve rows": (slice(40, 52), slice(None)),
    "one column": (slice(None), slice(9, 10)),
    "one entry": (slice(7, 8), slice(9, 10)),
    "two by two": (slice(7, 9), slice(9, 11)),
}


@pytest.mark.parametrize("place", PLACES)
def test_errors_are_seen_wherever_they_are(place: str) -> None:
    kernel, region, arrays = _spoiled(PLACES[place], 1.05e-2)
    for _ in range(100):
        with pytest.raises(ToleranceMissed, match=r"an error of 1.0e-02|an error of 1.1e-02"):
            certified(kernel, region, 1e-2)(*arrays)


@pytest.mark.parametrize("place", PLACES)
def test_errors_within_the_tolerance_are_accepted(place: str) -> None:
    kernel, region, arrays = _spoiled(PLACES[place], 1e-3)
    guarded = certified(kernel, region, 1e-2)
    for _ in range(50):
        guarded(*arrays)
    assert guarded.error is not None
    assert 5e-4 < guarded.error <= 1e-2


def test_a_kernel_projects_its_result_on_more_vectors_where_few_did_not_suffice() -> None:
    kernel, region, arrays = _spoiled(PLACES["all"], 4e-3)
    calls: list[int] = []

    def projecting(vectors: int) -> tuple[int, Projected]:
        def fused(a: Any, b: Any) -> tuple[Any, Any]:
            (made,) = kernel(a, b)
            calls.append(vectors)
            seen = RNG.standard_normal((vectors, len(a))) @ (made - a.astype(np.float64) @ b)
            gram = seen @ seen.T
            return made, np.array([np.trace(gram) / vectors, np.square(gram).sum() / vectors, np.vdot(made, made)])

        return vectors, fused

    guarded = certified(kernel, region, 1e-2, fused=[projecting(n) for n in (4, 8)])
    for _ in range(5):
        guarded(*arrays)
    assert calls == [4, 4, 4, 8, 8], "once or twice might have been chance"


@pytest.mark.parametrize(
    ("size", "precision", "tolerance", "vectors"),
    [(512, Precision.BF16, 1e-1, (4, 8)), (128, Precision.BF16, 1e-2, (8,)), (300, Precision.BF16, 1e-2, (7, 8)),
     (512, Precision.BF16, 1e-2, (6, 8)), (1024, Precision.BF16, 1e-2, (6, 8)), (512, Precision.BF16, 3e-3, (8,)),
     (512, Precision.BF16X2, 1e-3, (4, 8)),
     (512, Precision.BF16X2, 1e-5, ())],
)  # fmt: skip
def test_a_product_has_as_few_vectors_as_its_tolerance_allows(
    size: int, precision: Precision, tolerance: float, vectors: tuple[int, ...]
) -> None:
    (call,) = product(normal(size, size), normal(size, size)).calls
    assert fused_vectors(call, precision, tolerance, is_fixed=False) == vectors
    assert fused_vectors(call, precision, tolerance, is_fixed=True) == vectors[-1:]


@pytest.mark.parametrize(("width", "vectors"), [(3, 8), (8, 8), (20, 8), (600, 6), (600, 16)])
def test_random_vectors_keep_the_mean_square_and_are_seldom_blind(width: int, vectors: int) -> None:
    """What they see of a fixed direction has the mean of a chi-squared variable, and is not more often small."""
    fixed = RNG.standard_normal(width)
    fixed /= np.linalg.norm(fixed)
    seen = np.array([np.square(random_vectors(RNG, width, vectors).T @ fixed).sum() for _ in range(500)])
    assert seen.mean() == pytest.approx(vectors, rel=0.15)
    for small in (0.25, 0.5):
        assert (seen < small * vectors).mean() <= 1.3 * _chi_squared(small * vectors, vectors) + 0.02
    if width >= vectors:
        drawn = random_vectors(RNG, width, vectors).astype(np.float64)
        np.testing.assert_allclose(drawn.T @ drawn, width * np.eye(vectors), atol=1e-4 * width)


def test_few_vectors_suffice_for_random_matrices() -> None:
    a, b = normal(512, 512), normal(512, 512)
    rounded = [x.astype(ml_dtypes.bfloat16).astype(np.float64) for x in (a, b)]
    exact = a.astype(np.float64) @ b
    error = rounded[0] @ rounded[1] - exact
    few, _ = fused_vectors(product(a, b).calls[0], Precision.BF16, 1e-2, is_fixed=False)
    bounds = []
    for _ in range(200):
        seen = random_vectors(RNG, 512, few).T @ error
        bounds.append(error_bound(_sums(seen @ seen.T, np.square(exact).sum()), 1e-2))
    assert np.mean(np.array(bounds) > 1e-2) < 0.04
    assert np.median(bounds) < 0.9e-2


def test_a_kernel_that_is_always_too_close_to_the_tolerance_is_given_up() -> None:
    kernel, region, arrays = _spoiled(PLACES["one entry"], 9e-3)
    guarded = certified(kernel, replace(region, precision=Precision.BF16), 1e-2)

    def run() -> None:
        for _ in range(10):
            guarded(*arrays)

    with pytest.raises(ToleranceMissed, match="too close"):
        run()


def test_infinities_and_nan_must_be_where_they_belong() -> None:
    a, b = normal(128, 128), normal(128, 128)
    a[3, 5], b[7, 9] = np.inf, np.nan
    region = product(a, b)
    with np.errstate(all="ignore"):
        right = a @ b
    certified(lambda *_: (right,), region, 1e-3)(a, b)
    wrong = right.copy()
    wrong[3, 0] = 0.0
    with pytest.raises(ToleranceMissed):
        certified(lambda *_: (wrong,), region, 1e-3)(a, b)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e17])
def test_sizes_that_leave_the_range_of_squares_are_certified_all_the_same(scale: float) -> None:
    a, b = normal(128, 128) * np.float32(scale), normal(128, 128)
    right = a.astype(np.float64) @ b
    region = product(a, b)
    certified(lambda *_: (right.astype(np.float32),), region, 1e-3)(a, b)
    with pytest.raises(ToleranceMissed):
        certified(lambda *_: ((right * 1.01).astype(np.float32),), region, 1e-3)(a, b)


def test_a_projection_that_fails_is_made_on_the_host() -> None:
    kernel, region, arrays = _spoiled(PLACES["all"], 1.05e-2)

    def fails(*_: Any) -> Any:
        raise LaunchFailure("no")

    with pytest.raises(ToleranceMissed):
        Certified(kernel, region, host_device(), 1e-2, projector=fails)(*arrays)


@pytest.mark.parametrize("tolerance", [1e-5, 1e-6])
def test_small_tolerances_are_certified_where_the_data_are(tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were certified on the host alone, which took a hundred times as long as the product."""
    a, b = normal(300, 200), normal(200, 200)
    region = product(a, b)
    right = a.astype(np.float64) @ b
    monkeypatch.setattr(Certified, "_compare", lambda *_: pytest.fail("this takes long"))
    certified(lambda *_: (right.astype(np.float32),), region, tolerance)(a, b)
    monkeypatch.undo()
    wrong = right * (1 + 3 * tolerance)
    with pytest.raises(ToleranceMissed):
        certified(lambda *_: (wrong.astype(np.float32),), region, tolerance)(a, b)


def test_constants_are_operands_too() -> None:
    a, b = normal(128, 128), normal(128, 128)
    f = ys.jit(lambda x: x @ ys.asarray(b))
    with installed(Reduced(Precision.BF16)) as name, ys.options(device=name, precision="adaptive", tol=2e-2):
        for _ in range(3):
            got = f(ys.asarray(a)).numpy()
        assert f.plans[0].steps[0].candidate.precision is Precision.BF16
    assert 1e-4 < relative_error(got, a.astype(np.float64) @ b) < 2e-2


@pytest.mark.parametrize(
    ("got", "wanted", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([np.inf, np.nan, 1.0], [np.inf, np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([np.nan, 1.0], [2.0, 1.0], np.inf),
        ([np.inf, 1.0], [1e39, 1.0], 0.0),
        ([1e-3, 0.0], [0.0, 0.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_errors_are_those_of_the_whole(got: Any, wanted: Any, error: float) -> None:
    found = relative_error(np.array(got, np.float32), np.array(wanted, np.float64))
    assert found == pytest.approx(error, rel=1e-6)


# Sums

X = normal(200, 32)
SUMS = {
    "a total": (lambda x: ys.sum(x), True),
    "a mean": (lambda x: ys.mean(x, axis=0), True),
    "products": (lambda x: ys.sum(x * x[::-1], axis=1), True),
    "running totals": (lambda x: ys.cumulative_sum(x, axis=0), True),
    "the largest": (lambda x: ys.max(x, axis=0), False),
    "exponentials": (lambda x: ys.sum(ys.exp(x - 1.0), axis=1), False),
    "squares": (lambda x: ys.mean(ys.square(x - 1.0)), False),
    "squares of what may cancel": (lambda x: ys.sum(ys.square(x * 3.0 - 2.0)), True),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_may_cancel_are_accumulated_in_float64(name: str) -> None:
    program, is_delicate = SUMS[name]
    region, arrays = region_of(program(ys.asarray(X)))
    assert is_delicate_sum(region) is is_delicate
    wanted = (Precision.F64,) if is_delicate else (Precision.FULL,)
    assert precisions_for(region, policy_of("adaptive", 1e-2)) == wanted
    np.testing.assert_allclose(
        host_device().compile(widened(region))(*arrays)[0], program(ys.asarray(X)).numpy(), rtol=1e-3, atol=1e-4
    )


# Whole calls


@pytest.mark.parametrize("is_jitted", [True, False])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_no_result_is_beyond_its_tolerance_when_inputs_turn_hostile(tolerance: float, is_jitted: bool) -> None:
    """The rejected result of a jitted call was returned: the kernel was called again and was not due for a look."""
    rng = np.random.default_rng(int(1 / tolerance))
    benign = [pair(rng, (256, 128, 96), "benign") for _ in range(2)]
    hostile = [pair(rng, (256, 128, 96), kind) for kind in HOSTILE]
    with installed(Reduced(*ALL)) as name, ys.options(device=name, precision="adaptive", tol=tolerance):
        run = ys.jit(lambda x, w: x @ w) if is_jitted else lambda x, w: x @ w
        for call in range(60):
            a, b = benign[call % 2] if call < 40 else hostile[call % 4]
            got = run(ys.asarray(a), ys.asarray(b)).numpy()
            assert relative_error(got, a.astype(np.float64) @ b.astype(np.float64)) <= tolerance
    assert trace.records


def test_a_plan_file_keeps_the_tolerance(tmp_path: Path) -> None:
    a, b = normal(200, 200), normal(200, 200)
    hostile, ones = pair(np.random.default_rng(0), (200, 200, 200), "everywhere")
    with installed(Reduced(Precision.BF16)) as name:
        with ys.options(device=name, precision="adaptive", tol=2e-2):
            f = ys.jit(lambda x, w: ys.sum(x @ w, axis=0))
            expected = f(ys.asarray(a), ys.asarray(b)).numpy()
            f.plans[0].save(tmp_path / "plan.json")
        again = ys.load_plan(tmp_path / "plan.json")
        (made,) = again(a, b)
        np.testing.assert_array_equal(made.numpy(), expected)
        with pytest.raises(PlanRefused, match=r"\[plan\] bf16: an error of .* make a plan for such inputs"):
            again(hostile, ones)


@pytest.mark.parametrize(
    ("precision", "most"),
    [(Precision.BF16, 6e-3), (Precision.F16, 1e-3), (Precision.TF32, 1e-3), (Precision.BF16X2, 2e-5),
     (Precision.BF16X3, 1e-6)],
)  # fmt: skip
def test_the_fake_device_rounds_as_its_precisions_say(precision: Precision, most: float) -> None:
    region, arrays = region_of(ys.asarray(normal(64, 64)) @ ys.asarray(normal(64, 64)))
    device = Reduced(precision)
    (made,) = device.compile(replace(region, precision=precision))(*map(device.from_host, arrays))
    error = relative_error(made.array, float64_outputs(region, arrays)[0])
    assert most / 20 < error < most
