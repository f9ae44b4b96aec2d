"""`x.at[key]` and the methods of tensors, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from gradients import check_gradient, random
from yosegi.errors import ShapeError

X = random((3, 4))
UPDATES = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
KEYS = [1, (slice(None), 2), (slice(0, 3, 2), [1, 1, 3]), ([0, 0, 2], [1, 1, 3]), X > 0.5, ..., [2, 2, 2, 0]]


def written(name, x, key, values):
    made = x.copy()
    if name == "set":
        made[key] = values
    else:
        UPDATES[name].at(made, key, values)
    return made


@pytest.mark.parametrize("name", ["set", *UPDATES])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_updates_against_numpy(name, key):
    x = ys.asarray(X)
    for values in (2.5, random(X[key].shape, seed=3)):
        made = getattr(x.at[key], name)(values if isinstance(values, float) else ys.asarray(values))
        np.testing.assert_allclose(made.numpy(), written(name, X, key, values), rtol=1e-12)
    np.testing.assert_array_equal(x.numpy(), X)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.sampled_from(list(UPDATES)), st.data())
def test_every_update_of_a_place_counts(places, name, data):
    values = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=len(places), max_size=len(places))), np.int64)
    key = np.array(places, np.int64)
    made = getattr(ys.arange(5).at[key], name)(values)
    assert made.tolist() == written(name, np.arange(5), key, values).tolist()


@pytest.mark.parametrize("name", ["set", *UPDATES])
def test_updates_are_traced_and_differentiated(name):
    key = [2, 0, 2]
    values = random((3, 4), seed=5)

    def update(x, v):
        return getattr(x.at[key], name)(v)

    np.testing.assert_allclose(
        ys.jit(update)(ys.asarray(X), ys.asarray(values)).numpy(), written(name, X, np.array(key), values)
    )
    check_gradient(update, X, values, rtol=1e-5)


def test_a_value_that_does_not_fit():
    with pytest.raises(ShapeError, match=r"^\[add\]"):
        ys.zeros((3,)).at[:2].add(ys.ones((3,)))


METHODS = {
    "transpose": [(), ((1, 0),), (1, 0)], "squeeze": [()], "clip": [(-0.5, 0.5), (None, 0.0)], "round": [(), (2,)],
    "cumsum": [(), (1,)], "cumprod": [(0,)], "argsort": [(), (0,)], "conj": [()], "tobytes": [()], "dot": [(X.T,)],
    "repeat": [(2,), (2, 1)], "swapaxes": [(0, 1)], "take": [([2, 0], 1)], "flatten": [()], "ravel": [()],
    "diagonal": [(), (1,)], "trace": [()], "nonzero": [()], "tolist": [()], "mean": [(), (0,)], "std": [(1,)],
    "ptp": [],
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_against_numpy(name):
    for args in METHODS[name]:
        made, expected = (getattr(a, name)(*args) for a in (ys.asarray(X), X))
        if isinstance(made, tuple):
            made, expected = (np.stack([np.asarray(part) for part in parts]) for parts in (made, expected))
        np.testing.assert_allclose(np.asarray(made), np.asarray(expected)) if name != "tobytes" else None
        assert name != "tobytes" or made == expected


def test_parts_and_protocols():
    z = ys.asarray(random((3,), np.complex128))
    np.testing.assert_array_equal(z.real.numpy(), z.numpy().real)
    np.testing.assert_array_equal(z.imag.numpy(), z.numpy().imag)
    x = ys.asarray(X)
    np.testing.assert_array_equal(x.sort().numpy(), np.sort(X))
    np.testing.assert_array_equal(round(x, 1).numpy(), np.round(X, 1))
    np.testing.assert_array_equal(round(x).numpy(), np.round(X))
    for mine, other in zip(divmod(x, 0.3), divmod(X, 0.3), strict=True):
        np.testing.assert_allclose(mine.numpy(), other)
    for mine, other in zip(divmod(2.0, x), divmod(2.0, X), strict=True):
        np.testing.assert_allclose(mine.numpy(), other)
    assert x.itemsize == 8
    assert x.ptp().item() == np.ptp(X)


def test_a_0d_tensor_is_not_iterated():
    for call in (iter, len, list):
        with pytest.raises(TypeError, match="0-d tensor"):
            call(ys.asarray(1.0))
