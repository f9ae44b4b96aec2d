"""The amount of work of a region, independent of devices: bytes, operations and their class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from .._graph.graph import Graph, bodies_of
from .._schedule.fuse import Region, RegionKind, is_composite, is_constant, multiplies
from .._tensor.composite import decomposed
from .._tensor.node import Call
from .._tensor.op import OpKind, leaf
from .._tensor.role import Contraction, Control, Exchange, Flow

_ITERATIONS: Final = 10_000  # of a loop whose number of iterations is not known
_LEAST: Final = 100  # elements that take as long as calling an op
_FUNCTION: Final = 8  # simple operations that take as long as an exponential, a logarithm, a quotient


class Task(Enum):
    """The classes of work that devices do at speeds of their own."""

    LOOPS = "loops"
    REDUCTIONS = "reductions"
    MOVEMENT = "movement"
    PRODUCTS = "products"
    WEIGHTED = "products by constants"
    """With an operand that is the same in every run: a compiler can prepare it once."""
    CONVOLUTIONS = "convolutions"
    OTHER = "other"
    """Sorts, decompositions, transforms, random numbers: their operations are elements, more or less."""
    MESSAGES = "messages"
    """Communication of ranks: no device is faster than the network."""

    __hash__ = object.__hash__  # by identity: a member is looked up for every region of every plan


_ALONE: Final = {
    OpKind.MOVEMENT: Task.MOVEMENT, OpKind.SOURCE: Task.MOVEMENT,
    OpKind.REDUCTION: Task.REDUCTIONS,  # running totals, positions of the largest
}  # fmt: skip
"""The classes of ops that are regions of their own."""


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work of one region of a graph."""

    task: Task
    operations: float
    nbytes: int
    """Read and written; what passes from op to op inside a loop is neither."""
    dtype: str
    """The numbers it computes in, where nothing else is asked for."""
    operands: int = 0
    """The bytes of a product's operands: what has to be converted for another precision."""
    seconds: float = 0.0
    """The predicted time of a message, which is the same on all devices."""


def works_of(graph: Graph, regions: Sequence[Region]) -> list[Work]:
    """The amount of work of each region of a graph."""
    fixed = _fixed(graph) if any(r.kind is RegionKind.CONTRACTION for r in regions) else ()
    return [_work_of(region, fixed) for region in regions]


def _fixed(graph: Graph) -> Sequence[bool]:
    """For each entry, whether it is the same in every run."""
    fixed: list[bool] = []
    for entry, args in enumerate(graph.args):
        fixed.append(is_constant(graph, entry) or (bool(args) and all(fixed[a] for a in args)))
    return fixed


def _work_of(region: Region, fixed: Sequence[bool]) -> Work:
    graph, last = region.graph, region.nodes[-1]
    call = graph.calls[last]
    dtype = call.spec.dtype.name
    if region.kind is RegionKind.CONTRACTION:
        operands = sum(s.nbytes for s in call.inputs)
        if call.op.kind is OpKind.CONVOLUTION:
            return Work(Task.CONVOLUTIONS, _operations_of_product(call), region.nbytes, dtype, operands)
        task = Task.WEIGHTED if any(fixed[a] for a in graph.args[last]) else Task.PRODUCTS
        return Work(task, _operations_of_product(call), region.nbytes, dtype, operands)
    if is_composite(region):
        task, operations = _parts(call)
        return Work(task, operations, region.nbytes, dtype)
    if isinstance(call.op.role, Exchange):
        return Work(Task.MESSAGES, 0, 0, dtype, seconds=call.op.role.cost(call)[0])
    if isinstance(call.op.role, Control):
        return Work(Task.OTHER, operations_of_control(call), region.nbytes, dtype)
    if region.kind is RegionKind.OPAQUE:
        return Work(_ALONE.get(call.op.kind, Task.OTHER), _largest(call), region.nbytes, dtype)
    task = Task.REDUCTIONS if region.kind is RegionKind.REDUCTION else Task.LOOPS
    operations = sum(_largest(graph.calls[n]) * (_FUNCTION if graph.calls[n].op.inexact else 1) for n in region.nodes)
    return Work(task, operations, region.nbytes, dtype)


def _parts(call: Call) -> tuple[Task, float]:
    """The amount of work of a native composite: its products, if any, and all other operations."""
    task, operations = Task.LOOPS, 0.0
    for inner, _ in decomposed(call).steps:
        if inner.op.decomposition is not None:
            kind, more = _parts(inner)
        elif multiplies(inner):
            kind = Task.CONVOLUTIONS if inner.op.kind is OpKind.CONVOLUTION else Task.PRODUCTS
            more = _operations_of_product(inner)
        else:
            kind, more = Task.LOOPS, float(_largest(inner) * (_FUNCTION if inner.op.inexact else 1))
        task = kind if kind is not Task.LOOPS else task
        operations += more
    return task, operations


def operations_of_control(call: Call) -> float:
    """Operations of all iterations of a loop, or of a branch. An op on few elements takes as long as on some more."""
    role = call.op.role
    assert isinstance(role, Control)
    count = call.attrs["length"] if role.flow is Flow.REPEAT else 1 if role.flow is Flow.BRANCH else _ITERATIONS
    total = 0.0
    for body in bodies_of(call):
        for inner in body.calls:
            if isinstance(inner.op.role, Control):
                total += operations_of_control(inner)
            elif multiplies(inner):
                total += max(_operations_of_product(inner), _LEAST)
            elif inner.op is not leaf:
                total += max(_largest(inner), _LEAST)
    return count * total


def _largest(call: Call) -> int:
    largest = 0
    for s in (*call.inputs, *call.outputs):
        if s.size > largest:
            largest = s.size
    return largest


def _operations_of_product(call: Call) -> float:
    """Multiplications and additions."""
    if call.op.role is Contraction.MATRICES:
        return 2.0 * call.spec.size * call.inputs[0].shape[-1]
    if call.op.kind is OpKind.CONVOLUTION:
        return 2.0 * call.spec.size * prod(call.inputs[1].shape[1:])
    terms = call.attrs["subscripts"].partition("->")[0].split(",")
    lengths: dict[str, int] = {}
    for term, given in zip(terms, call.inputs, strict=True):
        for label, length in zip(term, given.shape, strict=True):
            lengths[label] = max(length, lengths.get(label, 1))
    return 2.0 * prod(lengths.values())


# What makes two regions the same work, in a form that the next process has too


def digest(region: Region) -> str:
    """The calls of a region and how they are wired, as a short text. The values of its constants play no part."""
    graph = region.graph
    at = {entry: f"%{n}" for n, entry in enumerate((*region.inputs, *region.nodes))}
    words = [_word(graph.calls[i]) for i in region.inputs]
    for n in region.nodes:
        words.append(_word(graph.calls[n]))
        words += [at[a] if a in at else _word(graph.calls[a]) for a in graph.args[n]]
    words += [at[o] for o in region.outputs]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=12).hexdigest()


_words: Final[WeakKeyDictionary[Call, str]] = WeakKeyDictionary()


def _word(call: Call) -> str:
    word = _words.get(call)
    if word is None:
        attrs = {name: _described(value) for name, value in call.attrs.items() if name not in ("space", "pinned")}
        word = _words[call] = f"{call.op.name} {attrs} {call.outputs}"
    return word


def _described(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else repr(value)
