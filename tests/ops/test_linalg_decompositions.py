"""Decompositions, norms and ranks against NumPy, and their gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from matrices import FIELDS, FLOATS, HALVES, INF, STACKS, adjoint, close, la, positive
from yosegi.errors import ArgumentError, DTypeError, ShapeError

# Decompositions


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_cholesky(dtype: Any, stack: tuple[int, ...]) -> None:
    for n in (0, 1, 3):
        x = positive((*stack, n, n), dtype)
        lower, upper = la.cholesky(ys.asarray(x)), la.cholesky(ys.asarray(x), upper=True)
        close(lower, np.linalg.cholesky(x))
        close(upper, adjoint(np.linalg.cholesky(x)))


@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (3, 5), (2, 4, 2), (0, 3), (3, 0), (0, 2, 2)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_qr_and_svd(dtype: Any, shape: tuple[int, ...]) -> None:
    x = random(shape, dtype)
    t, k = ys.asarray(x), min(shape[-2:])
    for mode in ("reduced", "complete"):
        q, r = la.qr(t, mode=mode)
        close(q @ r, x)
        close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1], dtype=dtype), (*shape[:-2], *q.shape[-1:] * 2)))
        close(r, np.triu(r.numpy()))
        assert q.shape[-1] == (shape[-2] if mode == "complete" else k)
    for full in (True, False):
        u, s, vh = la.svd(t, full_matrices=full)
        close((u[..., :k] * ys.expand_dims(s, -2)) @ vh[..., :k, :], x)
        close(s, np.linalg.svd(x, compute_uv=False), digits=10)
        close(adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1], dtype=dtype), (*shape[:-2], *u.shape[-1:] * 2)))
        assert (u.shape[-1], vh.shape[-2]) == ((shape[-2], shape[-1]) if full else (k, k))
    close(la.svdvals(t), np.linalg.svd(x, compute_uv=False), digits=10)
    close(la.pinv(t), np.linalg.pinv(x), digits=100)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_eigenvalues(dtype: Any, stack: tuple[int, ...], n: int) -> None:
    x = random((*stack, n, n), dtype)
    symmetric = (x + adjoint(x)) / 2
    values, vectors = la.eigh(ys.asarray(symmetric))
    close(values, np.linalg.eigvalsh(symmetric), digits=10)
    close(la.eigvalsh(ys.asarray(symmetric)), np.linalg.eigvalsh(symmetric), digits=10)
    close((vectors * ys.expand_dims(values, -2)) @ adjoint(vectors), symmetric, digits=10)
    values, vectors = la.eig(ys.asarray(x))
    complex_x = x.astype(np.result_type(dtype, np.complex64))
    close((vectors * ys.expand_dims(values, -2)), complex_x @ vectors.numpy(), digits=10)
    close(la.eigvals(ys.asarray(x)), np.linalg.eigvals(x).astype(complex_x.dtype), digits=10)


@pytest.mark.parametrize("dtype", FIELDS)
def test_factor_gradients(dtype: Any) -> None:
    def definite(x: ys.Tensor) -> ys.Tensor:
        return x @ adjoint(x) + ys.eye(3)

    x = random((2, 3, 3), dtype)
    check_gradient(lambda t: la.cholesky(definite(t)), x)
    check_gradient(lambda t: la.cholesky(definite(t), upper=True), x)
    for shape in [(4, 3), (3, 3), (3, 5), (2, 4, 2)]:
        check_gradient(lambda t: tuple(la.qr(t)), random(shape, dtype))

    def complete(t: ys.Tensor) -> Any:
        q, r = la.qr(t, mode="complete")
        rest = q[..., 2:]
        return q[..., :2], r, rest @ adjoint(rest)

    for shape in [(4, 2), (3, 3), (2, 3)]:
        check_gradient(complete, random(shape, dtype))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (3, 5), (2, 4, 2)])
@pytest.mark.parametrize("dtype", FIELDS)
def test_svd_gradients(dtype: Any, shape: tuple[int, ...], full: bool) -> None:
    k = min(shape[-2:])
    weights = ys.arange(1.0, k + 1.0)

    def invariants(t: ys.Tensor) -> Any:
        u, s, vh = la.svd(t, full_matrices=full)
        left, right = u[..., :k], vh[..., :k, :]
        rest = u[..., k:] @ adjoint(u[..., k:]), adjoint(vh[..., k:, :]) @ vh[..., k:, :]
        return s, (left * weights) @ right, (left * weights) @ adjoint(left), *rest

    x = random(shape, dtype)
    check_gradient(invariants, x)
    check_gradient(la.svdvals, x)
    check_gradient(la.pinv, x)


@pytest.mark.parametrize("dtype", FIELDS)
def test_pinv_of_short_rank(dtype: Any) -> None:
    a, b = random((4, 2), dtype), random((2, 3), dtype, seed=1)
    close(la.pinv(ys.asarray(a @ b)), np.linalg.pinv(a @ b), digits=100)
    check_gradient(lambda x, y: la.pinv(x @ y, rtol=1e-8), a, b)
    stack = np.stack([np.diag([1.0, 0.1]), np.diag([1.0, 0.1])]).astype(dtype)
    wanted = np.stack([np.diag([1.0, 0.0]), np.diag([1.0, 10.0])]).astype(dtype)
    close(la.pinv(ys.asarray(stack), rtol=ys.asarray([0.5, 0.01])), wanted)
    close(la.pinv(ys.asarray(stack), rtol=0), np.linalg.inv(stack))
    with pytest.raises(ShapeError, match=r"\[pinv\]"):
        la.pinv(ys.asarray(stack), rtol=ys.zeros(3))
    with pytest.raises(DTypeError, match=r"\[pinv\]"):
        la.pinv(ys.asarray(stack), rtol=ys.asarray([1, 2]))


@pytest.mark.parametrize("dtype", FIELDS)
def test_eigenvalue_gradients(dtype: Any) -> None:
    weights = ys.asarray([1.0, 2.0, 3.0])

    def symmetric(t: ys.Tensor) -> Any:
        values, vectors = la.eigh((t + adjoint(t)) / 2)
        return values, (vectors * weights) @ adjoint(vectors), ys.abs(vectors)

    def general(t: ys.Tensor) -> Any:
        values, vectors = la.eig(t)
        return values, (vectors * weights) @ la.inv(vectors), ys.abs(vectors)

    x = random((2, 3, 3), dtype)
    check_gradient(symmetric, x)
    check_gradient(lambda t: la.eigvalsh((t + adjoint(t)) / 2), x)
    check_gradient(general, x)
    check_gradient(la.eigvals, x)


def test_gradients_at_equal_values_are_finite() -> None:
    x = ys.eye(3)
    for total in (
        lambda t: ys.sum(la.eigh(t).eigenvalues ** 2),
        lambda t: ys.sum(la.svd(t).S ** 2),
        lambda t: ys.sum(la.svdvals(t) ** 2),
    ):
        close(ys.grad(total)(x), 2 * np.eye(3))


@pytest.mark.parametrize("dtype", FIELDS)
@pytest.mark.parametrize(
    "function",
    [
        la.inv, la.det, lambda x: la.slogdet(x).logabsdet, lambda x: la.cholesky(x @ adjoint(x) + ys.eye(3)),
        lambda x: la.qr(x).R, la.svdvals, lambda x: la.eigvalsh(x @ adjoint(x)), la.pinv, lambda x: la.solve(x, x[0]),
        lambda x: x @ x[0], lambda x: la.matrix_norm(x, ord="nuc"),
    ],
)  # fmt: skip
def test_second_derivatives(function: Callable[..., ys.Tensor], dtype: Any) -> None:
    check_gradient(ys.grad(lambda x: ys.sum(ys.abs(function(x)) ** 3)), random((3, 3), dtype), rtol=1e-5)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "name", ["inv", "det", "cholesky", "svdvals", "eigvalsh", "pinv", "matrix_norm", "vector_norm"]
)
def test_halves_are_computed_in_single(name: str, half: ys.dtype.DType) -> None:
    x = ys.asarray(positive((3, 3), np.float64)).astype(half)
    made, wanted = getattr(la, name)(x), getattr(la, name)(x.astype(ys.float32))
    assert made.dtype == half
    assert (made.numpy() == wanted.numpy().astype(half.numpy)).all()


def test_results_have_names() -> None:
    x = ys.eye(2)
    for made, names in [
        (la.eigh(x), ("eigenvalues", "eigenvectors")), (la.eig(x), ("eigenvalues", "eigenvectors")),
        (la.qr(x), ("Q", "R")), (la.slogdet(x), ("sign", "logabsdet")), (la.svd(x), ("U", "S", "Vh")),
    ]:  # fmt: skip
        assert made._fields == names
    with pytest.raises(ArgumentError, match=r"\[qr\] expected mode among 'reduced', 'complete', got 'full'"):
        la.qr(x, mode="full")


# Norms and ranks


@pytest.mark.parametrize("order", [2, 1, 3, 0.5, -1, -2, 0, INF, -INF])
@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
def test_vector_norm(dtype: Any, order: float) -> None:
    x = (3 * random((3, 4, 2), dtype)).astype(dtype)
    for axis in (1, -1, (0, 2), None):
        for keepdims in (False, True):
            moved = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1) if isinstance(axis, int) else \
                x.transpose(1, 0, 2).reshape(4, 6)  # fmt: skip
            with np.errstate(divide="ignore"):
                wanted = np.asarray(np.linalg.norm(moved.astype(np.result_type(dtype, np.float32)), order, axis=-1))
            made = la.vector_norm(ys.asarray(x), axis=axis, ord=order, keepdims=keepdims)
            assert made.ndim == (3 if keepdims else wanted.ndim)
            assert made.dtype == (ys.float32 if dtype in (np.float32, np.complex64) else ys.float64)
            np.testing.assert_allclose(made.numpy().reshape(wanted.shape), wanted, rtol=1e-5)
    if dtype in FIELDS:
        check_gradient(lambda t: la.vector_norm(t, axis=1, ord=order), x)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, INF, -INF, None])
@pytest.mark.parametrize("dtype", FLOATS)
def test_matrix_norm(dtype: Any, order: Any) -> None:
    x = random((2, 4, 3), dtype)
    wanted = np.asarray(np.linalg.norm(x, order, axis=(-2, -1)))
    close(la.matrix_norm(ys.asarray(x), ord=order), wanted, digits=10)
    close(la.matrix_norm(ys.asarray(x), ord=order, keepdims=True), wanted[:, None, None], digits=10)
    if dtype in FIELDS:
        check_gradient(lambda t: la.matrix_norm(t, ord=order), x)


def test_norms_at_zero_and_of_nothing() -> None:
    for order in (2, 3, 1, 1.5):
        gradient = ys.grad(lambda t, p=order: la.vector_norm(t, ord=p))(ys.zeros(3))
        assert gradient.tolist() == [0, 0, 0]
    assert ys.grad(la.matrix_norm)(ys.zeros((2, 2))).tolist() == [[0, 0], [0, 0]]
    for order in (2, 1, 0, INF):
        assert float(la.vector_norm(ys.zeros(0), ord=order)) == 0
    for name in ("fro", "nuc", 1, 2, INF):
        assert float(la.matrix_norm(ys.zeros((0, 3)), ord=name)) == 0  # type: ignore[arg-type]
        assert la.matrix_norm(ys.zeros((0, 3, 3)), ord=name).shape == (0,)  # type: ignore[arg-type]


def test_norm_errors() -> None:
    with pytest.raises(ArgumentError, match=r"\[matrix_norm\] expected ord among"):
        la.matrix_norm(ys.eye(2), ord=3)
    with pytest.raises(ArgumentError, match=r"\[vector_norm\]"):
        la.vector_norm(ys.eye(2), ord="fro")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\[matrix_norm\]"):
        la.matrix_norm(ys.zeros(2))


def test_matrix_rank() -> None:
    x = np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3))])
    assert la.matrix_rank(ys.asarray(x)).tolist() == [3, 1, 0]
    assert la.matrix_rank(ys.asarray(x)).dtype == ys.int64
    graded = ys.asarray(np.stack([np.diag([1.0, 0.1, 0.01])] * 2))
    assert la.matrix_rank(graded, rtol=0.05).tolist() == [2, 2]
    assert la.matrix_rank(graded, rtol=ys.asarray([0.5, 1e-3])).tolist() == [1, 3]
    assert la.matrix_rank(graded, rtol=np.array([0.5, 1e-3])).tolist() == [1, 3]
    assert la.matrix_rank(ys.zeros((2, 0, 3))).tolist() == [0, 0]


def test_jit_keeps_the_named_results() -> None:
    x = random((3, 2))
    made = ys.jit(lambda t: la.svd(t, full_matrices=False))(ys.asarray(x))
    close((made.U * made.S) @ made.Vh, x)
