"""The code of one unit of a group's work, pass after pass. `rows` calls it for blocks, rows and vectors of rows.

Vectors run along one dimension. Where a loop walks it, the last vector begins early enough to fit: some elements are
computed twice, and none is left for scalar code; in a reduction, lanes that were computed before do not count. Where
rows lie side by side along it, each lane is a row.

Sums go through short blocks, whose totals are summed again: their error grows with a block's length, not with the
row's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Final

from ..._schedule.groups import Group
from ..._tensor.dtype import DType
from ..scalar.value import Value, like, texts
from .builder import LlvmBuilder
from .folding import State, folded_to
from .integers import add, least, mul, shifted, sub
from .lanes import counted, lanes_under, reversed_lanes, spread
from .load_store import load, prefetch, repeated, spaced, store, strided
from .nest import LoopFrame, Nest, Operand, Steps, Strides, operand_of
from .passes import Passes

_AHEAD: Final = 4096
"""Bytes: a page, at whose end processors stop to look ahead by themselves."""
LONG: Final = 32
"""Steps from which it does not matter how many elements the last one computes again."""
_BLOCK: Final = 64
"""Steps after which a sum begins anew."""


@dataclass(slots=True)
class Course:
    """How a group is walked: what all units of a kernel have in common."""

    group: Group
    passes: Passes
    nest: Nest
    numbers: dict[Operand, int]
    """The places of the operands that are read."""
    places: dict[int, int]
    """The places of the results, by entry."""
    strides: Strides
    across: bool
    """Whether each lane is a row of its own."""
    lanes: int
    last_lanes: int
    """The lanes of the vectors of a loop, and of those that are left at its end."""
    loops: list[int]
    """The dimensions that a unit walks one index at a time, by number, outermost first."""
    counts: bool
    """Whether it matters which number an element has in its row."""
    streams: bool = False


class Ground:
    """The space of the function, as data. It is made where all of the function can see it."""

    def __init__(self, course: Course, frame: LoopFrame) -> None:
        nest = course.nest
        dims = [nest.dims[n] for n in course.loops]
        self.loops = frame.steps(dims)
        self.vector = frame.steps([nest.vector])
        self.length = self.vector.sizes[0]
        """The size of the dimension of the vectors."""
        self.apart = {n: frame.number(nest.along(n)) for n in range(len(nest.operands))
                      if nest.along(n) not in (0, 1, -1)}  # fmt: skip
        """The strides along the vectors of operands that are neither contiguous nor constant there."""
        self.weights = ["0"] * len(dims)
        """The weight of each loop's index in the number of an element of its row."""
        if course.counts:
            inside = [nest.reduced[nest.reduced.index(dim) + 1 :] for dim in dims]
            self.weights = [frame.number(prod(d.size for d in later)) for later in inside]
        self.scratch = {}
        """Memory for the values that later passes load: of a row, or of a vector of rows."""
        length = frame.number(nest.row)
        for entry in course.passes.kept:
            size = course.passes.dtype(entry).itemsize * (course.lanes if course.across else 1)
            self.scratch[entry] = frame.code.let(f"alloca i8, i64 {mul(frame.code, length, str(size))}, align 64")


