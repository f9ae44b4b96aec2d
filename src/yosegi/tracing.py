"""The trace under way: what a function being jitted needs beside its arguments.

Most of a trace is simply the graph its calls build. Some values must be made anew at every replay, like the key of a
random draw: `fed` gives a placeholder for such a value and notes in the trace how to make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .dtype import DType
from .node import Node, Shape, spec
from .op import from_array, leaf_call
from .tensor import Tensor

Feed = Callable[[], np.ndarray[Any, Any]]


@dataclass(slots=True)
class Trace:
    """The feeds of one function being traced, in the order in which it asked for them."""

    feeds: list[tuple[Node, Feed]] = field(default_factory=list)


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def tracing() -> Iterator[Trace]:
    """Make a new trace the one under way."""
    trace = Trace()
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def is_tracing() -> bool:
    """Whether a function is being traced in this context."""
    return _current.get() is not None


def fed(make: Feed, shape: Shape, dtype: DType) -> Tensor:
    """The value of `make()`: now, or, inside a trace, anew at every replay."""
    trace = _current.get()
    if trace is None:
        return from_array(make())
    node = Node(leaf_call(spec(shape, dtype)), ())
    trace.feeds.append((node, make))
    return Tensor(node)
