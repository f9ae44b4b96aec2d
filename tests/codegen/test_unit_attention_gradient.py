"""The gradient of attention on a matrix unit, as CUDA C that is built for the host, against float64."""

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
from yosegi._schedule.fuse import fuse, is_composite
from yosegi.codegen.c.unit_attention_gradient import SHAPES, gradient_refusal, gradient_shapes
from yosegi.devices.kernel.fused import Fused
from yosegi.ops.attention import _attention_gradient

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gradients")


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype.numpy)


def gradients(
    q: Array, k: Array, v: Array, g: Array, mask: Array | None, *, scale: float, hides: Array | None
) -> tuple[Array, list[Array], list[Array]]:
    """The result, the gradients, and the sums of their terms' sizes, in float64. `hides` is True where a key is
    hidden."""
    Q, K, V, G = (a.astype(np.float64) for a in (q, k, v, g))
    scores = scale * (Q @ np.swapaxes(K, -1, -2)) + (0 if mask is None else mask.astype(np.float64))
    scores = np.broadcast_to(scores, (*g.shape[:-1], k.shape[-2]))
    hidden = np.zeros(scores.shape, bool) if hides is None else np.broadcast_to(hides, scores.shape)
    scores = np.where(hidden, -1e4, scores)
    powers = np.where(hidden, 0, np.exp(scores - scores.max(-1, keepdims=True)))
    weights = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
    out = weights @ V
    slopes = weights * (G @ np.swapaxes(V, -1, -2) - (out * G).sum(-1, keepdims=True)) * scale
    pairs = (slopes, K), (np.swapaxes(slopes, -1, -2), Q), (np.swapaxes(weights, -1, -2), G)
    return out, [a @ b for a, b in pairs], [abs(a) @ abs(b) for a, b in pairs]


def check(folder: Path, *arrays: Array, name: str | None = None, hides: Array | None = None, **attrs: Any) -> None:
    """The kernels of a call, in the shape of a name or the first that fits, against float64."""
    q, k, v, *mask = arrays
    attrs = {"scale": float(q.shape[-1] ** -0.5), **attrs}
    batch = np.broadcast_shapes(*[a.shape[:-2] for a in (q, k, v)])
    g = normal(ys.float32, *batch, q.shape[-2], v.shape[-1]).astype(q.dtype)
    if attrs.get("is_causal"):
        hides = ~np.tri(q.shape[-2], k.shape[-2], dtype=bool)
    added = mask[0] if mask and hides is None else None
    out, expected, sizes = gradients(q, k, v, g, added, scale=attrs["scale"], hides=hides)
    tensors = [ys.asarray(a) for a in (q, k, v, out.astype(q.dtype), g, *mask)]
    made = _attention_gradient.outputs(*tensors, **attrs)
    key, leaves, _ = capture([t._node for t in made])
    region = next(r for r in fuse(graph_of(key)) if is_composite(r))
    machine = Emulated("cuda", folder)
    given = [machine.from_host(node.buffer.data) for node in leaves if node.buffer is not None]
    variant = f"matrix unit, {name or next(iter(gradient_shapes(region.calls[0])))}"
    data = Fused(machine, "emulated").variants(region)[variant]()(*given)
    index = [region.graph.calls[o].attrs["index"] for o in region.outputs]
    got = [data[index.index(n)] for n in range(3)]
    eps = float(ys.finfo(made[0].dtype).eps)
    for one, other, size, tensor in zip(got, expected, sizes, made, strict=True):
        assert one.shape == other.shape == tensor.shape
        error = np.abs(one.astype(np.float64) - other).max()
        assert error <= 4 * eps * max(size.max(), 0.01), f"off by {error}"


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(("queries", "keys", "features", "values"), [
    (1, 1, 16, 16), (129, 127, 64, 64), (7, 200, 32, 48), (130, 33, 128, 128), (16, 70, 96, 80),
])  # fmt: skip
def test_any_lengths(dtype: Any, queries: int, keys: int, features: int, values: int, folder: Path) -> None:
    q, k, v = (normal(dtype, *s) for s in ((2, 3, queries, features), (3, keys, features), (2, 1, keys, values)))
    check(folder, q, k, v)
    check(folder, q, k, v, is_causal=True)


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16], ids=lambda d: d.name)
def test_masks(dtype: Any, folder: Path) -> None:
    q, k, v = (normal(dtype, *s) for s in ((3, 40, 64), (100, 64), (3, 100, 32)))
    seen, bias = RNG.random((3, 40, 100)) > 0.5, normal(dtype, 3, 1, 100)
    seen[:, 0] = False  # sees nothing
    seen[:, 1, :90] = False  # sees nothing in its first tile of keys
    check(folder, q, k, v, seen, scale=0.3, hides=~seen)
    check(folder, q, k, v, bias, scale=0.3)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name: str, folder: Path) -> None:
    q, k, v = (normal(ys.float16, 2, n, 32) for n in (131, 100, 100))
    check(folder, q, k, v, name=name, is_causal=True)


def test_every_width_has_a_shape() -> None:
    for features in range(16, 129, 16):
        for values in range(16, 129, 16):
            q, v = (ys.zeros((4, n), dtype=ys.float16) for n in (features, values))
            assert gradient_shapes(_attention_gradient.outputs(q, q, v, v, v)[0]._node.inputs[0].call)


def test_scores_that_grow(folder: Path) -> None:
    """Each tile's scores are far above those before."""
    keys = np.linspace(-30, 60, 300)[:, None] * np.ones((1, 16))
    q, k, v = np.ones((20, 16), np.float16), keys.astype(np.float16), normal(ys.float16, 300, 16)
    for order in (slice(None), slice(None, None, -1)):
        check(folder, q, np.ascontiguousarray(k[order]), v, scale=0.25)


def test_what_it_leaves_to_others() -> None:
    machine = Emulated("cuda", Path())

    def reason(dtype: Any, features: int) -> str | None:
        q = ys.zeros((4, features), dtype=dtype)
        return gradient_refusal(_attention_gradient.outputs(q, q, q, q, q)[0]._node.inputs[0].call, machine.dialect)

    assert reason(ys.float16, 64) is None
    assert reason(ys.float32, 64) == "no matrix unit for float32"
    assert reason(ys.float16, 24) == "24 features are no multiple of 16 up to 128"
