"""Groups of ops as LLVM IR: plain loops, reductions, and kernels that pass over rows several times.

The CPU calls `kernel` with a `Group` of the fusion pass. `nest` describes the index space, `passes` orders the ops,
and `walk` writes the code of a unit of work: a block of a plain loop, a row, or a vector of rows. A long row, or all of
an array, is cut into slices that do not depend on the number of threads; `finish` combines their results.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from ..._schedule.groups import Group, runs
from ..._tensor.role import Extremum
from ..scalar.value import Value, like, texts
from .folding import Folding, State
from .integers import add, least, mul, shifted, split, sub
from .ir import Module
from .load_store import load, store
from .nest import LoopFrame, Nest, Operand, Strides, VectorTarget, lanes, operands_of, power_below
from .passes import Passes, is_dear
from .walk import LONG, Course, Ground, Walk


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """How the work of a group is cut. Sizes are in elements."""

    unit: int = 4096
    """A unit of a row of a plain loop, about, if the row is much longer."""
    single_row_unit: int = 512
    """The unit if there is only one row: units that run together are one loop, so that they may be small."""
    tile: tuple[int, int] = (16, 128)
    """A unit where an array is read across: so many indices of the dimension along which its elements are side by side,
    and so many along the vectors. A line of a cache is used up before it is gone."""
    vectors: int = 4
    """Vectors that are worked on together."""
    slice: int = 16384
    """Elements that are worth a slice of their own."""
    units: int = 64
    """Units that a reduction is cut into, if it has fewer rows."""


_POLICY: Final = RowPolicy()


@dataclass(frozen=True, slots=True)
class GroupKernel:
    """How a group's code is called: the functions `kernel` and, if it `finishes`, `finish`."""

    sizes: tuple[int, ...]
    reads: tuple[int, ...]
    """The arrays that it takes, by their place among the group's inputs; then come all outputs, then the workspace."""
    units: int
    unit: int
    """Elements of one unit."""
    workspace: int
    """Bytes."""
    finishes: bool


def kernel(
    group: Group, target: VectorTarget, strides: Strides | None = None, *, streams: bool = False
) -> tuple[str, GroupKernel]:
    """The code of a group of at least one element, and how it is called.

    `strides` are those of the arrays that are not contiguous. `streams`: results do not go through the caches.
    """
    return _RowKernel(group, target, strides or {}, streams).write()


