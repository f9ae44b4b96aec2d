"""The namespace of linear algebra: its names, what its functions take, and what they say of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from matrices import la
from yosegi.errors import DTypeError, UserError


def test_the_namespace_is_the_standard_s_and_numpys() -> None:
    numpys = {"cond", "lstsq", "multi_dot", "norm", "tensorinv", "tensorsolve"}
    assert set(la.__all__) == numpys | {
        "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
        "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
        "tensordot", "trace", "vecdot", "vector_norm",
    }  # fmt: skip
    assert ys.matmul is la.matmul
    assert ys.vecdot is la.vecdot
    assert ys.tensordot is la.tensordot


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
