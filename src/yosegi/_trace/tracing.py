"""Active traces: a function that is traced by `jit`, or recorded for a gradient.

Most of a trace is simply the graph its calls build. Some values must be made anew at every replay, like the key of a
random draw: `fed` gives a placeholder for such a value and notes in the trace how to make it.

A function being recorded may ask for values on its way (`if float(x) > 0:`). What they were computed from is still
needed for the pass back, so evaluation drops no inputs; it notes the nodes, which are let go of when the outermost
recording ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._run.memory import Buffer
from .._tensor.dtype import DType
from .._tensor.interchange import READS, ValueRead
from .._tensor.node import Node, Shape, in_order, keeping_histories, spec
from .._tensor.op import from_array, leaf_call
from .._tensor.tensor import Tensor

Feed = Callable[[], np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Print:
    """A line that a traced function prints at every run: see `debug`."""

    nodes: tuple[Node, ...]
    """The tensors in it."""
    show: Callable[[Sequence[Tensor]], None]
    """Prints the line for the values of these tensors."""


@dataclass(slots=True)
class ActiveTrace:
    """One function being traced: by which transform, and its feeds in the order in which it asked for them."""

    transform: str
    feeds: list[tuple[Node, Feed]] = field(default_factory=list)
    prints: list[Print] = field(default_factory=list)
    """The prints of the function, in order."""


_current: ContextVar[ActiveTrace | None] = ContextVar("trace", default=None)


@contextmanager
def tracing(transform: str) -> Iterator[ActiveTrace]:
    """Make a new trace the one under way, for the transform of this name."""
    trace = ActiveTrace(transform)
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def is_tracing() -> bool:
    """Whether a function is being traced in this context."""
    return _current.get() is not None


def tracing_transform() -> str | None:
    """The name of the transform that traces a function in this context."""
    trace = _current.get()
    return None if trace is None else trace.transform


@dataclass(frozen=True, slots=True)
class Recording:
    """The effects of one function while it was recorded, apart from the graph that it has built."""

    reads: list[ValueRead] = field(default_factory=list)
    """The values that it took out of the graph."""
    variables: tuple[Node, ...] = ()
    """The arguments by which gradients are taken, those of functions around it included."""
    gradients: list[Node] = field(default_factory=list)
    """The arguments by which it took gradients itself: these need not depend on what they are taken at."""


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


def is_recording() -> bool:
    """Whether this code runs in a function that is being recorded."""
    return _recording.get() is not None


def is_recorded(nodes: Sequence[Node]) -> bool:
    """Whether values depend on what a gradient is being taken by."""
    recorded = _recording.get()
    if recorded is None:
        return False
    return not set(recorded.variables).isdisjoint(in_order(nodes, lambda node: node.inputs))


@contextmanager
def recording(variables: Sequence[Node]) -> Iterator[Recording]:
    """Keep the graph of everything that is computed meanwhile, for a gradient by these."""
    outer = _recording.get()
    own = Recording(variables=(*(() if outer is None else outer.variables), *variables))
    if outer is not None:
        outer.gradients.extend(variables)
    token, reads = _recording.set(own), READS.set(own.reads)
    try:
        with keeping_histories():
            yield own
    finally:
        READS.reset(reads)
        _recording.reset(token)


def printed(line: Print) -> None:
    """Print a line: now, or, inside a trace, at every replay."""
    trace = _current.get()
    if trace is None:
        line.show([Tensor(node) for node in line.nodes])
    else:
        trace.prints.append(line)


def fed(make: Feed, shape: Shape, dtype: DType) -> Tensor:
    """The value of `make()`: now, or, inside a trace, anew at every replay."""
    trace = _current.get()
    if trace is None:
        return from_array(make())
    node = Node(leaf_call(spec(shape, dtype)), ())
    trace.feeds.append((node, make))
    return Tensor(node)


def fed_outside(node: Node, make: Feed) -> None:
    """Hand the placeholder of a trace that has ended to the trace around it; without one, give it its value."""
    trace = _current.get()
    if trace is None:
        node.buffer = Buffer(make())
    else:
        trace.feeds.append((node, make))
