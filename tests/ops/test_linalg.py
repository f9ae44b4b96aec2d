"""Linear algebra against NumPy, and its gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, AxisError, DTypeError, ShapeError, UserError

la = ys.linalg
FLOATS = [np.float32, np.float64, np.complex64, np.complex128]
FIELDS = [np.float64, np.complex128]
HALVES = [ys.float16, ys.bfloat16]
STACKS: list[tuple[int, ...]] = [(), (2,), (2, 1), (0,)]
INF = float("inf")


def close(got: ys.Tensor, wanted: Any, digits: float = 1) -> None:
    """Equal in shape and dtype, and in value to some multiple of the dtype's precision."""
    array, wanted = got.numpy(), np.asarray(wanted)
    assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
    exact = wanted.dtype.kind in "iub"
    tolerance = 0 if exact else 100 * digits * np.finfo(wanted.dtype).eps
    np.testing.assert_allclose(array, wanted, rtol=tolerance, atol=tolerance)


def adjoint(x: Any) -> Any:
    return ys.conj(x.mT) if isinstance(x, ys.Tensor) else np.swapaxes(x, -2, -1).conj()


def positive(shape: tuple[int, ...], dtype: Any) -> Any:
    x = random(shape, dtype)
    return x @ adjoint(x) + np.eye(shape[-1], dtype=dtype)


def test_the_namespace_is_the_standard_s() -> None:
    assert set(la.__all__) == {
        "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
        "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
        "tensordot", "trace", "vecdot", "vector_norm",
    }  # fmt: skip
    assert ys.matmul is la.matmul
    assert ys.vecdot is la.vecdot
    assert ys.tensordot is la.tensordot


# Products

MATMULS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)),
]  # fmt: skip
EMPTY_MATMULS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 0), (0, 3)), ((0,), (0,)), ((4, 2, 0), (0, 3)), ((0, 2, 3), (3, 4)), ((4, 0, 3), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.uint32, np.int64])
@pytest.mark.parametrize(("left", "right"), MATMULS + EMPTY_MATMULS)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a, b = (10 * random(left)).astype(dtype), (10 * random(right, seed=1)).astype(dtype)
    close(ys.matmul(ys.asarray(a), ys.asarray(b)), np.matmul(a, b), digits=10)
    close(ys.asarray(a) @ b, np.matmul(a, b), digits=10)


@pytest.mark.parametrize("dtype", FIELDS)
@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_matmul_gradient(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    check_gradient(ys.matmul, random(left, dtype), random(right, dtype, seed=1))
    check_gradient(ys.matmul, random(left), random(right, dtype, seed=1))


@pytest.mark.parametrize("dtype", HALVES)
def test_matmul_of_halves_rounds_once(dtype: ys.dtype.DType) -> None:
    a, b = (ys.asarray(random((4, 300), seed=s)).astype(dtype) for s in (1, 2))
    wanted = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32).T
    assert (ys.matmul(a, b.mT).numpy() == wanted.astype(dtype.numpy)).all()
    dots = np.diagonal(wanted).astype(dtype.numpy).astype(np.float32)
    np.testing.assert_allclose(ys.vecdot(a, b).numpy().astype(np.float32), dots, rtol=ys.finfo(dtype).eps)
    assert (ys.matmul(a, b.mT.astype(ys.float32)).dtype) == ys.float32


def test_matmul_errors() -> None:
    with pytest.raises(ShapeError) as error:
        ys.zeros((2, 3)) @ ys.zeros((4, 5))
    assert str(error.value) == (
        "[matmul] expected the last dimension of a, 3, to equal the second to last of b, 4 "
        "(shapes (2, 3) and (4, 5)); transpose one of them?"
    )
    with pytest.raises(ShapeError, match=r"\[matmul\] .*length of b, 4"):
        ys.zeros((2, 3)) @ ys.zeros(4)
    with pytest.raises(ShapeError, match="at least one dimension"):
        ys.matmul(ys.zeros(3), 2.0)
    with pytest.raises(ShapeError, match="broadcast"):
        ys.zeros((2, 3, 3)) @ ys.zeros((4, 3, 3))
    with pytest.raises(DTypeError, match=r"\[matmul\] expected a numeric dtype, got bool"):
        ys.matmul(ys.ones((2, 2), dtype=ys.bool), ys.ones((2, 2), dtype=ys.bool))


def test_matrix_transpose() -> None:
    x = random((2, 3, 4))
    close(ys.asarray(x).mT, x.swapaxes(-2, -1))
    with pytest.raises(ShapeError, match="at least two dimensions"):
        ys.matrix_transpose(ys.zeros(3))


