"""The ops that are programs of kernels: the table of their writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..._tensor.node import Call
from ..._tensor.role import Control, Indexing, Progression
from . import elements, indexing, repeats
from .cumulative import scan
from .extremes import extreme
from .stages import KernelProgram, Setting


def _of_nothing(call: Call) -> str | None:
    if call.spec.size and not all(s.size for s in call.inputs):
        return f"{call.op.name} of an array without elements"
    return None


@dataclass(frozen=True, slots=True)
class _Row:
    """An op that is a program."""

    write: Callable[[Call, Setting], KernelProgram]
    family: str | None = None
    """The family of kernels that a driver is qualified for; `None` for movements."""
    refusal: Callable[[Call], str | None] = lambda call: None
    """The reason against a call, or `None`."""


_ROWS: Final[dict[str, _Row]] = {
    "gather": _Row(indexing.gather, "indexing", indexing.refusal),
    "scatter": _Row(indexing.scatter, "indexing", indexing.refusal),
    "scatter_add": _Row(indexing.scatter_add, "indexing", indexing.refusal),
    "argmax": _Row(extreme, "searches"), "argmin": _Row(extreme, "searches"),
    "searchsorted": _Row(elements.searchsorted, "searches"),
    "isin": _Row(elements.isin, "searches", elements.isin_refusal),
    "cumulative_sum": _Row(scan, "scans"), "cumulative_prod": _Row(scan, "scans"),
    "random_words": _Row(elements.random_words, "random words"), "philox": _Row(elements.philox, "random words"),
    "tril": _Row(elements.triangle), "triu": _Row(elements.triangle), "on_diagonal": _Row(elements.on_diagonal),
    "diagonal_ones": _Row(elements.diagonal_ones), "count": _Row(elements.count),
    "scan": _Row(repeats.repeat, "repeats", repeats.refusal),
}  # fmt: skip


def is_computed_once(call: Call) -> bool:
    """True for a source whose values are made when it is compiled, to the bits of the reference: a float source."""
    return isinstance(call.op.role, Progression) and not counts(call)


def counts(call: Call) -> bool:
    """True for a source of integers that kernels compute from their indices."""
    whole = all(isinstance(call.attrs.get(name), int) for name in ("start", "step"))
    return call.op.role == Progression(is_counted=True) and whole and call.spec.dtype.is_integer


def indexes(call: Call) -> bool:
    """True for a call that reads or writes elements at indices that are data."""
    return isinstance(call.op.role, Indexing)


def has_program(call: Call) -> bool:
    """True if there are kernels for the op of a call."""
    return call.op.name in _ROWS and not is_computed_once(call)


def refusal(call: Call) -> str | None:
    """The reason why there are no kernels for a call of an op that has them, or `None`."""
    reason = _ROWS[call.op.name].refusal(call)
    return reason if reason is not None or indexes(call) or isinstance(call.op.role, Control) else _of_nothing(call)


def program(call: Call, setting: Setting) -> KernelProgram:
    """The kernels of a call whose result has elements."""
    return _ROWS[call.op.name].write(call, setting)


def family(call: Call) -> str | None:
    """The family of kernels that a call belongs to when a driver is qualified; `None` for a movement."""
    row = _ROWS.get(call.op.name)
    return None if row is None else row.family
