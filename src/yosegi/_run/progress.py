"""One line of text for slow work, on standard error or in a notebook's cell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

_LONG: Final = 1.0  # seconds
_shown: Final[set[str]] = set()


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Print a text if the block takes more than a second; each text once in a process."""
    timer = Timer(_LONG, _show, (what,)) if f"{what} …" not in _shown else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _show(what: str) -> None:
    show(f"{what} …")


def show(what: str) -> None:
    """Print a line on standard error, once in a process."""
    if what in _shown or sys.stderr is None:
        return
    _shown.add(what)
    if sys.stderr.isatty() or "ipykernel" in sys.modules:  # a notebook shows plain lines as errors, in red
        from rich.console import Console

        line = f"yosegi: {what}"
        Console(stderr=True).print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    else:
        print(f"yosegi: {what}", file=sys.stderr, flush=True)