@pytest.mark.parametrize("axes", [0, 1, 2, ((0,), (2,)), ((-1, 0), (0, 2)), ((), ())])
@pytest.mark.parametrize("dtype", [*FIELDS, np.int16])
def test_tensordot(axes: Any, dtype: Any) -> None:
    a, b = (9 * random((2, 3, 2))).astype(dtype), (9 * random((2, 3, 2), seed=1)).astype(dtype)
    if axes == 2:
        b = b.transpose(1, 0, 2)[..., :1]
    close(ys.tensordot(ys.asarray(a), ys.asarray(b), axes=axes), np.tensordot(a, b, axes), digits=10)
    if dtype in FIELDS:
        check_gradient(lambda x, y: ys.tensordot(x, y, axes=axes), a, b)


def test_tensordot_errors() -> None:
    x = ys.zeros((2, 3))
    for axes, kind in [
        (3, AxisError), (-1, AxisError), (1, ShapeError), (((0,), (0, 1)), ArgumentError), (((5,), (0,)), AxisError),
        ((0, 1, 2), ArgumentError), (((0, 0), (0, 1)), AxisError),
    ]:  # fmt: skip
        with pytest.raises(kind, match=r"\[tensordot\]"):
            ys.tensordot(x, x, axes=axes)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [*FIELDS, np.int8])
def test_vecdot(dtype: Any) -> None:
    a, b = (9 * random((4, 1, 3), dtype)).astype(dtype), (9 * random((2, 3), dtype, seed=1)).astype(dtype)
    close(ys.vecdot(ys.asarray(a), ys.asarray(b)), np.sum(a.conj() * b, axis=-1, dtype=dtype), digits=10)
    close(ys.vecdot(ys.asarray(a), ys.asarray(a), axis=0), np.sum(a.conj() * a, axis=0, dtype=dtype), digits=10)
    if dtype in FIELDS:
        check_gradient(ys.vecdot, a, b)


def test_vecdot_errors() -> None:
    with pytest.raises(ShapeError, match=r"\[vecdot\]"):
        ys.vecdot(ys.zeros((2, 1)), ys.zeros((2, 3)))
    with pytest.raises(AxisError, match=r"\[vecdot\]"):
        ys.vecdot(ys.zeros((2, 3)), ys.zeros(3), axis=-2)


@pytest.mark.parametrize("dtype", [*FIELDS, np.uint8])
def test_cross_and_outer(dtype: Any) -> None:
    a, b = (9 * random((4, 1, 3), dtype)).astype(dtype), (9 * random((2, 3), dtype, seed=1)).astype(dtype)
    close(la.cross(ys.asarray(a), ys.asarray(b)), np.cross(*np.broadcast_arrays(a, b)), digits=10)
    close(la.cross(ys.asarray(b.T), ys.asarray(b.T), axis=-2), np.cross(b.T, b.T, axis=0), digits=10)
    close(la.outer(ys.asarray(a[0, 0]), ys.asarray(b[:, 0])), np.outer(a[0, 0], b[:, 0]))
    if dtype in FIELDS:
        check_gradient(la.cross, a, b)
        check_gradient(la.outer, a[0, 0], b[:, 0])
    with pytest.raises(ShapeError, match=r"\[cross\]"):
        la.cross(ys.zeros((2, 1)), ys.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"\[outer\]"):
        la.outer(ys.zeros((2, 1)), ys.zeros(2))


@pytest.mark.parametrize("offset", [0, 1, -1, 3, -7, 10**12, -(10**12)])
def test_diagonal_and_trace(offset: int) -> None:
    x = random((2, 3, 4))
    near = max(min(offset, 9), -9)
    close(la.diagonal(ys.asarray(x), offset=offset), np.diagonal(x, near, -2, -1))
    close(la.trace(ys.asarray(x), offset=offset), np.trace(x, near, -2, -1))
    check_gradient(lambda t: la.diagonal(t, offset=offset), x)
    check_gradient(lambda t: ys.grad(lambda s: ys.sum(la.diagonal(s, offset=offset) ** 3))(t), x)


def test_trace_dtypes() -> None:
    assert la.trace(ys.ones((2, 2), dtype=ys.int8)).dtype == ys.int64
    assert la.trace(ys.ones((2, 2), dtype=ys.uint8)).dtype == ys.uint64
    assert la.trace(ys.ones((2, 2), dtype=ys.float32)).dtype == ys.float32
    assert la.trace(ys.ones((2, 2), dtype=ys.int8), dtype=ys.int16).dtype == ys.int16
    with pytest.raises(DTypeError, match=r"\[trace\] expected a numeric dtype, got bool"):
        la.trace(ys.ones((2, 2), dtype=ys.bool))
    with pytest.raises(ShapeError, match=r"\[diagonal\]"):
        la.diagonal(ys.ones(2))


# Linear systems and determinants


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


