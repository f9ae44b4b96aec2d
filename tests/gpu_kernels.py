"""Every way to compute products, patterns and attention on a GPU: against float64, in memory full of garbage, timed.

A part of `gpu_run`. Odd shapes are checked, not timed; square ones are both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import erf, sqrt
from typing import Any

import numpy as np

from yosegi._graph.graph import capture, graph_of
from yosegi._schedule.fuse import fuse

Case = tuple[str, Any, Any]
"""A name, a tensor that is one product or one composite, and its value in float64."""

ODD = [(1, 1, 1), (7, 7, 7), (127, 129, 1), (129, 127, 129), (1000, 3, 513)]
SQUARES = [128, 512, 2048]
ERRORS = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}
_GRADIENTS = [
    ("float16", 48, 256, 64),
    ("bfloat16", 48, 256, 64),
    ("float16", 8, 4096, 64),
    ("float16", 16, 2048, 128),
    ("bfloat16", 2, 1000, 96),
    ("float16", 3, 129, 32),
]
_ATTENTIONS = [
    ("float16", 8, 4096, 64),
    ("bfloat16", 8, 4096, 64),
    ("float16", 8, 1024, 64),
    ("float16", 16, 4096, 128),
    ("float16", 3, 129, 32),
    ("bfloat16", 2, 1000, 96),
    ("float16", 2, 77, 128),
]
"""Dtype, heads, length and width."""
_TURNS = {128: 100, 512: 100, 2048: 10}


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)))


def cases(ys: Any, rng: Any, dtype: str, m: int, k: int, n: int) -> Iterator[Case]:
    """A product and the seven patterns, on random numbers of a dtype."""

    def normal(*shape: int) -> Any:
        return ys.asarray(rng.normal(size=shape).astype(np.float32)).astype(getattr(ys, dtype))

    x, w, r, b, c, d = (normal(*s) for s in ((m, k), (n, k), (m, n), (n,), (n,), (k,)))
    v = abs(normal(n)) + 0.5
    y = ys.matrix_transpose(w) + 0
    ys.eval(x, w, r, b, c, d, v, y)
    X, W, R, B, C, D, V = (t.numpy().astype(np.float64) for t in (x, w, r, b, c, d, v))
    linear = X @ W.T + B
    yield "matmul", x @ y, X @ W.T
    yield "linear+residual+relu", ys.nn.linear_residual_relu(x, w, r, b), np.maximum(linear + R, 0)
    yield "gelu+linear", ys.nn.gelu_linear(x, w, b), gelu(X) @ W.T + B
    normed = (linear - B) / np.sqrt(V + 1e-5) * C + B
    yield "linear+batchnorm+relu", ys.nn.linear_batch_norm_relu(x, w, b, v, b, c, b), np.maximum(normed, 0)
    kept = ys.nn.dropout(ys.ones((m, k)), 0.5, rng=3).numpy()
    yield "dropout+linear", ys.nn.dropout_linear(x, w, b, rate=0.5, rng=3), (X * kept) @ W.T + B
    spread = np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    standard = (X - X.mean(-1, keepdims=True)) / spread * D + D
    yield "layernorm+linear", ys.nn.layer_norm_linear(x, w, b, d, d), standard @ W.T + B
    labels = rng.integers(0, k, m)
    yield ("softmax+cross-entropy", ys.nn.cross_entropy(x, ys.asarray(labels)),
           -np.log(softmax(X))[np.arange(m), labels].mean())  # fmt: skip
    yield "attention scores", ys.nn.attention_scores(x, w), softmax(X @ W.T / sqrt(k))


def attentions(ys: Any, rng: Any, dtype: str, heads: int, length: int, width: int) -> Iterator[Case]:
    """Full attention, plain and causal; the first head's values are compared."""
    q, k, v = (ys.asarray(rng.normal(size=(heads, length, width)).astype(np.float32)).astype(getattr(ys, dtype))
               for _ in range(3))  # fmt: skip
    ys.eval(q, k, v)
    Q, K, V = (t.numpy()[0].astype(np.float64) for t in (q, k, v))
    scores = Q @ K.T / sqrt(width)
    yield "attention", ys.nn.scaled_dot_product_attention(q, k, v), softmax(scores) @ V
    seen = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    yield "causal attention", ys.nn.scaled_dot_product_attention(q, k, v, is_causal=True), softmax(seen) @ V