class _RowKernel:
    def __init__(self, group: Group, target: VectorTarget, strides: Strides, streams: bool) -> None:
        self.target = target
        self.reads, self.writes = operands_of(group, strides)
        calls = [group.graph.calls[n] for n in group.nodes]
        counts = any(isinstance(c.op.role, Extremum) for c in calls)
        self.nest = nest = Nest(group, [*self.reads, *self.writes], counts=counts)
        self.reducing = bool(group.axes)
        one = lanes(target, [s.dtype for c in calls for s in (*c.inputs, *c.outputs)])
        single = any(runs(c) for c in calls) or any(s not in (0, 1, -1) for s in nest.vector.strides)
        twice = self.reducing or streams or nest.vector.size < LONG * _POLICY.vectors * one
        vectors = 1 if single else _unrolled(len(calls), sum(map(is_dear, calls)), twice=twice)
        wide = min(one * vectors, power_below(nest.vector.size))
        across = self.reducing and not nest.vector.reduced
        self.passes = passes = Passes(group, wide if across else 1)
        self.course = Course(
            group, passes, nest,
            numbers={o: n for n, o in enumerate(self.reads)},
            places={o.entry: len(self.reads) + n for n, o in enumerate(self.writes)},
            strides=strides, across=across, lanes=wide, last_lanes=1 if passes.running else min(one, wide),
            loops=[n for n, d in enumerate(nest.dims) if d.reduced and d is not nest.vector], counts=counts,
        )  # fmt: skip
        crossing = None if self.reducing else nest.crossing()
        self.tiled = nest.dims[crossing] if crossing is not None else None
        if crossing is not None:
            self.course.loops = [crossing]
        self.outer = [d for d in nest.kept if d is not nest.vector and d is not self.tiled]
        self.course.streams = streams and all(self._is_aligned(o) for o in self.writes)
        self.module = Module(converts_halves=target.converts_halves)
        self.sizes: list[int] = []
        self._cut()

    def _is_aligned(self, operand: Operand) -> bool:
        """Whether each row of a result begins where a whole vector may be stored past the caches."""
        place, nest = self.course.places[operand.entry], self.nest
        steps = [d.strides[place] for d in nest.dims if d is not nest.vector]
        return not self.course.across and nest.along(place) == 1 and all(s % self.course.lanes == 0 for s in steps)

    def _cut(self) -> None:
        """Units of work: blocks of a plain loop, vectors of rows, or rows, which may be cut into slices."""
        nest, wide = self.nest, self.course.lanes
        self.slices, self.slice, self.tiles = 1, 0, 1
        self.block = nest.vector.size
        if self.tiled is not None:
            self.block = _POLICY.tile[1]
            self.tiles = -(-self.tiled.size // _POLICY.tile[0])
            self.unit = _POLICY.tile[0] * _POLICY.tile[1]
        elif not self.reducing:
            grain = _POLICY.unit if self.outer else _POLICY.single_row_unit
            if self.block > 2 * grain:
                self.block = -(-grain // wide) * wide
            self.unit = self.block
        elif self.course.across:
            self.block = wide
            self.unit = nest.row * wide
        else:
            self.unit = nest.row
        self.blocks = -(-nest.vector.size // self.block)
        self.units = prod(d.size for d in self.outer) * self.blocks * self.tiles
        if not self.reducing or self.passes.count > 1 or self.passes.running:
            return
        wanted = min(_POLICY.units // self.units, self.unit // _POLICY.slice)
        if wanted > 1:
            loops = self.course.loops
            first, step = (nest.dims[loops[0]], 1) if loops else (nest.vector, wide)
            self.slice = -(-first.size // (wanted * step)) * step
            self.slices = -(-first.size // self.slice)
            self.unit //= self.slices
            self.units *= self.slices

    # The functions

    def write(self) -> tuple[str, GroupKernel]:
        """The code, and how it is called."""
        self._kernel()
        if self.slices > 1:
            self._finish()
        inputs = self.course.group.inputs
        reads = tuple(inputs.index(o.entry) for o in self.reads)
        workspace = self._partial_bytes if self.slices > 1 else 0
        made = GroupKernel(tuple(self.sizes), reads, self.units, self.unit, workspace, self.slices > 1)
        return self.module.text(self.target.attributes), made

    def _kernel(self) -> None:
        frame = LoopFrame(self.module, "kernel", self.nest, self.sizes)
        rows, ground = self._rows(frame), Ground(self.course, frame)
        slices, slice_, tiles, block = map(frame.number, (self.slices, self.slice, self.tiles, self.block))
        partials = self._partials(frame) if self.slices > 1 else None

        def part(number: str, size: str, whole: str) -> tuple[str, str]:
            first = mul(frame.code, number, size)
            return first, least(frame.code, add(frame.code, first, size), whole)

        if not self.reducing and not self.outer and self.tiled is None:
            walk = Walk(self.course, frame, ground, frame.bases)
            walk.span = (
                mul(frame.code, "%low", block),
                least(frame.code, mul(frame.code, "%high", block), ground.length),
            )
            walk.run()
            self._end(frame)
            return
        with frame.code.loop("%low", "%high") as unit:
            row, piece = split(frame.code, unit.index, slices)
            row, tile = split(frame.code, row, tiles)
            bases, column = rows(row)
            walk = Walk(self.course, frame, ground, bases)
            if self.slices > 1 and not self.course.loops:
                walk.span = part(piece, slice_, ground.length)
            elif self.slices > 1:
                walk.bounds = part(piece, slice_, ground.loops.sizes[0])
            elif not self.reducing and self.blocks > 1:
                walk.span = part(column, block, ground.length)
            if self.tiled is not None:
                walk.bounds = part(tile, str(_POLICY.tile[0]), ground.loops.sizes[0])
            if partials is None:
                walk.run()
            else:
                for entry, state in walk.states(0).items():
                    for value, place in zip(state, partials.of(entry, unit.index), strict=True):
                        store(walk.row_builder, value, place)
        self._end(frame)

    def _end(self, frame: LoopFrame) -> None:
        if self.course.streams:
            frame.code.do("fence seq_cst")
        frame.code.ret()

    def _rows(self, frame: LoopFrame) -> _RowStarts:
        return _RowStarts(self, frame)

    # What slices leave for the end

    @property
    def _row_lanes(self) -> int:
        return self.course.lanes if self.course.across else 1

    @property
    def _partial_bytes(self) -> int:
        states = [d for f in self.passes.foldings[0].values() for d in f.state]
        return sum(self.units * self._row_lanes * d.itemsize for d in states)

    def _partials(self, frame: LoopFrame) -> _Partials:
        return _Partials(frame, self.passes.foldings[0], self.units, self._row_lanes)

    def _finish(self) -> None:
        """Fold what the slices of each row have come to, in their order."""
        frame = LoopFrame(self.module, "finish", self.nest, self.sizes)
        rows, ground = self._rows(frame), Ground(self.course, frame)
        slices, count = frame.number(self.slices), frame.number(self.units // self.slices)
        partials = self._partials(frame)
        with frame.code.loop(0, count) as unit:
            bases, _ = rows(unit.index)
            walk = Walk(self.course, frame, ground, bases)
            k, foldings = walk.row_builder, self.passes.foldings[0]
            start = {e: f.start(k) for e, f in foldings.items()}
            flat = [v for state in start.values() for v in state]
            first = mul(frame.code, unit.index, slices)
            with frame.code.loop(0, slices, carried=k.carried(flat)) as part:
                before = _states(start, flat, part.values)
                at = add(frame.code, first, part.index)
                after = {e: f.combine(k, before[e], [load(k, d, p) for d, p in
                                                     zip(f.state, partials.of(e, at), strict=True)])
                         for e, f in foldings.items()}  # fmt: skip
                part.carry(*texts(v for state in after.values() for v in state))
            walk.end(0, _states(start, flat, part.values))
        frame.code.ret()


def _states(start: dict[int, State], flat: list[Value], parts: tuple[str, ...]) -> dict[int, State]:
    left = iter(like(flat, parts))
    return {e: [next(left) for _ in state] for e, state in start.items()}


class _RowStarts:
    """Where rows begin."""

    def __init__(self, writer: _RowKernel, frame: LoopFrame) -> None:
        self._frame = frame
        self._across = writer.course.across
        self._wide = str(writer.course.lanes)
        self._outer = frame.steps(writer.outer)
        self._vector = frame.steps([writer.nest.vector])
        self._blocks = frame.number(writer.blocks)

    def __call__(self, index: str) -> tuple[list[str], str]:
        """The operands' addresses, and which block of the dimension of the vectors is meant."""
        frame = self._frame
        row, block = split(frame.code, index, self._blocks)
        bases = frame.moved(frame.bases, self._outer, frame.indices(row, self._outer))
        if self._across:
            # The last vector begins early enough to fit: some rows are worked on twice.
            last = sub(frame.code, self._vector.sizes[0], self._wide)
            bases = frame.moved(bases, self._vector, [least(frame.code, mul(frame.code, block, self._wide), last)])
        return bases, block


class _Partials:
    """The workspace: for each part of each state, an element (or a vector of them) for each unit."""

    def __init__(self, frame: LoopFrame, foldings: dict[int, Folding], units: int, row_lanes: int) -> None:
        self._frame = frame
        self._lanes = row_lanes
        self._array = frame.array(len(frame.nest.operands))
        self._foldings = foldings
        self._starts: dict[int, list[str]] = {}
        at = 0
        for entry, folding in foldings.items():
            self._starts[entry] = []
            for dtype in folding.state:
                self._starts[entry].append(frame.number(at))
                at += units * row_lanes * dtype.itemsize

    def of(self, entry: int, unit: str) -> list[str]:
        """The addresses of a unit's state."""
        frame, made = self._frame, []
        for start, dtype in zip(self._starts[entry], self._foldings[entry].state, strict=True):
            offset = mul(frame.code, unit, str(self._lanes * dtype.itemsize))
            made.append(shifted(frame.code, self._array, add(frame.code, start, offset)))
        return made


def _unrolled(ops: int, dear: int, *, twice: bool) -> int:
    """Vectors that are worked on together, to hide how long an instruction takes; fewer if registers would run out, or
    if long functions are to be compiled `twice`, for the vectors that are left."""
    return _POLICY.vectors if ops <= 24 and not (twice and dear > 2) else 2
