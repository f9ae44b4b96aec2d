"""The contenders, and their looks: one colour, one shape and one dash everywhere on the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..bench.document import Document, Result
from . import theme

YARDSTICK: Final = "numpy"

_DEVICE_SHAPES: Final = ("circle", "square", "diamond", "triangle-up")
_PEER_SHAPES: Final = ("triangle-up", "triangle-down", "cross", "diamond", "square")
_DASHES: Final = ((6, 3), (2, 2), (8, 3, 2, 3), (4, 2), (1, 3))


@dataclass(frozen=True, slots=True)
class Player:
    """A library, or a device of Yosegi's in all its modes."""

    name: str
    is_device: bool
    colour: str
    """The colour in CSS."""
    shape: str
    dash: tuple[int, ...]


def name_of(result: Result) -> str:
    """The contender of a result."""
    return result.device or result.contender


def players(document: Document) -> tuple[Player, ...]:
    """Everybody with a result: the devices in the machine's order, then the yardstick, then the peers."""
    listed = [d["name"] for d in document.machine["devices"]]
    named = {r.device for r in document.results if r.device}
    devices = [d for d in listed if d in named] + sorted(named - set(listed))
    peers = dict.fromkeys(r.contender for r in document.results if not r.device)
    found = [_device(n, name) for n, name in enumerate(devices)]
    if peers.pop(YARDSTICK, True) is None:
        found.append(Player(YARDSTICK, False, "var(--yardstick)", "circle", (3, 3)))
    return (*found, *[_peer(n, name) for n, name in enumerate(peers)])


def _device(n: int, name: str) -> Player:
    return Player(name, True, f"var(--device-{n % theme.DEVICES})", _DEVICE_SHAPES[n % len(_DEVICE_SHAPES)], ())


def _peer(n: int, name: str) -> Player:
    i = n % theme.PEERS
    return Player(name, False, f"var(--peer-{i})", _PEER_SHAPES[i], _DASHES[i])
