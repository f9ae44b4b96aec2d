"""Communication between ranks as launches: values are packed, exchanged as bytes, combined and unpacked on the GPU.

Where the engine has a collective of its own with the expected result, that is used. Every other collective is an
exchange of bytes; a reduction combines what comes, in the order of ranks, by a generated kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final, TypeAlias

from ..._graph.graph import Graph
from ..._run.device import Kernel
from ..._schedule.fuse import Region, connection_of, fuse
from ..._tensor.dtype import DType, bool_
from ..._tensor.node import Call, Shape, spec
from ..._tensor.op import leaf_call
from ..._tensor.role import Lengths, Pattern, Traffic
from ...codegen.c.copies import Copy, copy_kernel, strides_of
from ...ops import reduce
from ..kernel.launching import arguments_of
from ..kernel.regions import compile_generated
from .dialect import CUDA
from .launch import Launch, Queue, transposed
from .memory import Data
from .peers import Peers
from .traffic import Table, blocks, everything, from_root, shares

Step: TypeAlias = Callable[[Data, Sequence[Data]], Data]
"""A part of a communication: the value, and values that are made before."""

_SMALL: Final = 1 << 18
"""Bytes up to which ranks exchange whole values to reduce them: one exchange instead of two."""


def compile_exchange(region: Region, queue: Queue) -> Kernel:
    """The region of a communication as a function of its inputs' data."""
    call, arguments = region.calls[-1], arguments_of(region, queue.memory)
    steps = _Communication(call, queue).steps()

    def kernel(*data: Data) -> tuple[Data, ...]:
        value, *after = arguments(data)
        for step in steps:
            value = step(value, after)
        return (value.reshaped(call.spec.shape),)

    return kernel


