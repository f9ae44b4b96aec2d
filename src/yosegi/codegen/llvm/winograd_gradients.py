"""Gradients of convolutions by their 3 × 3 weights with fewer products, by transposed minimal filtering.

A place of such a gradient is a sum over all windows, of an element of the input times one of the result's gradient.
Windows go in tiles of 2 × 2. Elements and gradients of a tile become matrices by sums and differences; products of
these, summed over all tiles, become the 9 places by sums and differences again. Windows at every element take 16
products for a tile where there were 36, windows at every second one 25.

    gradients: for each block of outputs and channels, and each part of the tiles:    (all threads)
        for each chunk of tiles:
            bring the elements of a band of rows into the order pixels by channels, with zeros around
            make matrices of them, tiles by channels; the same of the result's gradient
            multiply and add up: sums, outputs by channels
        make places of the sums

A chunk's matrices and the sums stay in the core's own cache. Lanes are channels: only bringing elements into this order
exchanges lanes, of each element once or twice.

An infinity would come out as NaN in places that do not see it, and large numbers may overflow in sums between. Both
always leave something in the places that is not finite. It is noted whether there was any: then the result does not
count, and must be computed by direct sums.

Sizes and strides are data: there is one object for an algorithm, a dtype and a shape of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import Multiples, add, choice, div, least, most, mul, shifted, split, sub, word
from .ir import Module
from .jobs import write_claim
from .lanes import transposed
from .load_store import lanes_below, load, store
from .nest import VectorTarget
from .register_tiles import LINE, TileShape, step_of_sums, zero_sums

KERNEL: Final = 3
"""Places of a gradient in each dimension."""
SIDE: Final = 2
"""Windows of a tile in each dimension."""
PADDING: Final = 2 * LINE
"""Bytes behind each matrix: rows of tiles may go beyond its end, and matrices should not fall into the same places of a
cache."""
SIDE_SIZES: Final = (
    "count", "image", "channel", "block", "high", "wide", "top", "step", "rows", "pitch", "staged", "matrix",
)  # fmt: skip
"""The words of an operand: how many channels there are; bytes from one image, and from one channel to the next;
channels of a block, which are whole vectors; rows and columns; rows of zeros above the first one that the first band
reads, rows from one band to the next, and rows of a band; bytes of a row of a band in the new order, and of a band;
bytes from one matrix to the next."""
GRADIENT_SIZES: Final = (
    *[f"{side}_{name}" for side in ("x", "y") for name in SIDE_SIZES],
    "parts", "chunks", "bands", "group", "images", "down", "across", "x_blocks", "blocks", "sums_matrix", "out_part",
    "out_output", "slots", "room",
)  # fmt: skip
"""The words of `gradients`. A chunk is a band, with so many tiles `down` and `across`, of each image of a group. Its
arrays: the input; the result's gradient; for each of them where the elements of a band go, in bytes; the places of all
parts; the workspace, as in `winograd`."""

_TILE: Final = (
    ("ptr", "gradients"), ("i64", "gradients_step"), ("ptr", "elements"), ("i64", "row"), ("i64", "tiles"),
    ("ptr", "sums"), ("i64", "lanes"),
)  # fmt: skip
"""The parameters of `tile`."""

_Matrix = tuple[tuple[float, ...], ...]
_Square = Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Filtering:
    """An algorithm for one dimension: how few products give all places of a tile. A row for each result."""

    step: int
    """Elements from one window to the next."""
    elements: _Matrix
    """Factors, of the elements of a tile."""
    gradients: _Matrix
    """Factors, of the gradients of a tile."""
    places: _Matrix
    """Places, of the products."""

    @property
    def matrices(self) -> int:
        """Products in two dimensions."""
        return len(self.elements) ** 2

    @property
    def reach(self) -> int:
        """Elements of a tile in one dimension."""
        return len(self.elements[0])


FILTERINGS: Final = {
    1: Filtering(
        1,
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0), (1, 1), (1, -1), (0, 1)),
        ((1, 0.5, 0.5, 0), (0, 0.5, -0.5, 0), (0, 0.5, 0.5, -1)),
    ),
    2: Filtering(  # even elements meet the outer places, odd ones the inner place
        2,
        ((1, 0, -1, 0, 0), (0, 0, 1, 0, 0), (0, 0, 1, 0, -1), (0, 1, 0, 0, 0), (0, 0, 0, 1, 0)),
        ((1, 0), (1, 1), (0, 1), (1, 0), (0, 1)),
        ((1, 1, 0, 0, 0), (0, 0, 0, 1, 1), (0, 1, -1, 0, 0)),
    ),
}
"""By the elements from one window to the next."""


def gradient_shape(target: VectorTarget, dtype: DType, channels: int) -> TileShape:
    """The tiles of the products: outputs by channels. Channels are dealt out evenly to as few tiles as there can be."""
    lanes = target.vector_bytes // dtype.itemsize
    most_vectors, whole = 4 if target.registers == 32 else 2, -(-channels // lanes)
    vectors = -(-whole // -(-whole // most_vectors))
    rows = min((target.registers - vectors - 2) // vectors, PADDING // dtype.itemsize, 14)
    return TileShape(rows, vectors, lanes, dtype.itemsize)


def gradient_source(dtype: DType, shape: TileShape, filtering: Filtering, target: VectorTarget) -> str:
    """The module of `gradients`."""
    module = Module(converts_halves=target.converts_halves)
    write_claim(module)
    _write_tile(module, dtype, shape)
    blocks = _Blocks(module, dtype, shape, filtering)
    with blocks.code.loop("%low", "%high") as unit:
        blocks.write(unit.index)
    blocks.end()
    return module.text(target.attributes)


def _combined(k: LlvmBuilder, matrix: _Matrix, values: Sequence[Value]) -> list[Value]:
    """A matrix times a column of values."""
    made = []
    for row in matrix:
        total: Value | None = None
        for factor, value in sorted(zip(row, values, strict=True), key=lambda pair: -pair[0]):
            if factor:
                size = abs(factor)
                part = value if size == 1 else k.arithmetic("*", value, k.literal(size, value.dtype))
                total = part if total is None else k.arithmetic("+" if factor > 0 else "-", total, part)
        assert total is not None
        made.append(total)
    return made


def _by_rows_and_columns(k: LlvmBuilder, matrix: _Matrix, square: _Square) -> list[Value]:
    """A square after a matrix is applied to its rows, and then to the columns of the result; row by row."""
    columns = zip(*[_combined(k, matrix, row) for row in square], strict=True)
    return [value for row in zip(*[_combined(k, matrix, column) for column in columns], strict=True) for value in row]


def _write_tile(module: Module, dtype: DType, shape: TileShape) -> None:
    """`tile`: products, summed over so many tiles of windows. They are added to the sums that are there if `lanes` is
    the width of a vector, and replace them if it is 0. It is a function of its own because the rest needs all registers
    for addresses."""
    code = module.function("tile", _TILE)
    k = LlvmBuilder(code, shape.lanes)
    carried = [("ptr", "%gradients"), ("ptr", "%elements"), *zero_sums(k, dtype, shape.rows, shape.vectors)]
    with code.loop(0, "%tiles", carried=carried) as step:
        a, b, *given = step.values
        made = step_of_sums(k, dtype, lambda r: shifted(code, a, str(r * dtype.itemsize)), b, given, shape.vectors)
        step.carry(shifted(code, a, "%gradients_step"), shifted(code, b, "%row"), *made)
    mask = lanes_below(k, "%lanes")
    for n, text in enumerate(step.values[2:]):
        r, v = divmod(n, shape.vectors)
        there = shifted(code, shifted(code, "%sums", mul(code, "%row", r)), str(v * shape.lanes * dtype.itemsize))
        store(k, k.arithmetic("+", Value(dtype, text), load(k, dtype, there, mask)), there)
    code.ret()


class _Operand:
    """One of the operands, of a unit."""

    def __init__(
        self, k: LlvmBuilder, dtype: DType, size: dict[str, str], side: str, arrays: tuple[str, str],
        matrix: _Matrix, step: int,
    ) -> None:  # fmt: skip
        self.k, self.code, self.dtype, self.item = k, k.code, dtype, dtype.itemsize
        self.size = {name: size[f"{side}_{name}"] for name in SIDE_SIZES}
        self.given, self.places = arrays
        self.matrix, self.step = matrix, step
        self.pixel = mul(self.code, self.size["block"], self.item)
        self.down, self.across = size["down"], size["across"]
        self.staged = self.matrices = ""
        """Their addresses."""

    @property
    def count(self) -> int:
        """How many matrices there are."""
        return len(self.matrix) ** 2

    def bytes(self) -> str:
        """The bytes of the workspace."""
        matrices = mul(self.code, self.size["matrix"], self.count)
        return add(self.code, add(self.code, self.size["staged"], matrices), self.pixel)

    def place(self, room: str) -> None:
        """Let it work at an address: matrices first, then the elements of a band, and a pixel for those left out."""
        self.matrices = room
        self.staged = shifted(self.code, room, mul(self.code, self.size["matrix"], self.count))

    def fill(self, first: str, band: str, image: str, images: str, number: str) -> None:
        """The matrices of a band of an image, from a first channel on; it is in a chunk as this number. Zeros, if there
        is no such image."""
        code = self.code
        types = ["ptr", "i8", "i64", "i1"]
        code.call("void", "llvm.memset.p0.i64", types, [self.staged, "0", self.size["staged"], "false"])
        with code.when(code.let(f"icmp slt i64 {image}, {images}")):
            self._bring(first, band, image)
        tiles = mul(code, mul(code, self.down, self.across), number)
        self._transform(shifted(code, self.matrices, mul(code, tiles, self.pixel)))

    def _bring(self, first: str, band: str, image: str) -> None:
        """A band's elements, in the new order."""
        code, k, size, lanes = self.code, self.k, self.size, self.k.width
        top = sub(code, mul(code, band, size["step"]), size["top"])
        begin = mul(code, most(code, sub(code, "0", top), 0), size["wide"])
        end = mul(code, least(code, size["rows"], sub(code, size["high"], top)), size["wide"])
        source = shifted(code, self.given, mul(code, image, size["image"]))
        source = shifted(code, source, mul(code, mul(code, top, size["wide"]), self.item))
        last = sub(code, size["count"], "1")
        with code.loop(0, size["block"], lanes, carried=[("ptr", self.staged)]) as group:
            numbers = [least(code, add(code, add(code, first, group.index), str(n)), last) for n in range(lanes)]
            lines = [shifted(code, source, mul(code, number, size["channel"])) for number in numbers]
            with code.loop(begin, end, lanes) as pixels:
                mask = lanes_below(k, sub(code, end, pixels.index))
                offset = mul(code, pixels.index, self.item)
                made = transposed(k, [load(k, self.dtype, shifted(code, line, offset), mask) for line in lines])
                places = code.pure(f"getelementptr i64, ptr {self.places}, i64 {pixels.index}")
                for n, value in enumerate(made):
                    store(k, value, shifted(code, group.values[0], word(code, places, n)))
            group.carry(shifted(code, group.values[0], str(lanes * self.item)))

    def _transform(self, to: str) -> None:
        """Matrices of what was brought."""
        code, k, vector = self.code, self.k, self.k.width * self.item
        reach, pitch = range(len(self.matrix[0])), self.size["pitch"]
        apart = Multiples(code, self.size["matrix"], self.count)
        columns = [mul(code, self.pixel, n) for n in reach]
        steps = mul(code, pitch, self.step), mul(code, self.pixel, self.step)
        with code.loop(0, self.down, carried=[("ptr", self.staged), ("ptr", to)]) as row:
            with code.loop(0, self.across, carried=[("ptr", row.values[0]), ("ptr", row.values[1])]) as tile:
                lines = [shifted(code, tile.values[0], mul(code, pitch, n)) for n in reach]
                with code.loop(0, self.pixel, vector) as part:
                    square = [
                        [load(k, self.dtype, shifted(code, shifted(code, line, column), part.index))
                         for column in columns] for line in lines
                    ]  # fmt: skip
                    there = shifted(code, tile.values[1], part.index)
                    for n, value in enumerate(_by_rows_and_columns(k, self.matrix, square)):
                        store(k, value, shifted(code, there, apart[n]))
                tile.carry(shifted(code, tile.values[0], steps[1]), shifted(code, tile.values[1], self.pixel))
            row.carry(shifted(code, row.values[0], steps[0]), tile.values[1])


