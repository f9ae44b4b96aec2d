"""Linear systems, inverses and determinants against NumPy, and their gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from matrices import FIELDS, FLOATS, INF, STACKS, close, la
from yosegi.errors import ShapeError


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_inverses_and_determinants(dtype: Any, n: int, stack: tuple[int, ...]) -> None:
    x = random((*stack, n, n), dtype)
    t = ys.asarray(x)
    close(la.inv(t), np.linalg.inv(x), digits=10)
    close(la.det(t), np.linalg.det(x), digits=10)
    sign, logabsdet = la.slogdet(t)
    close(sign, np.linalg.slogdet(x).sign, digits=10)
    close(logabsdet, np.linalg.slogdet(x).logabsdet, digits=10)
    for power in (-3, -1, 0, 1, 2, 5):
        close(la.matrix_power(t, power), np.linalg.matrix_power(x, power), digits=1000)


@pytest.mark.parametrize("dtype", FIELDS)
def test_inverse_and_determinant_gradients(dtype: Any) -> None:
    x = random((2, 3, 3), dtype)
    check_gradient(la.inv, x)
    check_gradient(la.det, x)
    check_gradient(la.det, x[0])
    check_gradient(lambda t: tuple(la.slogdet(t)), x)
    for power in (-2, 0, 1, 5):
        check_gradient(lambda t, n=power: la.matrix_power(t, n), x)


@pytest.mark.parametrize("dtype", FIELDS)
def test_the_gradient_of_det_exists_for_singular_matrices(dtype: Any) -> None:
    x = random((3, 3), dtype)
    x[2] = 0
    check_gradient(la.det, np.stack([x, random((3, 3), dtype, seed=3)]))
    one_short = ys.grad(lambda t: ys.real(la.det(t)))(ys.asarray(np.diag([2.0, 3.0, 0.0]).astype(dtype)))
    close(one_short, np.diag([0.0, 0.0, 6.0]).astype(dtype))
    two_short = ys.grad(lambda t: ys.real(la.det(t)))(ys.asarray(np.diag([2.0, 0.0, 0.0]).astype(dtype)))
    close(two_short, np.zeros((3, 3), dtype))


SYSTEMS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 3), (3,)), ((2, 3, 3), (3,)), ((2, 3, 3), (3, 2)), ((3, 3), (2, 3, 2)), ((2, 3, 3), (2, 3, 1)),
    ((2, 1, 3, 3), (4, 3, 2)), ((3, 3, 3), (3, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("matrix", "right"), SYSTEMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_solve(matrix: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a, b = random(matrix, dtype), random(right, dtype, seed=1)
    solved = la.solve(ys.asarray(a), ys.asarray(b)).numpy()
    wanted = np.linalg.inv(a) @ b
    assert (solved.shape, solved.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(solved, wanted, rtol=2000 * np.finfo(dtype).eps, atol=2000 * np.finfo(dtype).eps)
    if dtype in FIELDS:
        check_gradient(la.solve, a, b)


def test_solve_of_nothing() -> None:
    assert la.solve(ys.zeros((0, 0)), ys.zeros(0)).numpy().shape == (0,)
    assert la.solve(ys.zeros((2, 0, 0)), ys.zeros((0, 3))).numpy().shape == (2, 0, 3)
    assert la.solve(ys.zeros((0, 2, 2)), ys.zeros((2, 3))).numpy().shape == (0, 2, 3)
    assert la.solve(ys.eye(2), ys.zeros((2, 0))).numpy().shape == (2, 0)


def test_singular_matrices_give_nan_and_spare_the_others() -> None:
    x = np.stack([np.ones((2, 2)), np.array([[2.0, 1.0], [1.0, 2.0]]), np.zeros((2, 2))]).reshape(3, 1, 2, 2)
    inverse = la.inv(ys.asarray(x)).numpy()
    assert np.isnan(inverse[[0, 2]]).all()
    np.testing.assert_allclose(inverse[1, 0], np.linalg.inv(x[1, 0]))
    solved = la.solve(ys.asarray(x), ys.ones(2)).numpy()
    assert np.isnan(solved[[0, 2]]).all()
    np.testing.assert_allclose(solved[1, 0], np.linalg.solve(x[1, 0], np.ones(2)))
    factor = la.cholesky(ys.asarray(x * [[[[-1]]], [[[1]]], [[[1]]]])).numpy()
    assert np.isnan(factor[[0, 2]]).all()
    np.testing.assert_allclose(factor[1, 0], np.linalg.cholesky(x[1, 0]))
    assert la.slogdet(ys.asarray(x)).sign.numpy().ravel().tolist() == [0, 1, 0]
    assert la.slogdet(ys.asarray(x)).logabsdet.numpy()[0, 0] == -INF


@pytest.mark.parametrize("bad", [np.nan, INF])
@pytest.mark.parametrize("name", ["svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "pinv"])
def test_values_that_are_no_numbers_give_nan_and_spare_the_others(name: str, bad: float) -> None:
    x = np.stack([np.eye(2), np.eye(2)])
    x[0, 0, 0] = bad
    made = getattr(la, name)(ys.asarray(x))
    for part in made if isinstance(made, tuple) else (made,):
        assert np.isnan(part.numpy()[0]).all()
        assert np.isfinite(part.numpy()[1]).all()


SQUARE: list[Callable[..., Any]] = [
    la.inv, la.det, la.slogdet, la.cholesky, la.eigh, la.eigvalsh, la.eig, la.eigvals, lambda x: la.solve(x, x),
    lambda x: la.matrix_power(x, 2),
]  # fmt: skip


@pytest.mark.parametrize("function", SQUARE)
def test_square_matrices_are_asked_for(function: Callable[..., Any]) -> None:
    with pytest.raises(ShapeError, match=r"\[\w+\] expected square matrices, got shape \(2, 3\)"):
        function(ys.zeros((2, 3)))


@pytest.mark.parametrize("function", [*SQUARE[:8], la.qr, la.svd, la.svdvals, la.pinv])
def test_dtypes_and_dimensions_are_asked_for(function: Callable[..., Any]) -> None:
    with pytest.raises(ShapeError, match=r"\[\w+\] expected a matrix or a stack of them, got shape \(3,\)"):
        function(ys.zeros(3))
    made = function(ys.asarray([[4, 1], [1, 3]]))
    assert (made[0] if isinstance(made, tuple) else made).dtype in (ys.float64, ys.complex128)


def test_solve_errors() -> None:
    with pytest.raises(ShapeError, match=r"\[solve\] expected right-hand sides of shape \(3,\)"):
        la.solve(ys.eye(3), ys.zeros(2))
    with pytest.raises(ShapeError, match=r"\[solve\]"):
        la.solve(ys.eye(3), 1.0)
