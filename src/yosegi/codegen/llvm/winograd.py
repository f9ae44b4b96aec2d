"""Sums over windows of 3 × 3 with fewer products, by Winograd's minimal filtering, F(2 × 2, 3 × 3).

Windows go in squares of 2 × 2, which have 4 × 4 elements in common. By sums and differences these become 16 others, and
a kernel's 9 numbers become 16, so that the 4 windows follow from 16 products by sums and differences again, where there
were 36. Sums over channels are made in between: they are 16 products of matrices.

    kernels:  make 16 matrices of the kernels, in panels of rows    (all threads)
    convolve: for each block of squares:    (all threads)
        make 16 matrices of the elements, channels by squares
        multiply them: sums, outputs by squares
        make windows of the sums, and store those that are there

A block's matrices stay in the core's own cache. Along a row of squares everything is read and written as it lies: only
elements of even and odd columns are brought apart, and windows together.

An infinity would come out as NaN in windows of the square that do not see it, and large numbers may overflow in sums
between. Both always leave something in the windows that is not finite. So it is noted whether there was any: then the
result does not count, and must be computed by direct sums.

Sizes and strides are data: there is one object for a dtype and a number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ..._tensor.dtype import DType, int32
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, div, least, most, mul, shifted, sub, word
from .ir import Function, Module
from .jobs import write_claim
from .lanes import counted, shuffled
from .load_store import lanes_below, load, store, strided
from .nest import VectorTarget
from .register_tiles import LINE, TileShape, step_of_sums, tile_shape, zero_sums

KERNEL: Final = 3
"""Places of a kernel in each dimension."""
SIDE: Final = 2
"""Windows of a square in each dimension."""
_REACH: Final = SIDE + KERNEL - 1
"""Elements of a square in each dimension."""
MATRICES: Final = _REACH * _REACH
PADDING: Final = LINE
"""Bytes behind each matrix of a block: the last run of squares may go beyond its end, and matrices should not fall into
the same places of a cache."""
KERNELS_SIZES: Final = (
    "channels", "outputs", "w_output", "w_channel", "w_row", "w_column", "kernel_panel", "kernel_matrix",
)  # fmt: skip
"""The words of `kernels`; `w_output` is in elements, all else in bytes. Its arrays: the weights, and the matrices."""
CONVOLVE_SIZES: Final = (
    "channels", "outputs", "kernel_panel", "kernel_matrix", "blocks", "vectors", "squares", "images", "down",
    "strips", "rest", "top", "left", "high", "wide", "x_image", "x_channel", "x_row",
    "out_high", "out_wide", "out_image", "out_output", "out_row", "slots", "room",
)  # fmt: skip
"""The words of `convolve`. A row of squares is so many whole vectors, `strips`, and a `rest`, which is not zero even if
nothing is left. Its arrays: the input, the kernels' matrices, the result, and the workspace: a line whose first word is
set if something is not finite, a line for each slot, and the slots' rooms. All lines begin as zeros."""
_RUN: Final = ("source", "row", "column", "to", "target", "high", "wide")
"""The words of a run, squares of one row: where its elements begin, from the input's first; of what row and column they
are; where its squares begin in a line of a matrix, and its windows in the result; how many rows and columns of windows
are there."""
_RUN_BYTES: Final = LINE


