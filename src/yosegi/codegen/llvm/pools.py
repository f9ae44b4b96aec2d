"""Pools as LLVM IR: the largest element of each window, and its gradient.

    largest:  for each row of windows:    (all threads)
        fold the rows of the input that its windows cover into one padded row
        fold the elements of each window in that row
    gradient: for each plane of the input:    (all threads)
        copy the plane with its padding
        divide the gradient of each window by the number of its largest elements
        for each row of the input, add the shares of the windows whose largest element it has

Along a row, the places of a window are part of the text, and vectors run over windows. Sizes and strides are data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType, float32
from ..scalar.folds import Fold
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, ceil_div, div, least, most, mul, shifted, split, sub
from .ir import Loop, Module
from .jobs import write_claim
from .lanes import shuffled
from .load_store import lanes_below, load, prefetch, store
from .nest import VectorTarget
from .register_tiles import LINE

_AHEAD: Final = 4096
"""Bytes before their use at which elements are fetched."""
LARGEST_SIZES: Final = (
    "channels", "deep", "high", "wide", "out_deep", "out_high", "out_wide", "kernel_0", "kernel_1",
    "stride_0", "stride_1", "padding_0", "padding_1", "padding_2", "dilation_0", "dilation_1",
    "x_batch", "x_channel", "x_0", "x_1", "slots", "room", "row",
)  # fmt: skip
"""The sizes of `largest`. The strides of x and the room of a slot are in bytes, a padded row is in elements. Its
arrays: the input, the result, and the workspace: a line for each slot, zeros at first, and the slots' rooms."""
GRADIENT_SIZES: Final = (*LARGEST_SIZES, "out_row")
"""The sizes of `gradient`, with the elements of a padded row of windows. Its arrays: the input, the largest elements,
their gradients, the result, the workspace."""


