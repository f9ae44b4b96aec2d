"""NumPy's other spellings of functions that the Array API standard names differently: one table of aliases."""

from __future__ import annotations

from .creation import asarray
from .elementwise import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_right_shift,
    conj,
    divide,
    pow,
    remainder,
    round,
    trunc,
)
from .numeric import deg2rad, rad2deg
from .reduce import max, min
from .shape import concat

absolute = abs
amax = max
amin = min
arccos = acos
arccosh = acosh
arcsin = asin
arcsinh = asinh
arctan = atan
arctan2 = atan2
arctanh = atanh
around = round
asanyarray = asarray
ascontiguousarray = asarray
asfortranarray = asarray
bitwise_not = bitwise_invert
concatenate = concat
conjugate = conj
degrees = rad2deg
fix = trunc
invert = bitwise_invert
left_shift = bitwise_left_shift
mod = remainder
power = pow
radians = deg2rad
right_shift = bitwise_right_shift
rint = round
true_divide = divide
