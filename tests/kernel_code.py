"""Kernel templates without a device: a tensor's graph as kernels of a language, which run on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import cuda_code
import emulation
import msl_code
import yosegi as ys
from values import Array
from yosegi._graph.expand import expand
from yosegi._graph.graph import Graph, capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._run.device import Kernel as DeviceKernel
from yosegi._schedule.fuse import Region, fuse, multiplies
from yosegi._tensor.dtype import DType
from yosegi._tensor.node import Call
from yosegi._tensor.precision import Precision
from yosegi._tune.autotune import back_to_back
from yosegi.codegen.c.contractions import FusedContraction, contraction
from yosegi.codegen.c.dialect import Dialect, Target
from yosegi.codegen.c.frames import inputs_of
from yosegi.codegen.c.fused_kernels import LibraryProduct
from yosegi.codegen.c.kernel_source import Kernel
from yosegi.codegen.c.naive import naive_product
from yosegi.codegen.c.shared_tiles import ON_GPUS, tiled_product
from yosegi.codegen.c.unit_tiles import unit_product, unit_tiles
from yosegi.devices.kernel.fused import Fused

LANGUAGES: dict[str, ModuleType] = {"cuda": cuda_code, "msl": msl_code}
TARGET = Target(group=64, cooperating=64, units=2)

Render = Callable[[Graph, Dialect], tuple[Kernel, Sequence[int], Sequence[Any], Sequence[int]]]
"""From a graph: a kernel, the entries it reads, constants behind them, and the entries it writes."""


def product_by(variant: str) -> Render:
    """The graph's product with all that is around it, by a way to compute it."""

    def render(graph: Graph, dialect: Dialect) -> tuple[Kernel, Sequence[int], Sequence[Any], Sequence[int]]:
        entry = next(n for n, call in enumerate(graph.calls) if multiplies(call))
        product = contraction(graph, entry, graph.outputs[:1])
        inputs = inputs_of(graph, product.expressions)
        if variant == "naive":
            kernel = naive_product(graph, product, dialect, TARGET)
        elif variant in unit_tiles(product, dialect):
            kernel = unit_product(graph, product, dialect, unit_tiles(product, dialect)[variant])
        else:
            kernel = tiled_product(graph, product, dialect, ON_GPUS[variant])
        return kernel, inputs.entries, inputs.constants, graph.outputs[:1]

    return render


def computed(tensor: ys.Tensor, language: str, render: Render, folder: Path) -> Array:
    """A tensor's value by one kernel. Its memory holds NaN before."""
    key, leaves, _ = capture([tensor._node])
    graph = simplify(expand(graph_of(key), ()))
    given = {e: node.buffer.data for e, node in zip(graph.inputs, leaves, strict=True) if node.buffer is not None}
    kernel, entries, constants, written = render(graph, LANGUAGES[language].HOSTED)
    arrays = [emulation.padded(a) for a in (*[given[e] for e in entries if e in given], *constants)]
    specs = [graph.calls[e].spec for e in written]
    made = [emulation.padded(np.full(s.shape, 77 if s.dtype.is_integer else np.nan, s.dtype.numpy)) for s in specs]
    LANGUAGES[language].run(kernel, arrays, made, folder)
    return made[0]


class Emulated:
    """A machine for `fused.Fused` whose memory is NumPy's, and whose items are fibers."""

    def __init__(self, language: str, folder: Path) -> None:
        self.name = language
        self.dialect = LANGUAGES[language].HOSTED
        self.target = TARGET
        self.arrays, self.compilers, self.algorithms, self.memory = 100, 4, 1, self
        self.launches = 0
        self._language, self._folder = LANGUAGES[language], folder

    def launcher(self, kernel: Kernel, inputs: int, outputs: int) -> Callable[[Sequence[Array], Sequence[Array]], None]:
        def launch(given: Sequence[Array], made: Sequence[Array]) -> None:
            assert (len(given), len(made)) == (inputs, outputs)
            self.launches += 1
            self._language.run(kernel, given, made, self._folder)

        return launch

    def has_library(self, call: Call) -> bool:
        return False

    def undecided(self) -> None: ...

    def by_library(self, region: Region) -> dict[str, Any]:
        return {}

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        return False

    def multiplier(self, wanted: LibraryProduct) -> Any:
        raise AssertionError("there is no library here")

    def refusal(self, region: Region) -> str | None:
        return "only kernels of templates run here"

    def compile(self, region: Region) -> Any:
        raise AssertionError(f"{region} should be part of a kernel")

    def new(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return emulation.padded(np.full(shape, 77 if dtype.is_integer else np.nan, dtype.numpy))

    def from_host(self, array: Array) -> Array:
        return emulation.padded(np.asarray(array))

    def to_host(self, data: Array) -> Array:
        return data

    def seconds(self, kernel: DeviceKernel, data: Sequence[Array], calls: int) -> float:
        return back_to_back(kernel, data, calls)


def taken_whole(tensor: ys.Tensor, machine: Emulated) -> Array:
    """The value of a tensor that is one composite of arrays, as a device takes it whole."""
    key, leaves, _ = capture([tensor._node])
    (region,) = fuse(graph_of(key))
    fused = Fused(machine, machine.name)
    assert fused.refusal(region) is None
    arrays = [machine.from_host(node.buffer.data) for node in leaves if node.buffer is not None]
    made: Array = fused.compiled(region)(*arrays)[0]
    return made