@dataclass(frozen=True, slots=True)
class RowWindows:
    """The windows along a row."""

    kernel: int
    stride: int
    dilation: int

    @property
    def reach(self) -> int:
        """From a window's first place to its last."""
        return (self.kernel - 1) * self.dilation

    @property
    def before(self) -> int:
        """Windows that begin before an element's own and may cover it."""
        return self.reach // self.stride


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """The elements of the workspace, for rows of some lengths."""

    row: int
    """A padded row of the input."""
    out_row: int
    """A padded row of windows."""

    @classmethod
    def of(cls, windows: RowWindows, lanes: int, padded: int, count: int) -> PoolSizes:
        """For rows of so many elements with the padding before them, and so many windows."""
        whole = -(-max(count, -(-padded // windows.stride)) // lanes) * lanes
        row = (whole + lanes) * windows.stride + windows.reach
        return cls(-(-row // LINE) * LINE, -(-(whole + windows.before) // LINE) * LINE)

    def of_gradient(self, windows: RowWindows, rows: int, out_rows: int) -> int:
        """The elements of a room of `gradient`, for planes of so many rows."""
        return self.row * (1 + rows) + self.out_row * (windows.stride + 2 * out_rows)


def accumulated(dtype: DType) -> DType:
    """The dtype of elements in the workspace."""
    return float32 if dtype.is_half else dtype


def lanes_of(target: VectorTarget, dtype: DType) -> int:
    """The lanes of a vector of the workspace's elements."""
    return target.vector_bytes // accumulated(dtype).itemsize


def largest_source(dtype: DType, windows: RowWindows, target: VectorTarget) -> str:
    """The module of `largest`."""
    module = Module(converts_halves=target.converts_halves)
    write_claim(module)
    _write_largest(_Frame(module, "largest", LARGEST_SIZES, 2, dtype, windows, lanes_of(target, dtype)))
    return module.text(target.attributes)


def gradient_source(dtype: DType, windows: RowWindows, target: VectorTarget) -> str:
    """The module of `gradient`."""
    module = Module(converts_halves=target.converts_halves)
    write_claim(module)
    _Gradient(_Frame(module, "gradient", GRADIENT_SIZES, 4, dtype, windows, lanes_of(target, dtype))).write()
    return module.text(target.attributes)


class _Frame:
    """A kernel under way: its sizes, its arrays, and its room in the workspace."""

    def __init__(
        self, module: Module, name: str, sizes: tuple[str, ...], arrays: int, dtype: DType, windows: RowWindows,
        lanes: int,
    ) -> None:  # fmt: skip
        self.code = code = module.function(name, PARAMETERS)
        self.k = LlvmBuilder(code, lanes)
        self.dtype, self.windows, self.lanes = dtype, windows, lanes
        self.kept = accumulated(dtype)
        given = KernelArguments(code, sizes)
        self.size = {name: given[name] for name in sizes}
        *self.arrays, self._flags = given.arrays(arrays + 1)
        self._slot = code.let(f"call i64 @claim(ptr {self._flags}, i64 {self.size['slots']})")
        rooms = shifted(code, self._flags, mul(code, self.size["slots"], LINE))
        self.room = shifted(code, rooms, mul(code, self._slot, self.size["room"]))

    def end(self) -> None:
        """Leave the room to other threads, and return."""
        flag = shifted(self.code, self._flags, mul(self.code, self._slot, LINE))
        self.code.do(f"store atomic i64 0, ptr {flag} release, align 8")
        self.code.ret()

    @contextmanager
    def vectors(self, count: str) -> Iterator[tuple[str, str]]:
        """A loop over so many elements of a row, by vectors: the number of the first, and the mask of those there."""
        with self.code.loop(0, count, self.lanes) as loop:
            yield loop.index, lanes_below(self.k, sub(self.code, count, loop.index))

    def fill(self, at: str, count: str, value: Value) -> None:
        """Set elements of the workspace, a multiple of a vector."""
        with self.code.loop(0, count, self.lanes) as loop:
            store(self.k, value, self.element(at, loop.index))

    def element(self, at: str, number: str) -> str:
        """The address of an element of the workspace."""
        return shifted(self.code, at, mul(self.code, number, self.kept.itemsize))

    def given(self, at: str, mask: str) -> Value:
        """Elements of an array, as the workspace has them."""
        return self.k.convert(load(self.k, self.dtype, at, mask), self.kept)

    def row_of(self, plane: str, z: str, y: str) -> str:
        """The address of a row of the input, by the address of its plane."""
        offset = add(self.code, mul(self.code, z, self.size["x_0"]), mul(self.code, y, self.size["x_1"]))
        return shifted(self.code, plane, offset)

    def plane(self, number: str) -> str:
        """The address of a plane of the input."""
        batch, channel = split(self.code, number, self.size["channels"])
        at = shifted(self.code, self.arrays[0], mul(self.code, batch, self.size["x_batch"]))
        return shifted(self.code, at, mul(self.code, channel, self.size["x_channel"]))

    @contextmanager
    def covered_rows(self, z: str, y: str, carried: str) -> Iterator[tuple[str, str, Loop]]:
        """A loop over the rows of the input that a row of windows covers: indices, and a loop that carries a vector.

        The loop's values are those after the last row.
        """
        code, kind = self.code, self.k.type(self.kept)
        deep, step_z, low_z, high_z = self._places(0, z, "deep")
        high, step_y, low_y, high_y = self._places(1, y, "high")
        with code.loop(low_z, high_z, carried=[(kind, carried)]) as outer:
            at_z = add(code, deep, mul(code, outer.index, step_z))
            with code.loop(low_y, high_y, carried=[(kind, outer.values[0])]) as inner:
                yield at_z, add(code, high, mul(code, inner.index, step_y)), inner
            outer.carry(inner.values[0])
        inner.values = outer.values

    def _places(self, dimension: int, window: str, length: str) -> tuple[str, str, str, str]:
        """A window's first element, which may be padding, the step between places, and the places on elements."""
        code, step = self.code, self.size[f"dilation_{dimension}"]
        first = mul(code, window, self.size[f"stride_{dimension}"])
        first = sub(code, first, self.size[f"padding_{dimension}"])
        low = ceil_div(code, most(code, sub(code, "0", first), 0), step)
        high = ceil_div(code, sub(code, self.size[length], first), step)
        return first, step, low, least(code, high, self.size[f"kernel_{dimension}"])

    def every(self, at: str) -> list[Value]:
        """Elements of the workspace, a stride of the windows apart, for each remainder of the stride."""
        stride = self.windows.stride
        wide = self.k.at_width(self.lanes * stride)
        value = load(wide, self.kept, at)
        if stride == 1:
            return [value]
        return [shuffled(wide, value, range(n, self.lanes * stride, stride)) for n in range(stride)]


def _write_largest(frame: _Frame) -> None:
    """`largest`: a unit is a row of windows."""
    code, size, k, kept, windows = frame.code, frame.size, frame.k, frame.kept, frame.windows
    fold = Fold("max", False, kept, frame.dtype, 0)
    lowest = k.literal(fold.start, kept)
    frame.fill(frame.room, size["row"], lowest)
    inside = frame.element(frame.room, size["padding_2"])
    with code.loop("%low", "%high") as unit:
        rows, y = split(code, unit.index, size["out_high"])
        number, z = split(code, rows, size["out_deep"])
        plane = frame.plane(number)
        with frame.vectors(size["wide"]) as (column, mask):
            with frame.covered_rows(z, y, lowest.text) as (at_z, at_y, loop):
                at = shifted(code, frame.row_of(plane, at_z, at_y), mul(code, column, frame.dtype.itemsize))
                prefetch(k, frame.dtype, at, _AHEAD)  # the rows of windows confuse the processor's own prefetching
                loop.carry(fold.combine(k, Value(kept, loop.values[0]), frame.given(at, mask)).text)
            store(k, Value(kept, loop.values[0]), frame.element(inside, column), mask)
        out = shifted(code, frame.arrays[1], mul(code, mul(code, unit.index, size["out_wide"]), frame.dtype.itemsize))
        with frame.vectors(size["out_wide"]) as (column, mask):
            here = frame.element(frame.room, mul(code, column, windows.stride))
            value, *others = (
                frame.every(frame.element(here, str(place * windows.dilation)))[0] for place in range(windows.kernel)
            )
            for other in others:
                value = fold.combine(k, value, other)
            store(k, fold.end(k, value), shifted(code, out, mul(code, column, frame.dtype.itemsize)), mask)
    frame.end()


class _Gradient:
    """`gradient`: a unit is a plane.

    The room of a slot: 1 for each element of a padded row and 0 for its padding; the sums of a row, a line for each
    remainder of the stride; the padded plane; and of all windows the largest elements and the shares, each row behind
    windows without a share.
    """

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame
        code, size = frame.code, frame.size
        self.sums = frame.element(frame.room, size["row"])
        self.copy = frame.element(self.sums, mul(code, size["out_row"], frame.windows.stride))
        self.largest = frame.element(self.copy, mul(code, mul(code, size["deep"], size["high"]), size["row"]))
        self.out_rows = mul(code, size["out_deep"], size["out_high"])
        self.shares = frame.element(self.largest, mul(code, self.out_rows, size["out_row"]))
        self.zero = frame.k.literal(0, frame.kept)

    def write(self) -> None:
        """The function."""
        frame, code, size, k = self.frame, self.frame.code, self.frame.size, self.frame.k
        frame.fill(frame.room, size["row"], self.zero)
        frame.fill(self.shares, mul(code, self.out_rows, size["out_row"]), self.zero)
        with frame.vectors(size["wide"]) as (column, mask):
            at = frame.element(frame.element(frame.room, size["padding_2"]), column)
            store(k, k.literal(1, frame.kept), at, mask)
        with code.loop("%low", "%high") as unit:
            self._copy_plane(frame.plane(unit.index))
            self._divide(unit.index)
            self._add(unit.index)
        frame.end()

    def _row(self, z: str, y: str) -> str:
        """The address of a row of the padded plane."""
        code, size = self.frame.code, self.frame.size
        return self.frame.element(self.copy, mul(code, add(code, mul(code, z, size["high"]), y), size["row"]))

    def _is_largest(self, element: Value, largest: Value) -> Value:
        """True also for each element of a window with NaN."""
        return self.frame.k.not_(self.frame.k.lt(element, largest))

    def _copy_plane(self, plane: str) -> None:
        frame, code, size = self.frame, self.frame.code, self.frame.size
        with code.loop(0, size["deep"]) as z, code.loop(0, size["high"]) as y:
            here = frame.row_of(plane, z.index, y.index)
            there = frame.element(self._row(z.index, y.index), size["padding_2"])
            with frame.vectors(size["wide"]) as (column, mask):
                value = frame.given(shifted(code, here, mul(code, column, frame.dtype.itemsize)), mask)
                store(frame.k, value, frame.element(there, column), mask)

    def _divide(self, plane: str) -> None:
        """Write the largest elements and the shares of all windows of a plane."""
        frame, code, size, k = self.frame, self.frame.code, self.frame.size, self.frame.k
        before = str(frame.windows.before)
        with code.loop(0, size["out_deep"]) as z, code.loop(0, size["out_high"]) as y:
            row = add(code, mul(code, z.index, size["out_high"]), y.index)
            given = mul(code, add(code, mul(code, plane, self.out_rows), row), size["out_wide"])
            made = add(code, mul(code, row, size["out_row"]), before)
            with frame.vectors(size["out_wide"]) as (column, mask):
                at = mul(code, add(code, given, column), frame.dtype.itemsize)
                largest, slope = (frame.given(shifted(code, array, at), mask) for array in frame.arrays[1:3])
                first = mul(code, column, frame.windows.stride)
                with frame.covered_rows(z.index, y.index, self.zero.text) as (at_z, at_y, loop):
                    count = Value(frame.kept, loop.values[0])
                    here = frame.element(self._row(at_z, at_y), first)
                    inside = frame.element(frame.room, first)
                    for place in range(frame.windows.kernel):
                        offset = str(place * frame.windows.dilation)
                        element, one = (frame.every(frame.element(line, offset))[0] for line in (here, inside))
                        count = k.add(count, k.select(self._is_largest(element, largest), one, self.zero))
                    loop.carry(count.text)
                share = k.div(slope, Value(frame.kept, loop.values[0]))
                for value, target in ((largest, self.largest), (share, self.shares)):
                    store(k, value, frame.element(target, add(code, made, column)), mask)

    def _add(self, plane: str) -> None:
        """Write a plane of the result, row by row."""
        frame, code, size = self.frame, self.frame.code, self.frame.size
        stride = frame.windows.stride
        columns = ceil_div(code, add(code, size["padding_2"], size["wide"]), stride)
        with code.loop(0, size["deep"]) as z, code.loop(0, size["high"]) as y:
            frame.fill(self.sums, mul(code, size["out_row"], stride), self.zero)
            row = self._row(z.index, y.index)
            with self._covering(0, z.index, "out_deep") as deep, self._covering(1, y.index, "out_high") as high:
                windows = mul(code, add(code, mul(code, deep, size["out_high"]), high), size["out_row"])
                with code.loop(0, columns, frame.lanes) as column:
                    self._add_shares(row, windows, column.index)
            number = add(code, mul(code, plane, size["deep"]), z.index)
            number = add(code, mul(code, number, size["high"]), y.index)
            to = shifted(code, frame.arrays[3], mul(code, mul(code, number, size["wide"]), frame.dtype.itemsize))
            with code.loop(0, columns, frame.lanes) as column:
                self._put(to, column.index)

    @contextmanager
    def _covering(self, dimension: int, element: str, count: str) -> Iterator[str]:
        """A loop over the windows that cover an element of a dimension."""
        code, size = self.frame.code, self.frame.size
        dilation, stride = (size[f"{name}_{dimension}"] for name in ("dilation", "stride"))
        at = add(code, element, size[f"padding_{dimension}"])
        reach = mul(code, sub(code, size[f"kernel_{dimension}"], "1"), dilation)
        low = ceil_div(code, most(code, sub(code, at, reach), 0), stride)
        high = least(code, add(code, div(code, at, stride), "1"), size[count])
        with code.loop(low, high) as window:
            _, between = split(code, sub(code, at, mul(code, window.index, stride)), dilation)
            with code.when(code.let(f"icmp eq i64 {between}, 0")):
                yield window.index

    def _add_shares(self, row: str, windows: str, column: str) -> None:
        """Add to the sums of a row, from a column of windows on, the shares of the windows in one row."""
        frame, code, size, k = self.frame, self.frame.code, self.frame.size, self.frame.k
        stride, before = frame.windows.stride, frame.windows.before
        elements = frame.every(frame.element(row, mul(code, column, stride)))
        lines = [frame.element(self.sums, add(code, mul(code, size["out_row"], n), column)) for n in range(stride)]
        sums = [load(k, frame.kept, line) for line in lines]
        for place in range(frame.windows.kernel):
            back, n = divmod(place * frame.windows.dilation, stride)
            at = add(code, add(code, windows, column), str(before - back))
            largest, share = (load(k, frame.kept, frame.element(line, at)) for line in (self.largest, self.shares))
            sums[n] = k.add(sums[n], k.select(self._is_largest(elements[n], largest), share, self.zero))
        for value, line in zip(sums, lines, strict=True):
            store(k, value, line)

    def _put(self, to: str, column: str) -> None:
        """The sums of a row to the result, the lines of all remainders side by side."""
        frame, code, size, k = self.frame, self.frame.code, self.frame.size, self.frame.k
        stride = frame.windows.stride
        lines = [frame.element(self.sums, add(code, mul(code, size["out_row"], n), column)) for n in range(stride)]
        value = _interleaved(k, [load(k, frame.kept, line) for line in lines])
        wide = k.at_width(frame.lanes * stride)
        first = sub(code, mul(code, column, stride), size["padding_2"])
        before = lanes_below(wide, most(code, sub(code, "0", first), 0))
        kind = wide.vector("i1")
        inside = code.let(f"xor {kind} {before}, splat (i1 true)")
        mask = code.let(f"and {kind} {inside}, {lanes_below(wide, sub(code, size['wide'], first))}")
        made = wide.rounded(wide.convert(value, frame.dtype))
        store(wide, made, shifted(code, to, mul(code, first, frame.dtype.itemsize)), mask)


def _interleaved(k: LlvmBuilder, values: list[Value]) -> Value:
    """The first lanes of up to four vectors, then the second ones, and so on."""
    if len(values) == 1:
        return values[0]
    order = [n * k.width + lane for lane in range(k.width) for n in range(len(values))]
    if len(values) == 2:
        return shuffled(k, values[0], order, values[1])
    pairs = [shuffled(k, a, range(2 * k.width), b) for a, b in ((values[0], values[1]), (values[2], values[-1]))]
    return shuffled(k.at_width(2 * k.width), pairs[0], order, pairs[1])
