"""Tiles of 16-bit floats in shared memory, from which a matrix unit reads fragments.

A row of a tile is made of packets. Shared memory serves eight packets at once if they lie at different places of 128
bytes, and a fragment is read as columns of eight packets, one of each row. So the packets of a row change places among
each other (exclusive or), from row to row in another way, such that no two of a column are served one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .c import CBuilder
from .frames import Frame
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

    @property
    def packets(self) -> int:
        """In a row."""
        return self.columns // PACKET

    @property
    def total(self) -> int:
        """Packets of a tile."""
        return self.rows * self.packets

    @property
    def _among(self) -> int:
        """Packets that change places among each other: a power of two that divides a row."""
        return min(_SERVED, self.packets & -self.packets)

    def declare(self, frame: Frame, packet: str) -> None:
        """The tiles, as an array of packets, and the place of the first."""
        frame.shared(packet, self.name, self.stages * self.total)
        frame.k.lines.append(f"const Place {self.name}_place = place_of({self.name});")

    def _spread(self, row: str) -> str:
        """By what the number of a packet in its row is changed. The row has to be right in its last three bits."""
        turns = _SERVED // self._among
        return f"({row} / {turns} % {self._among})" if turns > 1 else f"({row} % {self._among})"

    def place(self, stage: str, row: str, packet: str) -> str:
        """Where a packet lies."""
        number = f"({stage}) * {self.total} + {row} * {self.packets} + ({packet} ^ {self._spread(row)})"
        return f"{self.name}_place + ({number}) * {_BYTES}"

    def write_columns(self, k: CBuilder, row: str, column: str) -> None:
        """Where an item's rows of matrices are: in the first rows of a tile and in its first columns of 16.

        `row` is the item's, from 0 to 15; `column` is 0, or 1 where its matrix is the second of 16 columns. Further
        columns are as far behind these as they are numbered.
        """
        count = max(1, self._among // 2)
        k.lines.append(f"Place {self.name}_column[{count}];")
        for n in range(count):
            number = f"{row} * {self.packets} + ({n * 2} + {column} ^ {self._spread(row)})"
            k.lines.append(f"{self.name}_column[{n}] = {self.name}_place + ({number}) * {_BYTES};")

    def fragment(self, stage: str, row: str, column: str) -> str:
        """Where an item's row of a matrix is, in a fragment of 16 × 16: the numbers of its rows and columns of 16."""
        count = max(1, self._among // 2)
        further = f"{column} / {count} * {count * 2} + {row} * {DEPTH * self.packets}"
        start = f"{self.name}_column[{column} % {count}] + ({stage}) * {self.total * _BYTES}"
        return f"{start} + ({further}) * {_BYTES}"