def attention_beside_torch(
    ours: Any,
    told: Callable[..., None],
    attempted: Callable[[str, Callable[[], Any]], None],
    torch_us: Callable[..., float],
) -> None:
    """Every way to compute attention, checked, and in turns with torch's."""
    rng = np.random.default_rng(10)
    for dtype, heads, length, width in _ATTENTIONS:
        for name, tensor, expected in attentions(ours.ys, rng, dtype, heads, length, width):
            work = partial(_beside_torch, ours, told, torch_us, name, dtype, (heads, length, width), tensor, expected)
            attempted(f"{name} {dtype} {length}", work)


def gradient_beside_torch(
    ours: Any,
    told: Callable[..., None],
    attempted: Callable[[str, Callable[[], Any]], None],
    torch_us: Callable[..., float],
) -> None:
    """Every variant of attention's gradient, checked, and in turns with torch's."""
    rng = np.random.default_rng(11)
    for dtype, heads, length, width in _GRADIENTS:
        for is_causal in (False, True):
            work = partial(_gradient, ours, told, torch_us, rng, dtype, (heads, length, width), is_causal)
            attempted(f"gradient of attention {dtype} {length} {is_causal}", work)


def _gradient(
    ours: Any, told: Callable[..., None], torch_us: Callable[..., float], rng: Any, dtype: str,
    shape: tuple[int, int, int], is_causal: bool,
) -> None:  # fmt: skip
    import torch

    from yosegi.ops.attention import _attention_gradient

    heads, length, width = shape
    own = getattr(ours.ys, dtype)
    q, k, v, g = (ours.ys.asarray(rng.normal(size=shape).astype(np.float32)).astype(own) for _ in range(4))
    out = ours.ys.nn.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    given = [t.numpy() for t in (q, k, v, out, g)]
    Q, K, V, _, G = (a[0].astype(np.float64) for a in given)
    scores = Q @ K.T / sqrt(width)
    weights = softmax(np.where(np.tri(length, dtype=bool), scores, -np.inf) if is_causal else scores)
    products = G @ V.T
    slopes = weights * (products - (weights * products).sum(-1, keepdims=True)) / sqrt(width)
    expected = slopes @ K, slopes.T @ Q, weights.T @ G
    made = _attention_gradient.outputs(*[ours.ys.asarray(a) for a in given], is_causal=is_causal)
    key, leaves, _ = capture([t._node for t in made])
    (region,) = fuse(graph_of(key))
    device, name = ours.device, "causal gradient" if is_causal else "gradient"
    index = [region.graph.calls[o].attrs["index"] for o in region.outputs]
    data = [device.from_host(node.buffer.data) for node in leaves]
    a, b, c, d = (torch.from_numpy(given[n].astype(np.float32)).to("cuda", getattr(torch, dtype))[None]
                  for n in (0, 1, 2, 4))  # fmt: skip
    for t in (a, b, c):
        t.requires_grad_()
    seen = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=is_causal)
    peer = partial(torch.autograd.grad, seen, (a, b, c), d, retain_graph=True)
    clocks: dict[str, Callable[[], float]] = {"torch": lambda: torch_us(torch, peer, 20, 1)}
    for way, make in device._fused.variants(region).items():
        try:
            kernel = make()
            device._memory.fill_with_garbage()
            results = kernel(*data)
            again = kernel(*data)
            for n, wanted in enumerate(expected):
                got, twice = (np.asarray(device.to_host(r[index.index(n)]))[0] for r in (results, again))
                error = float(np.max(np.abs(got.astype(np.float64) - wanted))) / float(np.max(np.abs(wanted)))
                assert error <= 2 * ERRORS[dtype], f"output {n} wrong by {error}"
                assert not way.startswith("matrix unit") or (got == twice).all(), "another result in another run"
            clocks[way] = lambda kernel=kernel: ours.device_us(lambda: kernel(*data), 20, 1)  # type: ignore[misc]
        except Exception as failure:
            told(case=name, dtype=dtype, shape=str(shape), way=way, failed=f"{type(failure).__name__}: {failure}"[:400])
        finally:
            device._memory.pool.on_take = None
    _in_turns(told, clocks, 10 * heads * length**2 * width * (0.5 if is_causal else 1.0), name, dtype, shape)


