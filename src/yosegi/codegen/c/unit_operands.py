"""An operand of a product on a matrix unit, and how it comes to shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .contractions import OperandRuns
from .expressions import Expression, Read, Windowed
from .fragments import PacketTiles, PaddedTiles


@dataclass(frozen=True, slots=True)
class UnitOperand:
    """One operand: what it is, and its tiles."""

    value: Expression
    role: str
    own: OperandRuns
    first: str
    end: str
    """Where the group's rows or columns begin, and where there are no more."""
    deep: bool
    """Whether it lies along the sum: then a row of its tile does too."""
    lanes: int
    """Neighbours that are read at once."""
    packet: int
    """Neighbours that make a packet."""
    copies: bool
    """Whether packets are copied to shared memory asynchronously."""
    tiles: PacketTiles | PaddedTiles
    line_indices: Mapping[int, str] | None = None
    """The indices of an item's neighbouring lines, by lane, where it brings the same ones in every turn."""

    @property
    def is_whole(self) -> bool:
        """Whether packets are read as they are."""
        return isinstance(self.value, Read) and self.lanes == self.packet

    @property
    def is_copied(self) -> bool:
        """Whether packets go to shared memory without passing through registers."""
        return self.is_whole and self.copies

    @property
    def wraps(self) -> bool:
        """Whether neighbouring windows are in several rows: branches at the rows' ends would keep elements waiting for
        each other. Where they are in one, nearly all go the same way, and branches are faster."""
        lines = self.own.lines
        return isinstance(self.value, Windowed) and bool(not lines or lines[-1].size % self.packet)

    @property
    def is_plain(self) -> bool:
        """Whether elements go there one by one, as they are."""
        return isinstance(self.value, (Read, Windowed)) and self.lanes < self.packet

    @property
    def waits(self) -> bool:
        """Whether elements wait in registers while the stage before is multiplied."""
        return self.is_plain or (self.is_whole and not self.copies)
