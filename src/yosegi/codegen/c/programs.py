"""The ops that have programs of kernels of their own, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..._tensor.node import Call
from ..._tensor.role import Control
from . import elements, indexing, repeats
from .extremes import extreme
from .scans import scan
from .stages import Program, Setting

_PROGRAMS: Final[dict[str, Callable[[Call, Setting], Program]]] = {
    "gather": indexing.gather, "scatter": indexing.scatter, "scatter_add": indexing.scatter_add,
    "argmax": extreme, "argmin": extreme, "cumulative_sum": scan, "cumulative_prod": scan, "scan": repeats.repeat,
    **elements.ELEMENTS,
}  # fmt: skip
_INDEXED: Final = frozenset({"gather", "scatter", "scatter_add"})
_FAMILIES: Final = {
    **dict.fromkeys(_INDEXED, "indexing"), "argmax": "searches", "argmin": "searches", "searchsorted": "searches",
    "isin": "searches", "cumulative_sum": "scans", "cumulative_prod": "scans", "random_words": "random words",
    "philox": "random words", "scan": "repeats",
}  # fmt: skip
_AT_ONCE: Final = frozenset({"count", "spaced"})
"""Sources whose numbers are made when they are compiled: floats, to the bits of the reference."""


def is_computed_once(call: Call) -> bool:
    """Whether a call is a source whose values are made when it is compiled: those that kernels make are left out."""
    return call.op.name in _AT_ONCE and not _counts(call)


def _counts(call: Call) -> bool:
    attrs = call.attrs
    whole = all(isinstance(attrs.get(name), int) for name in ("start", "step"))
    return call.op.name == "count" and whole and call.spec.dtype.is_integer


def indexes(call: Call) -> bool:
    """Whether a call reads or writes elements at indices that are data."""
    return call.op.name in _INDEXED


def has_program(call: Call) -> bool:
    """Whether there are kernels for an op of this name."""
    return call.op.name in _PROGRAMS and not is_computed_once(call)


def refusal(call: Call) -> str | None:
    """Why there are no kernels for a call of an op that has them, or `None`."""
    if indexes(call):
        return indexing.refusal(call)
    if isinstance(call.op.role, Control):
        return repeats.refusal(call)
    if call.spec.size and not all(s.size for s in call.inputs):
        return f"{call.op.name} of an array without elements"
    return elements.refusal(call)


def program(call: Call, setting: Setting) -> Program:
    """The kernels of a call whose result has elements."""
    return _PROGRAMS[call.op.name](call, setting)


def family(call: Call) -> str | None:
    """The family of kernels that a call belongs to when a driver is qualified; `None` for a movement."""
    return _FAMILIES.get(call.op.name)
