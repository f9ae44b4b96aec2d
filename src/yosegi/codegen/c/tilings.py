"""How products are cut into tiles, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .dialect import Target


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: so many results a group, so many an item, and the stretch of the sum at a time."""

    rows: int
    columns: int
    depth: int
    item_rows: int
    item_columns: int

    @property
    def items(self) -> int:
        """Items in a group."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)


ON_GPUS: Final = {
    "16": Tile(16, 16, 32, 2, 2),
    "32": Tile(32, 32, 32, 4, 4),
    "64": Tile(64, 64, 32, 4, 4),
    "128": Tile(128, 128, 16, 8, 8),
}
"""Tiles by name: their rows. The larger are for GPUs with many registers, and large products."""


def tiles(target: Target) -> dict[str, Tile]:
    """The tiles that a target may try, by name."""
    return {name: tile for name, tile in ON_GPUS.items() if tile.items <= max(target.group, target.cooperating)}
