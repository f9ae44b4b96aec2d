"""One line on standard error, or in a notebook's cell, for what takes long, so that nobody waits in silence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

_LONG: Final = 1.0  # seconds
_told: Final[set[str]] = set()


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say what is under way if the block takes more than a second; each thing once in a process."""
    timer = Timer(_LONG, _tell, (what,)) if f"{what} …" not in _told else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _tell(what: str) -> None:
    tell(f"{what} …")


def tell(what: str) -> None:
    """Say something in one line on standard error, once in a process."""
    if what in _told or sys.stderr is None:
        return
    _told.add(what)
    if sys.stderr.isatty() or "ipykernel" in sys.modules:  # a notebook shows plain lines as errors, in red
        from rich.console import Console

        line = f"yosegi: {what}"
        Console(stderr=True).print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    else:
        print(f"yosegi: {what}", file=sys.stderr, flush=True)