def winograd_shape(target: VectorTarget, dtype: DType, outputs: int) -> TileShape:
    """The tiles of the products: outputs by squares. Outputs are dealt out evenly to rows of tiles."""
    largest = tile_shape(target, dtype)
    panels = -(-outputs // largest.rows)
    return replace(largest, rows=-(-outputs // panels))


def room(dtype: DType, shape: TileShape, channels: int, outputs: int) -> int:
    """Bytes of a slot."""
    return MATRICES * (matrix_bytes(dtype, shape, channels) + matrix_bytes(dtype, shape, outputs))


def matrix_bytes(dtype: DType, shape: TileShape, lines: int) -> int:
    """The distance between a block's matrices of so many lines."""
    return lines * shape.columns * dtype.itemsize + PADDING


def winograd_source(dtype: DType, shape: TileShape, target: VectorTarget) -> str:
    """The module of `kernels` and `convolve`."""
    module = Module(converts_halves=target.converts_halves)
    _write_kernels(module, dtype, shape)
    write_claim(module)
    _write_convolve(module, dtype, shape)
    return module.text(target.attributes)


# Sums and differences

_Line = Sequence[Value]


def _by_rows_and_columns(square: Sequence[_Line], function: Callable[[_Line], list[Value]]) -> list[Value]:
    """A square after a function is applied to its rows, and then to the columns of the result; row by row."""
    columns = zip(*[function(row) for row in square], strict=True)
    return [value for row in zip(*map(function, columns), strict=True) for value in row]


def _of_elements(k: LlvmBuilder) -> Callable[[_Line], list[Value]]:
    def made(line: _Line) -> list[Value]:
        a, b, c, d = line
        return [k.arithmetic("-", a, c), k.arithmetic("+", b, c), k.arithmetic("-", c, b), k.arithmetic("-", b, d)]

    return made


def _of_kernels(k: LlvmBuilder, dtype: DType) -> Callable[[_Line], list[Value]]:
    half = k.literal(0.5, dtype)

    def made(line: _Line) -> list[Value]:
        a, b, c = line
        outer, inner = k.arithmetic("*", k.arithmetic("+", a, c), half), k.arithmetic("*", b, half)
        return [a, k.arithmetic("+", outer, inner), k.arithmetic("-", outer, inner), c]

    return made


def _of_sums(k: LlvmBuilder) -> Callable[[_Line], list[Value]]:
    def made(line: _Line) -> list[Value]:
        a, b, c, d = line
        first, second = k.arithmetic("+", b, c), k.arithmetic("-", b, c)
        return [k.arithmetic("+", a, first), k.arithmetic("-", second, d)]

    return made


# Kernels


def _write_kernels(module: Module, dtype: DType, shape: TileShape) -> None:
    """`kernels`: a unit is a panel of outputs, which lie side by side for each channel."""
    code = module.function("kernels", PARAMETERS)
    given = KernelArguments(code, KERNELS_SIZES)
    k = LlvmBuilder(code, shape.rows)
    w, made = given.arrays(2)
    output, item = given["w_output"], dtype.itemsize
    channels, outputs = given["channels"], given["outputs"]
    rows, columns = ([mul(code, given[step], n) for n in range(KERNEL)] for step in ("w_row", "w_column"))
    channel_bytes, panel_bytes, matrix = given["w_channel"], given["kernel_panel"], given["kernel_matrix"]
    with code.loop("%low", "%high") as panel:
        first = _first_row(code, panel.index, outputs, shape)
        here = shifted(code, w, mul(code, mul(code, first, output), item))
        there = shifted(code, made, mul(code, panel.index, panel_bytes))
        with code.loop(0, channels, carried=[("ptr", here), ("ptr", there)]) as channel:
            here, there = channel.values
            square = [
                [strided(k, dtype, shifted(code, shifted(code, here, row), column), output) for column in columns]
                for row in rows
            ]
            for n, value in enumerate(_by_rows_and_columns(square, _of_kernels(k, dtype))):
                store(k, value, shifted(code, there, mul(code, matrix, n)))
            channel.carry(shifted(code, here, channel_bytes), shifted(code, there, str(shape.rows * item)))
    code.ret()


def _first_row(code: Function, panel: str, outputs: str, shape: TileShape) -> str:
    """The first output of a panel. The last one begins early enough to be all there: some are computed twice."""
    return least(code, mul(code, panel, shape.rows), sub(code, outputs, str(shape.rows)))


# Blocks


def _write_convolve(module: Module, dtype: DType, shape: TileShape) -> None:
    """`convolve`: a unit is a block of squares, of all images in order, with all outputs."""
    blocks = _Blocks(module, dtype, shape)
    code = blocks.code
    with code.loop("%low", "%high") as block:
        blocks.write(block.index)
    blocks.end()


class _Blocks:
    """The work on blocks, under way."""

    def __init__(self, module: Module, dtype: DType, shape: TileShape) -> None:
        self.dtype, self.shape, self.item = dtype, shape, dtype.itemsize
        self.code = code = module.function("convolve", PARAMETERS)
        self.k = LlvmBuilder(code, shape.lanes)
        self.line = shape.columns * self.item
        given = KernelArguments(code, CONVOLVE_SIZES)
        self.size = {name: given[name] for name in CONVOLVE_SIZES}
        self.x, self.kernels, self.out, self.work = given.arrays(4)
        self.flags = shifted(code, self.work, str(LINE))
        self.number = code.let(f"call i64 @claim(ptr {self.flags}, i64 {self.size['slots']})")
        rooms = shifted(code, self.flags, mul(code, self.size["slots"], LINE))
        self.elements = shifted(code, rooms, mul(code, self.number, self.size["room"]))
        self.of_elements, self.of_sums = (
            add(code, mul(code, self.size[lines], self.line), str(PADDING)) for lines in ("channels", "outputs")
        )
        self.sums = shifted(code, self.elements, mul(code, self.of_elements, MATRICES))
        self.table = code.let(f"alloca [{shape.columns * _RUN_BYTES} x i8], align {LINE}")

    def write(self, block: str) -> None:
        """One block."""
        code, lanes = self.code, self.shape.lanes
        whole, blocks = self.size["vectors"], self.size["blocks"]
        first, after = (div(code, mul(code, b, whole), blocks) for b in (block, add(code, block, "1")))
        last = least(code, mul(code, after, lanes), self.size["squares"])
        runs = self._runs(mul(code, first, lanes), last)
        self._transform(runs)
        wide = sub(code, after, first)
        for vectors in range(1, self.shape.vectors + 1):
            with code.when(code.let(f"icmp eq i64 {wide}, {vectors}")):
                self._multiply(vectors)
        self._note(self._finish(runs))

    def end(self) -> None:
        """Leave the slot to others."""
        code = self.code
        flag = shifted(code, self.flags, mul(code, self.number, LINE))
        code.do(f"store atomic i64 0, ptr {flag} release, align 8")
        code.ret()

    def _runs(self, first: str, last: str) -> str:
        """Write down the squares of a block as runs, no more of a row than a vector has lanes. Gives their number.

        The squares of each row that fill vectors come first, of all rows, and behind them what is left of each: so most
        runs are whole vectors of a matrix, and no vector is left half empty.
        """
        code, size, lanes = self.code, self.size, self.shape.lanes
        strips, rest = size["strips"], size["rest"]
        rows = mul(code, size["images"], size["down"])
        whole = mul(code, mul(code, rows, strips), lanes)
        bounds = div(code, least(code, first, whole), lanes), div(code, least(code, last, whole), lanes)
        with code.loop(*bounds, carried=[("i64", "0")]) as vector:
            row = div(code, vector.index, strips)
            column = mul(code, sub(code, vector.index, mul(code, row, strips)), lanes)
            to = sub(code, mul(code, vector.index, lanes), first)
            self._write_run(vector.values[0], row, column, str(lanes), to)
            vector.carry(add(code, vector.values[0], "1"))
        low, high = (most(code, sub(code, end, whole), 0) for end in (first, last))
        bounds = div(code, low, rest), div(code, add(code, high, sub(code, rest, "1")), rest)
        with code.loop(*bounds, carried=[("i64", vector.values[0])]) as part:
            begin = mul(code, part.index, rest)
            since, until = most(code, sub(code, low, begin), 0), least(code, sub(code, high, begin), rest)
            column = add(code, mul(code, strips, lanes), since)
            to = sub(code, add(code, add(code, whole, begin), since), first)
            self._write_run(part.values[0], part.index, column, sub(code, until, since), to)
            part.carry(add(code, part.values[0], "1"))
        return part.values[0]

    def _write_run(self, number: str, row: str, column: str, squares: str, to: str) -> None:
        """A run of so many squares, from a row and a column of squares on."""
        code, size = self.code, self.size
        image = div(code, row, size["down"])
        high = mul(code, sub(code, row, mul(code, image, size["down"])), SIDE)
        wide = mul(code, column, SIDE)
        top, left = sub(code, high, size["top"]), sub(code, wide, size["left"])
        source = add(code, mul(code, image, size["x_image"]), mul(code, top, size["x_row"]))
        target = add(code, mul(code, image, size["out_image"]), mul(code, high, size["out_row"]))
        words = {
            "source": add(code, source, mul(code, left, self.item)),
            "row": top,
            "column": left,
            "to": mul(code, to, self.item),
            "target": add(code, target, mul(code, wide, self.item)),
            "high": sub(code, size["out_high"], high),
            "wide": least(code, mul(code, squares, SIDE), sub(code, size["out_wide"], wide)),
        }
        there = shifted(code, self.table, mul(code, number, _RUN_BYTES))
        for n, name in enumerate(_RUN):
            code.do(f"store i64 {words[name]}, ptr {shifted(code, there, str(8 * n))}")

    def _run(self, number: str) -> dict[str, str]:
        here = shifted(self.code, self.table, mul(self.code, number, _RUN_BYTES))
        return {name: word(self.code, here, n) for n, name in enumerate(_RUN)}

    # From elements to matrices

    def _transform(self, runs: str) -> None:
        """The matrices of the elements, channel by channel."""
        code, size = self.code, self.size
        carried = [("ptr", self.x), ("ptr", self.elements)]
        with code.loop(0, size["channels"], carried=carried) as channel:
            x, matrix = channel.values
            with code.loop(0, runs) as loop:
                run = self._run(loop.index)
                square = self._square(shifted(code, x, run["source"]), run["row"], run["column"])
                there = shifted(code, matrix, run["to"])
                for n, value in enumerate(_by_rows_and_columns(square, _of_elements(self.k))):
                    store(self.k, value, shifted(code, there, mul(code, self.of_elements, n)))
            channel.carry(shifted(code, x, size["x_channel"]), shifted(code, matrix, str(self.line)))

    def _square(self, source: str, top: str, column: str) -> list[list[Value]]:
        """The elements of a run, of each place of its squares, row by row; zeros where the input has none."""
        code, k, lanes = self.code, self.k, self.shape.lanes
        wide = k.splat(int32, code.pure(f"trunc i64 {self.size['wide']} to i32"))
        masks = {}
        for along in (0, lanes, SIDE, lanes + SIDE):
            # A column before the first is a large number without a sign.
            number = counted(k, add(code, column, str(along)), 1, int32)
            masks[along] = code.pure(f"icmp ult {k.type(int32)} {number.text}, {wide.text}")
        kind = k.type(self.dtype)
        square = []
        for r in range(_REACH):
            row = add(code, top, str(r))
            inside = code.let(f"icmp ult i64 {row}, {self.size['high']}")
            line = shifted(code, source, mul(code, self.size["x_row"], r))
            with code.when(inside, [(kind, "zeroinitializer")] * _REACH) as branch:
                parts = {
                    along: load(k, self.dtype, shifted(code, line, str(along * self.item)), mask)
                    for along, mask in masks.items()
                }
                branch.give(*[
                    shuffled(k, parts[pair], range(place, 2 * lanes, SIDE), parts[lanes + pair]).text
                    for pair in (0, SIDE) for place in range(SIDE)
                ])  # fmt: skip
            square.append([Value(self.dtype, text) for text in branch.values])
        return square

    # Products

    def _multiply(self, vectors: int) -> None:
        """All the products of a block that is some vectors wide."""
        code, size, rows = self.code, self.size, self.shape.rows
        panels = div(code, add(code, size["outputs"], str(rows - 1)), rows)
        carried = [("ptr", at) for at in (self.kernels, self.elements, self.sums)]
        with code.loop(0, MATRICES, carried=carried) as matrix:
            kernels, elements, sums = matrix.values
            with code.loop(0, panels, carried=[("ptr", kernels)]) as panel:
                first = _first_row(code, panel.index, size["outputs"], self.shape)
                self._tile(panel.values[0], elements, shifted(code, sums, mul(code, first, self.line)), vectors)
                panel.carry(shifted(code, panel.values[0], size["kernel_panel"]))
            steps = size["kernel_matrix"], self.of_elements, self.of_sums
            matrix.carry(*[shifted(code, at, by) for at, by in zip(matrix.values, steps, strict=True)])

    def _tile(self, kernels: str, elements: str, sums: str, vectors: int) -> None:
        code, k, dtype, rows = self.code, self.k, self.dtype, self.shape.rows
        size = self.shape.lanes * self.item
        carried = [("ptr", kernels), ("ptr", elements), *zero_sums(k, dtype, rows, vectors)]
        with code.loop(0, self.size["channels"], carried=carried) as step:
            a, b, *given = step.values
            made = step_of_sums(k, dtype, lambda r: shifted(code, a, str(r * self.item)), b, given, vectors)
            step.carry(shifted(code, a, str(rows * self.item)), shifted(code, b, str(self.line)), *made)
        for n, text in enumerate(step.values[2:]):
            r, v = divmod(n, vectors)
            store(k, Value(dtype, text), shifted(code, sums, str(r * self.line + v * size)))

    # From sums to windows

    def _finish(self, runs: str) -> str:
        """The windows of a block, output by output. Gives a vector that is NaN where something was not finite."""
        code, size = self.code, self.size
        kind = self.k.type(self.dtype)
        carried = [("ptr", self.sums), ("ptr", self.out), (kind, "zeroinitializer")]
        with code.loop(0, size["outputs"], carried=carried) as output:
            sums, out, seen = output.values
            with code.loop(0, runs, carried=[(kind, seen)]) as loop:
                run = self._run(loop.index)
                here = shifted(code, sums, run["to"])
                seen = self._windows(here, shifted(code, out, run["target"]), run, loop.values[0])
                loop.carry(seen)
            output.carry(shifted(code, sums, str(self.line)), shifted(code, out, size["out_output"]), loop.values[0])
        return output.values[2]

    def _windows(self, here: str, there: str, run: dict[str, str], seen: str) -> str:
        """The windows of a run, to the result. Gives what was seen, with these."""
        code, k, lanes = self.code, self.k, self.shape.lanes
        parts = [load(k, self.dtype, shifted(code, here, mul(code, self.of_sums, n))) for n in range(MATRICES)]
        square = [parts[r * _REACH : (r + 1) * _REACH] for r in range(_REACH)]
        windows = _by_rows_and_columns(square, _of_sums(k))
        masks = [lanes_below(k, most(code, sub(code, run["wide"], str(n * lanes)), 0)) for n in range(SIDE)]
        kind = k.type(self.dtype)
        for r in range(SIDE):
            is_there = code.let(f"icmp sgt i64 {run['high']}, {r}")
            line = shifted(code, there, mul(code, self.size["out_row"], r))
            even, odd = windows[r * SIDE : (r + 1) * SIDE]
            with code.when(is_there, [(kind, seen)]) as branch:
                for n, mask in enumerate(masks):
                    order = [lane // SIDE + lane % SIDE * lanes for lane in range(n * lanes, (n + 1) * lanes)]
                    beside = shuffled(k, even, order, odd)
                    store(k, beside, shifted(code, line, str(n * lanes * self.item)), mask)
                    product = k.muladd(beside, k.literal(0, self.dtype), Value(self.dtype, seen)).text
                    seen = code.let(f"select {k.vector('i1')} {mask}, {kind} {product}, {kind} {seen}")
                branch.give(seen)
            seen = branch.values[0]
        return seen

    def _note(self, seen: str) -> None:
        """Set the workspace's first word if something was not finite."""
        code, lanes = self.code, self.shape.lanes
        unlike = code.let(f"fcmp uno {self.k.type(self.dtype)} {seen}, {seen}")
        bits = code.let(f"bitcast {self.k.vector('i1')} {unlike} to i{lanes}")
        with code.when(code.let(f"icmp ne i{lanes} {bits}, 0")):
            code.do(f"store atomic i64 1, ptr {self.work} monotonic, align 8")
