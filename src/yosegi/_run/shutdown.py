"""The end of the process: all parts of the package together delay it by at most a second.

Threads that do not return in time are abandoned. Destructors of a library that still works may wait for it, or find it
half destroyed: they are skipped. Python ends a thread that returns to it during its own end, which C++ code takes for
an error that ends the process: such a thread sleeps instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Final

AT_EXIT: Final = 1.0
"""Seconds by which this package may delay the end of the process."""


class _Ending:
    """The time until which the end may be delayed, once it has begun."""

    until: float | None = None
    skips_destructors = False


def seconds_left() -> float:
    """The seconds that are left of the delay. The first call begins it."""
    if _Ending.until is None:
        _Ending.until = monotonic() + AT_EXIT
    return max(0.0, _Ending.until - monotonic())


def join(threads: Iterable[Thread]) -> None:
    """At the end of the process: wait for threads within the delay."""
    for thread in threads:
        if thread.is_alive():
            thread.join(seconds_left())
            if thread.is_alive():
                _leave_behind()


def _leave_behind() -> None:
    """End the process with its status, without waiting for threads of libraries."""
    if not _Ending.skips_destructors:
        _Ending.skips_destructors = True
        with suppress(AttributeError, OSError):  # where there is no such library, there is no C++ code by it
            ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(ctypes.CDLL(None).pause)
        with suppress(AttributeError, OSError, TypeError):  # only glibc passes the status on
            library = ctypes.CDLL(None)
            leave = library._exit
            library.fflush(None)
            library.on_exit(leave, None)