class Walk:
    """A unit of work being written."""

    def __init__(self, course: Course, frame: LoopFrame, ground: Ground, bases: Sequence[str]) -> None:
        self.course = course
        self.frame = frame
        self.ground = ground
        self.bases = bases
        """The operands' addresses where the unit begins."""
        self.bounds: tuple[str, str] | None = None
        """The bounds of the outermost loop, if the unit is only a part of it."""
        self.span: tuple[str, str] | None = None
        """The bounds of the dimension of the vectors, where the unit is only a part of it."""
        self.row_builder = LlvmBuilder(frame.code, course.lanes if course.across else 1)
        self.row_values: dict[int, Value] = {}

    def run(self) -> None:
        """All passes."""
        for number in range(self.course.passes.count):
            self.end(number, self.states(number))

    def states(self, number: int) -> dict[int, State]:
        """A pass over the rows: what its reductions come to."""
        return Pass(self, number).write()

    def end(self, number: int, states: dict[int, State]) -> None:
        """The row values that a pass makes known, and those of them that are results."""
        k, passes = self.row_builder, self.course.passes
        for entry in passes.rows[number]:
            if entry in states:
                value = passes.foldings[number][entry].end(k, states[entry])
            else:
                value = passes.computed(k, entry, self._row_operand)
            self.row_values[entry] = value
            place = self.course.places.get(entry)
            if place is not None:
                self.stored(k, value, place, self.bases)

    def _row_operand(self, user: int, entry: int) -> Value:
        found = self.row_values.get(entry) or self.course.passes.number(self.row_builder, entry)
        return found or self.element(self.row_builder, self.place(user, entry), self.bases)

    def place(self, user: int, entry: int) -> int:
        """The number of the operand that an op reads."""
        course = self.course
        return course.numbers[operand_of(course.group, user, entry, course.strides)]

    def element(self, k: LlvmBuilder, place: int, at: Sequence[str]) -> Value:
        """An operand's elements, from the address of the first lane's."""
        nest = self.course.nest
        dtype, along, pointer = nest.operands[place].dtype, nest.along(place), at[place]
        if along == 0 or k.width == 1:
            return repeated(k, dtype, pointer)
        if along == 1:
            return load(k, dtype, pointer)
        if along == -1:
            first = shifted(self.frame.code, pointer, str(-(k.width - 1) * dtype.itemsize))
            return reversed_lanes(k, load(k, dtype, first))
        return strided(k, dtype, pointer, self.ground.apart[place])

    def ask_ahead(self, k: LlvmBuilder, at: Sequence[str]) -> None:
        """Ask for elements that are read soon: where nothing is written, processors look ahead too little alone."""
        nest = self.course.nest
        for place, operand in enumerate(nest.operands):
            if nest.along(place) == 1 and place not in self.course.places.values():
                prefetch(k, operand.dtype, at[place], _AHEAD)

    def stored(self, k: LlvmBuilder, value: Value, place: int, at: Sequence[str], *, streams: bool = False) -> None:
        """A result's elements, to the address of the first lane's."""
        along = self.course.nest.along(place)
        if along in (0, 1) or k.width == 1:
            store(k, value, at[place], nontemporal=streams)
        else:
            spaced(k, value, at[place], self.ground.apart[place])

    def along(self, place: int, base: str, index: str) -> str:
        """An operand's address at an index of the dimension of the vectors."""
        along = self.course.nest.along(place)
        step = str(along * self.course.nest.operands[place].dtype.itemsize)
        step = self.ground.vector.strides[0][place] if place in self.ground.apart else step
        return shifted(self.frame.code, base, mul(self.frame.code, index, step))


