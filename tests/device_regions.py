"""A device driven directly through regions: what the tests of kernel devices share."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np

import yosegi as ys
from values import Array, same
from yosegi._graph.expand import expand
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._schedule.fuse import fuse, join

RNG = np.random.default_rng(11)


def graph_and_leaves(*tensors: ys.Tensor) -> tuple[Any, list[Any]]:
    key, leaves, _ = capture([t._node for t in tensors])
    return simplify(graph_of(key)), leaves


def regions(*tensors: ys.Tensor) -> list[Any]:
    return fuse(graph_and_leaves(*tensors)[0])


def join_of(*tensors: ys.Tensor) -> Any:
    """Tensors as one region. Composites are decomposed."""
    graph = simplify(expand(graph_of(capture([t._node for t in tensors])[0]), ()))
    parts = fuse(graph)
    return parts[0] if len(parts) == 1 else join(parts, graph.outputs)


def run(*tensors: ys.Tensor, device: Any) -> list[Array]:
    """The tensors' values, all of them computed by the device."""
    graph, leaves = graph_and_leaves(*tensors)
    data = {entry: device.from_host(node.buffer.data) for entry, node in zip(graph.inputs, leaves, strict=True)}
    for region in fuse(graph):
        assert device.supports(region) is None
        made = device.compile(region)(*[data[i] for i in region.inputs])
        data.update(zip(region.outputs, made, strict=True))
    return [device.to_host(data[o]) for o in graph.outputs[: len(tensors)]]


def numbers(dtype: Any, *shape: int) -> Array:
    """Random numbers of a dtype, with products and sums that do not overflow."""
    if dtype.kind == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return RNG.integers(0, 5, shape).astype(dtype.numpy)
    values = RNG.uniform(0.5, 1.5, shape)
    return (values + 1j * RNG.uniform(-0.5, 0.5, shape) if dtype.is_complex else values).astype(dtype.numpy)


def reduces(tensor: ys.Tensor, expected: Array, device: Any) -> None:
    """The value is what NumPy has in float64: in float32 its own sums over leading axes are far off."""
    (got,) = run(tensor, device=device)
    same(got, np.asarray(expected).astype(got.dtype), ulps=32)


def in_two_threads(device: Any) -> list[int]:
    """The seeds for which one kernel, used by two threads at a time, is wrong: none."""
    wrong: list[int] = []
    (region,) = regions(ys.asarray(numbers(ys.float32, 50_000)) + 1)
    shared = device.compile(region)

    def work(seed: int) -> None:
        own = np.random.default_rng(seed).random(50_000, dtype=np.float32)
        for _ in range(50):
            (out,) = shared(device.from_host(own))
            if not np.array_equal(device.to_host(out), own + np.float32(1)):
                wrong.append(seed)

    threads = [Thread(target=work, args=(s,)) for s in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return wrong
