"""Spec, Call and Node: the parts of an expression.

`Op.__call__` makes a `Node` of a `Call` and input nodes; `_graph/graph.py` reads them, and `_run/evaluate.py` gives
them their values. All three are immutable in meaning. Specs and calls are interned, so equal ones are the same object,
and the structural key of a graph is little more than the list of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from .._run.memory import HOST, Buffer
from ..errors import ShapeError
from .dtype import DType

if TYPE_CHECKING:
    from ..distributed.layout import Layout
    from .op import Op

Shape = tuple[int, ...]

MAX_DIMENSIONS: Final = 64
_MAX_BYTES: Final = (1 << 63) - 1


class Spec:
    """Shape and dtype of a value. Made by `spec()`, one object per distinct spec.

    A spec with a layout belongs to a value that is distributed over ranks. Its shape is that of the whole value, and
    `local` is the spec of the part that this rank has. Without a layout, every rank has the whole value.

    A weak spec belongs to a Python number whose value is not known yet (an argument of a traced function): like the
    number itself, it takes on the dtype of the tensor it meets.
    """

    __slots__ = ("__weakref__", "dtype", "layout", "nbytes", "ndim", "shape", "size", "weak")

    def __init__(self, shape: Shape, dtype: DType, weak: bool, layout: Layout | None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.weak = weak
        self.layout = layout
        self.ndim = len(shape)
        self.size = prod(shape)
        self.nbytes = self.size * dtype.itemsize

    def __repr__(self) -> str:
        layout = "" if self.layout is None else f" {self.layout}"
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]{layout}"

    @property
    def local(self) -> Spec:
        """The spec of the part that this rank has."""
        return self if self.layout is None else spec(self.layout.local_shape(self.shape), self.dtype)


_SPECS: Final[WeakValueDictionary[tuple[Any, ...], Spec]] = WeakValueDictionary()


@lru_cache(maxsize=4096)  # holds on to recent ones: a spec is often dropped and asked for again
def spec(shape: Shape, dtype: DType, weak: bool = False, layout: Layout | None = None) -> Spec:
    """The one `Spec` of this shape, dtype and layout."""
    key = (shape, dtype, weak, layout)
    found = _SPECS.get(key)
    if found is not None:
        return found
    made = Spec(shape, dtype, weak, layout)
    if made.ndim > MAX_DIMENSIONS:
        raise ShapeError(f"expected at most {MAX_DIMENSIONS} dimensions, got {made.ndim}")
    if prod([max(1, n) for n in shape]) * dtype.itemsize > _MAX_BYTES:
        raise ShapeError(f"expected a shape of at most {_MAX_BYTES} bytes, got {shape} of {dtype.name}")
    return _SPECS.setdefault(key, made)


class Call:
    """An op applied to inputs of given specs with given attributes: all of a node but its inputs."""

    __slots__ = ("__weakref__", "attrs", "inputs", "op", "outputs", "spec")

    def __init__(self, op: Op[Any], attrs: dict[str, Any], inputs: tuple[Spec, ...], outputs: tuple[Spec, ...]) -> None:
        self.op = op
        self.attrs = attrs
        self.inputs = inputs
        self.outputs = outputs
        self.spec = outputs[0]

    def __repr__(self) -> str:
        attrs = ", ".join(f"{k}={v!r}" for k, v in self.attrs.items())
        return f"{self.op.name}({attrs})" if attrs else self.op.name


class Node:
    """One value of an expression: a call on input nodes, or a leaf that holds a buffer.

    When its value has been computed, `buffer` is set and `inputs` is dropped, in this order: a thread that reads
    `inputs` before `buffer` sees a whole node, whatever other threads do.
    """

    __slots__ = ("__weakref__", "buffer", "call", "inputs", "spec")

    def __init__(self, call: Call, inputs: tuple[Node, ...], buffer: Buffer | None = None) -> None:
        self.call = call
        self.inputs = inputs
        self.spec = call.spec
        self.buffer = buffer

    def __repr__(self) -> str:
        return f"<{self.call!r}: {self.spec!r}>"


def in_order(roots: Iterable[Node], inputs_of: Callable[[Node], Sequence[Node]]) -> list[Node]:
    """The nodes below these, inputs before their users, however deep."""
    order: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        waiting = () if node in order else [i for i in inputs_of(node) if i not in order]
        if waiting:
            stack.extend(waiting)
        else:
            order[stack.pop()] = None
    return list(order)


class _Histories:
    """The number of functions that all threads record for a gradient, and the nodes that wait for the last to end."""

    lock = Lock()
    count = 0
    nodes: list[Node] | None = None


def kept_histories() -> list[Node] | None:
    """The list in which evaluation notes nodes whose inputs it must keep; `None` if no function is recorded.

    A recording anywhere in the process counts: a function may have its values computed by other threads.
    """
    return _Histories.nodes


def drop_history(node: Node) -> None:
    """Drop the inputs of a computed node; while a gradient is recorded, at the end of the recording."""
    keep = _Histories.nodes
    if keep is None:
        node.inputs = ()
    else:
        keep.append(node)


@contextmanager
def keeping_histories() -> Iterator[None]:
    """Keep the inputs of nodes that are computed meanwhile, until the outermost such block of the process ends."""
    with _Histories.lock:
        _Histories.count += 1
        if _Histories.nodes is None:
            _Histories.nodes = []
    try:
        yield
    finally:
        done: list[Node] | None = None
        with _Histories.lock:
            _Histories.count -= 1
            if _Histories.count == 0:
                done, _Histories.nodes = _Histories.nodes, None
        for node in done or ():
            node.inputs = ()


_evaluator: Callable[[Sequence[Node]], None] | None = None
_fetcher: Callable[[Node], Any] | None = None


def install_evaluator(evaluate: Callable[[Sequence[Node]], None], fetch: Callable[[Node], Any]) -> None:
    """Tell nodes how to become real, and how to come to the host. The runtime calls this once."""
    global _evaluator, _fetcher
    _evaluator, _fetcher = evaluate, fetch


def evaluate(nodes: Sequence[Node]) -> None:
    """Give every node its buffer."""
    assert _evaluator is not None, "the runtime is not loaded"
    _evaluator(nodes)


def fetch(node: Node) -> Any:
    """The node's value as a host array."""
    buffer = node.buffer
    if buffer is not None and buffer.space is HOST:
        return buffer.data
    assert _fetcher is not None, "the runtime is not loaded"
    return _fetcher(node)
