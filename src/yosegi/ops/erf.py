"""The error function in NumPy, which has none."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .._tensor.tensor import Array
from ..codegen.scalar.error_function import DOUBLE, SINGLE, Fit

_CHUNK: Final = 1 << 14  # elements whose intermediate results stay in a core's first caches


def error_function(x: Array) -> Array:
    """2/√π times the integral of exp(-t**2) from 0 to each element, for float32 and float64."""
    fit = DOUBLE if x.dtype == np.float64 else SINGLE
    flat = np.ravel(x)
    out = np.empty_like(flat)
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = _erf(flat[part], fit)
    return out.reshape(x.shape)


def _erf(x: Array, fit: Fit) -> Array:
    number = x.dtype.type
    size = np.minimum(np.abs(x), number(fit.end))
    square = size * size
    made = _polynomial(fit.near, square)
    made *= size
    made += size
    far = np.flatnonzero(size >= 1)
    if far.size:
        place = number(fit.scale) / (size[far] + number(2)) - number(fit.shift)
        made[far] = number(1) - np.exp(-square[far]) * _polynomial(fit.far, place)
    return np.copysign(made, x, out=made)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Any:
    result = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        result *= x
        result += x.dtype.type(c)
    return result
