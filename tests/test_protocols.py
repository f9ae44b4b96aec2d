"""NumPy's functions on tensors: they are Yosegi's, stay lazy and are differentiated; others raise."""

from __future__ import annotations

import io

import numpy as np
import pytest

import names
import yosegi as ys

A = np.random.default_rng(0).normal(size=(3, 4))


@pytest.fixture
def x() -> ys.Tensor:
    return ys.asarray(A)


@pytest.mark.parametrize(
    "call",
    [
        np.sin, np.std, np.median, np.cumsum, np.transpose, np.abs, np.add.reduce, np.add.accumulate, np.linalg.norm,
        np.fft.rfft, lambda x: np.std(x, ddof=1, axis=0), lambda x: np.concatenate([x, A]), lambda x: np.dot(x, A.T),
        lambda x: np.multiply.outer(x, A[0]), lambda x: np.where(x > 0, x, 0.0), lambda x: np.clip(x, -1, 1),
        lambda x: np.maximum.reduce(x, axis=1), lambda x: np.reshape(x, (4, 3)), lambda x: np.quantile(x, 0.3),
        lambda x: np.stack([x, x], axis=1), lambda x: np.ones(4) - x, lambda x: np.float64(2) / x, lambda x: A @ x.T,
        lambda x: np.logical_or.reduce(x > 2), lambda x: np.arctan2(x, A), lambda x: np.einsum("ij->j", x),
    ],
)  # fmt: skip
def test_numpys_functions_give_lazy_tensors(x, call):
    made = call(x)
    assert isinstance(made, ys.Tensor)
    assert made._node.buffer is None
    np.testing.assert_allclose(made.numpy(), call(A), rtol=1e-12)


def test_every_function_of_numpy_that_is_here_is_dispatched():
    dispatched = {r.name for r in names.rows("numpy") if hasattr(getattr(np, r.name), "_implementation")}
    assert len(dispatched & set(dir(ys))) > 150


def test_they_are_differentiated_and_traced(x):
    def loss(v):
        return np.sum(np.tanh(v) * A)

    np.testing.assert_allclose(ys.grad(loss)(x).numpy(), A / np.cosh(A) ** 2)
    np.testing.assert_allclose(ys.jit(loss)(x).numpy(), loss(A))


def test_an_array_is_written_in_place(x):
    a = np.ones((3, 4))
    b = a
    a *= x
    a += x
    assert a is b
    np.testing.assert_allclose(a, 2 * A)
    whole = np.ones((3, 4), np.int64)
    with pytest.raises(TypeError):
        whole *= x
    with pytest.raises(TypeError, match="expected an array as out, got a tensor"):
        np.sin(A, out=x)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (np.real_if_close, "real_if_close"),
        (np.logaddexp.reduce, "logaddexp.reduce"),
        (lambda x: np.add.at(A.copy(), [0], x), "add.at"),
    ],
)
def test_others_raise_with_the_name(x, call, name):
    with pytest.raises(TypeError, match=rf"\[{name}\] expected a function that Yosegi has"):
        call(x)


def test_values_go_to_files_and_text(x):
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    np.testing.assert_array_equal(np.load(file), A)
    assert np.array_repr(ys.asarray([1, 2])) == "array([1, 2])"
    target = np.zeros((3, 4))
    np.copyto(target, x)
    np.testing.assert_array_equal(target, A)
    assert type(np.asarray(x)) is np.ndarray
    assert np.shape(x) == (3, 4)


class Picture:
    """An object that shows its memory as images of Pillow do."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self._array = array


def test_objects_with_an_array_interface_are_taken():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    made = ys.asarray(Picture(pixels))
    assert made.dtype is ys.uint8
    np.testing.assert_array_equal(made.numpy(), pixels)
