"""Composites that are folded by rows, and attention, as CUDA C and as MSL, built for the host: against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from kernel_code import Emulated, taken_whole
from values import Array

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(6)
IN = pytest.mark.parametrize(("language", "dtype"), [("cuda", ys.float32), ("msl", ys.float16)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patterns")


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype.numpy)


def close(got: Array, expected: Any, roundings: float = 8) -> None:
    """Within so many roundings of the largest value; nothing where it should be nothing."""
    expected = np.asarray(expected)
    eps = float(ys.finfo(ys.asarray(got).dtype).eps)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    error = np.nan_to_num(np.abs(got.astype(np.float64) - expected))
    assert np.all(error <= roundings * eps * np.nanmax(np.abs(expected))), f"off by {error.max()}"


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@IN
def test_rows_are_one_kernel(language: str, dtype: Any, folder: Path) -> None:
    for shape in ((129, 70), (3, 5, 127), (1, 1000)):
        x, w = normal(dtype, *shape), normal(dtype, shape[-1])
        X, W = x.astype(np.float64), w.astype(np.float64)
        t, weight = ys.asarray(x), ys.asarray(w)
        spread = np.sqrt(X.var(-1, keepdims=True) + 1e-5)
        cases = [
            (ys.nn.softmax(t), softmax(X)),
            (ys.nn.log_softmax(t), np.log(softmax(X))),
            (ys.nn.layer_norm(t, weight, weight), (X - X.mean(-1, keepdims=True)) / spread * W + W),
            (ys.nn.rms_norm(t, weight), X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) * W),
        ]
        for tensor, expected in cases:
            machine = Emulated(language, folder)
            close(taken_whole(tensor, machine), expected, 16)
            assert machine.launches == 1


@IN
def test_cross_entropy(language: str, dtype: Any, folder: Path) -> None:
    x, labels = normal(dtype, 129, 37), RNG.integers(0, 37, 129)
    labels[::10] = -100
    logs, counts = np.log(softmax(x.astype(np.float64))), labels >= 0
    losses = np.where(counts, -logs[np.arange(129), np.where(counts, labels, 0)], 0)
    smooth = np.where(counts, 0.9 * losses - 0.1 * logs.mean(-1), 0)
    t, y = ys.asarray(x), ys.asarray(labels)
    each = Emulated(language, folder)
    close(taken_whole(ys.nn.cross_entropy(t, y, reduction="none", label_smoothing=0.1), each), smooth)
    assert each.launches == 1
    close(taken_whole(ys.nn.cross_entropy(t, y), Emulated(language, folder)), losses.sum() / counts.sum())


@IN
def test_attention_scores(language: str, dtype: Any, folder: Path) -> None:
    for queries, keys in ((70, 33), (1, 7)):
        q, k = normal(dtype, 2, queries, 16), normal(dtype, 2, keys, 16)
        seen = RNG.random((queries, keys)) > 0.3
        seen[0] = False
        products = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) / 4
        a, b = ys.asarray(q), ys.asarray(k)
        machine = Emulated(language, folder)
        close(taken_whole(ys.nn.attention_scores(a, b), machine), softmax(products), 32)
        assert machine.launches == 2
        hidden = np.where(seen, softmax(np.where(seen, products, -1e4)), 0)
        close(taken_whole(ys.nn.attention_scores(a, b, ys.asarray(seen)), machine), hidden, 32)
        causal = np.tri(queries, keys, dtype=bool)
        expected = np.where(causal, softmax(np.where(causal, products, -1e4)), 0)
        close(taken_whole(ys.nn.attention_scores(a, b, is_causal=True), machine), expected, 32)


@IN
def test_attention_is_one_kernel(language: str, dtype: Any, folder: Path) -> None:
    for queries, keys, features, values in ((129, 127, 16, 24), (1, 1, 1, 1), (7, 50, 3, 9)):
        q, k, v = (normal(dtype, *s) for s in ((2, 3, queries, features), (3, keys, features), (2, 1, keys, values)))
        Q, K, V = (a.astype(np.float64) for a in (q, k, v))
        products = Q @ np.swapaxes(K, -1, -2) / np.sqrt(features)
        seen, bias = RNG.random((queries, keys)) > 0.5, normal(dtype, 3, 1, keys)
        seen[0] = False
        causal = np.tri(queries, keys, dtype=bool)
        t = [ys.asarray(a) for a in (q, k, v)]
        attend = ys.nn.scaled_dot_product_attention
        cases = [
            (attend(*t), softmax(products) @ V),
            (attend(*t, ys.asarray(seen)), np.where(seen, softmax(np.where(seen, products, -1e4)), 0) @ V),
            (attend(*t, ys.asarray(bias)), softmax(products + bias) @ V),
            (attend(*t, is_causal=True), softmax(np.where(causal, products, -np.inf)) @ V),
        ]
        for tensor, expected in cases:
            machine = Emulated(language, folder)
            close(taken_whole(tensor, machine), expected, 64)
            assert machine.launches == 1
