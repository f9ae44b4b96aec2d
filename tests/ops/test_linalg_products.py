"""Products of vectors and matrices against NumPy, and their gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from matrices import FIELDS, FLOATS, HALVES, close, la
from yosegi.errors import ArgumentError, AxisError, DTypeError, ShapeError

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
