"""The environment variables: what each may say, and what it says.

All of them are checked when the package is imported: a mistake is one error, with the variable's name in it. They are
read when they are needed. An empty variable is one that is not set.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Any, Final

from ..errors import ArgumentError
from .precision import STRATEGIES

_FLAGS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_TRACEBACKS: Final = ("short", "full")
_ENGINES: Final = ("mpi", "off")
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
                 "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def _flag(text: str) -> bool:
    return _FLAGS[text.lower()]


def _threads(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _count(text: str) -> int:
    if int(text) < 0:
        raise ValueError
    return int(text)


def _positive(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise ValueError
    return float(text)


def _precision(text: str) -> str:
    return STRATEGIES[STRATEGIES.index(text)]


def _traceback(text: str) -> str:
    return _TRACEBACKS[_TRACEBACKS.index(text)]


def _engine(text: str) -> str:
    return _ENGINES[_ENGINES.index(text)]


def _level(text: str) -> int:
    level: int = getattr(logging, _LEVELS[_LEVELS.index(text.lower())].upper())
    return level


def _limits(text: str) -> tuple[tuple[str, int], ...]:
    """Names of devices, or "" for all, and bytes.

    >>> _limits("1e6, a:0=2GiB")
    (('', 1000000), ('a:0', 2147483648))
    """
    parts = [part.strip().rpartition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() or not equals for name, equals, _ in parts):
        raise ValueError
    return tuple([(name.strip(), _bytes(size)) for name, _, size in parts])


def _bytes(text: str) -> int:
    digits = text.strip().upper()
    number = digits.rstrip("BKMGTI")
    size = int(float(number) * _UNITS[digits[len(number) :]])
    if size < 0:
        raise ValueError
    return size


_A_FLAG: Final = (_flag, "0 or 1")
_SETTINGS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "YOSEGI_BACKGROUND": _A_FLAG,
    "YOSEGI_CALIBRATE": _A_FLAG,
    "YOSEGI_CHECK": _A_FLAG,
    "YOSEGI_DEADLINE": (_positive, "a positive number of seconds"),
    "YOSEGI_DETERMINISTIC": _A_FLAG,
    "YOSEGI_DISABLE_GPU": _A_FLAG,
    "YOSEGI_DISTRIBUTED": (_engine, f"one of {', '.join(_ENGINES)}"),
    "YOSEGI_ISOLATE": _A_FLAG,
    "YOSEGI_LOG": (_level, f"one of {', '.join(_LEVELS)}"),
    "YOSEGI_MEMORY_LIMIT": (_limits, "a size such as 512MB, or name=size pairs with commas between"),
    "YOSEGI_PRECISION": (_precision, f"one of {', '.join(STRATEGIES)}"),
    "YOSEGI_SPARES": (_count, "a whole number"),
    "YOSEGI_THREADS": (_threads, "a whole number of at least 1"),
    "YOSEGI_TOL": (_positive, "a positive number such as 1e-3"),
    "YOSEGI_TRACEBACK": (_traceback, "short or full"),
}
"""How each variable is read, and what it should be. Those that may be any text are not here."""


def setting(name: str, default: Any = None) -> Any:
    """The value of an environment variable; `default` if it is not set, or empty.

    >>> setting("YOSEGI_NOT_SET", "nothing")
    'nothing'
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if name not in _SETTINGS:
        return text
    parse, expected = _SETTINGS[name]
    try:
        return parse(text)
    except (ValueError, KeyError, OverflowError):
        raise ArgumentError(
            f"[options] expected {name} to be {expected}, got {text!r}; correct the environment variable, or unset it"
        ) from None


def is_measuring() -> bool:
    """False with YOSEGI_CALIBRATE=0: nothing is measured, and the priors decide."""
    return bool(setting("YOSEGI_CALIBRATE", True))


def memory_limit(device: str) -> int | None:
    """The bytes that a device may use by YOSEGI_MEMORY_LIMIT; `None` without a limit.

    The last of several sizes for the device counts.
    """
    names = ("", device, device.partition(":")[0])
    sizes = [size for name, size in setting("YOSEGI_MEMORY_LIMIT", ()) if name in names]
    return sizes[-1] if sizes else None


def check() -> None:
    """Raise `ArgumentError` if any variable says what it cannot."""
    for name in _SETTINGS:
        setting(name)


check()
