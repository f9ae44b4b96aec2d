"""Forward mode: the tangents of every op are the transpose of its gradient, which is tested against differences."""

import numpy as np
import pytest

import yosegi as ys
from gradients import random
from samples import SAMPLES, as_complex, calls
from yosegi._tensor.op import REGISTRY


def inner(xs, ys_):
    return sum(float(np.sum((np.conj(x) * y).real)) for x, y in zip(xs, ys_, strict=True))


def is_floating(array):
    return np.asarray(array).dtype.kind in "fc"


def has_gradient(name):
    return REGISTRY[name].vjp is not None or REGISTRY[name].decomposition is not None


CASES = [
    (n, i, c) for n, i in calls() if has_gradient(n) for c in ((False,) if SAMPLES[n][i].real_only else (False, True))
]


@pytest.mark.parametrize(("name", "n", "is_complex"), CASES)
def test_tangents_are_the_transpose_of_cotangents(name, n, is_complex):
    op, sample = REGISTRY[name], SAMPLES[name][n]
    arrays = [as_complex(a) if is_complex and is_floating(a) and np.ndim(a) else np.asarray(a) for a in sample.arrays]
    places = [i for i, a in enumerate(arrays) if is_floating(a)]
    if not places:
        pytest.skip("it has no floating-point input")

    def function(*floats):
        given = dict(zip(places, floats, strict=True))
        inputs = [given.get(i, ys.asarray(a)) for i, a in enumerate(arrays)]
        node = op._node(tuple(inputs), dict(sample.attrs))
        return op(*inputs, **sample.attrs) if len(node.call.outputs) == 1 else op.outputs(*inputs, **sample.attrs)

    primals = [ys.asarray(arrays[i]) for i in places]
    tangents = [ys.asarray(random(p.shape, p.dtype.numpy, seed=n + 3)) for p in primals]
    value, tangent = ys.jvp(function, primals, tangents)
    again, back = ys.vjp(function, *primals)
    values, moved = (v if isinstance(v, tuple) else (v,) for v in (value, tangent))
    for v, t in zip(values, moved, strict=True):
        assert (v.shape, v.dtype) == (t.shape, t.dtype)
    if not all(v.dtype.is_inexact for v in values):
        assert all(not np.any(t.numpy()) for t in moved)
        return
    cotangents = [ys.asarray(random(v.shape, v.dtype.numpy, seed=n + 9)) for v in values]
    pulled = back(tuple(cotangents) if isinstance(again, tuple) else cotangents[0])
    forward = inner([c.numpy() for c in cotangents], [t.numpy() for t in moved])
    reverse = inner([p.numpy() for p in pulled], [t.numpy() for t in tangents])
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9)