def _in_turns(
    told: Callable[..., None], clocks: dict[str, Callable[[], float]], work: float, name: str, dtype: str,
    shape: tuple[int, int, int],
) -> None:  # fmt: skip
    times: dict[str, list[float]] = {way: [] for way in clocks}
    for _ in range(7):
        for way, clock in clocks.items():
            times[way].append(clock())
    medians = {way: float(np.median(own)) for way, own in times.items()}
    for way, us in sorted(medians.items(), key=lambda pair: pair[1]):
        told(case=name, dtype=dtype, shape=str(shape), way=way, us=us, tflops=work / us / 1e6,
             of_torch=medians["torch"] / us)  # fmt: skip


def _beside_torch(
    ours: Any, told: Callable[..., None], torch_us: Callable[..., float], name: str, dtype: str,
    shape: tuple[int, int, int], tensor: Any, expected: Any,
) -> None:  # fmt: skip
    import torch

    heads, length, width = shape
    key, leaves, _ = capture([tensor._node])
    (region,) = fuse(graph_of(key))
    device, is_causal = ours.device, region.calls[-1].attrs["is_causal"]
    arrays = [node.buffer.data for node in leaves]
    data = [device.from_host(a) for a in arrays]
    q, k, v = (torch.from_numpy(a.astype(np.float32)).to("cuda", getattr(torch, dtype))[None] for a in arrays)
    peer = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=is_causal)
    work = 4 * heads * length**2 * width * (0.5 if is_causal else 1.0)
    clocks: dict[str, Callable[[], float]] = {"torch": lambda: torch_us(torch, peer, 20, 1)}
    for way, make in device._fused.variants(region).items():
        if not way.startswith("matrix unit") and length > 2000:
            continue  # known to be far behind
        try:
            kernel = make()
            device._memory.fill_with_garbage()
            got = np.asarray(device.to_host(kernel(*data)[0]), np.float64)[0]
            error = float(np.max(np.abs(got - expected))) / float(np.max(np.abs(expected)))
            assert error <= ERRORS[dtype], f"wrong by {error}"
            clocks[way] = lambda kernel=kernel: ours.device_us(lambda: kernel(*data), 20, 1)  # type: ignore[misc]
        except Exception as failure:
            told(case=name, dtype=dtype, shape=str(shape), way=way, failed=f"{type(failure).__name__}: {failure}"[:400])
        finally:
            device._memory.pool.on_take = None
    _in_turns(told, clocks, work, name, dtype, shape)


def all_ways(ours: Any, told: Callable[..., None], attempted: Callable[[str, Callable[[], Any]], None]) -> None:
    """Check every way to compute every case, and time the large ones."""
    rng = np.random.default_rng(9)
    for dtype in ERRORS:
        for shape in (*ODD, *[(n, n, n) for n in SQUARES]):
            for name, tensor, expected in cases(ours.ys, rng, dtype, *shape):
                turns = _TURNS.get(shape[0], 0) if len(set(shape)) == 1 else 0
                work = partial(_case, ours, told, name, dtype, shape, tensor, expected, turns)
                attempted(f"{name} {dtype} {shape}", work)
        for heads, length, width in ((3, 129, 24), (8, 1024, 64), (8, 4096, 64)):
            for name, tensor, expected in attentions(ours.ys, rng, dtype, heads, length, width):
                turns = 5 if length > 1000 else 0
                work = partial(_case, ours, told, name, dtype, (heads, length, width), tensor, expected, turns)
                attempted(f"{name} {dtype} {length}", work)