class _Communication:
    """One communication."""

    def __init__(self, call: Call, queue: Queue) -> None:
        role: Any = call.op.role
        self._queue = queue
        self._peers: Peers = connection_of(call).peers
        self._traffic: Traffic = role.traffic(call)
        self._name = self._traffic.pattern.value
        self._shape, self._dtype = call.inputs[0].shape, call.inputs[0].dtype
        self._made = call.spec.shape

    def steps(self) -> list[Step]:
        """The steps in order."""
        return {
            Pattern.REDUCE: self._reduce, Pattern.GATHER: self._gather, Pattern.SCATTER: self._scatter,
            Pattern.SWAP: self._swap, Pattern.BROADCAST: self._broadcast,
        }[self._traffic.pattern]()  # fmt: skip

    def _reduce(self) -> list[Step]:
        traffic, count, dtype = self._traffic, prod(self._shape), self._dtype
        native = self._peers.native(traffic, count, dtype) if count else None
        if native is not None:
            return [self._run(native, count)]
        if count * dtype.itemsize * traffic.size <= _SMALL:
            return [self._moved(everything(self._name, traffic.rank, self._bytes([count] * traffic.size))),
                    self._combined(count)]  # fmt: skip
        ends = [count * rank // traffic.size for rank in range(traffic.size + 1)]
        counts = [b - a for a, b in pairwise(ends)]
        return [
            self._moved(shares(self._name, traffic.rank, self._bytes(counts))),
            self._combined(counts[traffic.rank]),
            self._moved(everything(self._name, traffic.rank, self._bytes(counts))),
        ]

    def _gather(self) -> list[Step]:
        traffic, dim, lengths = self._traffic, *_of(self._traffic.gathered)
        rest = prod([n for d, n in enumerate(self._shape) if d != dim])
        counts = [length * rest for length in lengths]
        native = self._peers.native(traffic, counts[0], self._dtype) if len(set(counts)) == 1 and counts[0] else None
        table = everything(self._name, traffic.rank, self._bytes(counts))
        exchanged = self._moved(table) if native is None else self._run(native, sum(counts))
        return [*self._to_front(self._shape, dim), exchanged, *self._from_front(self._made, dim)]

    def _scatter(self) -> list[Step]:
        traffic, dim, lengths = self._traffic, *_of(self._traffic.scattered)
        rest = prod([n for d, n in enumerate(self._shape) if d != dim])
        counts = [length * rest for length in lengths]
        own = counts[traffic.rank]
        native = self._peers.native(traffic, own, self._dtype) if len(set(counts)) == 1 and own else None
        reduced = [self._run(native, own)] if native is not None else [
            self._moved(shares(self._name, traffic.rank, self._bytes(counts))), self._combined(own)
        ]  # fmt: skip
        return [*self._to_front(self._shape, dim), *reduced, *self._from_front(self._made, dim)]

    def _swap(self) -> list[Step]:
        traffic, shape = self._traffic, self._shape
        dim, gathered = _of(traffic.gathered)
        to, scattered = _of(traffic.scattered)
        others = [d for d in range(len(shape)) if d not in (dim, to)]
        order = (dim, to, *others)
        rest = prod([shape[d] for d in others])
        counts = [[length * part * rest for part in scattered] for length in gathered]
        table = blocks(self._name, traffic.rank, [self._bytes(row) for row in counts])
        came = (sum(gathered), scattered[traffic.rank], *[shape[d] for d in others])
        back = tuple([order.index(d) for d in range(len(shape))])
        return [self._packed(order, to, scattered), self._moved(table), *self._transposed(came, back)]

    def _broadcast(self) -> list[Step]:
        traffic, count = self._traffic, prod(self._shape)
        native = self._peers.native(traffic, count, self._dtype) if count else None
        if native is not None:
            return [self._run(native, count)]
        nbytes = count * self._dtype.itemsize
        return [self._moved(from_root(self._name, traffic.rank, traffic.size, traffic.root, nbytes))]

    # Steps

    def _bytes(self, counts: Sequence[int]) -> list[int]:
        return [count * self._dtype.itemsize for count in counts]

    def _run(self, launch: Callable[..., None], count: int) -> Step:
        """An exchange whose target has so many elements."""
        memory, dtype = self._queue.memory, self._dtype

        def step(value: Data, after: Sequence[Data]) -> Data:
            made = memory.new((count,), dtype)
            launch(value, made, after)
            return made

        return step

    def _moved(self, table: Table) -> Step:
        """An exchange of bytes."""
        count = sum(table.received) // self._dtype.itemsize
        if table.is_empty:
            return lambda value, after: self._queue.memory.new((count,), self._dtype)
        return self._run(self._peers.exchange(table), count)

    def _combined(self, count: int) -> Step:
        """So many elements of each rank, one rank after another, as one row."""
        if not count:
            return lambda value, after: value
        shape = (self._traffic.size, count)
        combine = compile_generated(_combination(shape, self._dtype, self._traffic.combine), self._queue, in_unit=True)

        def step(value: Data, after: Sequence[Data]) -> Data:
            made: Data = combine(value.reshaped(shape))[0]
            return made

        return step

    def _to_front(self, shape: Shape, dim: int) -> list[Step]:
        return self._transposed(shape, (dim, *[d for d in range(len(shape)) if d != dim]))

    def _from_front(self, shape: Shape, dim: int) -> list[Step]:
        front = (shape[dim], *[n for d, n in enumerate(shape) if d != dim])
        return self._transposed(front, (*range(1, dim + 1), 0, *range(dim + 1, len(shape))))

    def _transposed(self, shape: Shape, order: tuple[int, ...]) -> list[Step]:
        """Data of a shape in another order of its dimensions."""
        if order == tuple(range(len(shape))) or not prod(shape):
            return []
        turn = transposed(self._queue, shape, order, self._dtype)
        return [lambda value, after: turn(value)]

    def _packed(self, order: tuple[int, ...], to: int, lengths: Sequence[int]) -> Step:
        """The parts along a dimension one after another, each with its dimensions in this order."""
        queue, dtype, strides = self._queue, self._dtype, strides_of(self._shape)
        count = prod(self._shape)
        if not count:
            return lambda value, after: value
        launches, first, begin = [], 0, 0
        for length in lengths:
            shape = tuple([length if d == to else self._shape[d] for d in order])
            read = tuple([strides[d] for d in order])
            if prod(shape):
                copy = Copy(shape, read, strides_of(shape), first * strides[to], begin)
                launches.append(Launch(queue, copy_kernel(copy, dtype, CUDA, queue.target), 2))
            first, begin = first + length, begin + prod(shape)

        def step(value: Data, after: Sequence[Data]) -> Data:
            made = queue.memory.new((count,), dtype)
            for launch in launches:
                launch([value], [made])
            return made

        return step


def _of(lengths: Lengths | None) -> tuple[int, tuple[int, ...]]:
    assert lengths is not None
    return lengths.dim, lengths.each


def _combination(shape: Shape, dtype: DType, combine: str) -> Region:
    """The reduction of rows to one."""
    rows = spec(shape, dtype)
    attrs: dict[str, Any] = {"axis": (0,), "keepdims": False}
    if dtype is bool_:
        call = (reduce.all if combine == "min" else reduce.any).call((rows,), attrs)
    elif combine == "sum":
        call = reduce.sum.call((rows,), {**attrs, "dtype": dtype})
    else:
        call = {"max": reduce.max, "min": reduce.min, "mean": reduce.mean}[combine].call((rows,), attrs)
    return fuse(Graph((leaf_call(rows), call), ((), (0,)), (1,)))[0]
