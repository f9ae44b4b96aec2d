"""Active traces: a function that is traced by `jit`, or recorded for a gradient.

A trace is the graph that the function's calls build. Values that must be new at every replay, such as the key of a
random draw, are feeds: `fed` returns a placeholder and notes in the trace how to make the value.

A recorded function may read values (`if float(x) > 0:`). The reverse pass still needs their inputs, so evaluation keeps
the inputs of all nodes until the outermost recording ends.
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
    """A function that is being traced: the transform, and the feeds in order."""

    transform: str
    feeds: list[tuple[Node, Feed]] = field(default_factory=list)
    prints: list[Print] = field(default_factory=list)
    """The prints of the function, in order."""


_current: ContextVar[ActiveTrace | None] = ContextVar("trace", default=None)


@contextmanager
def tracing(transform: str) -> Iterator[ActiveTrace]:
    """Begin a trace for the transform of this name; it ends with the block."""
    trace = ActiveTrace(transform)
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def is_tracing() -> bool:
    """True if a function is being traced in this context."""
    return _current.get() is not None


def tracing_transform() -> str | None:
    """The name of the transform that traces a function in this context."""
    trace = _current.get()
    return None if trace is None else trace.transform


@dataclass(frozen=True, slots=True)
class Recording:
    """The effects of one function while it was recorded, apart from the graph that it has built."""

    reads: list[ValueRead] = field(default_factory=list)
    """The values that it read."""
    variables: tuple[Node, ...] = ()
    """The arguments of gradients that are being taken, those of enclosing functions included."""
    gradients: list[Node] = field(default_factory=list)
    """The arguments of gradients that it took itself. A gradient need not depend on its arguments."""


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


def is_recording() -> bool:
    """True if a function is being recorded in this context."""
    return _recording.get() is not None


def is_recorded(nodes: Sequence[Node]) -> bool:
    """True if values depend on the arguments of a gradient that is being taken."""
    recorded = _recording.get()
    if recorded is None:
        return False
    return not set(recorded.variables).isdisjoint(in_order(nodes, lambda node: node.inputs))


@contextmanager
def recording(variables: Sequence[Node]) -> Iterator[Recording]:
    """Keep the graph of everything that the block computes, for gradients by these leaves."""
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
    """Move the feed of a trace that has ended to the enclosing trace; without one, give the placeholder its value."""
    trace = _current.get()
    if trace is None:
        node.buffer = Buffer(make())
    else:
        trace.feeds.append((node, make))
