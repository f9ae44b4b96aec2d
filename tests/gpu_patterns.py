"""The seven fused patterns in float16 under `jit`, beside PyTorch as it is, compiled, and captured into a graph; and
programs in a user's own words.

A part of `gpu_run`. Every result is compared with float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

SIZES = (128, 512, 2048)
_OURS, _CAPTURED = "yosegi", "torch captured"
_ERROR = 6e-3
"""Of a result in float16, as a share of its norm."""
_ERRORS = {"gradients of a layer": 2e-2}
"""Where rounding turns a sign before a relu, its gradient is off by an element."""

Program = Callable[..., Any]
Clocks = tuple[Callable[..., float], Callable[..., float], Callable[..., dict[str, float]]]
"""Of PyTorch's device, of the host, and of both devices in turns."""
Case = tuple[str, Program, Program, tuple[str, ...]]
"""A name, our program, PyTorch's, and which of the arrays they take."""


def patterns(ys: Any, torch: Any) -> Iterator[Case]:
    """The patterns, as each library says them."""
    F = torch.nn.functional
    yield ("linear+residual+relu", ys.nn.linear_residual_relu,
           lambda x, w, r, b: torch.relu(F.linear(x, w, b) + r), ("x", "w", "r", "b"))  # fmt: skip
    yield "gelu+linear", ys.nn.gelu_linear, lambda x, w, b: F.linear(F.gelu(x), w, b), ("x", "w", "b")
    yield ("linear+batchnorm+relu", ys.nn.linear_batch_norm_relu,
           lambda x, w, m, v, b, g, h: torch.relu(F.batch_norm(F.linear(x, w, b), m, v, g, h)),
           ("x", "w", "b", "v", "b", "c", "b"))  # fmt: skip
    yield ("dropout+linear", lambda x, w, b: ys.nn.dropout_linear(x, w, b, rate=0.5, rng=3),
           lambda x, w, b: F.linear(F.dropout(x, 0.5), w, b), ("x", "w", "b"))  # fmt: skip
    yield ("layernorm+linear", ys.nn.layer_norm_linear,
           lambda x, w, b, g, h: F.linear(F.layer_norm(x, (x.shape[-1],), g, h), w, b),
           ("x", "w", "b", "c", "b"))  # fmt: skip
    yield "softmax+cross-entropy", ys.nn.cross_entropy, F.cross_entropy, ("x", "labels")
    yield ("attention scores", ys.nn.attention_scores,
           lambda x, w: torch.softmax(x @ w.T / sqrt(x.shape[-1]), -1), ("x", "w"))  # fmt: skip


def written(ys: Any, torch: Any) -> Iterator[Case]:
    """Layers as people write them, without the patterns' names, and a step of training."""
    F = torch.nn.functional
    yield (
        "relu(x @ w + b)",
        lambda x, w, b: ys.nn.relu(x @ w + b),
        lambda x, w, b: torch.relu(x @ w + b),
        ("x", "w", "b"),
    )
    yield ("gelu(x @ w.T + b) + r", lambda x, w, b, r: ys.nn.gelu(x @ w.T + b) + r,
           lambda x, w, b, r: F.gelu(x @ w.T + b) + r, ("x", "w", "b", "r"))  # fmt: skip
    yield ("tanh(x) @ w", lambda x, w: ys.tanh(x) @ w, lambda x, w: torch.tanh(x) @ w, ("x", "w"))
    yield ("two layers", lambda x, w, b, r: ys.nn.relu(x @ w + b) @ r, lambda x, w, b, r: torch.relu(x @ w + b) @ r,
           ("x", "w", "b", "w"))  # fmt: skip
    yield ("convolution+bias+relu", lambda i, k, e: ys.nn.relu(ys.nn.conv2d(i, k, padding=1) + e),
           lambda i, k, e: torch.relu(F.conv2d(i, k, padding=1) + e), ("image", "kernel", "each"))  # fmt: skip

    def loss(w: Any, b: Any, x: Any, r: Any) -> Any:
        return ys.sum((ys.tanh(x @ w + b) @ w) * r)

    def loss_of_torch(w: Any, b: Any, x: Any, r: Any) -> Any:
        return torch.sum((torch.tanh(x @ w + b) @ w) * r)

    def layer(w: Any, b: Any, x: Any, r: Any) -> Any:
        return ys.sum(ys.nn.relu(ys.nn.linear(x, w, b)) * r)

    def layer_of_torch(w: Any, b: Any, x: Any, r: Any) -> Any:
        return torch.sum(torch.relu(F.linear(x, w, b)) * r)

    yield ("gradients of a layer", ys.grad(layer, argnums=(0, 1)), torch.func.grad(layer_of_torch, argnums=(0, 1)),
           ("w", "b", "x", "r"))  # fmt: skip
    yield ("a step of training", ys.grad(loss, argnums=(0, 1)), torch.func.grad(loss_of_torch, argnums=(0, 1)),
           ("w", "b", "x", "r"))  # fmt: skip


