"""Functions that compilers lack, made of those that they have. `number(o, value, like)` is a number as a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Number = Callable[[Any, float, Any], Any]


def expm1(o: Any, x: Any, exp: Callable[[Any, Any], Any], number: Number) -> Any:
    """Near 0 by the tangent of half the angle: 2t / (1 - t), in which no digits cancel."""
    t, one = o.tanh(o.multiply(x, number(o, 0.5, x))), number(o, 1, x)
    near = o.divide(o.add(t, t), o.subtract(one, t))
    return o.select(o.less(o.abs(x), one), near, o.subtract(exp(o, x), one))


def log1p(o: Any, x: Any, number: Number) -> Any:
    """The logarithm of 1 + x as it is rounded, and what the rounding took."""
    one = number(o, 1, x)
    whole = o.add(x, one)
    made = o.log(whole)
    lost = o.divide(o.subtract(o.subtract(whole, one), x), whole)
    is_finite = o.less(o.abs(made), number(o, float("inf"), x))
    return o.subtract(made, o.select(is_finite, lost, number(o, 0, x)))


def logaddexp(o: Any, a: Any, b: Any, is_nan: Callable[[Any, Any], Any], number: Number) -> Any:
    """The larger, and the logarithm of the rest."""
    larger = o.select(o.less_equal(b, a), a, b)
    apart = o.select(o.equal(a, b), number(o, 0, a), o.negative(o.abs(o.subtract(a, b))))  # infinities are not apart
    # With the selection in between a compiler does not see log(exp(x) + 1), of which it might make a softplus without
    # digits.
    share = o.select(is_nan(o, apart), apart, o.exp(apart))
    return o.add(larger, log1p(o, share, number))


def truncated(o: Any, x: Any, number: Number) -> Any:
    """Rounded towards 0."""
    return o.select(o.less(x, number(o, 0, x)), o.ceiling(x), o.floor(x))
