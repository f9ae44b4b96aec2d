"""The comparison of all measurements: a result and its reference, within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .._tensor.dtype import as_dtype, float_info

_STRAY: Final = 1e-5
"""The share of elements that may differ: where a function has a step, a sum may fall to either side of it."""
_NATIVE: Final = (np.dtype(np.float32), np.dtype(np.float64))
"""Dtypes that are compared as they are first: a comparison in float64 takes ten times as long."""
_DIGITS: Final = 0.6
"""The share of a dtype's digits in which the results of two plans must agree."""


def wrong_elements(made: Any, wanted: Any, allowed: Any) -> Any:
    """A mask of the elements that differ by more than `allowed`, a number or an array. Integers and elements that are
    not finite must be equal."""
    if wanted.dtype.kind in "biu":
        return made != wanted
    if wanted.dtype in _NATIVE and not np.ndim(allowed):
        with np.errstate(invalid="ignore", over="ignore"):
            if np.max(np.abs(made - wanted), initial=0.0) <= allowed:  # nearly always; false where one is not finite
                return np.zeros(wanted.shape, np.bool_)
    in_float64 = np.complex128 if wanted.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # memory that nobody wrote may hold NaNs that signal
        made, reference = made.astype(in_float64), wanted.astype(in_float64)
        close = np.abs(made - reference) <= allowed
    same = (made == reference) | (np.isnan(made) & np.isnan(reference))
    return ~np.where(np.isfinite(reference), close, same)


def largest(array: Any) -> float:
    """The largest magnitude of the finite elements of an array; 0 of integers, which are compared exactly."""
    if array.dtype.kind in "biu":
        return 0.0
    if array.dtype in _NATIVE and np.isfinite(most := np.max(np.abs(array), initial=0.0)):
        return float(most)
    magnitudes = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
    return float(np.max(magnitudes[np.isfinite(magnitudes)], initial=0.0))


def _eps(array: Any) -> float:
    dtype = as_dtype(array.dtype)
    return float_info(dtype).eps if dtype.is_inexact else 0.0


def disagreement(expected: Sequence[Any], got: Sequence[Any], roundings: float) -> str | None:
    """The reason why results are not the expected ones, or `None`.

    Numbers may differ by so many roundings of the largest finite one; a few elements may differ by more.
    """
    if len(got) != len(expected):
        return f"it gave {len(got)} results, not {len(expected)}"
    for number, (mine, reference) in enumerate(zip(got, expected, strict=True)):
        made, wanted = np.asarray(mine), np.asarray(reference)
        if (made.shape, made.dtype) != (wanted.shape, wanted.dtype):
            return f"result {number} was {made.dtype}{made.shape}, not {wanted.dtype}{wanted.shape}"
        wrong = wrong_elements(made, wanted, roundings * _eps(wanted) * largest(wanted))
        if np.count_nonzero(wrong) > _STRAY * wrong.size:
            place = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            count = np.count_nonzero(wrong)
            return f"{count} elements of result {number} were wrong: {made[place]} at {place}, not {wanted[place]}"
    return None


def agree(ours: Any, theirs: Any, slack: float = 0.0) -> bool:
    """True if the results of two plans are equal as far as rounding, and `slack`, allow.

    >>> agree(np.float32([1, 2]), np.float32([1, 2.00001])), agree(np.float32([1, 2]), np.float32([1, 2.1]))
    (True, False)
    """
    if isinstance(ours, tuple):
        return all(agree(a, b, slack) for a, b in zip(ours, theirs, strict=True))
    tolerance = max(slack, _eps(ours) ** _DIGITS)
    return not np.any(wrong_elements(theirs, ours, tolerance * largest(ours)))
