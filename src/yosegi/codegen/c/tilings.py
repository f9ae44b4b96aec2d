"""How products are cut into tiles, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .dialect import Target
from .matrix_unit import SUBGROUP


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
IN_VECTORS: Final = {
    "16": Tile(64, 16, 64, 8, 16),
    "32": Tile(64, 32, 64, 8, 32),
}
"""Tiles for targets with caches and vectors, by their columns."""


@dataclass(frozen=True, slots=True)
class UnitTile:
    """A tiling for a matrix unit: the results of a block and of a warp, in multiples of 16, the length of one stage of
    the sum, and the number of stages in shared memory, of which all but one are being loaded."""

    rows: int
    columns: int
    depth: int
    subgroup_rows: int
    subgroup_columns: int
    stages: int

    @property
    def across(self) -> int:
        """Teams side by side."""
        return self.columns // self.subgroup_columns

    @property
    def items(self) -> int:
        """Items in a group."""
        return self.rows // self.subgroup_rows * self.across * SUBGROUP


ON_UNITS: Final = {
    "unit 32": UnitTile(32, 32, 64, 16, 16, 4),
    "unit 64": UnitTile(64, 64, 64, 32, 32, 3),
    "unit 128": UnitTile(128, 128, 32, 64, 32, 3),
}
"""Tiles for matrix units by name. Each is 48 KB of shared memory at most."""


def tiles(target: Target) -> dict[str, Tile]:
    """The tiles that a target may try, by name."""
    if target.blocked and target.width >= 16:
        return dict(IN_VECTORS)
    return {name: tile for name, tile in ON_GPUS.items() if tile.items <= max(target.group, target.cooperating)}
