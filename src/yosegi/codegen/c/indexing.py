"""`gather`, `scatter` and `scatter_add` as kernels.

Index tensors lead to places along some axes of an array, and these together to a *row*: rows are numbered in the order
of the axes. Everything else of the array is the same for all rows.

- `gather`: a work item for each element of the result, or for neighbours: a packet of up to 16 bytes, or a run.
- `scatter`: of several values for one row the last one stays. An integer atomic maximum over the numbers of the values
  finds it, whatever the order of items. Then an item for each element of the result takes it from the array, or from
  the last value. Cost: the result is read and written once; beside it, one integer for each row and two atomics for
  each index.
- `scatter_add`, ordered: integer atomics count the values of each row and list them, in any order; each value then
  finds its rank among those of its row; an item for each element of the result adds its values in ascending order. So
  results are the same bits in every run, and those of the reference. Cost: six launches, 20 bytes for each index and 8
  for each row, reading the values and writing the result once. A row with n values takes n² comparisons, and n
  additions one after the other: 8192 values of one row are slow, 8192 values of 50000 rows are not.
- `scatter_add`, unordered: where the language adds floats atomically, and bits may differ from run to run: a copy of
  the array, and one atomic for each element of the values.

An index that is out of range is noted in the table of faults, and reads or writes nothing outside of an array: a gather
reads the first row in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from ..._tensor.dtype import DType, bool_, int32, int64, uint64
from ..._tensor.node import Call, Shape, Spec
from ..._tensor.role import Indexing
from ...ops.rules import broadcast_shapes
from ..scalar.access import Dimension, dimensions
from ..scalar.value import Value
from .builder import INT_LIMIT
from .copies import BITS, Copy, copy_kernel, strides_of
from .kernel_source import Kernel, decomposed, offsets
from .packets import LANE, drain, each_lane, element_at, fill, lane_of, packet_type, put_element, set_lane
from .stages import FAULTS, IndexBound, KernelProgram, KernelWriter, Setting, Stage, filled, noted

_PACKET: Final = 16
_UNROLLED: Final = 8


def refusal(call: Call) -> str | None:
    """Why there is no kernel for a call of these ops, or `None`."""
    indexed = _Indexed.of(call)
    if indexed.count and not call.inputs[0].size:
        return f"{call.op.name} with an array without elements"
    if max(indexed.count, indexed.rows) >= INT_LIMIT:
        return f"{call.op.name} with {max(indexed.count, indexed.rows)} indices or rows"
    return None


@dataclass(frozen=True, slots=True)
class _Indexed:
    """An array, and the index tensors that lead into it."""

    array: Spec
    indices: tuple[Spec, ...]
    axes: tuple[int, ...]
    at: int
    function: str

    @classmethod
    def of(cls, call: Call) -> _Indexed:
        """Those of a call."""
        first = 1 if call.op.role is Indexing.READ else 2
        return cls(call.inputs[0], call.inputs[first:], call.attrs["axes"], call.attrs["at"], call.attrs["of"])

    @property
    def shape(self) -> Shape:
        """The dimensions of the indices, broadcast together."""
        return broadcast_shapes(*[i.shape for i in self.indices])

    @property
    def count(self) -> int:
        """How many rows are selected."""
        return prod(self.shape)

    @property
    def lengths(self) -> Shape:
        """Of the axes that are indexed."""
        return tuple(self.array.shape[a] for a in self.axes)

    @property
    def rows(self) -> int:
        """How many rows there are to select from."""
        return prod(self.lengths)

    @property
    def rest(self) -> list[int]:
        """The axes that are not indexed."""
        return [a for a in range(self.array.ndim) if a not in self.axes]

    def selected(self, strides: Sequence[int], of_indices: Sequence[int]) -> tuple[int, ...]:
        """Strides along the dimensions of what is selected, from those along the rest and along the indices."""
        return (*strides[: self.at], *of_indices, *strides[self.at :])

    def bounds(self) -> list[IndexBound]:
        """Of each index tensor."""
        return [IndexBound(n, i.dtype.kind == "unsigned integer", self.function)
                for i, n in zip(self.indices, self.lengths, strict=True)]  # fmt: skip


def _broadcast(shape: Shape, onto: Shape) -> tuple[int, ...]:
    """The strides of a contiguous array that is repeated along the dimensions of a larger shape."""
    own = [s if n > 1 else 0 for n, s in zip(shape, strides_of(shape), strict=True)]
    return (0,) * (len(onto) - len(shape)) + tuple(own)


def _walked(shape: Shape, columns: Sequence[tuple[int, ...]]) -> list[Dimension]:
    """The dimensions of a shape, as few as possible, in which each array has its own strides."""
    made = dimensions(shape, [shape] * len(columns), given=columns)
    return made or [Dimension(1, (0,) * len(columns), 1)]


def _in_packets(
    dims: list[Dimension], moved: Sequence[int], itemsize: int, steps: Sequence[int]
) -> tuple[int, list[Dimension]]:
    """How many neighbours one item takes, and the dimensions for that: a packet, if it is aligned in all arrays that
    are `moved` and in the result. `steps` are further strides into these."""
    inner, outer = dims[-1], dims[:-1]
    aligned = [*steps, *[d.strides[n] for d in outer for n in moved], *[d.whole for d in outer]]
    count = _PACKET // itemsize
    if any(inner.strides[n] != 1 for n in moved) or inner.whole != 1:
        count = 1
    while count > 1 and (inner.size % count or any(s % count for s in aligned)):
        count //= 2
    if count <= 1:
        return 1, dims
    strides = tuple(count if n in moved else s for n, s in enumerate(inner.strides))
    return count, [*outer, Dimension(inner.size // count, strides, count)]


def _place(w: KernelWriter, index: Spec, pointer: str, at: str, bound: IndexBound, faults: str) -> tuple[str, str]:
    """The place that an index leads to, and whether it is in range. If not, it is noted, and the place is 0."""
    k, n = w.k, w.sizes(bound.length)
    wide = w.dialect.types[uint64 if bound.is_unsigned else int64]
    found = k.let(wide, f"({wide}){element_at(k, index.dtype, pointer, at).text}")
    if bound.is_unsigned:
        inside = k.let("int", f"{found} < ({wide}){n}")
        place = found
    else:
        inside = k.let("int", f"{found} < ({wide}){n} && {found} >= -({wide}){n}")
        place = k.let(wide, f"{found} < 0 ? {found} + {n} : {found}")
    noted(w, f"!{inside}", found, bound, faults)
    return w.let(f"{inside} ? ({w.ctype}){place} : 0"), inside


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """The neighbours that an item reads and writes: a packet, or one element."""

    w: KernelWriter
    dtype: DType
    count: int

    def each(self) -> AbstractContextManager[None]:
        """A loop over neighbouring elements: the body runs for each."""
        return each_lane(self.w.k, self.count)

    def fill(self, pointer: str, at: str) -> Callable[[], Value]:
        """Read them, and give the function that gives the current one, inside of `each`."""
        k, dtype = self.w.k, self.dtype
        if self.count == 1:
            return lambda: element_at(k, dtype, pointer, f"{at} + {LANE}")
        name = f"p{len(k.lines)}"
        self.w.k.say(f"{packet_type(k, dtype, self.count)} {name}")
        fill(k, dtype, self.count, name, pointer, at, None)
        return lambda: lane_of(k, dtype, name)

    def store(self, value: Callable[[], Value], pointer: str, at: str) -> None:
        """Write them."""
        k, dtype = self.w.k, self.dtype
        if self.count == 1:
            with self.each():
                put_element(k, value(), pointer, f"{at} + {LANE}")
            return
        name = f"q{len(k.lines)}"
        self.w.k.say(f"{packet_type(k, dtype, self.count)} {name}")
        with self.each():
            set_lane(k, name, value())
        drain(k, dtype, self.count, name, pointer, at, None)


def gather(call: Call, setting: Setting) -> KernelProgram:
    """The elements at indices along axes."""
    g, spec = _Indexed.of(call), call.spec
    own = strides_of(g.array.shape)
    steps = [own[a] for a in g.axes]
    columns = [g.selected([own[a] for a in g.rest], (0,) * len(g.shape))]
    columns += [g.selected((0,) * len(g.rest), _broadcast(i.shape, g.shape)) for i in g.indices]
    bits = BITS[spec.dtype.itemsize]
    dims = _walked(spec.shape, columns)
    count, dims = _in_packets(dims, (0,), spec.dtype.itemsize, steps)
    indices = [i.dtype for i in g.indices]
    w = KernelWriter(setting, max(g.array.size, spec.size), (bits, *indices), (bits, int64))
    items = spec.size // count
    at = decomposed(w.k, w.ctype, w.item(items), dims, w.sizes)
    start, *found, target = offsets(at, dims, len(columns), w.sizes)
    for n, (index, bound, step, where) in enumerate(zip(g.indices, g.bounds(), steps, found, strict=True)):
        place, _ = _place(w, index, f"a{n + 1}", w.let(where), bound, "b1")
        start = f"{start} + {place} * {w.sizes(step)}"
    neighbours = _Neighbours(w, bits, count)
    neighbours.store(neighbours.fill("a0", w.let(start)), "b0", w.let(target))
    inputs = tuple(range(len(call.inputs)))
    return KernelProgram((Stage(w.kernel(items), inputs, (len(inputs), FAULTS)),))


# Scatters


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Values for rows of an array."""

    indexed: _Indexed
    value: Spec

    @classmethod
    def of(cls, call: Call) -> _Scattered:
        """Those of a call."""
        return cls(_Indexed.of(call), call.inputs[1])

    def _values(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The strides of the value along the rest of the array, and along the indices."""
        g = self.indexed
        rest = tuple(g.array.shape[a] for a in g.rest)
        strides = _broadcast(self.value.shape, g.selected(rest, g.shape))
        end = g.at + len(g.shape)
        return strides[: g.at] + strides[end:], strides[g.at : end]

    def results(self) -> tuple[list[Dimension], list[Dimension]]:
        """The dimensions of the result, with strides in the numbers of rows and in a value; and those of the indices,
        with strides from value to value."""
        g = self.indexed
        in_rows = dict(zip(g.axes, strides_of(g.lengths), strict=True))
        along_rest, along_indices = self._values()
        in_value = dict(zip(g.rest, along_rest, strict=True))
        axes = range(g.array.ndim)
        columns = [tuple(in_rows.get(a, 0) for a in axes), tuple(in_value.get(a, 0) for a in axes)]
        return _walked(g.array.shape, columns), _walked(g.shape, [along_indices])

    def row(self, w: KernelWriter, item: str, first: int, faults: str) -> tuple[str, str]:
        """The row that the indices of an item lead to, and whether all are in range. The index tensors are the pointers
        from `first` on."""
        g = self.indexed
        dims = _walked(g.shape, [_broadcast(i.shape, g.shape) for i in g.indices])
        *found, _ = offsets(decomposed(w.k, w.ctype, item, dims, w.sizes), dims, len(g.indices), w.sizes)
        terms, inside = [], []
        for n, (index, bound, step) in enumerate(zip(g.indices, g.bounds(), strides_of(g.lengths), strict=True)):
            place, is_inside = _place(w, index, f"a{first + n}", w.let(found[n]), bound, faults)
            terms.append(f"{place} * {w.sizes(step)}")
            inside.append(is_inside)
        return w.let(" + ".join(terms)), w.k.let("int", " && ".join(inside))


def _unchanged(call: Call, setting: Setting) -> Stage:
    """The array as the result."""
    shape = call.spec.shape
    strides = strides_of(shape)
    return Stage(copy_kernel(Copy(shape, strides, strides), call.spec.dtype, setting.dialect, setting.target),
                 (0,), (len(call.inputs),))  # fmt: skip


def _value_at(w: KernelWriter, number: str, dims: list[Dimension], inside: str) -> str:
    """The place of an element of the value that has this number, for a place inside of values."""
    found = offsets(decomposed(w.k, w.ctype, number, dims, w.sizes), dims, 1, w.sizes)[0]
    return w.let(f"{inside} + {found}")


def scatter(call: Call, setting: Setting) -> KernelProgram:
    """The array with rows replaced; of several values for a row, the last stays."""
    s, spec, inputs = _Scattered.of(call), call.spec, len(call.inputs)
    g = s.indexed
    if not g.count:
        return KernelProgram((_unchanged(call, setting),))
    result, winners = inputs, inputs + 1
    given = tuple(range(2, inputs))
    w = KernelWriter(setting, max(g.count, g.rows), [i.dtype for i in g.indices], (int32, int64))
    item = w.item(g.count)
    row, inside = s.row(w, item, 0, "b1")
    w.k.say(f"if ({inside}) {w.dialect.atomic_max.format(pointer='b0', at=row, value=f'(int){item}')}")
    return KernelProgram((
        Stage(filled(setting, -1, g.rows), (), (winners,)),
        Stage(w.kernel(g.count), given, (winners, FAULTS)),
        Stage(_replaced(s, spec, setting), (0, 1, winners), (result,)),
    ), (((g.rows,), int32),))  # fmt: skip


def _replaced(s: _Scattered, spec: Spec, setting: Setting) -> Kernel:
    """The kernel that takes each element from the array, or from the last value for its row."""
    bits = BITS[spec.dtype.itemsize]
    dims, numbers = s.results()
    count, dims = _in_packets(dims, (1,), spec.dtype.itemsize, [d.strides[0] for d in numbers])
    w = KernelWriter(setting, max(spec.size, s.value.size), (bits, bits, int32), (bits,))
    items = spec.size // count
    indices = decomposed(w.k, w.ctype, w.item(items), dims, w.sizes)
    row, inside, target = offsets(indices, dims, 2, w.sizes)
    winner, target = w.let(f"a2[{row}]"), w.let(target)
    neighbours = _Neighbours(w, bits, count)
    with w.k.block(f"if ({winner} < 0)"):
        neighbours.store(neighbours.fill("a0", target), "b0", target)
    with w.k.block("else"):
        neighbours.store(neighbours.fill("a1", _value_at(w, winner, numbers, inside)), "b0", target)
    return w.kernel(items)


def scatter_add(call: Call, setting: Setting) -> KernelProgram:
    """The array with values added to rows, all of them; in ascending order if that has to be."""
    s = _Scattered.of(call)
    if not s.indexed.count or not s.value.size:
        return KernelProgram((_unchanged(call, setting),))
    if call.spec.dtype in setting.dialect.atomic_sums and not setting.ordered:
        return KernelProgram((_unchanged(call, setting), _added_at_once(call, s, setting)))
    return _added_in_order(call, s, setting)


def _added_at_once(call: Call, s: _Scattered, setting: Setting) -> Stage:
    """An atomic addition for each element of the values."""
    g, dtype = s.indexed, call.spec.dtype
    own = strides_of(g.array.shape)
    rest = tuple(g.array.shape[a] for a in g.rest)
    shape = g.selected(rest, g.shape)
    columns = [g.selected([own[a] for a in g.rest], (0,) * len(g.shape)), _broadcast(s.value.shape, shape)]
    columns += [g.selected((0,) * len(g.rest), _broadcast(i.shape, g.shape)) for i in g.indices]
    dims = _walked(shape, columns)
    items = prod(shape)
    w = KernelWriter(setting, max(items, g.array.size), (dtype, *[i.dtype for i in g.indices]), (dtype, int64))
    at = decomposed(w.k, w.ctype, w.item(items), dims, w.sizes)
    start, value, *found, _ = offsets(at, dims, len(columns), w.sizes)
    insides = []
    for n, (index, bound, axis) in enumerate(zip(g.indices, g.bounds(), g.axes, strict=True)):
        place, inside = _place(w, index, f"a{n + 1}", w.let(found[n]), bound, "b1")
        start = f"{start} + {place} * {w.sizes(own[axis])}"
        insides.append(inside)
    add = w.dialect.atomic_sums[dtype].format(pointer="b0", at=w.let(start), value=f"a0[{value}]")
    w.k.say(f"if ({' && '.join(insides)}) {add}")
    inputs = len(call.inputs)
    return Stage(w.kernel(items), tuple(range(1, inputs)), (inputs, FAULTS))


def _added_in_order(call: Call, s: _Scattered, setting: Setting) -> KernelProgram:
    """Values listed by rows, in ascending order, then added."""
    g, inputs = s.indexed, len(call.inputs)
    n, m = g.count, g.rows
    result, counts, rows, slots, starts, listed, ordered = range(inputs, inputs + 7)
    given = tuple(range(2, inputs))

    w = KernelWriter(setting, max(n, m), [i.dtype for i in g.indices], (int32, int32, int32, int64))
    item = w.item(n)
    row, inside = s.row(w, item, 0, "b3")
    w.k.say(f"b1[{item}] = {inside} ? {row} : -1")
    w.k.say(f"if ({inside}) b2[{item}] = {w.dialect.atomic_add.format(pointer='b0', at=row, value='1')}")
    counting = Stage(w.kernel(n), given, (counts, rows, slots, FAULTS))

    w = KernelWriter(setting, m, (), (int32, int32))  # the count behind those of the rows is that of places given out
    row = w.item(m)
    count = w.let(f"b0[{row}]")
    w.k.say(f"if ({count}) b1[{row}] = {w.dialect.atomic_add.format(pointer='b0', at=w.sizes(m), value=count)}")
    starting = Stage(w.kernel(m), (), (counts, starts))

    w = KernelWriter(setting, max(n, m), (int32, int32, int32), (int32,))
    item = w.item(n)
    row = w.let(f"a0[{item}]")
    w.k.say(f"if ({row} >= 0) b0[a2[{row}] + a1[{item}]] = {item}")
    listing = Stage(w.kernel(n), (rows, slots, starts), (listed,))

    w = KernelWriter(setting, max(n, m), (int32, int32, int32, int32), (int32,))
    item = w.item(n)
    row = w.let(f"a0[{item}]")
    with w.k.block(f"if ({row} >= 0)"):
        start, count = w.let(f"a2[{row}]"), w.let(f"a1[{row}]")
        w.k.say("int rank = 0")
        with w.k.block(f"for ({w.ctype} at = 0; at < {count}; at++)"):
            w.k.say(f"rank += a3[{start} + at] < {item}")
        w.k.say(f"b0[{start} + rank] = {item}")
    ranking = Stage(w.kernel(n), (rows, counts, starts, listed), (ordered,))

    adding = Stage(_summed(s, call.spec, setting), (0, 1, counts, starts, ordered), (result,))
    zeroing = Stage(filled(setting, 0, m + 1), (), (counts,))
    scratch = [(m + 1,), (n,), (n,), (m,), (n,), (n,)]
    stages = (zeroing, counting, starting, listing, ranking, adding)
    return KernelProgram(stages, tuple([(shape, int32) for shape in scratch]))


def _summed(s: _Scattered, spec: Spec, setting: Setting) -> Kernel:
    """The kernel that adds the values of its row to each element, in the order of the list."""
    dtype = spec.dtype
    dims, numbers = s.results()
    steps = [d.strides[0] for d in numbers]
    lanes, dims = _in_packets(dims, (1,), dtype.itemsize, steps)
    w = KernelWriter(setting, max(spec.size, s.value.size), (dtype, dtype, int32, int32, int32), (dtype,))
    k, items = w.k, spec.size // lanes
    indices = decomposed(k, w.ctype, w.item(items), dims, w.sizes)
    row, inside, target = (w.let(o) for o in offsets(indices, dims, 2, w.sizes))
    count = w.let(f"a2[{row}]")
    first = w.let(f"{count} ? a3[{row}] : 0")
    neighbours = _Neighbours(w, dtype, lanes)
    for name in ("sum", "sum_imag") if dtype.is_complex else ("sum",):
        w.k.say(f"{k.ctype(dtype)} {name}[{lanes}]")
    total = Value(dtype, f"sum[{LANE}]", f"sum_imag[{LANE}]" if dtype.is_complex else "")
    start = neighbours.fill("a0", target)
    with neighbours.each():
        k.assign(total, start())
    with k.block(f"{w.dialect.unrolled.format(n=_UNROLLED)}\nfor ({w.ctype} at = 0; at < {count}; at++)"):
        value = neighbours.fill("a1", _value_at(w, w.let(f"a4[{first} + at]"), numbers, inside))
        with neighbours.each():
            k.assign(total, k.or_(total, value()) if dtype is bool_ else k.add(total, value()))
    neighbours.store(lambda: k.rounded(replace(total, exact=False)), "b0", target)
    return w.kernel(items)
