"""The precision contract: what a kernel gives is compared with float64, and one that misses the tolerance is not used.

The error of a result is that of the whole array: the norm of all errors over the norm of all values (Frobenius) where
products have a part in it, the largest error over the largest value elsewhere. Of a result with many rows, some are
looked at, those with the largest inputs among them, and must be twice as good. Inputs change: a program that is not
known to repeat is looked at in every run, one that is (under `jit`) in its first, and then from time to time, so that
looking takes a small share of the time in all. Where nothing may depend on measurements, every run is looked at, and
the same rows of the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np

from .errors import ToleranceMissed, UserError
from .fuse import Region, multiplies
from .rows import rows_of
from .wide import wide_outputs

_SHARE: Final = 0.02
"""Of the time since the first run, what looking may take."""
_ROWS: Final = 16
"""Rows that are looked at."""
_MARGIN: Final = 0.5
"""How much of the tolerance the rows that were looked at may use up, for the sake of the others."""


class Guarded:
    """A kernel under contract. Raises `ToleranceMissed` instead of giving a result that was found to be too far off."""

    def __init__(
        self,
        kernel: Callable[..., tuple[Any, ...]],
        region: Region,
        to_host: Callable[[Any], Any],
        tolerance: float,
        *,
        is_fixed: bool = False,
    ) -> None:
        """`is_fixed`: whether a result is let through depends on the inputs alone, not on the clock or earlier runs."""
        self._kernel = kernel
        self._region = region
        self._to_host = to_host
        self._tolerance = tolerance
        self._is_fixed = is_fixed
        self._rows = rows_of(region)
        self._by_norm = any(multiplies(call) for call in region.calls)
        self._looks = 0
        self._first_run = self._looking = 0.0
        self.error: float | None = None
        """As it was found the last time."""

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        made = self._kernel(*data)
        now = perf_counter()
        if not self._looks:
            self._first_run = now
        if self._is_due(now):
            self._looks += 1
            try:
                self._look(data, made)
            finally:
                self._looking += perf_counter() - now
        return made

    def _is_due(self, now: float) -> bool:
        """Whether a run is one to look at."""
        if self._is_fixed or not self._looks or not self._region.repeats:
            return True
        return self._looking < _SHARE * (now - self._first_run)

    def _look(self, data: Sequence[Any], made: tuple[Any, ...]) -> None:
        given, got = [self._to_host(d) for d in data], [self._to_host(m) for m in made]
        share, picked = 1.0, self._picked(given)
        if picked is not None:
            share = _MARGIN
            try:
                wanted = wide_outputs(self._region, self._cut(self._region.inputs, given, picked))
                got = self._cut(self._region.outputs, got, picked)
            except UserError:  # a call in it names its shape
                share, self._rows = 1.0, None
        if share == 1.0:
            wanted = wide_outputs(self._region, given)
        errors = [relative_error(g, w, by_norm=self._by_norm) for g, w in zip(got, wanted, strict=True)]
        self.error = max(errors, default=0.0)
        if not self.error <= self._tolerance * share:
            found = "of its rows" if share < 1 else "of it"
            raise ToleranceMissed(
                f"{self._region.precision.value}: an error of {self.error:.1e} {found}, for a tolerance of "
                f"{self._tolerance:.1e}",
                made,
            )

    def _picked(self, given: Sequence[Any]) -> Any:
        """The rows to look at: those with the largest inputs, and others, every time others if that may be; `None` for
        all."""
        if not self._rows:
            return None
        cut = [(e, a) for e, a in zip(self._region.inputs, given, strict=True) if e in self._rows]
        if not cut or cut[0][1].shape[self._rows[cut[0][0]]] <= 4 * _ROWS:
            return None
        count = cut[0][1].shape[self._rows[cut[0][0]]]
        size = np.zeros(count)
        with np.errstate(all="ignore"):
            for entry, array in cut:
                axes = tuple(a for a in range(array.ndim) if a != self._rows[entry])
                size = np.maximum(size, np.max(np.abs(array), axis=axes, initial=0))
        largest = np.argpartition(size, -_ROWS // 2)[-_ROWS // 2 :]
        others = np.random.default_rng(1 if self._is_fixed else self._looks).choice(count, _ROWS // 2, replace=False)
        return np.unique([*largest, *others])

    def _cut(self, entries: Sequence[int], arrays: Sequence[Any], picked: Any) -> list[Any]:
        rows = self._rows
        assert rows is not None
        return [np.take(a, picked, axis=rows[e]) if e in rows else a for e, a in zip(entries, arrays, strict=True)]


def relative_error(got: Any, wanted: Any, *, by_norm: bool) -> float:
    """How far a result is from the truth, which is in a wider dtype; infinite if a number is another kind of number."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(got.dtype)
        finite = np.isfinite(rounded)
        alike = (got == rounded) | ((got != got) & (rounded != rounded))
        if not np.all(np.where(finite, np.isfinite(got), alike)):
            return float("inf")
        size = np.abs(wanted[finite]).astype(np.float64)
        error = np.abs(got[finite].astype(wanted.dtype) - wanted[finite]).astype(np.float64)
        if not error.any():
            return 0.0
        if by_norm:
            return float(np.sqrt(np.sum(np.square(error))) / np.sqrt(np.sum(np.square(size))))
        return float(error.max() / size.max())
