"""Every op on many examples at once, against a loop over the examples."""

from itertools import product

import numpy as np
import pytest

import yosegi as ys
from samples import BUILT_BY_INDEXING, SAMPLES, calls
from yosegi._tensor.op import REGISTRY
from yosegi._trace import batching

SIZE = 3
ONE_BY_ONE = {"searchsorted": "a sequence of its own for each example"}
"""Ops that are called for one example at a time, and when."""


def examples(array, seed):
    """Values like those of a sample, another for each example. Random states and indices stay what they are."""
    rng = np.random.default_rng(seed)
    array = np.asarray(array)
    if array.dtype == bool:
        return np.stack([np.roll(array, n) for n in range(SIZE)])
    if array.dtype.kind in "iu":
        return np.stack([np.roll(array.reshape(-1), n).reshape(array.shape) for n in range(SIZE)])
    return np.stack([array * scale for scale in rng.uniform(0.9, 1.1, SIZE)]).astype(array.dtype)


def outputs(op, sample, arrays):
    made = op._node(tuple(map(ys.asarray, arrays)), dict(sample.attrs))
    return (
        op(*map(ys.asarray, arrays), **sample.attrs)
        if len(made.call.outputs) == 1
        else op.outputs(*map(ys.asarray, arrays), **sample.attrs)
    )


def as_list(made):
    return [t.numpy() for t in (made if isinstance(made, tuple) else (made,))]


def check(got, expected):
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        assert g.dtype == e.dtype
        np.testing.assert_allclose(g, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "n"), calls())
def test_an_op_on_examples_is_a_loop_over_them(name, n, monkeypatch):
    op, sample = REGISTRY[name], SAMPLES[name][n]
    if not sample.arrays:
        return
    if name not in ONE_BY_ONE:
        monkeypatch.setattr(batching, "one_by_one", None)
    many = [examples(a, seed) for seed, a in enumerate(sample.arrays)]
    for batched in product((True, False), repeat=len(many)):
        if not any(batched):
            continue
        given = [m if b else m[0] for m, b in zip(many, batched, strict=True)]
        axes = tuple(0 if b else None for b in batched)
        got = as_list(ys.vmap(lambda *xs: outputs(op, sample, xs), in_axes=axes)(*map(ys.asarray, given)))
        rows = [as_list(outputs(op, sample, [g[i] if b else g for g, b in zip(given, batched, strict=True)]))
                for i in range(SIZE)]  # fmt: skip
        check(got, [np.stack(column) for column in zip(*rows, strict=True)])


@pytest.mark.parametrize("name", BUILT_BY_INDEXING)
def test_indexing_on_examples_is_a_loop_over_them(name, monkeypatch):
    monkeypatch.setattr(batching, "one_by_one", None)
    x = np.random.default_rng(1).normal(size=(SIZE, 3, 4))
    function = BUILT_BY_INDEXING[name]
    expected = np.stack([function(ys.asarray(row)).numpy() for row in x])
    np.testing.assert_allclose(ys.vmap(function)(ys.asarray(x)).numpy(), expected, rtol=1e-12)


def _set(x, value, *keys):
    copy = x + 0.0
    copy[keys] = value
    return copy


INDEXING = {
    "gather": lambda x, i, j, v: x[i, :, j],
    "gather in the middle": lambda x, i, j, v: x[:, i],
    "gather of all": lambda x, i, j, v: ys.take_along_axis(x, ys.reshape(i, (2, 1, 1)) % 2, axis=0),
    "scatter": lambda x, i, j, v: _set(x, v, i, slice(None), j),
    "scatter of a number": lambda x, i, j, v: _set(x, v[0, 0], slice(None), i),
    "scatter_add": lambda x, i, j, v: x.at[:, i].add(v[0, 0]),
    "scatter_add of rows": lambda x, i, j, v: x.at[i].add(v[:, None, :2] * ys.ones((2, 3, 2))),
    "slice_set": lambda x, i, j, v: _set(x, v[0], 0, slice(None), 1),
}


@pytest.mark.parametrize("batched", [b for b in product((0, None), repeat=4) if b != (None,) * 4])
@pytest.mark.parametrize("name", INDEXING)
def test_an_index_of_its_own_for_each_example(name, batched, monkeypatch):
    monkeypatch.setattr(batching, "one_by_one", None)
    rng = np.random.default_rng(5)
    many = [rng.normal(size=(SIZE, 3, 3, 2)), rng.integers(0, 3, (SIZE, 2)), rng.integers(0, 2, (SIZE, 2)),
            rng.normal(size=(SIZE, 2, 3))]  # fmt: skip
    given = [m if b == 0 else m[0] for m, b in zip(many, batched, strict=True)]
    function = INDEXING[name]
    got = ys.vmap(function, in_axes=batched)(*map(ys.asarray, given)).numpy()
    for i in range(SIZE):
        row = [ys.asarray(g[i] if b == 0 else g) for g, b in zip(given, batched, strict=True)]
        np.testing.assert_allclose(got[i], function(*row).numpy(), rtol=1e-12)
