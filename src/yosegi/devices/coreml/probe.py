"""Functions for child processes, which qualify Core ML and compile while it is not trusted."""

from __future__ import annotations

from functools import cache

from ..._graph.portable import Plain
from ..model import precisions, probe
from .device import CoreML

_device = cache(CoreML)


def wrong_rows(dtype: str) -> dict[str, str]:
    """The rows of the op table that it computes wrongly for a dtype, and how."""
    return probe.wrong_rows(_device(), dtype)


def prove(plain: Plain, place: str) -> None:
    """Compile a region, run it once, and leave the compiled model in a folder. Raises if the result is wrong."""
    probe.prove(_device(), plain, place)


def reason_against(precision: str) -> str | None:
    """Why a precision, by its name, is not to be used, or `None` if it is right and faster."""
    return precisions.reason_against(_device(), precision)
