"""Options: how evaluation goes, set for a block of code, by the environment, or left at the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ..errors import ArgumentError
from .environment import setting
from .precision import STRATEGIES, Policy, Precision
from .tracebacks import hide_frames

ON_FALLBACK: Final = ("silent", "warn", "error")
NAN_CHECKS: Final[list[Callable[[], Any]]] = []
"""Preparations for `check_nan`, each done once, when the option is first used: before that it costs nothing."""


_HALVES: Final = (Precision.F16, Precision.BF16)
_REDUCED: Final = (Precision.BF16, Precision.F16, Precision.TF32, Precision.BF16X2, Precision.BF16X3)


@cache
def policy_of(strategy: str, tolerance: float, is_fixed: bool = False) -> Policy:
    """The precisions that a strategy admits. Under a tolerance, those are tried that typically meet it."""
    if strategy == "adaptive":
        tried = tuple([p for p in _REDUCED if p.typical <= tolerance])
        return Policy((*tried, Precision.F64), tolerance, is_fixed)
    return Policy(_HALVES if strategy == "f16" else (), is_fixed=is_fixed)


@dataclass(frozen=True, eq=False, slots=True)
class Options:
    """The options in force. See `options` for their meaning."""

    device: str
    on_fallback: str
    background: bool
    precision: str
    tol: float
    deterministic: bool
    check_nan: bool

    @property
    def policy(self) -> Policy:
        """The precisions that are admitted, and whether measurements choose among them."""
        return policy_of(self.precision, self.tol, self.deterministic)


@cache
def _interned(
    device: str, on_fallback: str, background: bool, precision: str, tol: float, deterministic: bool, check_nan: bool
) -> Options:
    # One object per distinct set: plans are kept by the identity of their options.
    if on_fallback not in ON_FALLBACK:
        raise ArgumentError(f"[options] expected on_fallback among {', '.join(ON_FALLBACK)}, got {on_fallback!r}")
    if precision not in STRATEGIES:
        raise ArgumentError(f"[options] expected precision among {', '.join(STRATEGIES)}, got {precision!r}")
    if not 0 < tol < float("inf"):
        raise ArgumentError(f"[options] expected a positive number for tol, got {tol!r}; 1e-3 is the default")
    while check_nan and NAN_CHECKS:
        NAN_CHECKS.pop()()
    return Options(device, on_fallback, background, precision, tol, deterministic, check_nan)


def _as_bool(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ArgumentError(f"[options] expected {name}=True or {name}=False, got {value!r}")
    return value


def _as_tolerance(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"[options] expected a positive number for tol, got {value!r}") from None


_DEFAULT: Final = _interned(
    setting("YOSEGI_DEVICE", "auto"), "silent", setting("YOSEGI_BACKGROUND", True), setting("YOSEGI_PRECISION", "f32"),
    setting("YOSEGI_TOL", 1e-3), setting("YOSEGI_DETERMINISTIC", False),
    False,
)  # fmt: skip
_current: ContextVar[Options] = ContextVar("options", default=_DEFAULT)

DEVICE_CHECKS: Final[list[Callable[[str], Any]]] = []
"""The check of a device's name; filled in where devices are known."""

current = _current.get
"""The options in force here."""


@contextmanager
def options(
    *,
    device: Any = None,
    on_fallback: str | None = None,
    background: bool | None = None,
    precision: str | None = None,
    tol: float | None = None,
    deterministic: bool | None = None,
    check_nan: bool | None = None,
) -> Iterator[Options]:
    """Set options for a block of code, or as a decorator for a function.

    Options that are not given keep their values. The environment variables `YOSEGI_DEVICE`, `YOSEGI_BACKGROUND`,
    `YOSEGI_PRECISION`, `YOSEGI_TOL` and `YOSEGI_DETERMINISTIC` set the defaults.

    Parameters
    ----------
    device : str or Device
        "auto": place each operation by measured cost. A name such as "cpu": use this device, and the host for
        operations that it does not support. "a:0+b:0": prefer the first device, then the second, then the host.
    on_fallback : {"silent", "warn", "error"}
        The reaction when work does not run on the named device. "warn" emits `FallbackWarning`, "error" raises the
        device's failure.
    background : bool
        True: another device computes while a slow compiler works. False: the first run waits for its code.
    precision : {"f32", "f16", "adaptive"}
        The arithmetic inside products of float32 tensors. "f32": float32. "f16": 16-bit floats with sums in float32,
        where a device gains by it. "adaptive": the fastest precision within `tol`.
    tol : float
        The relative error (Frobenius norm) that a product or a reduction may have under "adaptive".
    deterministic : bool
        True: nothing depends on measurements, and the same program gives the same bits in every run.
    check_nan : bool
        True: every operation runs by itself, also in jitted functions, and its result is checked. `NotFinite` names the
        first operation that makes a NaN or an infinity of inputs without one, its module and the line.

    Yields
    ------
    Options
        The options in force inside the block.

    Raises
    ------
    ArgumentError
        If a value is not valid, or if this machine has no such device.

    Examples
    --------
    >>> import yosegi as ys
    >>> with ys.options(device="cpu"):
    ...     float(ys.asarray([1.0, 2.0]).sum())
    3.0
    """
    old = current()
    try:
        if device is not None:
            for check in DEVICE_CHECKS:
                check(str(device))
        chosen = _interned(
            old.device if device is None else str(device),
            old.on_fallback if on_fallback is None else on_fallback,
            old.background if background is None else _as_bool("background", background),
            old.precision if precision is None else precision,
            old.tol if tol is None else _as_tolerance(tol),
            old.deterministic if deterministic is None else _as_bool("deterministic", deterministic),
            old.check_nan if check_nan is None else _as_bool("check_nan", check_nan),
        )
    except ArgumentError as error:
        hide_frames(error)
        raise
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)


def deterministic() -> AbstractContextManager[Options]:
    """Make every run of a block use the same devices and the same kernels.

    Devices get the operations that they support in the order of the chain. Nothing is measured, and no plan changes
    later. The same program gives the same bits on the same machine.

    Returns
    -------
    context manager
        It can also decorate a function. It equals `options(deterministic=True)`.

    Examples
    --------
    >>> import yosegi as ys
    >>> with ys.deterministic():
    ...     float(ys.asarray([1.0, 2.0]).sum())
    3.0
    """
    return options(deterministic=True)
