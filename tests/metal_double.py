"""The Metal device over the double of `fakes/apple`, on a machine without Metal."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import emulation
from yosegi.devices.metal.commands import metal
from yosegi.devices.metal.device import MetalDevice

FOLDER = Path(__file__).parent / "fakes" / "apple"
MISSING = None if emulation.COMPILER is not None else "there is no g++"
"""Why there is no double, or `None`."""


@cache
def double() -> Any:
    """The module `Metal`, loaded for the device alone: no other test finds it."""
    sys.path.append(str(FOLDER))
    try:
        return metal()[0]
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("Metal", "objc"):
            del sys.modules[name]


def device(*, garbage: bool = True) -> Any:
    """A device of its own on the double, whose pool hands out blocks full of garbage."""
    double()
    made = MetalDevice(0)
    if garbage:
        made.fill_with_garbage()
    return made
