"""The arguments of random draws, and the conversion of random bits to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._tensor.dtype import DType, as_dtype, default_float, float32, float64, number_type
from .._tensor.node import Shape
from .._tensor.tensor import Tensor
from .._trace.tracing import is_tracing
from ..errors import ArgumentError, DTypeError, ShapeError
from . import rules
from .creation import DTypeLike, asarray

ShapeLike = int | Sequence[int]
Real = Tensor | float


# Bits to numbers. Every step but the last rounding is exact, so that it is the same on every device.


def unit_double(high: Tensor, low: Tensor) -> Tensor:
    """A float64 in [0, 1) of 53 random bits."""
    return ((high >> 5).astype(float64) * 2.0**26 + (low >> 6).astype(float64)) * 2.0**-53


def above_zero(word: Tensor) -> Tensor:
    """A float32 in (0, 1], fine near 0, where a logarithm needs it."""
    return word.astype(float32) * 2.0**-32 + 2.0**-33


def affine(x: Tensor, scale: Real, offset: Real) -> Tensor:
    """x * scale + offset, without operations that change nothing."""
    if isinstance(scale, Tensor) or scale != 1:
        x = x * scale
    return x if not isinstance(offset, Tensor) and offset == 0 else x + offset


def high_product(a: Tensor, n: int) -> Tensor:
    """The upper 64 bits of the product with a number below 2**64, by the halves of both."""
    high, low = a >> 32, a & 0xFFFFFFFF
    n_high, n_low = n >> 32, n & 0xFFFFFFFF
    middle = high * n_low + (low * n_low >> 32)
    return high * n_high + (middle >> 32) + (low * n_high + (middle & 0xFFFFFFFF) >> 32)


# Arguments


def given_shape(size: ShapeLike | None, shape: ShapeLike | None) -> ShapeLike | None:
    """The shape under either of its names."""
    if size is not None and shape is not None:
        raise ArgumentError(f"expected size= or shape=, which are the same, got both: {size} and {shape}")
    return shape if size is None else size


def first_parameter(
    first: Any, parameter: Any, size: ShapeLike | None, shape: ShapeLike | None
) -> tuple[Any, ShapeLike | None]:
    """The first parameter and the shape, of a call that may have either in its first place."""
    given = given_shape(size, shape)
    if first is None:
        return parameter, given
    if isinstance(first, (tuple, list)):
        if given is not None:
            raise ArgumentError(f"expected one shape, got {first} and {given}; arrays of parameters are tensors")
        return parameter, first
    return first, given


def shape_of_draw(size: ShapeLike | None, *parameters: Any) -> Shape:
    """The shape of a draw: as given, else that of the parameters."""
    if size is not None:
        return rules.normal_shape(size)
    return rules.broadcast_shapes(*[p.shape for p in parameters if isinstance(p, Tensor)])


def dtype_of_draw(dtype: DType) -> DType:
    """The dtype in which numbers of a dtype are made."""
    return float32 if dtype.is_half else dtype


def result_dtype(dtype: DTypeLike) -> DType:
    """The dtype of a result, checked; the default floating dtype for none."""
    result = default_float() if dtype is None else as_dtype(dtype)
    if not result.is_float:
        raise DTypeError(f"expected a real floating dtype, got {result.name}; cast the result with astype")
    return result


def real_parameter(value: Any, what: str) -> Real:
    """A parameter of a distribution: a Python number as it is, anything else as a tensor."""
    if number_type(value) in (bool, int, float):
        return value  # type: ignore[no-any-return]
    x = rules.as_tensor(value)
    rules.expect(x.dtype, f"{what} of a real dtype", lambda d: not d.is_complex)
    return x


def population(a: Any) -> int | Tensor:
    """The population to choose from: the slices of a tensor, or the integers below a number."""
    return rules.as_tensor(a) if isinstance(a, (Tensor, np.ndarray)) else rules.as_index(a, "a tensor or a count")


def checked_weights(p: Any, n: int, needed: int) -> Tensor:
    """The probabilities of n things, checked as far as their values are known; `needed` of them must be above 0."""
    weights = asarray(p, dtype=float64)
    if weights.shape != (n,):
        raise ShapeError(f"expected {n} probabilities, got shape {weights.shape}")
    if weights._node.buffer is not None or not is_tracing():
        values = weights.numpy()
        if not (values >= 0).all() or abs(values.sum() - 1) > 1e-6:
            raise ArgumentError(f"expected probabilities that add up to 1, got a sum of {values.sum()}")
        if np.count_nonzero(values) < needed:
            raise ArgumentError(f"expected at least {needed} probabilities above 0 to choose without replacement")
    return weights
