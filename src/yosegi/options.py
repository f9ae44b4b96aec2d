"""Options: how evaluation goes, set for a block of code, by the environment, or left at the defaults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final


@dataclass(frozen=True, eq=False, slots=True)
class Options:
    """The options in force. `device`: the only device to use, or "auto" for the machine's chain."""

    device: str = "auto"


@cache
def _interned(device: str) -> Options:
    # One object per distinct set: plans are kept by the identity of their options.
    return Options(device)


_DEFAULT: Final = _interned(os.environ.get("YOSEGI_DEVICE", "auto"))
_current: ContextVar[Options] = ContextVar("options", default=_DEFAULT)

current = _current.get
"""The options in force here."""


@contextmanager
def options(*, device: Any = None) -> Iterator[Options]:
    """Evaluate what is evaluated inside this block under other options.

    >>> import yosegi as ys
    >>> with ys.options(device="cpu"):
    ...     float(ys.asarray([1.0, 2.0]).sum())
    3.0
    """
    chosen = replace(current(), **({} if device is None else {"device": str(device)}))
    token = _current.set(_interned(chosen.device))
    try:
        yield chosen
    finally:
        _current.reset(token)
