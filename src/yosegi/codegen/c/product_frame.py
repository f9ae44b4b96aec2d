"""The common part of kernels that multiply in tiles: a block computes a tile of the result and fuses elementwise work.

The left operand may need values of its rows, folded by the block before it multiplies; operands and results are read
and written in packets where rows are made of whole ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from ..._graph.graph import Graph
from ..scalar.value import Value
from .builder import CBuilder
from .contractions import FusedContraction, MergedAxes, OperandRuns
from .dialect import Dialect
from .expressions import ElementReader, Expression, Read, parts_of
from .frames import Frame, inputs_of
from .packets import fill, packet_type

_PACKET: Final = 16
"""Bytes."""
_FEW: Final = 8
"""Neighbours that are not worth to follow: there are more in another direction."""


class ProductFrame:
    """A product while its kernel is written."""

    def __init__(
        self,
        graph: Graph,
        product: FusedContraction,
        dialect: Dialect,
        tile: tuple[int, int],
        items: int,
        parts: int = 1,
        stretch: int = 0,
    ) -> None:
        """`tile` has so many rows and columns of the result, and belongs to so many threads. A sum in several `parts`
        is one of this `stretch` in each block; the results of a part lie behind those of the one before."""
        self.product, self.items, self.parts, self.stretch = product, items, parts, stretch
        self.rows, self.columns = tile
        inputs = inputs_of(graph, product.expressions)
        results = prod(r.size for runs in (product.batch, product.rows, product.columns) for r in runs)
        elements = max([results * parts, *[prod(s) for s in inputs.shapes]]) + self.rows * self.columns
        self.frame = Frame(dialect, inputs, product.outputs, elements)
        self.ctype = self.frame.ctype
        self._row_values: dict[int, tuple[str, Value]] = {}

    def write_places(self) -> None:
        """Which thread of which block this is, and where its tile begins."""
        frame, product, k = self.frame, self.product, self.frame.k
        down, across = self._tiles()
        self.m, self.n = frame.total("rows", product.rows), frame.total("columns", product.columns)
        self.begin, self.deep = "0", frame.total("depth", product.depth)
        """Where the block's sum begins and ends."""
        self.offset = ""
        """The term of places of results that says which part of the sum they are."""
        self.item = k.let("int", f"(int)({frame.dialect.local_id})")
        group = k.let(self.ctype, f"({self.ctype})({frame.dialect.group_id})")
        part = ""
        if self.parts > 1:
            blocks, stretch = frame.size("blocks", self.groups // self.parts), frame.size("stretch", self.stretch)
            part = k.let(self.ctype, f"{group} / {blocks}")
            group = k.let(self.ctype, f"{group} - {part} * {blocks}")
            self.begin = k.let(self.ctype, f"{part} * {stretch}")
            end = k.let(self.ctype, f"{self.begin} + {stretch}")
            self.deep = k.let(self.ctype, f"{end} < {self.deep} ? {end} : {self.deep}")
        wide, high = frame.size("across", across), frame.size("down", down)
        above = k.let(self.ctype, f"{group} / {wide}")
        stack = k.let(self.ctype, f"{above} / {high}")
        self.row = k.let(self.ctype, f"({above} - {stack} * {high}) * {self.rows}")
        self.column = k.let(self.ctype, f"({group} - {above} * {wide}) * {self.columns}")
        self.stack = frame.indices("batch", product.batch, stack)
        if part:
            results = prod(r.size for runs in (product.batch, product.rows, product.columns) for r in runs)
            self.offset = f" + {part} * {frame.size('results', results)}"

    def _tiles(self) -> tuple[int, int]:
        m, n, _ = self.product.extents
        return -(-m // self.rows), -(-n // self.columns)

    @property
    def groups(self) -> int:
        """How many there are."""
        down, across = self._tiles()
        return prod(r.size for r in self.product.batch) * down * across * self.parts

    # Row values

    def write_row_values(self) -> None:
        """Each value of a row is folded by as many threads as there are for a row, and then by the first of them."""
        frame, k = self.frame, self.frame.k
        subgroup = max(1, self.items // self.rows)
        for number, value in enumerate(self.product.row_values):
            fold, scalar = value.fold, frame.dialect.types[value.fold.accumulated]
            name = f"row_value{number}"
            k.shared(scalar, name, self.rows * subgroup)
            with k.block(
                f"for (int row = {self.item} / {subgroup}; row < {self.rows}; row += {self.items // subgroup})"
            ):
                total = k.variable(k.literal(fold.start, fold.accumulated))
                place = k.let(self.ctype, f"{self.row} + row")
                with k.block(f"if ({place} < {self.m})"):
                    own = self.stack | self.line_indices("rows", place)
                    first = f"{self.item} % {subgroup}"
                    with k.block(f"for ({self.ctype} step = {first}; step < {self.deep}; step += {subgroup})"):
                        at = own | self.step_indices("rows", "step")
                        element = frame.value(k, value.operand, frame.reader(k, at, known=self.row_values("row")))
                        k.assign(total, fold.combine(k, total, fold.begin(k, element)))
                k.say(f"{name}[row * {subgroup} + {self.item} % {subgroup}] = {total.text}")
            k.barrier()
            with k.block(f"for (int row = {self.item}; row < {self.rows}; row += {self.items})"):
                parts = [
                    Value(fold.accumulated, k.let(scalar, f"{name}[row * {subgroup} + {n}]")) for n in range(subgroup)
                ]
                while len(parts) > 1:
                    parts = [fold.combine(k, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
                made = fold.end(k, parts[0])
                k.say(f"{name}[row * {subgroup}] = {made.text}")
            k.barrier()
            self._row_values[id(value)] = (f"{name}[({{row}}) * {subgroup}]", Value(fold.result, ""))

    def row_values(self, row: str) -> dict[int, Value]:
        """The values of a row of the tile, by identity."""
        return {key: Value(value.dtype, text.format(row=row)) for key, (text, value) in self._row_values.items()}

    # Operands

    def runs_fast(self, value: Expression, own: OperandRuns) -> bool:
        """True if an operand's elements lie side by side along the sum, and more than a few of them."""
        if len(own.depth) > 1 and own.depth[-1].size < _FEW:
            return False
        reads = [p for p in parts_of(value) if isinstance(p, Read) and any(p.strides)]
        inner = [(p.strides[own.depth[-1].axis] if own.depth else 0,
                  p.strides[own.lines[-1].axis] if own.lines else 0) for p in reads]  # fmt: skip
        return sum(d == 1 for d, _ in inner) > sum(r == 1 for _, r in inner)

    def operand_lanes(self, value: Expression, own: OperandRuns, extent: int, *, deep: bool) -> int:
        """How many neighbours of an operand a thread reads at once, of a stretch of so many."""
        return self._lanes(value, own.depth if deep else own.lines, (*own.lines, *own.depth), extent)

    def result_lanes(self, value: Expression, extent: int) -> int:
        """How many neighbours a thread reads at once for results of neighbouring columns."""
        columns = self.product.result_columns
        return self._lanes(value, columns, (*self.product.rows, *columns), extent)

    def _lanes(self, value: Expression, runs: Sequence[MergedAxes], walked: Sequence[MergedAxes], extent: int) -> int:
        """How many neighbours a thread reads at once along runs, which are among those that are walked."""
        if not runs:
            return 1
        reads = [p for p in parts_of(value) if isinstance(p, Read)]
        axis = runs[-1].axis
        if any(p.strides[axis] not in (0, 1) for p in reads) or not any(p.strides[axis] for p in reads):
            return 1
        lanes = min(_PACKET // max(p.dtype.itemsize for p in reads), extent)
        whole = runs[-1].size % lanes == 0
        others = [r.axis for r in (*self.product.batch, *walked) if r.axis != axis]
        aligned = all(p.strides[a] % lanes == 0 for p in reads if p.strides[axis] for a in others)
        return lanes if whole and aligned else 1

    def runs(self, role: str) -> OperandRuns:
        """Of the left operand, whose lines are rows, or of the right one, whose lines are columns."""
        return self.product.left_runs if role == "rows" else self.product.right_runs

    def line_indices(self, role: str, line: str) -> dict[int, str]:
        """The indices of an operand's line."""
        return self.frame.indices(role, self.runs(role).lines, line)

    def step_indices(self, role: str, step: str) -> dict[int, str]:
        """The indices of a term of the sum, as an operand takes them."""
        return self.frame.indices(f"depth of {role}", self.runs(role).depth, step)

    def operand_indices(self, role: str, line: str, step: str) -> dict[int, str]:
        """The indices of an operand's element."""
        return self.stack | self.line_indices(role, line) | self.step_indices(role, step)

    def read_packets(self, value: Expression, axis: int, lanes: int, at: dict[int, str]) -> dict[int, tuple[Read, str]]:
        """An expression's reads that move along an axis, as packets in variables, by identity."""
        k = self.frame.k
        made = {}
        for part in parts_of(value):
            if isinstance(part, Read) and part.strides[axis]:
                name = f"p{len(k.lines)}"
                k.say(f"{packet_type(k, part.dtype, lanes)} {name}")
                place = self.frame.place(id(part), part.strides, at)
                fill(k, part.dtype, lanes, name, self.frame.pointer(part.entry), place, None)
                made[id(part)] = (part, name)
        return made

    # Results

    def result_indices(self, column: str) -> dict[int, str]:
        """The indices of a result's column."""
        return self.frame.indices("columns", self.product.result_columns, column)

    def stored_at_once(self, limit: int) -> int:
        """How many neighbouring results a thread may write as one packet."""
        outputs, columns = self.product.outputs, self.product.result_columns
        if not self.product.has_neighbours:
            return 1
        lanes = min(_PACKET // max(o.expression.dtype.itemsize for o in outputs), limit)
        others = [r.axis for r in (*self.product.batch, *self.product.rows)]
        steps = [o.strides[a] for o in outputs for a in others]
        return lanes if all(n % lanes == 0 for n in (columns[-1].size, *steps)) else 1

    def at_result(
        self, k: CBuilder, own: str, at: dict[int, str], column: str, packets: Mapping[int, Value] | None = None
    ) -> tuple[dict[int, str], ElementReader]:
        """The indices of a result, and how expressions are read there. `own` is the sum; `packets` as in a reader."""
        product = self.product
        where = at | self.result_indices(column)
        total = k.rounded(k.convert(Value(product.summed, own), product.result))
        return where, self.frame.reader(k, where, {id(product.total): total}, packets)

    def write_result(self, k: CBuilder, own: str, at: dict[int, str], column: str) -> None:
        """One result to memory."""
        where, places = self.at_result(k, own, at, column)
        for n, output in enumerate(self.product.outputs):
            value = self.frame.value(k, output.expression, places)
            self.frame.put(k, value, f"b{n}", self.frame.place(("b", n), output.strides, where) + self.offset)
