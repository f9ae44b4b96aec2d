"""Sums over windows of 3 × 3 with fewer products, by Winograd's minimal filtering.

Windows go in squares, which have elements in common. By sums and differences these become others, a matrix for each
place, and so do a kernel's 9 numbers, so that the windows of a square follow from one product for each place by sums
and differences again; see `minimal_filters`. Sums over channels are made in between: they are products of matrices.

    kernels:  make matrices of the kernels, in panels of rows    (all threads)
    convolve: for each block of squares and each part of the panels:    (all threads)
        make matrices of the elements, channels by squares
        for each panel of outputs:
            multiply them: sums, outputs by squares
            make windows of the sums, and store those that are there

A block's matrices stay in the core's own cache. Along a row of squares everything is read and written as it lies: only
the columns of squares are brought apart, and windows together.

An infinity would come out as NaN in windows of the square that do not see it, and large numbers may overflow in sums
between. Both always leave something in the windows that is not finite. So it is noted whether there was any: then the
result does not count, and must be computed by direct sums.

Sizes and strides are data: there is one object for a filter, a dtype and a number of rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..._tensor.dtype import DType, float64, int32
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, div, least, most, mul, shifted, split, sub, word
from .ir import Function, Module
from .jobs import write_claim
from .lanes import brought_apart, brought_together, counted, shuffled
from .load_store import lanes_below, load, store, strided
from .minimal_filters import KERNEL, Filter, by_rows_and_columns
from .nest import VectorTarget
from .register_tiles import LINE, TileShape, ask_for, step_of_sums, tile_shape, zero_sums

PADDING: Final = LINE
"""Bytes behind each matrix of a block: the last run of squares may go beyond its end, and matrices should not fall into
the same places of a cache."""
_AHEAD: Final = 1 << 14
"""Bytes of the kernels' matrices that are asked for before they are used. In a model they come from memory: those of
512 channels are 17 MB, and processors by themselves do not ask for what lies behind the end of a page."""
KERNELS_SIZES: Final = (
    "channels", "outputs", "w_output", "w_channel", "w_row", "w_column", "kernel_panel", "kernel_matrix",
)  # fmt: skip
"""The words of `kernels`; `w_output` is in elements, all else in bytes. Its arrays: the weights, and the matrices."""
CONVOLVE_SIZES: Final = (
    "channels", "outputs", "panels", "parts", "kernel_panel", "kernel_matrix", "blocks", "vectors", "squares", "images",
    "down", "strips", "rest", "top", "left", "high", "wide", "x_image", "x_channel", "x_row",
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


def room(dtype: DType, shape: TileShape, matrices: int, channels: int) -> int:
    """Bytes of a slot: the matrices of the elements, and of a panel's sums."""
    return matrices * (_matrix_bytes(dtype, shape, channels) + _matrix_bytes(dtype, shape, shape.rows))


def _matrix_bytes(dtype: DType, shape: TileShape, lines: int) -> int:
    """The distance between a block's matrices of so many lines."""
    return lines * shape.columns * dtype.itemsize + PADDING


def winograd_source(dtype: DType, shape: TileShape, of: Filter, target: VectorTarget) -> str:
    """The module of `kernels` and `convolve`."""
    module = Module(converts_halves=target.converts_halves)
    _write_kernels(module, dtype, shape, of)
    write_claim(module)
    _write_convolve(module, dtype, shape, of)
    return module.text(target.attributes)


# Kernels


def _write_kernels(module: Module, dtype: DType, shape: TileShape, of: Filter) -> None:
    """`kernels`: a unit is a panel of outputs, which lie side by side for each channel.

    Sums are made in float64: what rounding does to a weight would be in all products by it.
    """
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
            if dtype is not float64:
                square = [[k.converted(weight, float64) for weight in row] for row in square]
            made_of = by_rows_and_columns(k, square, of.kernels)
            for n, value in enumerate(made_of if dtype is float64 else [k.converted(v, dtype) for v in made_of]):
                store(k, value, shifted(code, there, mul(code, matrix, n)))
            channel.carry(shifted(code, here, channel_bytes), shifted(code, there, str(shape.rows * item)))
    code.ret()