def odd_ways(
    ours: Any, told: Callable[..., None], attempted: Callable[[str, Callable[[], Any]], None], dtype: str
) -> None:
    """Check every way to compute every case of odd shapes, attention among them, the widest spread of shapes first."""
    rng = np.random.default_rng(11)
    for name, tensor, expected in attentions(ours.ys, rng, dtype, 2, 129, 32):
        attempted(name, partial(_case, ours, told, name, dtype, (2, 129, 32), tensor, expected, 0))
    for shape in ((129, 127, 129), (7, 7, 7), (1000, 3, 513), (1, 1, 1), (127, 129, 1)):
        for name, tensor, expected in cases(ours.ys, rng, dtype, *shape):
            attempted(name, partial(_case, ours, told, name, dtype, shape, tensor, expected, 0))


def odd_reductions(
    ours: Any, told: Callable[..., None], attempted: Callable[[str, Callable[[], Any]], None], dtype: str
) -> None:
    """Check sums in one stage and in two, along rows and across them."""
    rng = np.random.default_rng(12)
    for shape, axis in (((4001, 44), 0), ((60000, 7), 0), ((129, 2000), 0), ((3, 999, 129), 1), ((70001,), 0),
                        ((33, 1001), 1)):  # fmt: skip
        x = ours.ys.asarray(rng.normal(size=shape).astype(np.float32) / 2).astype(getattr(ours.ys, dtype))
        attempted(f"sum {shape} {axis}", partial(_reduction, ours, told, dtype, x, axis))


def _reduction(ours: Any, told: Callable[..., None], dtype: str, x: Any, axis: int) -> None:
    squares = x.numpy().astype(np.float64) ** 2
    key, _, _ = capture([ours.ys.sum(ours.ys.asarray(x.numpy()) ** 2, axis=axis)._node])
    (region,) = fuse(graph_of(key))
    device = ours.device
    try:
        device._memory.fill_with_garbage()
        got = np.asarray(device.to_host(device.compile(region)(device.from_host(x.numpy()))[0]), np.float64)
    finally:
        device._memory.pool.on_take = None
    error = float(np.max(np.abs(got / np.sum(squares, axis) - 1)))
    assert error <= ERRORS[dtype], f"wrong by {error}"
    told(case="sum", dtype=dtype, shape=str(x.shape), axis=axis, checked="right")


def _case(
    ours: Any, told: Callable[..., None], name: str, dtype: str, shape: tuple[int, ...], tensor: Any, expected: Any,
    turns: int,
) -> None:  # fmt: skip
    """All ways of one case. The reference has the first matrix of a stack."""
    key, leaves, _ = capture([tensor._node])
    (region,) = fuse(graph_of(key))
    device = ours.device
    data = [device.from_host(node.buffer.data) for node in leaves]
    for way, make in device._fused.variants(region).items():
        if way == "naive" and shape[0] > 1000 and turns:
            continue  # it takes too long to be worth a time
        try:
            kernel = make()
            device._memory.fill_with_garbage()
            got = np.asarray(device.to_host(kernel(*data)[0]), np.float64)
            got = got[0] if got.ndim > np.ndim(expected) else got
            size = max(float(np.max(np.abs(expected))), 1e-30)
            error = float(np.max(np.abs(got - expected))) / size
        except Exception as failure:
            told(case=name, dtype=dtype, shape=str(shape), way=way, failed=f"{type(failure).__name__}: {failure}"[:400])
            continue
        finally:
            device._memory.pool.on_take = None
        row = {"case": name, "dtype": dtype, "shape": str(shape), "way": way, "error": error}
        if not error <= ERRORS[dtype]:
            told(**row, failed="wrong")
        elif turns:
            told(**row, us=ours.device_us(lambda kernel=kernel: kernel(*data), turns, 3))
    if not turns:
        told(case=name, dtype=dtype, shape=str(shape), checked="all ways")
