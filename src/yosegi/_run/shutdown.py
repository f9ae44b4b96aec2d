"""The end of the process: nothing holds it up for longer than a second, all parts of the package together.

Threads that do not return in time are left where they are. Python ends around them, but the destructors of a library
that is still at work may wait for it, or find it in pieces: they are skipped then. A thread that returns to Python
while Python ends is ended by Python, which C++ code takes for an error that ends the process: it sleeps instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Final

AT_EXIT: Final = 1.0
"""Seconds that this package may hold up the end of the process."""


class _Ending:
    """The moment until which the end may be held up, once it has begun."""

    until: float | None = None
    skips_destructors = False


def seconds_left() -> float:
    """Seconds for which the end of the process may still be held up. The first call begins them."""
    if _Ending.until is None:
        _Ending.until = monotonic() + AT_EXIT
    return max(0.0, _Ending.until - monotonic())


def join(threads: Iterable[Thread]) -> None:
    """At the end of the process: wait for threads as long as that may take."""
    for thread in threads:
        if thread.is_alive():
            thread.join(seconds_left())
            if thread.is_alive():
                _leave_behind()


def _leave_behind() -> None:
    """Let the process end, with the status that it ends with, whatever the threads of its libraries do."""
    if not _Ending.skips_destructors:
        _Ending.skips_destructors = True
        with suppress(AttributeError, OSError):  # where there is no such library, there is no C++ code by it
            ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(ctypes.CDLL(None).pause)
        with suppress(AttributeError, OSError, TypeError):  # only glibc passes the status on
            library = ctypes.CDLL(None)
            leave = library._exit
            library.fflush(None)
            library.on_exit(leave, None)