def _first_row(code: Function, panel: str, outputs: str, shape: TileShape) -> str:
    """The first output of a panel. The last one begins early enough to be all there: some are computed twice."""
    return least(code, mul(code, panel, shape.rows), sub(code, outputs, str(shape.rows)))


# Blocks


def _write_convolve(module: Module, dtype: DType, shape: TileShape, of: Filter) -> None:
    """`convolve`: a unit is a block of squares, of all images in order, with the outputs of a part of the panels."""
    blocks = _Blocks(module, dtype, shape, of)
    with blocks.code.loop("%low", "%high") as unit:
        blocks.write(unit.index)
    blocks.end()


class _Blocks:
    """The work on blocks, under way."""

    def __init__(self, module: Module, dtype: DType, shape: TileShape, of: Filter) -> None:
        self.dtype, self.shape, self.item, self.of = dtype, shape, dtype.itemsize, of
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
        self.of_elements = add(code, mul(code, self.size["channels"], self.line), str(PADDING))
        self.of_sums = str(_matrix_bytes(dtype, shape, shape.rows))
        self.sums = shifted(code, self.elements, mul(code, self.of_elements, of.matrices))
        self.table = code.let(f"alloca [{shape.columns * _RUN_BYTES} x i8], align {LINE}")

    def write(self, unit: str) -> None:
        """One block, with the outputs of a part of the panels."""
        code, lanes, parts = self.code, self.shape.lanes, self.size["parts"]
        whole, blocks, panels = self.size["vectors"], self.size["blocks"], self.size["panels"]
        block, part = split(code, unit, parts)
        first, after = (div(code, mul(code, b, whole), blocks) for b in (block, add(code, block, "1")))
        last = least(code, mul(code, after, lanes), self.size["squares"])
        runs = self._runs(mul(code, first, lanes), last)
        self._transform(runs)
        wide, kind = sub(code, after, first), self.k.type(self.dtype)
        begin, end = (div(code, mul(code, p, panels), parts) for p in (part, add(code, part, "1")))
        with code.loop(begin, end, carried=[(kind, "zeroinitializer")]) as panel:
            for vectors in range(1, self.shape.vectors + 1):
                with code.when(code.let(f"icmp eq i64 {wide}, {vectors}")):
                    self._multiply(panel.index, vectors)
            panel.carry(self._finish(panel.index, runs, panel.values[0]))
        self._note(panel.values[0])

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
        high = mul(code, sub(code, row, mul(code, image, size["down"])), self.of.side)
        wide = mul(code, column, self.of.side)
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
            "wide": least(code, mul(code, squares, self.of.side), sub(code, size["out_wide"], wide)),
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
                for n, value in enumerate(by_rows_and_columns(self.k, square, self.of.elements)):
                    store(self.k, value, shifted(code, there, mul(code, self.of_elements, n)))
            channel.carry(shifted(code, x, size["x_channel"]), shifted(code, matrix, str(self.line)))

    def _square(self, source: str, top: str, column: str) -> list[list[Value]]:
        """The elements of a run, of each place of its squares, row by row; zeros where the input has none."""
        code, k, lanes, side, reach = self.code, self.k, self.shape.lanes, self.of.side, self.of.reach
        wide = k.splat(int32, code.pure(f"trunc i64 {self.size['wide']} to i32"))
        masks = []
        for n in range(side + 1):
            # A column before the first is a large number without a sign.
            number = counted(k, add(code, column, str(n * lanes)), 1, int32)
            masks.append(code.pure(f"icmp ult {k.type(int32)} {number.text}, {wide.text}"))
        kind = k.type(self.dtype)
        square = []
        for r in range(reach):
            row = add(code, top, str(r))
            inside = code.let(f"icmp ult i64 {row}, {self.size['high']}")
            line = shifted(code, source, mul(code, self.size["x_row"], r))
            with code.when(inside, [(kind, "zeroinitializer")] * reach) as branch:
                *parts, behind = [
                    load(k, self.dtype, shifted(code, line, str(n * lanes * self.item)), mask)
                    for n, mask in enumerate(masks)
                ]
                places = brought_apart(k, parts)
                for place in range(reach - side):  # the first ones of the next square
                    places.append(shuffled(k, places[place], [*range(1, lanes), lanes + place], behind))
                branch.give(*[place.text for place in places])
            square.append([Value(self.dtype, text) for text in branch.values])
        return square

    # Products

    def _multiply(self, panel: str, vectors: int) -> None:
        """The products of a panel, for a block that is some vectors wide."""
        code, size = self.code, self.size
        panel = shifted(code, self.kernels, mul(code, panel, size["kernel_panel"]))
        carried = [("ptr", at) for at in (panel, self.elements, self.sums)]
        with code.loop(0, self.of.matrices, carried=carried) as matrix:
            kernels, elements, sums = matrix.values
            self._tile(kernels, elements, sums, vectors)
            steps = size["kernel_matrix"], self.of_elements, self.of_sums
            matrix.carry(*[shifted(code, at, by) for at, by in zip(matrix.values, steps, strict=True)])

    def _tile(self, kernels: str, elements: str, sums: str, vectors: int) -> None:
        code, k, dtype, rows = self.code, self.k, self.dtype, self.shape.rows
        size = self.shape.lanes * self.item
        carried = [("ptr", kernels), ("ptr", elements), *zero_sums(k, dtype, rows, vectors)]
        with code.loop(0, self.size["channels"], carried=carried) as step:
            a, b, *given = step.values
            ask_for(code, shifted(code, a, str(_AHEAD)), to_read=True)
            made = step_of_sums(k, dtype, lambda r: shifted(code, a, str(r * self.item)), b, given, vectors)
            step.carry(shifted(code, a, str(rows * self.item)), shifted(code, b, str(self.line)), *made)
        for n, text in enumerate(step.values[2:]):
            r, v = divmod(n, vectors)
            store(k, Value(dtype, text), shifted(code, sums, str(r * self.line + v * size)))

    # From sums to windows

    def _finish(self, panel: str, runs: str, seen: str) -> str:
        """The windows of a panel, output by output. Gives what was seen, with these: NaN where something was not
        finite."""
        code, size = self.code, self.size
        kind = self.k.type(self.dtype)
        first = _first_row(code, panel, size["outputs"], self.shape)
        carried = [("ptr", self.sums), ("ptr", shifted(code, self.out, mul(code, first, size["out_output"])))]
        with code.loop(0, self.shape.rows, carried=[*carried, (kind, seen)]) as output:
            sums, out, seen = output.values
            with code.loop(0, runs, carried=[(kind, seen)]) as loop:
                run = self._run(loop.index)
                here = shifted(code, sums, run["to"])
                loop.carry(self._windows(here, shifted(code, out, run["target"]), run, loop.values[0]))
            output.carry(shifted(code, sums, str(self.line)), shifted(code, out, size["out_output"]), loop.values[0])
        return output.values[2]

    def _windows(self, here: str, there: str, run: dict[str, str], seen: str) -> str:
        """The windows of a run, to the result. Gives what was seen, with these."""
        code, k, lanes, side, reach = self.code, self.k, self.shape.lanes, self.of.side, self.of.reach
        parts = [load(k, self.dtype, shifted(code, here, mul(code, self.of_sums, n))) for n in range(self.of.matrices)]
        square = [parts[r * reach : (r + 1) * reach] for r in range(reach)]
        windows = by_rows_and_columns(k, square, self.of.sums)
        masks = [lanes_below(k, most(code, sub(code, run["wide"], str(n * lanes)), 0)) for n in range(side)]
        kind = k.type(self.dtype)
        for r in range(side):
            is_there = code.let(f"icmp sgt i64 {run['high']}, {r}")
            line = shifted(code, there, mul(code, self.size["out_row"], r))
            with code.when(is_there, [(kind, seen)]) as branch:
                beside = brought_together(k, windows[r * side : (r + 1) * side])
                for n, (mask, value) in enumerate(zip(masks, beside, strict=True)):
                    store(k, value, shifted(code, line, str(n * lanes * self.item)), mask)
                    product = k.muladd(value, k.literal(0, self.dtype), Value(self.dtype, seen)).text
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
