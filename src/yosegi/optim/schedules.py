"""Schedules: the learning rate as a function of the number of the step.

A schedule takes the step as a tensor and returns a tensor. It is part of the graph of a jitted step, so that a new rate
needs no new plan. Steps are counted from 0, as by PyTorch's schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi
from typing import Final

from .._tensor.dtype import float32
from .._tensor.tensor import Tensor
from ..errors import ArgumentError
from ..ops.creation import asarray
from ..ops.elementwise import clip, cos, floor, where

Schedule = Callable[[Tensor], Tensor]
Rate = float | Tensor | Schedule


def rate_at(rate: Rate, step: Tensor) -> Tensor | float:
    """The rate of a step."""
    return rate(step) if callable(rate) else rate


def _steps(step: Tensor) -> Tensor:
    return asarray(step).astype(float32)


def _progress(step: Tensor, first: float, last: float) -> Tensor:
    """The progress from 0 at the first step to 1 at the last, constant outside."""
    return clip((_steps(step) - first) / (last - first), 0.0, 1.0)


def _cosine(progress: Tensor) -> Tensor:
    """The progress along half a wave, from 0 to 1."""
    return (1 - cos(progress * pi)) / 2


_CURVES: Final[dict[str, Schedule]] = {"cosine": _cosine, "linear": lambda progress: progress}


def _between(start: float, end: float, weight: Tensor) -> Tensor:
    return start + (end - start) * weight


def step_decay(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """Multiply the rate by a factor every so many steps: PyTorch's `StepLR`.

    Parameters
    ----------
    lr : float
        The first rate.
    every : int
        The steps between two changes.
    factor : float
        The factor.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.step_decay(1.0, every=10, factor=0.5)
    >>> [float(rate(step)) for step in (0, 9, 10, 20)]
    [1.0, 1.0, 0.5, 0.25]
    """
    return lambda step: lr * factor ** floor(_steps(step) / every)


def exponential_decay(lr: float, factor: float) -> Schedule:
    """Multiply the rate by a factor in every step: PyTorch's `ExponentialLR`.

    Parameters
    ----------
    lr : float
        The first rate.
    factor : float
        The factor.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.exponential_decay(1.0, 0.5)
    >>> [float(rate(step)) for step in range(3)]
    [1.0, 0.5, 0.25]
    """
    return step_decay(lr, 1, factor)


def linear(start: float, end: float, steps: int) -> Schedule:
    """Go from one rate to another along a line, and stay there: PyTorch's `LinearLR`.

    Parameters
    ----------
    start, end : float
        The first and the last rate.
    steps : int
        The steps between them.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.linear(0.0, 1.0, steps=4)
    >>> [float(rate(step)) for step in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return lambda step: _between(start, end, _progress(step, 0, steps))


def cosine_decay(lr: float, steps: int, end: float = 0.0) -> Schedule:
    """Go from one rate to another along half a cosine wave, and stay there: PyTorch's `CosineAnnealingLR`.

    Parameters
    ----------
    lr : float
        The first rate.
    steps : int
        The steps to the last rate.
    end : float
        The last rate.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.cosine_decay(1.0, steps=10)
    >>> [round(float(rate(step)), 4) for step in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """
    return lambda step: _between(lr, end, _cosine(_progress(step, 0, steps)))


def one_cycle(
    lr: float, steps: int, *, warmup: float = 0.3, curve: str = "cosine", start: float = 25.0, end: float = 1e4
) -> Schedule:
    """Rise to the highest rate, then fall far below the first one: PyTorch's `OneCycleLR`.

    Parameters
    ----------
    lr : float
        The highest rate.
    steps : int
        The steps of the whole cycle.
    warmup : float
        The part of the steps in which the rate rises.
    curve : {"cosine", "linear"}
        The form of both parts.
    start : float
        The highest rate divided by the first.
    end : float
        The first rate divided by the last.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.one_cycle(1.0, steps=10, warmup=0.5)
    >>> [round(float(rate(step)), 4) for step in (0, 4, 9)]
    [0.04, 1.0, 0.0]
    """
    if curve not in _CURVES:
        raise ArgumentError(f"[one_cycle] expected curve among {', '.join(_CURVES)}, got {curve!r}")
    form, top, first = _CURVES[curve], warmup * steps - 1, lr / start

    def rate(step: Tensor) -> Tensor:
        rise = _between(first, lr, form(_progress(step, 0, top)))
        return where(_steps(step) <= top, rise, _between(lr, first / end, form(_progress(step, top, steps - 1))))

    return rate


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Follow schedules one after another: PyTorch's `SequentialLR`.

    Parameters
    ----------
    schedules : sequence of callable
        The schedules. Each counts its steps from 0.
    boundaries : sequence of int
        The steps at which the second schedule and the following ones begin.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.join([ys.optim.linear(0.0, 1.0, 2), ys.optim.cosine_decay(1.0, 2)], [2])
    >>> [round(float(rate(step)), 4) for step in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if len(boundaries) != len(schedules) - 1:
        raise ArgumentError(f"[join] expected {len(schedules) - 1} boundaries, got {len(boundaries)}")

    def rate(step: Tensor) -> Tensor:
        made = schedules[0](step)
        for schedule, first in zip(schedules[1:], boundaries, strict=True):
            made = where(asarray(step) < first, made, schedule(asarray(step) - first))
        return made

    return rate


def warmup(schedule: Schedule, steps: int, start: float = 0.0) -> Schedule:
    """Rise along a line to the first rate of a schedule, then follow it.

    Parameters
    ----------
    schedule : callable
        The schedule. Its steps count from the end of the warm-up.
    steps : int
        The steps of the warm-up.
    start : float
        The first rate.

    Returns
    -------
    callable
        A function of the step that returns the rate.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.warmup(ys.optim.cosine_decay(1.0, 2), steps=2)
    >>> [round(float(rate(step)), 4) for step in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    first = float(schedule(asarray(0)))
    return join([linear(start, first, steps), schedule], [steps])
