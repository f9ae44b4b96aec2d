"""Arrays of edge cases in every dtype, and what it means for a result to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from yosegi._tensor.dtype import ALL, DType, as_dtype

Array = np.ndarray[Any, Any]

LETTER = {d: d.kind[0].replace("r", "f").replace("s", "i") for d in ALL}
"""b, i, u, f or c: the kind of a dtype, as NumPy writes it."""


def dtypes_of(kinds: str) -> list[DType]:
    """All dtypes of these kinds."""
    return [d for d in ALL if LETTER[d] in kinds]


def specials(dtype: DType) -> Array:
    """The values that break things, and a few that should not."""
    if LETTER[dtype] == "b":
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        small = [v for v in (-100, -7, -2, -1, 0, 1, 2, 3, 7, 100) if v >= info.min]
        return np.array([info.min, *small, info.max], dtype.numpy)
    if dtype.is_complex:
        parts = np.array([0.0, -0.0, 0.3, -1.0, 2.5, np.inf, np.nan])
        made = np.empty((parts.size, parts.size), dtype.numpy)
        made.real, made.imag = parts[:, None], parts
        return made.ravel()
    info = ml_dtypes.finfo(dtype.numpy)
    positive = [0.0, info.smallest_subnormal, info.smallest_normal, 1e-3, 0.5, 1.0, 1.5, 2.5, 30.25, info.max, np.inf]
    return np.array([np.nan, *[sign * float(v) for v in positive for sign in (1, -1)]]).astype(dtype.numpy)


def wide(array: Array) -> Array:
    """16-bit floats as float32, anything else as it is."""
    return array.astype(np.float32) if as_dtype(array.dtype).is_half else array


def in_single(function: Callable[..., Any], *arrays: Array, **attrs: Any) -> Array:
    """NumPy's result without its warnings. 16-bit floats are computed in float32 and rounded once."""
    with np.errstate(all="ignore"):
        made = np.asarray(function(*map(wide, arrays), **attrs))
        halves = [a.dtype for a in arrays if as_dtype(a.dtype).is_half]
        return made.astype(halves[0]) if halves and made.dtype == np.float32 else made


def check(got: ys.Tensor, expected: Array, *, ulps: float = 4, zero_signs: bool = True) -> None:
    """The tensor has this value: see `same`."""
    assert isinstance(got, ys.Tensor)
    assert (got.shape, got.dtype) == (expected.shape, as_dtype(expected.dtype))
    same(got.numpy(), expected, ulps=ulps, zero_signs=zero_signs)


def same(got: Array, expected: Array, *, ulps: float = 4, zero_signs: bool = True) -> None:
    """The same shape, dtype, NaNs, infinities and signs of zero; other floats within some units in the last place."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    dtype = as_dtype(got.dtype)
    if not dtype.is_inexact:
        np.testing.assert_array_equal(got, expected)
        return
    pairs = [(wide(got), wide(expected))]
    if dtype.is_complex:
        pairs = [(got.real, expected.real), (got.imag, expected.imag)]
    info = ys.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.max([np.abs(wanted) for _, wanted in pairs], axis=0)
        allowed = ulps * info.eps * np.maximum(np.where(np.isfinite(size), size, 0), info.smallest_normal)
        for part, wanted in pairs:
            right = (part == wanted) | (np.isnan(part) & np.isnan(wanted)) | (np.abs(part - wanted) <= allowed)
            right &= np.isfinite(part) == np.isfinite(wanted)
            if zero_signs and not dtype.is_complex:
                right &= (wanted != 0) | (part != 0) | (np.signbit(part) == np.signbit(wanted))
            assert right.all(), f"got {part[~right]}, expected {wanted[~right]}, at {np.argwhere(~right).tolist()[:8]}"


# Layouts: the same values from memory of another order ------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Array], tuple[ys.Tensor, Array]]] = {
    "as it is": lambda a: (ys.asarray(a), a),
    "transposed": lambda a: (ys.permute_dims(ys.asarray(a), tuple(range(a.ndim))[::-1]), a.T),
    "reversed": lambda a: (ys.flip(ys.asarray(a)), np.flip(a)),
    "sliced": lambda a: (ys.asarray(a)[..., ::2], a[..., ::2]) if a.ndim else (ys.asarray(a), a),
    "foreign": lambda a: (ys.asarray(np.flip(np.array(np.flip(a), order="F")), copy=False), a),
}


@st.composite
def operands(draw: Any, count: int, dtypes: list[DType], max_side: int = 4) -> list[tuple[ys.Tensor, Array]]:
    """Tensors that broadcast together, of one dtype, in any layout, with the same values in NumPy."""
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=count, min_side=0, max_side=max_side, max_dims=3))
    values = specials(draw(st.sampled_from(dtypes)))
    layout = draw(st.sampled_from(["as it is", "transposed", "reversed", "foreign"]))
    made = []
    for shape in shapes.input_shapes:
        stored = shape[::-1] if layout == "transposed" else shape
        chosen = draw(hnp.arrays(np.intp, stored, elements=st.integers(0, values.size - 1)))
        made.append(LAYOUTS[layout](np.asarray(values[chosen])))
    return made
