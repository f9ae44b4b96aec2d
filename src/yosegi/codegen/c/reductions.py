"""Reductions as one or two kernels, with the elementwise work before them.

`trees` writes them. Each result is folded in slices. Slices, if there are several, are folded by a second stage or by
the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..._schedule.fuse import Region
from ..scalar.folds import Fold
from ..scalar.value import Value
from .builder import CBuilder
from .dialect import Dialect, Target
from .kernel_source import Inputs, Kernel, evaluated
from .trees import TreeWriter


@dataclass(frozen=True, slots=True)
class ReductionStages:
    """The stages of a reduction. With one slice there is no second stage."""

    first: Kernel
    fold: Fold
    slices: int
    results: int


def reduction(region: Region, inputs: Inputs, dialect: Dialect, target: Target) -> ReductionStages:
    """The first stage of a reduction of at least one element. It writes partial results if there are several slices."""
    graph, last = region.graph, region.nodes[-1]
    call = graph.calls[last]
    fold = Fold.of(call)
    shape = call.inputs[0].shape

    def body(k: CBuilder, read: Callable[[int], Value]) -> tuple[Value, list[tuple[Value, str]]]:
        values = evaluated(region, region.nodes[:-1], k, lambda e: read(inputs.entries.index(e)))
        stored = [(values[e], f"b{n}") for n, e in enumerate(region.outputs) if e != last]
        return values[graph.args[last][0]], stored

    place = region.outputs.index(last)
    outputs = [graph.calls[e].spec.dtype for e in region.outputs]
    axes = call.attrs["axis"]
    shown = [dtype for n, dtype in enumerate(outputs) if n != place]
    writer = TreeWriter(dialect, target, shape, axes, inputs.shapes, inputs.dtypes, shown, fold.accumulated)
    if writer.slices > 1:
        outputs[place] = fold.accumulated
    kernel = writer.write(fold, body, outputs, f"b{place}", ends=writer.slices == 1)
    return ReductionStages(kernel, fold, writer.slices, writer.results)


def second_stage(of: ReductionStages, dialect: Dialect, target: Target) -> Kernel:
    """The kernel that folds partial results, a row per slice, into the results."""
    dtype = of.fold.accumulated
    shape = (of.slices, of.results)
    writer = TreeWriter(dialect, target, shape, (0,), (shape,), (dtype,), (dtype,), dtype, whole=True)
    return writer.write(of.fold, lambda k, read: (read(0), []), [of.fold.result], "b0", ends=True)
