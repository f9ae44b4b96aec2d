"""Every gradient that an op declares, against differences of its values: first and second order, real and complex."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from samples import BUILT_BY_INDEXING, SAMPLES, as_complex, missing
from yosegi._tensor.op import REGISTRY


def test_every_op_has_a_sample():
    assert missing() == set()


def check_twice(function, *arrays):
    """The gradient of the function, and that of a weighted sum of its gradient."""
    check_gradient(function, *arrays, rtol=2e-5)
    weights = [
        ys.asarray(random(np.shape(o), np.complex128, seed=5))
        for o in map(np.asarray, function(*map(ys.asarray, arrays)))
    ]

    def slopes(*xs):
        def loss(*xs):
            parts = zip(function(*xs), weights, strict=True)
            return sum((ys.sum(ys.real(w * o)) for o, w in parts), ys.zeros(()))

        return ys.grad(loss, argnums=tuple(range(len(xs))))(*xs)

    check_gradient(slopes, *arrays, rtol=2e-4)


def outputs_of(op, attrs):
    many = op.name in ("qr", "svd", "eigh", "eig", "slogdet", "attention_gradient")
    return lambda *xs: op.outputs(*xs, **attrs) if many else (op(*xs, **attrs),)


def gauge_free(name, outputs):
    """Vectors of a decomposition are unique only up to a phase: what is differentiated must not depend on it."""
    if name in ("eigh", "eig"):
        values, vectors = outputs
        return values, (vectors * ys.conj(vectors))
    if name == "svd":
        u, sv, vh = outputs
        return (u * sv) @ vh, sv, u @ ys.conj(u).mT, ys.conj(vh).mT @ vh
    return outputs


def complex_too(sample):
    """Whether the sample, which is real, can be made complex."""
    return not sample.real_only and any(a.dtype.kind == "f" and a.ndim for a in sample.arrays)


CASES = [
    (name, number, kind)
    for name, samples in SAMPLES.items()
    if REGISTRY[name].vjp or REGISTRY[name].decomposition
    for number, sample in enumerate(samples)
    for kind in (["real", "complex"] if complex_too(sample) else ["real"])
]
WITHOUT_RULE = [
    name
    for name, samples in SAMPLES.items()
    if REGISTRY[name].vjp is None
    and REGISTRY[name].decomposition is None
    and samples[0].arrays
    and samples[0].arrays[0].dtype.kind == "f"
]
HERMITIAN = ("cholesky", "eigh", "eigvalsh")


@pytest.mark.parametrize(("name", "number", "kind"), CASES, ids=[f"{a}-{b}-{c}" for a, b, c in CASES])
def test_gradient_of(name, number, kind):
    sample = SAMPLES[name][number]
    arrays = [as_complex(a) if kind == "complex" and a.dtype.kind == "f" and a.ndim else a for a in sample.arrays]
    if kind == "complex" and name in HERMITIAN:
        arrays = [a @ np.conj(a).mT for a in arrays]
    smooth = [i for i, a in enumerate(arrays) if a.dtype.kind in "fc" and a.ndim]

    def function(*xs):
        inputs = [ys.asarray(a) for a in arrays]
        for i, x in zip(smooth, xs, strict=True):
            inputs[i] = (x + ys.conj(x).mT) / 2 if name in HERMITIAN else x  # keep to where the op is defined
        return gauge_free(name, outputs_of(REGISTRY[name], sample.attrs)(*inputs))

    check_twice(function, *[arrays[i] for i in smooth])


@pytest.mark.parametrize("name", BUILT_BY_INDEXING)
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_gradient_of_indexing(name, kind):
    x = random((3, 4), np.complex128 if kind == "complex" else np.float64)
    check_twice(lambda x: (BUILT_BY_INDEXING[name](x),), x)


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_an_op_without_a_rule_gives_no_gradient(name):
    sample = SAMPLES[name][0]
    rest = [ys.asarray(a) for a in sample.arrays[1:]]

    def loss(x):
        return ys.sum(REGISTRY[name](x, *rest, **sample.attrs).astype(ys.float64)) + ys.sum(x)

    np.testing.assert_array_equal(ys.grad(loss)(ys.asarray(sample.arrays[0])).numpy(), 1.0)
