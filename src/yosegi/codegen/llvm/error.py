"""erf, by the polynomials that all share."""

from __future__ import annotations

from ..scalar.error_function import DOUBLE, SINGLE
from .exponential import exp
from .number import Number, at_most, muladd, polynomial, select


def erf(x: Number) -> Number:
    """2/√π times the integral of exp(-t**2) from 0 to x."""
    fit = SINGLE if x.is_single else DOUBLE
    size = at_most(abs(x), fit.end)
    square = size * size
    near = muladd(size, polynomial(square, fit.near), size)
    place = fit.scale / (size + 2.0) - fit.shift
    far = muladd(-exp(-square), polynomial(place, fit.far), 1.0)
    return select(size < 1.0, near, far).signed_as(x)