class Pass:
    """A pass being written: its loops, and what they carry."""

    def __init__(self, walk: Walk, number: int) -> None:
        self.walk = walk
        self.course = course = walk.course
        self.frame = walk.frame
        self.code = walk.frame.code
        self.number = number
        self.foldings = course.passes.foldings[number]
        self.needed = course.passes.needed(number)
        self.uses = course.passes.uses(number)
        self.running = {n: r for n, r in course.passes.running.items()
                        if n in self.needed and not course.passes.loads(n, number)}  # fmt: skip
        widths = [course.lanes] if course.across else list(dict.fromkeys((course.lanes, course.last_lanes)))
        self.builders = [LlvmBuilder(self.code, w) for w in widths]
        self.blocks = any(f.adds for f in self.foldings.values()) and not self.running

    def write(self) -> dict[int, State]:
        """The loops; what the reductions come to."""
        course = self.course
        carried = self._nested(0, self.walk.bases, "0", "0", self._start())
        found = {}
        for entry, folding in self.foldings.items():
            state = carried.folds[0][entry]
            if not course.across:
                wide, narrow = self.builders[0], self.builders[-1]
                state = folded_to(wide, folding, state, narrow.width)
                if len(self.builders) > 1:
                    state = folding.combine(narrow, state, carried.folds[1][entry])
                state = folded_to(narrow, folding, state, 1)
            found[entry] = state
        return found

    def _start(self) -> _Carried:
        return _Carried(
            [{e: f.start(k) for e, f in self.foldings.items()} for k in self.builders],
            {e: r.start(self.walk.row_builder) for e, r in self.running.items()},
        )

    # Loops

    def _nested(self, level: int, bases: Sequence[str], scratch: str, place: str, carried: _Carried) -> _Carried:
        """The loops over the dimensions that are walked one by one, then the vectors.

        `scratch` counts the elements of a row that were walked before; `place` is the number of an element in its row.
        """
        walk, frame, course, ground = self.walk, self.frame, self.course, self.walk.ground
        if level == len(course.loops):
            if course.across:
                return self._step(self.builders[0], 0, bases, scratch, place, carried, {}, None)
            return self._vectors(bases, mul(self.code, scratch, ground.length), place, carried)
        size, strides = ground.loops.sizes[level], ground.loops.strides[level]
        bounds = walk.bounds if level == 0 and walk.bounds else ("0", size)

        def body(index: str, given: _Carried) -> _Carried:
            here = frame.moved(bases, Steps([size], [strides]), [index])
            before = add(self.code, mul(self.code, scratch, size), index)
            where = add(self.code, place, mul(self.code, index, ground.weights[level]))
            return self._nested(level + 1, here, before, where, given)

        return self._loop(bounds, 1, course.nest.dims[course.loops[level]].size, carried, body)

    def _vectors(self, bases: Sequence[str], scratch: str, place: str, carried: _Carried) -> _Carried:
        """The dimension of the vectors: whole wide ones, then what is left."""
        course, walk = self.course, self.walk
        start, end = walk.span or ("0", walk.ground.length)
        whole = self.code.pure(f"and i64 {sub(self.code, end, start)}, {-course.lanes}")
        middle = add(self.code, start, whole)
        trips = course.nest.vector.size // course.lanes

        def body(n: int, index: str, given: _Carried, fixed: dict[int, Value], *, last: bool) -> _Carried:
            k, at, had = self.builders[n], index, None
            if last and k.width > 1:
                at = least(self.code, index, sub(self.code, end, str(k.width)))
                had = lanes_under(k, sub(self.code, index, at)) if self.foldings else None
            here = [walk.along(p, b, at) for p, b in enumerate(bases)]
            if not last and trips > 2 * _BLOCK and not course.passes.stored[self.number]:
                walk.ask_ahead(k, here)
            where = add(self.code, place, at)
            return self._step(k, n, here, add(self.code, scratch, at), where, given, fixed, had, streams=not last)

        fixed = self._fixed(self.builders[0], bases)
        if trips >= LONG and not (self.foldings or self.running or course.streams):
            # What is left is a wide vector, too, by the same code: a second copy would take as long to compile.
            left = self.code.pure(f"icmp slt i64 {middle}, {end}")
            with self.code.loop(0, add(self.code, "1", self.code.pure(f"zext i1 {left} to i64"))) as turn:
                first = self.code.pure(f"icmp eq i64 {turn.index}, 0")
                low, high = (
                    self.code.pure(f"select i1 {first}, i64 {usual}, i64 {last}")
                    for usual, last in ((start, sub(self.code, end, str(course.lanes))), (middle, end))
                )
                self._loop((low, high), course.lanes, trips, carried, lambda i, c: body(0, i, c, fixed, last=False))
            return carried
        carried = self._loop((start, middle), course.lanes, trips, carried,
                             lambda i, c: body(0, i, c, fixed, last=False))  # fmt: skip
        n = len(self.builders) - 1
        fixed = self._fixed(self.builders[n], bases)
        return self._loop((middle, end), course.last_lanes, 1, carried, lambda i, c: body(n, i, c, fixed, last=True))

    def _loop(
        self, bounds: tuple[str, str], step: int, trips: int, carried: _Carried,
        body: Callable[[str, _Carried], _Carried],
    ) -> _Carried:  # fmt: skip
        """A loop; in blocks, if it is long and adds."""

        def plain(first: str, last: str, given: _Carried) -> _Carried:
            with self.code.loop(first, last, step, self._typed(given)) as loop:
                loop.carry(*given.flat_of(body(loop.index, given.with_texts(loop.values))))
            return given.with_texts(loop.values)

        if not (self.blocks and trips > 2 * _BLOCK):
            return plain(*bounds, carried)
        with self.code.loop(*bounds, _BLOCK * step, self._typed(carried)) as block:
            end = least(self.code, add(self.code, block.index, str(_BLOCK * step)), bounds[1])
            little = plain(block.index, end, self._start())
            before = carried.with_texts(block.values)
            both = [{e: f.combine(k, a[e], b[e]) for e, f in self.foldings.items()}
                    for k, a, b in zip(self.builders, before.folds, little.folds, strict=True)]  # fmt: skip
            block.carry(*carried.flat_of(_Carried(both, {})))
        return carried.with_texts(block.values)

    def _typed(self, carried: _Carried) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for k, states in zip(self.builders, carried.folds, strict=True):
            for state in states.values():
                found += k.carried(state)
        return found + self.walk.row_builder.carried(list(carried.totals.values()))

    # Elements

    def _fixed(self, k: LlvmBuilder, bases: Sequence[str]) -> dict[int, Value]:
        """The values that are the same in all vectors: operands by their place, row values by -1 - entry."""
        walk, made = self.walk, {}
        for user, entry in self.uses:
            if entry in walk.row_values:
                made[-1 - entry] = spread(k, walk.row_values[entry])
            elif self.course.passes.number(k, entry) is None:
                place = walk.place(user, entry)
                if self.course.nest.along(place) == 0:
                    made[place] = walk.element(k, place, bases)
        return made

    def _step(
        self, k: LlvmBuilder, n: int, here: Sequence[str], scratch: str, place: str, carried: _Carried,
        fixed: dict[int, Value], had: Value | None, *, streams: bool = False,
    ) -> _Carried:  # fmt: skip
        """Compute a vector of elements, store it and add it to the reductions."""
        walk, course, passes = self.walk, self.course, self.course.passes
        values: dict[int, Value] = {}
        totals = dict(carried.totals)

        def read(user: int, entry: int) -> Value:
            if entry in values:
                return values[entry]
            if entry in walk.row_values:
                return fixed.get(-1 - entry) or walk.row_values[entry]
            found = passes.number(k, entry)
            if found is not None:
                return found
            operand = walk.place(user, entry)
            return fixed[operand] if operand in fixed else walk.element(k, operand, here)

        for entry in self.needed:
            if passes.loads(entry, self.number):
                kept = load(k, passes.dtype(entry), self._kept_at(entry, scratch))
                values[entry] = replace(kept, dtype=course.group.graph.calls[entry].spec.dtype)
                continue
            if entry in self.running:
                running = self.running[entry]
                step = running.across if course.across else running.along
                given = read(entry, course.group.graph.args[entry][0])
                values[entry], totals[entry] = step(k, totals[entry], given)
            else:
                values[entry] = passes.computed(k, entry, read)
            if entry in passes.kept:
                store(k, replace(values[entry], dtype=passes.dtype(entry)), self._kept_at(entry, scratch))
        for entry in passes.stored[self.number]:
            walk.stored(k, values[entry], course.places[entry], here, streams=streams and course.streams)
        folds = list(carried.folds)
        args, count = course.group.graph.args, partial(self._number, k, place)
        folds[n] = {e: f.step(k, folds[n][e], read(e, args[e][0]), count, had) for e, f in self.foldings.items()}
        return _Carried(folds, totals)

    def _number(self, k: LlvmBuilder, place: str, dtype: DType) -> Value:
        """The numbers in their rows of a vector's elements."""
        return counted(k, place, 0 if self.course.across else 1, dtype)

    def _kept_at(self, entry: int, position: str) -> str:
        size = self.course.passes.dtype(entry).itemsize * (self.course.lanes if self.course.across else 1)
        return shifted(self.code, self.walk.ground.scratch[entry], mul(self.code, position, str(size)))


@dataclass(slots=True)
class _Carried:
    """The values that a loop carries from one iteration to the next."""

    folds: list[dict[int, State]]
    """For each width of vectors, the states of the reductions."""
    totals: dict[int, Value]
    """The values of running totals."""

    def _values(self) -> list[Value]:
        return [v for states in self.folds for state in states.values() for v in state] + list(self.totals.values())

    def flat_of(self, other: _Carried) -> list[str]:
        """The texts of another, in the order of this one's."""
        return texts(other._values())

    def with_texts(self, parts: Sequence[str]) -> _Carried:
        """The carried values with other texts."""
        left = iter(like(self._values(), parts))
        folds = [{e: [next(left) for _ in state] for e, state in states.items()} for states in self.folds]
        return _Carried(folds, {e: next(left) for e in self.totals})
