"""From evenly distributed numbers to other distributions, in tensor operations.

Methods with rejection make a fixed number of proposals, for a graph has no loops: more than enough that all of them
are rejected with a probability below 1e-10, in which case the result is the distribution's centre.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log as _ln
from math import pi
from math import sqrt as _root
from typing import Final

from .._tensor.tensor import Tensor
from .activation import erf
from .elementwise import abs, exp, floor, log, log1p, logical_and, logical_not, logical_or, maximum, pow, sqrt, where

Draw = Callable[[], Tensor]
"""A supply of draws of one shape: each call gives new ones."""

_PROPOSALS: Final = 12
_FEW: Final = 10.0
"""Up to this mean, counts are found by adding up probabilities."""
_STEPS: Final = 60
"""So many probabilities hold all but 1e-20 of a count with such a mean."""

_CENTRAL: Final = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL: Final = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def inverse_erf(y: Tensor) -> Tensor:
    """The number whose error function is y: Giles' approximation, then three steps of Newton's method."""
    inside = where(abs(y) < 1, y, 0)
    w = -log1p(-inside * inside)
    central, tail = w - 2.5, sqrt(where(w < 5, 5, w)) - 3
    first, second = w * 0 + _CENTRAL[0], w * 0 + _TAIL[0]
    for a, b in zip(_CENTRAL[1:], _TAIL[1:], strict=True):
        first, second = first * central + a, second * tail + b
    x = where(w < 5, first, second) * inside
    for _ in range(3):
        x = x - (erf(x) - inside) * exp(x * x) * (_root(pi) / 2)
    return where(abs(y) < 1, x, where(y > 0, float("inf"), -float("inf")))


def gamma(shape: Tensor, normal: Draw, uniform: Draw) -> Tensor:
    """Gamma-distributed numbers of scale 1 (Marsaglia and Tsang, 2000). `uniform` draws from (0, 1]."""
    small = shape < 1
    d = where(small, shape + 1, shape) - 1 / 3
    c = 1 / sqrt(9 * d)
    made, accepted = d, None
    for _ in range(_PROPOSALS):
        x, u = normal(), uniform()
        base = 1 + c * x
        v = maximum(base, 1e-30) ** 3
        fits = logical_and(base > 0, log(u) < 0.5 * x * x + d * (1 - v + log(v)))
        fresh = fits if accepted is None else logical_and(fits, logical_not(accepted))
        made = where(fresh, d * v, made)
        accepted = fits if accepted is None else logical_or(accepted, fits)
    return where(small, made * pow(uniform(), 1 / where(small, shape, 1)), made)


def log_factorial(k: Tensor) -> Tensor:
    """log(k!) of whole numbers as floats, by Stirling's series nine places further on."""
    product, x = k * 0 + 1.0, k + 1
    for _ in range(9):
        product, x = product * x, x + 1
    series = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5) - 1 / (1680 * x**7)
    return (x - 0.5) * log(x) - x + 0.5 * _ln(2 * pi) + series - log(product)


def poisson(mean: Tensor, uniform: Draw) -> Tensor:
    """Poisson-distributed counts as floats: small means by inversion, others by rejection (Hörmann, 1993)."""
    few = mean < _FEW
    low, high = where(few, mean, 1.0), where(few, _FEW, mean)
    by_search = _searched(uniform(), exp(-low), lambda p, k: p * low / k)

    b = 0.931 + 2.53 * sqrt(high)
    a = -0.059 + 0.02483 * b
    scale, limit = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
    made, accepted = floor(high), None
    for _ in range(_PROPOSALS):
        u, v = uniform() - 0.5, uniform()
        us = 0.5 - abs(u)
        k = floor((2 * a / maximum(us, 1e-12) + b) * u + high + 0.43)
        at_once = logical_and(us >= 0.07, v <= limit)
        safe = maximum(k, 0)
        squeezed = log(v) + log(scale) - log(a / maximum(us * us, 1e-24) + b)
        exactly = squeezed <= safe * log(high) - high - log_factorial(safe)
        fits = logical_and(k >= 0, logical_or(at_once, logical_and(logical_or(us >= 0.013, v <= us), exactly)))
        fresh = fits if accepted is None else logical_and(fits, logical_not(accepted))
        made = where(fresh, k, made)
        accepted = fits if accepted is None else logical_or(accepted, fits)
    return where(few, by_search, made)


def binomial(n: Tensor, p: Tensor, uniform: Draw) -> Tensor:
    """Binomially distributed counts as floats: few by inversion, others by rejection (Hörmann, 1993)."""
    flipped = p > 0.5
    p = where(flipped, 1 - p, p)
    few = n * p < _FEW
    q = where(few, p, 0.1)
    by_search = _searched(uniform(), exp(n * log1p(-q)), lambda c, k: c * maximum(n - k + 1, 0) / k * (q / (1 - q)))

    m, p_many = where(few, 200.0, n), where(few, 0.25, p)
    deviation = sqrt(m * p_many * (1 - p_many))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p_many
    c, limit = m * p_many + 0.5, 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * deviation
    odds = log(p_many / (1 - p_many))
    mode = floor((m + 1) * p_many)
    at_mode = log_factorial(mode) + log_factorial(m - mode)
    made, accepted = mode, None
    for _ in range(_PROPOSALS):
        u, v = uniform() - 0.5, uniform()
        us = 0.5 - abs(u)
        k = floor((2 * a / maximum(us, 1e-12) + b) * u + c)
        inside = logical_and(k >= 0, k <= m)
        safe = where(inside, k, 0)
        scaled = log(v * alpha / (a / maximum(us * us, 1e-24) + b))
        exactly = scaled <= at_mode - log_factorial(safe) - log_factorial(m - safe) + (safe - mode) * odds
        fits = logical_and(inside, logical_or(logical_and(us >= 0.07, v <= limit), exactly))
        fresh = fits if accepted is None else logical_and(fits, logical_not(accepted))
        made = where(fresh, k, made)
        accepted = fits if accepted is None else logical_or(accepted, fits)
    count = where(few, by_search, made)
    return where(flipped, n - count, count)


def _searched(u: Tensor, first: Tensor, following: Callable[[Tensor, float], Tensor]) -> Tensor:
    """How many of the running sums of probabilities are below u."""
    chance, total, count = first, first, u * 0
    for k in range(1, _STEPS + 1):
        count = count + (u > total).astype(u.dtype)
        chance = following(chance, float(k))
        total = total + chance
    return count


__all__ = ["Draw", "binomial", "gamma", "inverse_erf", "log_factorial", "poisson"]
