"""Scans whose elements do not depend on each other, as one kernel: each thread repeats the body for its element.

Differential equations, gates and random walks are of this kind. The carry stays in registers: memory is touched for the
rows alone. A value of one element, such as a counter, is computed by every thread.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._graph.simplify import simplify
from ..._schedule.fuse import Region, RegionKind, is_constant
from ..._tensor.node import Call, Shape
from ..._tensor.op import leaf
from ..scalar.access import Dimension, dimensions
from ..scalar.value import Value
from .kernel_source import decomposed, evaluated, offsets
from .packets import element_at, put_element
from .stages import KernelProgram, KernelWriter, Setting, Stage

_LEAST: Final = 1024
"""Elements from which it pays: fewer threads leave most of a device idle while the iterations go by."""


def refusal(call: Call) -> str | None:
    """Why a scan is no such kernel, or `None`."""
    body = _body(call.attrs["body"])
    shape = _space(call)
    if not call.attrs["length"] or not all(s.size for s in (*call.inputs, *call.outputs)):
        return "a loop over nothing"
    for n, inner in enumerate(body.calls):
        if inner.op is leaf or is_constant(body, n):
            continue
        if inner.op.scalar is None or len(inner.outputs) > 1:
            return f"a loop with {inner.op.name}, whose elements are not independent"
    shapes = [body.calls[o].spec.shape for o in body.outputs]
    shapes += [s.shape for s in _carry(call)]
    if any(s != shape and prod(s) != 1 for s in shapes):
        return f"a loop over values of shapes {sorted(set(shapes))}"
    read = [c.spec.shape for n, c in enumerate(body.calls) if c.op is leaf or is_constant(body, n)]
    if any(_broadcast(s, shape) is None for s in read) or any(_large(body, n) for n in range(len(body.calls))):
        return "a loop that reads tables"
    return None if prod(shape) >= _LEAST else f"a loop over {prod(shape)} elements"


@lru_cache(maxsize=256)
def _body(graph: Graph) -> Graph:
    return simplify(graph)


def _large(graph: Graph, entry: int) -> bool:
    return is_constant(graph, entry) and graph.calls[entry].spec.size != 1


def _carry(call: Call) -> tuple[Any, ...]:
    fixed = len(call.inputs) - call.attrs["rows"]
    return call.inputs[fixed - call.attrs["carries"] : fixed]


def _space(call: Call) -> Shape:
    """The shape of the values that the iterations compute."""
    body = call.attrs["body"]
    shapes = [body.calls[o].spec.shape for o in body.outputs]
    return max(shapes, key=lambda s: (prod(s), len(s)))


def _broadcast(shape: Shape, space: Shape) -> Shape | None:
    try:
        return shape if np.broadcast_shapes(shape, space) == space else None
    except ValueError:
        return None


def repeat(call: Call, setting: Setting) -> KernelProgram:
    """A scan of independent elements."""
    writer = _RepeatKernel(call, setting)
    return writer.program()


class _RepeatKernel:
    """The kernel of one scan."""

    def __init__(self, call: Call, setting: Setting) -> None:
        attrs = call.attrs
        self.call, self.body = call, _body(attrs["body"])
        self.carries, self.length, self.reverse = attrs["carries"], attrs["length"], attrs["reverse"]
        self.fixed = len(call.inputs) - attrs["rows"]
        self.space = _space(call)
        self.size = prod(self.space)
        largest = max(s.size for s in (*call.inputs, *call.outputs))
        self.w = KernelWriter(setting, largest, [s.dtype for s in call.inputs], [s.dtype for s in call.outputs])

    def program(self) -> KernelProgram:
        """The one launch."""
        w, k, call, body = self.w, self.w.k, self.call, self.body
        item = w.item(self.size)
        places = self._places(item)
        given = [element_at(k, s.dtype, f"a{n}", places[n]) for n, s in enumerate(call.inputs[: self.fixed])]
        first = self.fixed - self.carries
        known = dict(zip(body.inputs, given[:first], strict=False))
        carry = [k.variable(value) for value in given[first:]]
        known |= dict(zip(body.inputs[first : self.fixed], carry, strict=True))
        nodes = [n for n, c in enumerate(body.calls) if c.op is not leaf and not is_constant(body, n)]
        region = Region(body, RegionKind.LOOP, tuple(nodes), body.inputs, body.outputs)
        count = w.sizes(self.length)
        with k.block(f"for ({w.ctype} step = 0; step < {count}; step++)"):
            row = w.let(f"{count} - 1 - step") if self.reverse else "step"
            values = evaluated(region, nodes, k, lambda entry: self._read(entry, known, places, row))
            results = [values.get(o) or self._operand(o, known, places, row) for o in body.outputs]
            for n, value in enumerate(results[self.carries :], self.carries):
                self._put(value, n, item, row)
            after = [k.variable(value) for value in results[: self.carries]]  # all of them, before one is changed
            for variable, value in zip(carry, after, strict=True):
                k.assign(variable, value)
        for n, value in enumerate(carry):
            self._put(value, n, item, None)
        inputs = len(call.inputs)
        return KernelProgram(
            (Stage(w.kernel(self.size), tuple(range(inputs)), tuple(range(inputs, inputs + len(call.outputs)))),)
        )

    def _read(self, entry: int, known: dict[int, Value], places: list[str], row: str) -> Value:
        """An input: one that is known, or an element of this iteration's row."""
        if entry in known:
            return known[entry]
        n = self.body.inputs.index(entry)
        spec = self.call.inputs[n]
        at = self.w.let(f"{row} * {self.w.sizes(spec.size // self.length)} + {places[n]}")
        return element_at(self.w.k, spec.dtype, f"a{n}", at)

    def _operand(self, entry: int, known: dict[int, Value], places: list[str], row: str) -> Value:
        """An output that is no result of a call: an input or a number."""
        if not is_constant(self.body, entry):
            return self._read(entry, known, places, row)
        call = self.body.calls[entry]
        return self.w.k.literal(np.asarray(bind(call)()).reshape(()).item(), call.spec.dtype)

    def _put(self, value: Value, n: int, item: str, row: str | None) -> None:
        """A value to an output; one of a single element is written by the first thread."""
        w, spec = self.w, self.call.outputs[n]
        size = spec.size if row is None else spec.size // self.length
        if size == self.size:
            put_element(w.k, value, f"b{n}", item if row is None else w.let(f"{row} * {w.sizes(size)} + {item}"))
            return
        with w.k.block(f"if ({item} == 0)"):
            put_element(w.k, value, f"b{n}", "0" if row is None else row)

    def _places(self, item: str) -> list[str]:
        """For each input the place of the thread's element, in its first row."""
        w = self.w
        shapes = [s.shape if n < self.fixed else s.shape[1:] for n, s in enumerate(self.call.inputs)]
        dims = dimensions(self.space, shapes) or [Dimension(1, (0,) * len(shapes), 1)]
        indices = decomposed(w.k, w.ctype, item, dims, w.sizes)
        return [w.let(text) for text in offsets(indices, dims, len(shapes), w.sizes)[:-1]]
