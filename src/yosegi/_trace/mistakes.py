"""Errors of traced functions that read a value: the call, the line, and the code to write instead."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Final

from .._tensor.tracebacks import PACKAGE, function_of, package_of
from ..errors import TraceError

_STATIC: Final = {
    "jit": "name the argument in static_argnames",
    "vmap": "give the argument the axis None",
    "eval_shape": "pass it as a Python number",
}
"""For each transform, the argument that makes another argument readable."""


@dataclass(frozen=True, slots=True)
class _Cause:
    """A way to read a value. The texts may name the `function` called, and how an argument is made `static`."""

    readers: frozenset[str]
    """Functions of this package."""
    got: str
    fix: str
    is_direct: bool = False
    """True if the user has called one of the readers; false if a reader was called by another function."""


def _cause(readers: str, got: str, fix: str, *, is_direct: bool = False) -> _Cause:
    return _Cause(frozenset(readers.split()), got, fix, is_direct)


_CAUSES: Final = (
    _cause("resolve", "a boolean mask as an index", "its shape depends on values: use ys.where(mask, x, 0)"),
    _cause("nonzero argwhere flatnonzero unique_all unique_values unique_counts unique_inverse compress extract",
           "{function}(), whose shape depends on values", "use ys.where and masks of a fixed shape"),
    _cause("__format__", "a format such as {{x:.2f}}", "use ys.debug.print"),
    _cause("as_index _hashable", "{function}() with a traced tensor for a length, an axis or a place",
           "take it from a shape (x.shape[0]), or {static}"),
    _cause("__index__", "range(), a slice or another use as a Python integer",
           "take it from a shape (x.shape[0]), use ys.arange and ys.take, or {static}"),
    _cause("__contains__", "`in`", "use ys.any(x == value)", is_direct=True),
    _cause("__bool__", "`if`, `while`, `and`, `or`, `not` or bool()", "use ys.where(condition, a, b), or {static}",
           is_direct=True),
    _cause("__float__ __int__ __complex__ item", "{function}()", "keep it a tensor, or {static}", is_direct=True),
    _cause("__array__ __buffer__ __dlpack__ __reduce__", "np.asarray() or another conversion",
           "use Yosegi's functions in place of NumPy's", is_direct=True),
    _cause("numpy tolist tobytes", "{function}()", "use Yosegi's functions in place of NumPy's", is_direct=True),
)  # fmt: skip
_OTHER: Final = _cause("", "{function}() with a traced tensor whose value it needs", "{static}")


def value_needed(transform: str) -> TraceError:
    """The error of a function that is being traced and reads a value. The call that reads it is on the stack."""
    frames, line = _frames()
    names = {frame.f_code.co_name for frame in frames}
    function = function_of(frames[-1])
    fitting = [c for c in _CAUSES if not c.readers.isdisjoint({function} if c.is_direct else names)]
    cause = fitting[0] if fitting else _OTHER
    texts = {"function": function.strip("_"), "static": _STATIC.get(transform, "close over a Python number")}
    got, fix = cause.got.format(**texts), cause.fix.format(**texts)
    return TraceError(f"[{transform}] expected no values of traced tensors to be read, got {got}{line}; {fix}")


def _frames() -> tuple[list[FrameType], str]:
    """The frames of this package, the one that the user has called last, and the user's line."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and package_of(frame) in (PACKAGE, "numpy"):
        if package_of(frame) == PACKAGE:
            frames.append(frame)
        frame = frame.f_back
    return frames, "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