# Arguments

ARRAY, VECTOR = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0, 3.0])
ON_ARRAYS: dict[str, Callable[[Any, Any], Any]] = {
    "cross": lambda a, v: la.cross(v, v),
    "eig": lambda a, v: la.eig(a).eigenvalues,
    "eigh": lambda a, v: la.eigh(a).eigenvalues,
    "matrix_norm": lambda a, v: la.matrix_norm(a),
    "matrix_power": lambda a, v: la.matrix_power(a, 2),
    "matrix_rank": lambda a, v: la.matrix_rank(a),
    "matrix_transpose": lambda a, v: la.matrix_transpose(a),
    "outer": lambda a, v: la.outer(v, v),
    "pinv": lambda a, v: la.pinv(a),
    "qr": lambda a, v: la.qr(a).R,
    "slogdet": lambda a, v: la.slogdet(a).logabsdet,
    "svd": lambda a, v: la.svd(a).S,
    "tensordot": lambda a, v: la.tensordot(a, a),
    "trace": lambda a, v: la.trace(a),
    "vecdot": lambda a, v: la.vecdot(v, v),
    "vector_norm": lambda a, v: la.vector_norm(a),
}


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_numpy_arrays_are_taken_for_tensors(name: str) -> None:
    f = ON_ARRAYS[name]
    np.testing.assert_array_equal(f(ARRAY, VECTOR).numpy(), f(ys.asarray(ARRAY), ys.asarray(VECTOR)).numpy())
    with pytest.raises(DTypeError, match=rf"^\[{name}\] expected a tensor or a number, got str"):
        f("a", "a")


MISTAKES: list[tuple[str, str, Callable[[], Any]]] = [
    ("cholesky", "expected upper among False, True, got 'a'", lambda: la.cholesky(ARRAY, upper="a")),
    ("cross", "expected an axis as an integer, got 1.5", lambda: la.cross(VECTOR, VECTOR, axis=1.5)),
    ("diagonal", "expected offset as an integer, got 'a'", lambda: la.diagonal(ARRAY, offset="a")),
    ("matrix_norm", "expected ord among .*, got \\[1, 2\\]", lambda: la.matrix_norm(ARRAY, ord=np.array([1, 2]))),
    ("matrix_power", "expected n as an integer, got 1.5", lambda: la.matrix_power(ARRAY, 1.5)),
    ("matrix_power", "expected a numeric dtype, got bool", lambda: la.matrix_power(ARRAY > 1, 2)),
    ("matrix_rank", "expected a matrix or a stack of them", lambda: la.matrix_rank(VECTOR)),
    ("matrix_rank", "expected numbers", lambda: la.matrix_rank(ARRAY, rtol="a")),
    ("outer", "expected a numeric dtype, got bool", lambda: la.outer(VECTOR > 1, VECTOR > 1)),
    ("pinv", "expected a matrix or a stack of them", lambda: la.pinv(VECTOR)),
    ("svd", "expected full_matrices among False, True, got 2", lambda: la.svd(ARRAY, full_matrices=2)),
    ("tensordot", "expected axes as an integer, got 1.5", lambda: la.tensordot(ARRAY, ARRAY, axes=1.5)),
    ("tensordot", "expected an axis as an integer, got 'a'", lambda: la.tensordot(ARRAY, ARRAY, axes=("a", 0))),
    ("trace", "expected offset as an integer, got 1.5", lambda: la.trace(ARRAY, offset=1.5)),
    ("trace", "expected a matrix or a stack of them", lambda: la.trace(VECTOR)),
    ("trace", "expected a dtype among", lambda: la.trace(ARRAY, dtype="number")),
    ("vecdot", "expected an axis as an integer, got 'a'", lambda: la.vecdot(VECTOR, VECTOR, axis="a")),
    ("vecdot", "expected a numeric dtype, got bool", lambda: la.vecdot(VECTOR > 1, VECTOR > 1)),
    ("vector_norm", "expected an axis from -2 to 1", lambda: la.vector_norm(ARRAY, axis=5)),
    ("vector_norm", "expected a real number for ord, got None", lambda: la.vector_norm(ARRAY, ord=None)),
]


@pytest.mark.parametrize(("name", "text", "call"), MISTAKES)
def test_mistakes_are_told_at_the_call_by_the_public_name(name: str, text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=rf"^\[{name}\] {text}"):
        call()


def test_attributes_have_a_normal_form() -> None:
    x = ys.asarray(ARRAY)
    for made in (la.diagonal(x, offset=np.int64(1)), la.cholesky(x, upper=np.True_)):
        assert [type(v) for v in made._node.call.attrs.values()] in ([int], [bool])
    assert float(la.vector_norm(x, ord=np.float32(1))) == 7
