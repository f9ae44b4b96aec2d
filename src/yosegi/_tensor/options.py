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
from .precision import STRATEGIES, Policy, policy_of

ON_FALLBACK: Final = ("silent", "warn", "error")


@dataclass(frozen=True, eq=False, slots=True)
class Options:
    """The options in force.

    `device` names the device to use, "a:0+b:0" one with another that takes what it cannot do, "auto" the machine's
    chain. `on_fallback` says what happens when work does not run on the device it was meant for. `background` lets
    another device serve while a slow compiler is at work; without it, every first run waits for its code. `precision`
    says in which numbers products of float32 may be computed: "f32", "f16" for half precision (16-bit floats, sums in
    float32) where a device gains by it, or "adaptive" for whatever is fastest within `tol`, the error that a product
    or a reduction may have. `deterministic` lets nothing depend on measurements: the same program gives the same bits
    in every run, on the same devices.
    """

    device: str
    on_fallback: str
    background: bool
    precision: str
    tol: float
    deterministic: bool

    @property
    def policy(self) -> Policy:
        """The precisions that are admitted, and whether measurements choose among them."""
        return policy_of(self.precision, self.tol, self.deterministic)


@cache
def _interned(
    device: str, on_fallback: str, background: bool, precision: str, tol: float, deterministic: bool
) -> Options:
    # One object per distinct set: plans are kept by the identity of their options.
    if on_fallback not in ON_FALLBACK:
        raise ArgumentError(f"[options] expected on_fallback among {', '.join(ON_FALLBACK)}, got {on_fallback!r}")
    if precision not in STRATEGIES:
        raise ArgumentError(f"[options] expected precision among {', '.join(STRATEGIES)}, got {precision!r}")
    if not 0 < tol < float("inf"):
        raise ArgumentError(f"[options] expected a positive number for tol, got {tol!r}; 1e-3 is the default")
    return Options(device, on_fallback, background, precision, tol, deterministic)


def _as_tolerance(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"[options] expected a positive number for tol, got {value!r}") from None


_DEFAULT: Final = _interned(
    setting("YOSEGI_DEVICE", "auto"), "silent", setting("YOSEGI_BACKGROUND", True), setting("YOSEGI_PRECISION", "f32"),
    setting("YOSEGI_TOL", 1e-3), setting("YOSEGI_DETERMINISTIC", False),
)  # fmt: skip
_current: ContextVar[Options] = ContextVar("options", default=_DEFAULT)

DEVICE_CHECKS: Final[list[Callable[[str], Any]]] = []
"""What a device's name must pass; filled in where devices are known."""

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
) -> Iterator[Options]:
    """Evaluate what is evaluated inside this block under other options.

    >>> import yosegi as ys
    >>> with ys.options(device="cpu"):
    ...     float(ys.asarray([1.0, 2.0]).sum())
    3.0
    """
    if device is not None:
        for check in DEVICE_CHECKS:
            check(str(device))
    old = current()
    chosen = _interned(
        old.device if device is None else str(device),
        on_fallback or old.on_fallback,
        old.background if background is None else bool(background),
        precision or old.precision,
        old.tol if tol is None else _as_tolerance(tol),
        old.deterministic if deterministic is None else bool(deterministic),
    )
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)


def deterministic() -> AbstractContextManager[Options]:
    """Evaluate what is evaluated inside this block on the same devices, with the same kernels, in every run: devices
    get what they can in the order of the chain, nothing is measured, nothing changes later.

    >>> import yosegi as ys
    >>> with ys.deterministic():
    ...     float(ys.asarray([1.0, 2.0]).sum())
    3.0
    """
    return options(deterministic=True)
