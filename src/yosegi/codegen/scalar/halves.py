"""16-bit floats held in float: rounding to the nearest 16-bit number, and the next such number.

The functions work on the bits of the float, so they run on every device, with 16-bit arithmetic or without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..._tensor.dtype import bfloat16, float32, float64, int32, uint32

if TYPE_CHECKING:
    from .primitives import Primitives
    from .value import Value

_SMALLEST_NORMAL: Final = 2.0**-14
_STEP: Final = 2.0**-24  # between float16 numbers below the smallest normal one
_LARGEST: Final = 65504.0


def rounded(k: Primitives, x: Value) -> Value:
    """A float as the nearest number of its 16-bit dtype, halves to even."""
    dtype, single = x.dtype, replace(x, dtype=float32)
    size = single if dtype is bfloat16 else k.abs(single)
    bits = k.reinterpreted(size, uint32)
    dropped = 16 if dtype is bfloat16 else 13
    last = k.and_(k.shr(bits, k.const(dropped, bits)), k.const(1, bits))
    up = k.add(k.add(bits, k.const((1 << (dropped - 1)) - 1, bits)), last)
    kept = k.reinterpreted(k.and_(up, k.const(0xFFFFFFFF << dropped & 0xFFFFFFFF, bits)), float32)
    if dtype is not bfloat16:
        kept = k.select(k.lt(k.const(_LARGEST, size), kept), k.const(float("inf"), size), kept)
        half = k.const(0.5, size)  # its last place is the step of the subnormal numbers
        tiny = k.sub(k.add(size, half), half)
        kept = k.copysign(k.select(k.lt(size, k.const(_SMALLEST_NORMAL, size)), tiny, kept), single)
    made = k.select(k.eq(single, single), kept, k.const(float("nan"), single))
    return replace(made, dtype=dtype, exact=True)


def narrowed(k: Primitives, x: Value) -> Value:
    """A double as a float from which 16 bits are rounded as from the double: what is lost shows in the last bit."""
    single = k.converted(x, float32)
    back = k.converted(single, float64)
    bits = k.reinterpreted(single, int32)
    one = k.const(1, bits)
    below = k.select(k.lt(k.abs(x), k.abs(back)), k.sub(bits, one), bits)
    return k.reinterpreted(k.select(k.eq(x, back), bits, k.or_(below, one)), float32)


def nextafter(k: Primitives, a: Value, b: Value) -> Value:
    """The number of the 16-bit dtype next to `a` on the way to `b`."""
    dtype = a.dtype
    x, y = replace(a, dtype=float32), replace(b, dtype=float32)
    zero, infinity = k.const(0, x), k.const(float("inf"), x)
    size = k.abs(x)
    outward = k.eq(k.lt(x, y), k.lt(zero, x))
    bits = k.reinterpreted(x, int32)
    step = k.const(1 << (16 if dtype is bfloat16 else 13), bits)
    moved = k.reinterpreted(k.select(outward, k.add(bits, step), k.sub(bits, step)), float32)
    if dtype is bfloat16:
        first = 2.0**-133
    else:
        first = _STEP
        over = k.lt(k.const(_LARGEST, x), k.abs(moved))
        largest = k.select(outward, infinity, k.const(_LARGEST, x))
        moved = k.select(over, k.copysign(largest, x), moved)
        edge = k.const(_SMALLEST_NORMAL, x)
        small = k.or_(k.lt(size, edge), k.and_(k.eq(size, edge), k.not_(outward)))
        little = k.const(_STEP, x)
        moved = k.select(small, k.copysign(k.select(outward, k.add(size, little), k.sub(size, little)), x), moved)
    moved = k.select(k.eq(x, zero), k.copysign(k.const(first, x), y), moved)
    moved = k.select(k.eq(x, y), y, moved)
    known = k.and_(k.eq(x, x), k.eq(y, y))
    return replace(k.select(known, moved, k.const(float("nan"), x)), dtype=dtype, exact=True)
