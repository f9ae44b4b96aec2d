"""Tracebacks that show the user's lines: frames of this package are left out of the errors that leave it.

`YOSEGI_TRACEBACK=full` keeps them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from .environment import setting

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE: Final = __name__.partition(".")[0]
_STANDS_FOR: Final = {"call": "function", "__call__": "self", "_node": "self", "method": "name"}
"""Functions of this package that stand for others, and the variable that has these or their name."""
_IS_FULL: Final = setting("YOSEGI_TRACEBACK", "short") == "full"


def package_of(frame: FrameType) -> str:
    """The package whose code a frame runs."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def function_of(frame: FrameType) -> str:
    """The name of the function that a frame of this package runs."""
    name = frame.f_code.co_name
    behind: Any = frame.f_locals.get(_STANDS_FOR.get(name, ""))
    if behind is None or isinstance(behind, str):
        return behind or name
    return getattr(behind, "__name__", type(behind).__name__)


def user_level() -> int:
    """The `stacklevel` by which a warning of the calling function shows the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and package_of(frame) == PACKAGE:
        level, frame = level + 1, frame.f_back
    return level


def hide_frames(error: BaseException) -> None:
    """Take the frames of this package out of the traceback of an error, and of those that led to it.

    Followed by a bare `raise`, which adds no frame, it hides the calling function too.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and not _IS_FULL:
        seen.add(id(current))
        current.__traceback__ = _without_package(current.__traceback__)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _without_package(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        if package_of(traceback.tb_frame) != PACKAGE:
            entries.append(traceback)
        traceback = traceback.tb_next
    made: TracebackType | None = None
    for entry in reversed(entries):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def short_tracebacks(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with errors that show no frame of this package."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return call
