"""The seven fused patterns in float16 under `jit`, beside PyTorch as it is, compiled, and captured into a graph.

A part of `gpu_run`. Every result is compared with float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from gpu_kernels import softmax

SIZES = (128, 512, 2048)
_ERROR = 6e-3
"""Of a result in float16, as a share of its norm."""

Program = Callable[..., Any]
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


def _expected(name: str, arrays: dict[str, Any], torch: Any) -> Any:
    """A pattern in float64; nothing for one whose random numbers are its own."""
    x, w, r, b, c, v = (torch.from_numpy(arrays[k].astype(np.float64)).cuda() for k in "xwrbcv")
    labels = torch.from_numpy(arrays["labels"]).cuda()
    F = torch.nn.functional
    linear = F.linear(x, w, b)
    values = {
        "linear+residual+relu": lambda: torch.relu(linear + r),
        "gelu+linear": lambda: F.linear(F.gelu(x), w, b),
        "linear+batchnorm+relu": lambda: torch.relu(F.batch_norm(linear, b, v, c, b)),
        "layernorm+linear": lambda: F.linear(F.layer_norm(x, (x.shape[-1],), c, b), w, b),
        "softmax+cross-entropy": lambda: F.cross_entropy(x, labels),
        "attention scores": lambda: torch.from_numpy(softmax((x @ w.T).cpu().numpy() / sqrt(x.shape[-1]))),
    }
    return values[name]().cpu().numpy() if name in values else None


def all_patterns(
    ours: Any, told: Callable[..., None], attempted: Callable[[str, Callable[[], Any]], None],
    clocks: tuple[Callable[..., float], Callable[..., float]],
) -> None:  # fmt: skip
    """Time every pattern, ours and PyTorch's; `clocks` are those of PyTorch's device and of the host."""
    import torch

    rng = np.random.default_rng(4)
    for n in SIZES:
        arrays = {k: rng.normal(size=(n, n)).astype(np.float16) for k in "xwr"}
        arrays["w"] = arrays["w"] / np.float16(sqrt(n))
        arrays |= {k: rng.normal(size=n).astype(np.float16) for k in "bc"}
        arrays |= {"v": rng.uniform(0.5, 1.5, n).astype(np.float16), "labels": rng.integers(0, n, n)}
        for case in patterns(ours.ys, torch):
            attempted(f"{case[0]} {n}", partial(_ours, ours, told, torch, n, case, arrays))
            attempted(f"{case[0]} {n} torch", partial(_torchs, told, torch, n, case, arrays, clocks))


def _ours(ours: Any, told: Callable[..., None], torch: Any, n: int, case: Case, arrays: dict[str, Any]) -> None:
    name, program, _, wanted = case
    with ours.ys.options(device=ours.device.name, on_fallback="error"):
        given = [ours.put(arrays[k]) for k in wanted]
        function = ours.ys.jit(program)
        for _ in range(4):
            result = function(*given)
        expected = _expected(name, arrays, torch)
        got = result.numpy().astype(np.float64)
        if expected is not None:
            error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            assert error <= _ERROR, f"{name} is off by {error:.1e}"
        assert np.all(np.isfinite(got)), name
        (plan,) = function.plans
        told(case=name, n=n, by="yosegi", device_us=ours.device_us(lambda: function(*given)),
             host_us=ours.host_us(lambda: function(*given)), steps=len(plan.steps))  # fmt: skip


def _torchs(
    told: Callable[..., None], torch: Any, n: int, case: Case, arrays: dict[str, Any],
    clocks: tuple[Callable[..., float], Callable[..., float]],
) -> None:  # fmt: skip
    name, _, program, wanted = case
    device_us, host_us = clocks
    given = [torch.from_numpy(arrays[k]).cuda() for k in wanted]
    eager = partial(program, *given)
    compiled = partial(torch.compile(program, dynamic=False), *given)
    for _ in range(3):
        eager()
        compiled()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    for by, run in (("torch", eager), ("torch.compile", compiled), ("torch captured", graph.replay)):
        told(case=name, n=n, by=by, device_us=device_us(torch, run),
             host_us=host_us(run, torch.cuda.synchronize))  # fmt: skip