class _Blocks:
    """The work on units, under way."""

    def __init__(self, module: Module, dtype: DType, shape: TileShape, filtering: Filtering) -> None:
        self.dtype, self.shape, self.item, self.filtering = dtype, shape, dtype.itemsize, filtering
        self.code = code = module.function("gradients", PARAMETERS)
        self.k = k = LlvmBuilder(code, shape.lanes)
        given = KernelArguments(code, GRADIENT_SIZES)
        self.size = size = {name: given[name] for name in GRADIENT_SIZES}
        x, y, x_places, y_places, self.out, self.work = given.arrays(6)
        self.flags = shifted(code, self.work, str(LINE))
        self.number = code.let(f"call i64 @claim(ptr {self.flags}, i64 {size['slots']})")
        room = shifted(code, self.flags, mul(code, size["slots"], LINE))
        room = shifted(code, room, mul(code, self.number, size["room"]))
        self.x = _Operand(k, dtype, size, "x", (x, x_places), filtering.elements, SIDE * filtering.step)
        self.y = _Operand(k, dtype, size, "y", (y, y_places), filtering.gradients, SIDE)
        for operand in (self.x, self.y):
            operand.place(room)
            room = shifted(code, room, operand.bytes())
        self.sums = room
        self.row = self.x.pixel
        """Bytes of a row of sums."""

    def write(self, unit: str) -> None:
        """One unit."""
        code, size = self.code, self.size
        block, part = split(code, unit, size["parts"])
        down, across = split(code, block, size["x_blocks"])
        output, channel = mul(code, down, size["y_block"]), mul(code, across, size["x_block"])
        begin, end = (div(code, mul(code, n, size["chunks"]), size["parts"]) for n in (part, add(code, part, "1")))
        with code.loop(begin, end) as chunk:
            group, band = split(code, chunk.index, size["bands"])
            with code.loop(0, size["group"]) as number:
                image = add(code, mul(code, group, size["group"]), number.index)
                self.x.fill(channel, band, image, size["images"], number.index)
                self.y.fill(output, band, image, size["images"], number.index)
            self._multiply(code.let(f"icmp ne i64 {chunk.index}, {begin}"))
        self._finish(part, output, channel)

    def end(self) -> None:
        """Leave the slot to others."""
        code = self.code
        flag = shifted(code, self.flags, mul(code, self.number, LINE))
        code.do(f"store atomic i64 0, ptr {flag} release, align 8")
        code.ret()

    def _multiply(self, is_more: str) -> None:
        """The products of a chunk, which are added to the sums if there `is_more` in them."""
        code, shape, size = self.code, self.shape, self.size
        vectors = shape.vectors * shape.lanes * self.item
        lanes = choice(code, is_more, str(shape.lanes), "0")
        tiles = mul(code, mul(code, size["down"], size["across"]), size["group"])
        carried = [("ptr", at) for at in (self.y.matrices, self.x.matrices, self.sums)]
        with code.loop(0, self.filtering.matrices, carried=carried) as matrix:
            gradients, elements, sums = matrix.values
            with code.loop(0, self.row, vectors) as across, code.loop(0, size["y_block"], shape.rows) as down:
                there = shifted(code, sums, add(code, mul(code, down.index, self.row), across.index))
                left = shifted(code, gradients, mul(code, down.index, self.item))
                given = left, self.y.pixel, shifted(code, elements, across.index), self.row, tiles, there, lanes
                code.invoke("@tile", _TILE, *given)
            steps = size["y_matrix"], size["x_matrix"], size["sums_matrix"]
            matrix.carry(*[shifted(code, at, by) for at, by in zip(matrix.values, steps, strict=True)])

    def _finish(self, part: str, output: str, channel: str) -> None:
        """The places of a unit, and whether they are finite."""
        code, k, size, lanes = self.code, self.k, self.size, self.shape.lanes
        outputs = least(code, sub(code, size["y_count"], output), size["y_block"])
        channels = least(code, sub(code, size["x_count"], channel), size["x_block"])
        each = KERNEL * KERNEL * self.item
        out = shifted(code, self.out, mul(code, part, size["out_part"]))
        out = shifted(code, out, add(code, mul(code, output, size["out_output"]), mul(code, channel, each)))
        kind = k.type(self.dtype)
        carried = [("ptr", self.sums), ("ptr", out), (kind, "zeroinitializer")]
        apart = Multiples(code, size["sums_matrix"], self.filtering.matrices)
        reach = len(self.filtering.elements)
        with code.loop(0, outputs, carried=carried) as row:
            sums, out, seen = row.values
            with code.loop(0, channels, lanes, carried=[(kind, seen)]) as group:
                here = shifted(code, sums, mul(code, group.index, self.item))
                parts = [load(k, self.dtype, shifted(code, here, apart[n])) for n in range(self.filtering.matrices)]
                square = [parts[n : n + reach] for n in range(0, len(parts), reach)]
                places = _by_rows_and_columns(k, self.filtering.places, square)
                count = sub(code, channels, group.index)
                self._store(places, shifted(code, out, mul(code, group.index, each)), count)
                made = Value(self.dtype, group.values[0])
                for place in places:
                    made = k.muladd(place, k.literal(0, self.dtype), made)
                mask = lanes_below(k, count)
                group.carry(code.let(f"select {k.vector('i1')} {mask}, {kind} {made.text}, {kind} {group.values[0]}"))
            row.carry(shifted(code, sums, self.row), shifted(code, out, size["out_output"]), group.values[0])
        self._note(row.values[2])

    def _store(self, places: Sequence[Value], out: str, count: str) -> None:
        """The places of so many channels, those of a channel side by side."""
        code, k, lanes = self.code, self.k, self.shape.lanes
        for first in range(0, len(places), lanes):
            some = list(places[first : first + lanes])
            missing = [Value(self.dtype, "poison")] * (lanes - len(some))
            for n, value in enumerate(transposed(k, some + missing)):
                is_there = code.pure(f"icmp sgt i64 {count}, {n}")
                mask = lanes_below(k, choice(code, is_there, str(len(some)), "0"))
                store(k, value, shifted(code, out, str((n * len(places) + first) * self.item)), mask)

    def _note(self, seen: str) -> None:
        """Set the workspace's first word if something was not finite."""
        code, lanes = self.code, self.shape.lanes
        unlike = code.let(f"fcmp uno {self.k.type(self.dtype)} {seen}, {seen}")
        bits = code.let(f"bitcast {self.k.vector('i1')} {unlike} to i{lanes}")
        with code.when(code.let(f"icmp ne i{lanes} {bits}, 0")):
            code.do(f"store atomic i64 1, ptr {self.work} monotonic, align 8")
