"""Tiles in shared memory, from which a matrix unit reads fragments.

A row of a tile is made of packets. Shared memory serves eight packets at once if they lie at different places of 128
bytes, and a fragment is read as columns of eight packets, one of each row. So the packets of a row change places among
each other (exclusive or), from row to row in another way, such that no two of a column are served one after the other.
Where fragments are loaded by instructions that take the distance between rows, rows are one packet longer instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .builder import CBuilder
from .contractions import OperandRuns
from .expressions import Expression, Read, Windowed
from .matrix_unit import DEPTH, PACKET

_BYTES: Final = 16
"""Of a packet."""
_SERVED: Final = 8
"""Packets that shared memory serves at once."""


@dataclass(frozen=True, slots=True)
class PacketTiles:
    """Tiles of one shape, one for each stage. Stages and rows are texts of the language."""

    name: str
    rows: int
    columns: int
    """A multiple of 16."""
    stages: int
    lanes: int = PACKET
    """Elements of a packet."""
    by_words: bool = False
    """True if fragments are read in single words, four rows at a time, eight neighbours of each."""

    @property
    def packets(self) -> int:
        """In a row."""
        return self.columns // self.lanes

    @property
    def total(self) -> int:
        """Packets of a tile."""
        return self.rows * self.packets

    @property
    def _among(self) -> int:
        """Packets that change places among each other: a power of two that divides a row."""
        return min(_SERVED, self.packets & -self.packets)

    def declare(self, k: CBuilder, packet: str) -> None:
        """The tiles, as an array of packets, and the place of the first."""
        k.shared(packet, self.name, self.stages * self.total)
        k.say(f"const Place {self.name}_place = place_of({self.name})")

    def _spread(self, row: str) -> str:
        """By what the number of a packet in its row is changed. The row has to be right in its last three bits."""
        if self.by_words:
            return f"({row} % 4 * 2)"
        turns = _SERVED // self._among
        return f"({row} / {turns} % {self._among})" if turns > 1 else f"({row} % {self._among})"

    def index(self, stage: str, row: str, packet: str) -> str:
        """The number of a packet in the array."""
        return f"({stage}) * {self.total} + {row} * {self.packets} + ({packet} ^ {self._spread(row)})"

    def place(self, stage: str, row: str, packet: str) -> str:
        """Where a packet lies."""
        return f"{self.name}_place + ({self.index(stage, row, packet)}) * {_BYTES}"

    def write_fragments(
        self,
        k: CBuilder,
        row: str,
        column: str,
        *,
        first: str = "0",
        count: int | None = None,
        offset: str = "0",
        name: str = "",
    ) -> Fragments:
        """Variables for the places of a thread's rows of matrices in every fragment, which is 16 rows of two packets.

        `row` is the thread's row of the tile, in the first fragment; `column` is 0, or 1 where its matrix is in the
        second packet. Where fragments do not begin with the tile's first column but with the `first` fragment, which
        only the running kernel knows, `count` is their number. `offset`: bytes from the packet to the thread's word.
        Where a tile is read in two orders, each has a `name`.
        """
        name = name or self.name
        kept = max(1, self._among // 2) if count is None else count
        k.say(f"Place {name}_column[{kept}]")
        for n in range(kept):
            number = f"{row} * {self.packets} + (({first} + {n}) * 2 + {column} ^ {self._spread(row)})"
            k.say(f"{name}_column[{n}] = {self.name}_place + ({number}) * {_BYTES} + {offset}")
        return Fragments(self, kept, name)


@dataclass(frozen=True, slots=True)
class PaddedTiles:
    """Tiles of one shape, one for each stage, with a packet of padding behind every row."""

    name: str
    rows: int
    columns: int
    stages: int
    lanes: int
    """Elements of a packet."""
    scalar: str
    """The type of an element, as the instructions of the matrix unit take it."""

    @property
    def packets(self) -> int:
        """In a row."""
        return self.columns // self.lanes

    @property
    def total(self) -> int:
        """Packets of a tile."""
        return self.rows * self.packets

    def declare(self, k: CBuilder, packet: str) -> None:
        """The tiles, as an array of packets, and a pointer to the first element."""
        k.shared(packet, self.name, self.stages * self.rows * (self.packets + 1))
        pointer = k.dialect.local_pointer.format(type=self.scalar)
        k.say(f"const {pointer} {self.name}_place = (const {pointer}){self.name}")

    def index(self, stage: str, row: str, packet: str) -> str:
        """The number of a packet in the array."""
        return f"(({stage}) * {self.rows} + {row}) * {self.packets + 1} + {packet}"

    def place(self, stage: str, row: str, column: str) -> str:
        """The pointer to an element, and the distance between rows."""
        step = self.columns + self.lanes
        return f"{self.name}_place + (({stage}) * {self.rows} + {row}) * {step} + {column}, {step}"


@dataclass(frozen=True, slots=True)
class Fragments:
    """Fragments of the tiles of all stages."""

    tiles: PacketTiles
    kept: int
    """Columns whose places are in variables; the others lie behind them in the same way, as often as there are."""
    name: str

    def place(self, stage: str, row: str, column: str) -> str:
        """Where a thread's row of a matrix is in a fragment, which is numbered by its 16 rows and two packets."""
        start = f"{self.name}_column[{column} % {self.kept}] + ({stage}) * {self.tiles.total * _BYTES}"
        further = f"{column} / {self.kept} * {self.kept * 2} + {row} * {DEPTH * self.tiles.packets}"
        return f"{start} + ({further}) * {_BYTES}"


@dataclass(frozen=True, slots=True)
class UnitOperand:
    """One operand: what it is, and its tiles."""

    value: Expression
    role: str
    own: OperandRuns
    first: str
    end: str
    """Where the block's rows or columns begin, and where there are no more."""
    deep: bool
    """True if it lies along the sum: then a row of its tile does too."""
    lanes: int
    """Neighbours that are read at once."""
    packet: int
    """Neighbours that make a packet."""
    copies: bool
    """True if packets are copied to shared memory asynchronously."""
    tiles: PacketTiles | PaddedTiles
    line_indices: Mapping[int, str] | None = None
    """The indices of a thread's neighbouring lines, by lane, where it brings the same ones in every turn."""

    @property
    def is_whole(self) -> bool:
        """True if packets are read as they are."""
        return isinstance(self.value, Read) and self.lanes == self.packet

    @property
    def is_copied(self) -> bool:
        """True if packets go to shared memory without passing through registers."""
        return self.is_whole and self.copies

    @property
    def wraps(self) -> bool:
        """True if neighbouring windows are in several rows: branches at the rows' ends would keep elements waiting for
        each other. Where they are in one, nearly all go the same way, and branches are faster."""
        lines = self.own.lines
        return isinstance(self.value, Windowed) and bool(not lines or lines[-1].size % self.packet)

    @property
    def is_plain(self) -> bool:
        """True if elements go there one by one, as they are."""
        return isinstance(self.value, (Read, Windowed)) and self.lanes < self.packet

    @property
    def waits(self) -> bool:
        """True if elements wait in registers while the stage before is multiplied."""
        return self.is_plain or (self.is_whole and not self.copies)