def all_patterns(
    ours: Any, told: Callable[..., None], attempted: Callable[[str, Callable[[], Any]], None],
    clocks: Clocks, cases: Callable[[Any, Any], Iterator[Case]] = patterns,
) -> None:  # fmt: skip
    """Time every case, ours and PyTorch's; and ours in turns with PyTorch's captured graph, where both ran."""
    import torch

    rng = np.random.default_rng(4)
    for n in SIZES:
        arrays = {k: rng.normal(size=(n, n)).astype(np.float16) for k in "xwr"}
        arrays["w"] = arrays["w"] / np.float16(sqrt(n))
        arrays |= {k: rng.normal(size=n).astype(np.float16) for k in "bc"}
        arrays |= {"v": rng.uniform(0.5, 1.5, n).astype(np.float16), "labels": rng.integers(0, n, n)}
        channels, side = n // 8, 28
        shapes = {"image": (8, channels, side, side), "kernel": (channels, channels, 3, 3), "each": (channels, 1, 1)}
        arrays |= {k: (rng.normal(size=s) / sqrt(9 * channels)).astype(np.float16) for k, s in shapes.items()}
        for case in cases(ours.ys, torch):
            calls: dict[str, Program] = {}
            attempted(f"{case[0]} {n}", partial(_ours, ours, told, torch, n, case, arrays, calls))
            for by in ("torch", "torch.compile", _CAPTURED):
                attempted(f"{case[0]} {n} {by}", partial(_torchs, told, torch, n, case, arrays, by, clocks, calls))
            if _OURS in calls and _CAPTURED in calls:
                both = partial(clocks[2], ours, calls[_OURS], torch, calls[_CAPTURED])
                attempted(f"{case[0]} {n} in turns", partial(_turns, ours, told, n, case, both))


def _turns(ours: Any, told: Callable[..., None], n: int, case: Case, both: Callable[[], dict[str, float]]) -> None:
    with ours.ys.options(device=ours.device.name, on_fallback="error"):
        told(case=case[0], n=n, by="yosegi and torch captured, in turns", **both())


def _ours(
    ours: Any, told: Callable[..., None], torch: Any, n: int, case: Case, arrays: dict[str, Any],
    calls: dict[str, Program],
) -> None:  # fmt: skip
    name, program, peer, wanted = case
    with ours.ys.options(device=ours.device.name, on_fallback="error"):
        given = [ours.put(arrays[k]) for k in wanted]
        function = ours.ys.jit(program)
        for _ in range(4):
            results = function(*given)
        exact = [torch.from_numpy(arrays[k]).cuda() for k in wanted]
        expected = peer(*[t.double() if t.is_floating_point() else t for t in exact])
        for result, right in zip(_all(results), _all(expected), strict=True):
            got, right = result.numpy().astype(np.float64), right.cpu().numpy()
            assert np.all(np.isfinite(got)), name
            if "dropout" not in name:  # whose random numbers are each library's own
                error = float(np.linalg.norm(got - right) / np.linalg.norm(right))
                assert error <= _ERRORS.get(name, _ERROR), f"{name} is off by {error:.1e}"
        (plan,) = function.plans
        told(case=name, n=n, by=_OURS, device_us=ours.device_us(lambda: function(*given)),
             host_us=ours.host_us(lambda: function(*given)), steps=len(plan.steps))  # fmt: skip
        calls[_OURS] = lambda: function(*given)


def _all(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _replayed(graph: Any, read: list[Any]) -> None:
    """Replay a graph; what it reads stays in memory as long as it can be."""
    graph.replay()


def _torchs(
    told: Callable[..., None], torch: Any, n: int, case: Case, arrays: dict[str, Any], by: str,
    clocks: Clocks, calls: dict[str, Program],
) -> None:  # fmt: skip
    name, _, program, wanted = case
    device_us, host_us, _ = clocks
    given = [torch.from_numpy(arrays[k]).cuda() for k in wanted]
    run = partial(torch.compile(program, dynamic=False) if by == "torch.compile" else program, *given)
    for _ in range(3):
        run()
    if by == _CAPTURED:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = partial(_replayed, graph, given)
    calls[by] = run
    told(case=name, n=n, by=by, device_us=device_us(torch, run), host_us=host_us(run, torch.cuda.synchronize))
