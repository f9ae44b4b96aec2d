"""einsum against NumPy's, and its gradient against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, DTypeError, ShapeError

Shapes = list[tuple[int, ...]]
CASES: list[tuple[str, Shapes]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba,cb", [(2, 3), (4, 2)]),
    ("i,i", [(3,), (3,)]),
    ("i,j->ji", [(2,), (3,)]),
    ("ij->ji", [(2, 3)]),
    ("ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("iii->i", [(2, 2, 2)]),
    ("ii,i", [(3, 3), (3,)]),
    ("ij,ij,ij->i", [(2, 3), (2, 3), (2, 3)]),
    ("bhqd,bhkd->bhqk", [(2, 1, 3, 4), (2, 1, 5, 4)]),
    ("ijk,kj,i->", [(2, 3, 4), (4, 3), (2,)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 2)]),
    ("...ij,...jk", [(2, 2, 3), (3, 2)]),
    ("i...->...", [(2, 3)]),
    ("...i->i...", [(2, 3)]),
    ("...,...", [(2, 3), (3,)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("i...j", [(2, 3)]),
    ("ij,ij->ij", [(1, 3), (2, 3)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    (" i j , j k -> i k ", [(2, 3), (3, 4)]),
    ("ij,j->i", [(2, 0), (0,)]),
    (",->", [(), ()]),
    ("aB,Bc->ac", [(2, 3), (3, 4)]),
]


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.int16])
@pytest.mark.parametrize(("subscripts", "shapes"), CASES)
def test_einsum(subscripts: str, shapes: Shapes, dtype: Any) -> None:
    arrays = [(5 * random(shape, dtype, seed=i)).astype(dtype) for i, shape in enumerate(shapes)]
    wanted = np.asarray(np.einsum(subscripts, *arrays))
    made = ys.einsum(subscripts, *[ys.asarray(a) for a in arrays]).numpy()
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(("subscripts", "shapes"), CASES)
def test_einsum_gradient(subscripts: str, shapes: Shapes, dtype: Any) -> None:
    arrays = [random(shape, dtype, seed=i) for i, shape in enumerate(shapes)]
    check_gradient(lambda *tensors: ys.einsum(subscripts, *tensors), *arrays)


def test_einsum_second_derivative() -> None:
    check_gradient(ys.grad(lambda x: ys.einsum("ii,ij,kj->", x, x, x) ** 2), random((3, 3)), rtol=1e-5)


def test_einsum_promotes_and_takes_numbers() -> None:
    a = ys.ones((2, 3), dtype=ys.float32)
    assert ys.einsum("ij,j->i", a, ys.arange(3)).dtype == ys.float64
    assert ys.einsum(",ij->ij", 2.0, a).dtype == ys.float32
    assert ys.einsum("ij,j->i", a.astype(ys.bfloat16), ys.ones(3, dtype=ys.float16)).dtype == ys.float32


@pytest.mark.parametrize("half", [ys.float16, ys.bfloat16])
def test_einsum_of_halves_rounds_once(half: Any) -> None:
    a, b = (ys.asarray(random((3, 200), seed=s)).astype(half) for s in (1, 2))
    wanted = np.einsum("ik,jk->ij", a.numpy().astype(np.float32), b.numpy().astype(np.float32), optimize=True)
    assert (ys.einsum("ik,jk->ij", a, b).numpy() == wanted.astype(half.numpy)).all()


@pytest.mark.parametrize(
    ("subscripts", "shapes", "kind", "text"),
    [
        ("ij,jk", [(2, 3)], ArgumentError, "expected 2 operands"),
        ("ij", [(2,)], ShapeError, r"expected an operand of 2 dimensions for 'ij', got shape \(2,\)"),
        ("i", [(2, 3)], ShapeError, "expected an operand of 1 dimensions for 'i'"),
        ("...ij", [(2,)], ShapeError, r"2 dimensions or more for '\.\.\.ij'"),
        ("ij,jk", [(2, 3), (4, 5)], ShapeError, "expected index 'j' to have one length, got 3 and 4"),
        ("ii", [(2, 3)], ShapeError, "expected a diagonal for 'i' in 'ii'"),
        ("ij->k", [(2, 3)], ArgumentError, r"\['k'\] that no operand has"),
        ("ij->ii", [(2, 3)], ArgumentError, "one twice"),
        ("...i->i", [(2, 3)], ArgumentError, "expected an ellipsis in the output"),
        ("i?", [(2, 3)], ArgumentError, "expected letters"),
        ("......i", [(2, 3)], ArgumentError, "at most one ellipsis"),
        ("i->j->k", [(2,)], ArgumentError, "expected letters"),
        ("", [], ArgumentError, "at least one operand"),
    ],
)
def test_einsum_errors(subscripts: str, shapes: Shapes, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=r"\[einsum\] .*" + text):
        ys.einsum(subscripts, *[ys.zeros(s) for s in shapes])


def test_einsum_argument_errors() -> None:
    with pytest.raises(DTypeError, match=r"\[einsum\] expected a numeric dtype, got bool"):
        ys.einsum("i", ys.ones(2, dtype=ys.bool))
    with pytest.raises(ArgumentError, match=r"\[einsum\] expected the subscripts as a string first, got Tensor"):
        ys.einsum(ys.ones(2), "i")  # type: ignore[arg-type]


def test_einsum_takes_numpy_arrays_and_names_itself() -> None:
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(ys.einsum("ij,kj->ik", a, a).numpy(), a @ a.T)
    with pytest.raises(DTypeError, match=r"^\[einsum\] expected a tensor or a number, got str"):
        ys.einsum("i", "a")
