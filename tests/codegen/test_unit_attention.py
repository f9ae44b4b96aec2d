"""Attention on a matrix unit, as CUDA C that is built for the host: fragments, banks and masks, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from kernel_code import Emulated
from values import Array
from yosegi._graph.graph import capture, graph_of
from yosegi._schedule.fuse import fuse
from yosegi.codegen.c.unit_attention import SHAPES, unit_refusal, unit_shapes
from yosegi.devices.kernel.fused import Fused

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(8)
attend = ys.nn.scaled_dot_product_attention


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("units")


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype.numpy)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def computed(tensor: ys.Tensor, folder: Path, name: str | None = None) -> Array:
    """A call's value by this kernel; in the shape of a name, or the first that fits."""
    key, leaves, _ = capture([tensor._node])
    (region,) = fuse(graph_of(key))
    machine = Emulated("cuda", folder)
    arrays = [machine.from_host(node.buffer.data) for node in leaves if node.buffer is not None]
    shape = name or next(iter(unit_shapes(region.calls[-1])))
    made: Array = Fused(machine, "emulated").variants(region)[f"matrix unit, {shape}"]()(*arrays)[0]
    return made


def close(got: Array, expected: Array, dtype: Any) -> None:
    """Within a few roundings of the weights and of the result."""
    assert got.shape == expected.shape
    error = np.abs(got.astype(np.float64) - expected).max()
    assert error <= 4 * float(ys.finfo(dtype).eps) * np.abs(expected).max(), f"off by {error}"


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(("queries", "keys", "features", "values"), [
    (1, 1, 16, 16), (129, 127, 64, 64), (7, 200, 32, 48), (130, 33, 128, 128), (16, 70, 96, 80),
])  # fmt: skip
def test_any_lengths(dtype: Any, queries: int, keys: int, features: int, values: int, folder: Path) -> None:
    q, k, v = (normal(dtype, *s) for s in ((2, 3, queries, features), (3, keys, features), (2, 1, keys, values)))
    Q, K, V = (a.astype(np.float64) for a in (q, k, v))
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(features)
    t = [ys.asarray(a) for a in (q, k, v)]
    close(computed(attend(*t), folder), softmax(scores) @ V, dtype)
    seen = np.where(np.tri(queries, keys, dtype=bool), scores, -np.inf)
    close(computed(attend(*t, is_causal=True), folder), softmax(seen) @ V, dtype)


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16], ids=lambda d: d.name)
def test_masks(dtype: Any, folder: Path) -> None:
    q, k, v = (normal(dtype, *s) for s in ((3, 40, 64), (100, 64), (3, 100, 32)))
    Q, K, V = (a.astype(np.float64) for a in (q, k, v))
    scores = 0.3 * (Q @ K.T)
    t = [ys.asarray(a) for a in (q, k, v)]
    seen, bias = RNG.random((3, 40, 100)) > 0.5, normal(dtype, 3, 1, 100)
    seen[:, 0] = False  # sees nothing
    seen[:, 1, :90] = False  # sees nothing in its first tile of keys
    hidden = np.where(seen, softmax(np.where(seen, scores, -1e4)), 0)
    close(computed(attend(*t, ys.asarray(seen), scale=0.3), folder), hidden @ V, dtype)
    close(computed(attend(*t, ys.asarray(bias), scale=0.3), folder), softmax(scores + bias) @ V, dtype)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name: str, folder: Path) -> None:
    q, k, v = (normal(ys.float16, 2, n, 32) for n in (131, 100, 100))
    Q, K, V = (a.astype(np.float64) for a in (q, k, v))
    scores = np.where(np.tri(131, 100, dtype=bool), Q @ np.swapaxes(K, -1, -2) / np.sqrt(32), -np.inf)
    tensor = attend(*[ys.asarray(a) for a in (q, k, v)], is_causal=True)
    close(computed(tensor, folder, name), softmax(scores) @ V, ys.float16)


def test_every_width_has_a_shape() -> None:
    for features in range(16, 129, 16):
        for values in range(16, 129, 16):
            q, v = (ys.zeros((4, n), dtype=ys.float16) for n in (features, values))
            mask = ys.zeros((4, 4), dtype=ys.bool)
            for tensor in (attend(q, q, v), attend(q, q, v, mask)):
                assert unit_shapes(tensor._node.call)


def test_scores_that_grow(folder: Path) -> None:
    """Each tile's scores are far above those before: the base follows, and what was summed up shrinks."""
    keys = np.linspace(-30, 60, 300)[:, None] * np.ones((1, 16))
    q, k, v = np.ones((20, 16), np.float16), keys.astype(np.float16), normal(ys.float16, 300, 16)
    scores = q.astype(np.float64) @ k.astype(np.float64).T * 0.25
    for order in (slice(None), slice(None, None, -1)):
        given = [ys.asarray(np.ascontiguousarray(a)) for a in (q, k[order], v[order])]
        close(computed(attend(*given, scale=0.25), folder), softmax(scores[:, order]) @ v[order], ys.float16)


def test_what_is_not_a_number_spoils_its_row_alone(folder: Path) -> None:
    q, k, v = (normal(ys.float16, *s) for s in ((20, 16), (70, 16), (70, 16)))
    q[3, 5] = np.nan
    got = computed(attend(*[ys.asarray(a) for a in (q, k, v)]), folder)
    np.testing.assert_array_equal(np.isnan(got).all(-1), np.arange(20) == 3)
    np.testing.assert_array_equal(np.isnan(got).any(-1), np.arange(20) == 3)


def test_what_it_leaves_to_others() -> None:
    machine = Emulated("cuda", Path())

    def reason(dtype: Any, features: int, scale: float) -> str | None:
        q = ys.zeros((4, features), dtype=dtype)
        return unit_refusal(attend(q, q, q, scale=scale)._node.call, machine.dialect)

    assert reason(ys.float16, 64, 1.0) is None
    assert reason(ys.float32, 64, 1.0) == "no matrix unit for float32"
    assert reason(ys.float16, 24, 1.0) == "24 features are no multiple of 16 up to 128"
    assert reason(ys.float16, 144, 1.0) == "144 features are no multiple of 16 up to 128"
    assert reason(ys.float16, 64, -1.0) == "its scale turns scores round"
