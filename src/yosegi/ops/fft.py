"""Discrete Fourier transforms: the whole `fft` namespace.

Three ops do the work: complex to complex, real to the half spectrum that tells all, and back. The sizes are settled
before, by cutting off or filling up with zeros, so that each op's gradient is the transform in the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from .._tensor.batch import along
from .._tensor.dtype import complex_of, default_float, number_type, real_of
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, OpKind, from_array, op
from .._tensor.role import Transform
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from . import rules
from .creation import place, zeros
from .elementwise import conj
from .shape import Axes, concat, reshape, roll

_op = partial(op, OpKind.COMPLEX)

_OPPOSITE: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The normalisation by the same factor in the other direction."""


# The transforms


def _check_axes(x: Spec, axes: tuple[int, ...], norm: str) -> None:
    rules.one_of("norm", norm, tuple(_OPPOSITE))
    if not axes or rules.normal_axes(axes, x.ndim) != axes or 0 in [x.shape[a] for a in axes]:
        raise ShapeError(f"expected axes of at least one element, counted from the front, got {axes} of {x.shape}")


def _scaled(transform: Any, x: Arr, sizes: Sequence[int], norm: str, inverse: bool) -> Arr:
    """A transform by NumPy. Without a factor it would compute single numbers in double, which takes five times as
    long: it gets the factor of the other direction, and the result is multiplied."""
    if norm == ("forward" if inverse else "backward") and x.dtype in (np.float32, np.complex64):
        made = transform(norm=_OPPOSITE[norm])
        return np.multiply(made, np.float32(prod(sizes)), out=made)
    return transform(norm=norm)


def _complex_rule(x: Spec, *, axes: tuple[int, ...], inverse: bool, norm: str) -> Spec:
    rules.expect(x.dtype, "a complex dtype", lambda d: d.is_complex)
    _check_axes(x, axes, norm)
    return x


def _complex_vjp(
    g: Tensor, out: Tensor, x: Tensor, *, axes: tuple[int, ...], inverse: bool, norm: str
) -> tuple[Tensor]:
    return (complex_transform(g, axes=axes, inverse=not inverse, norm=_OPPOSITE[norm]),)


@_op(infer=_complex_rule, vjp=_complex_vjp, role=Transform.COMPLEX, batch=along("axes"))
def complex_transform(x: Arr, /, *, axes: tuple[int, ...], inverse: bool, norm: str) -> Arr:
    """The transform of complex numbers along some axes."""
    sizes = [x.shape[a] for a in axes]
    return _scaled(partial(np.fft.ifftn if inverse else np.fft.fftn, x, axes=axes), x, sizes, norm, inverse)


def _half_rule(x: Spec, *, axis: int, norm: str) -> Spec:
    rules.expect(x.dtype, "a real floating dtype", lambda d: d.is_float)
    _check_axes(x, (axis,), norm)
    n = x.shape[axis]
    return spec((*x.shape[:axis], n // 2 + 1, *x.shape[axis + 1 :]), complex_of(x.dtype))


def _weighted(x: Tensor, axis: int, n: int, paired: float) -> Tensor:
    """A half spectrum with those elements weighted that stand for two of the whole: all but the first and, for even
    n, the last."""
    weights = np.full(n // 2 + 1, paired, real_of(x.dtype).numpy)
    weights[0] = weights[n - n // 2 :] = 1
    return x * reshape(from_array(weights), (-1, *[1] * (x.ndim - 1 - axis)))


def _half_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int, norm: str) -> tuple[Tensor]:
    n = x.shape[axis]
    return (from_half_spectrum(_weighted(g, axis, n, 0.5), n=n, axis=axis, norm=_OPPOSITE[norm]),)


@_op(infer=_half_rule, vjp=_half_vjp, role=Transform.HALF, batch=along("axis"))
def half_spectrum(x: Arr, /, *, axis: int, norm: str) -> Arr:
    """The first half of the transform of real numbers along an axis; the second is its mirror image."""
    return _scaled(partial(np.fft.rfft, x, axis=axis), x, [x.shape[axis]], norm, False)


def _from_half_rule(x: Spec, *, n: int, axis: int, norm: str) -> Spec:
    rules.expect(x.dtype, "a complex dtype", lambda d: d.is_complex)
    _check_axes(x, (axis,), norm)
    if n < 1 or x.shape[axis] != n // 2 + 1:
        raise ShapeError(f"expected {n // 2 + 1} elements along axis {axis} for {n} numbers, got shape {x.shape}")
    return spec((*x.shape[:axis], n, *x.shape[axis + 1 :]), real_of(x.dtype))


def _from_half_vjp(g: Tensor, out: Tensor, x: Tensor, *, n: int, axis: int, norm: str) -> tuple[Tensor]:
    return (_weighted(half_spectrum(g, axis=axis, norm=_OPPOSITE[norm]), axis, n, 2),)


@_op(infer=_from_half_rule, vjp=_from_half_vjp, role=Transform.FROM_HALF, batch=along("axis"))
def from_half_spectrum(x: Arr, /, *, n: int, axis: int, norm: str) -> Arr:
    """The n real numbers along an axis of which this is half the transform."""
    return _scaled(partial(np.fft.irfft, x, n, axis=axis), x, [n], norm, True)


# Their arguments


def _complex(x: Tensor) -> Tensor:
    return x.astype(complex_of(x.dtype))


def _real(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        raise DTypeError(f"expected a real dtype, got {x.dtype.name}; use fft, or take ys.real first")
    return x if x.dtype.is_float else x.astype(default_float())


def _resized(x: Tensor, axis: int, n: int) -> Tensor:
    """The tensor cut off, or filled up with zeros, to n elements along an axis."""
    length = x.shape[axis]
    if n < length:
        return x[(slice(None),) * axis + (slice(n),)]
    if n > length:
        return concat([x, zeros((*x.shape[:axis], n - length, *x.shape[axis + 1 :]), dtype=x.dtype)], axis=axis)
    return x


def _settle(
    x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str, halved: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes counted from the front, and the length of the transform along each. If `halved`, the last axis of x is half
    of a spectrum."""
    _check_norm(norm)
    where = rules.normal_axes(tuple(axes) if isinstance(axes, Sequence) else axes, x.ndim)
    if not where:
        raise ShapeError(f"expected at least one axis to transform, got shape {x.shape} and axes {axes}")
    sizes = [x.shape[a] for a in where]
    if halved:
        sizes[-1] = 2 * (sizes[-1] - 1)
    if s is not None:
        wanted = [rules.as_index(n, "a size") for n in (s if isinstance(s, Sequence) else (s,))]
        if axes is None or len(wanted) != len(where):
            raise ArgumentError(f"expected axes= with one axis for each size of {tuple(wanted)}, got {axes}")
        sizes = [have if n == -1 else n for n, have in zip(wanted, sizes, strict=True)]
    if any(n < 1 for n in sizes):
        raise ShapeError(f"expected transforms of at least one element, got sizes {sizes}; give other sizes")
    return where, tuple(sizes)


def _check_norm(norm: str) -> None:
    rules.one_of("norm", norm, tuple(_OPPOSITE))


def _opposite(norm: str) -> str:
    _check_norm(norm)
    return _OPPOSITE[norm]


def _one(n: int | None) -> tuple[int] | None:
    return None if n is None else (n,)


# The namespace


@rules.on_tensor
def fft(x: Tensor, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform along one axis."""
    return _complex_to_complex(x, _one(n), (axis,), norm, inverse=False)


@rules.on_tensor
def ifft(x: Tensor, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse transform along one axis."""
    return _complex_to_complex(x, _one(n), (axis,), norm, inverse=True)


@rules.on_tensor
def fftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The transform along several axes (all by default)."""
    return _complex_to_complex(x, s, axes, norm, inverse=False)


@rules.on_tensor
def ifftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The inverse transform along several axes (all by default)."""
    return _complex_to_complex(x, s, axes, norm, inverse=True)


@rules.on_tensor
def rfft(x: Tensor, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The first half of the transform of real numbers along one axis."""
    return _real_to_complex(x, _one(n), (axis,), norm)


@rules.on_tensor
def irfft(x: Tensor, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers (an even count by default)."""
    return _complex_to_real(x, _one(n), (axis,), norm)


@rules.on_tensor
def rfftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The transform of real numbers along several axes (all by default), the first half of it along the last."""
    return _real_to_complex(x, s, axes, norm)


@rules.on_tensor
def irfftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfftn`."""
    return _complex_to_real(x, s, axes, norm)


@rules.on_tensor
def fft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The transform along two axes (the last two by default).

    >>> import yosegi as ys
    >>> ys.fft.fft2(ys.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    return _complex_to_complex(x, s, axes, norm, inverse=False)


@rules.on_tensor
def ifft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The inverse transform along two axes (the last two by default).

    >>> import yosegi as ys
    >>> ys.fft.ifft2(ys.ones((2, 2))).tolist()
    [[(1+0j), 0j], [0j, 0j]]
    """
    return _complex_to_complex(x, s, axes, norm, inverse=True)


@rules.on_tensor
def rfft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The transform of real numbers along two axes (the last two by default), the first half of it along the last.

    >>> import yosegi as ys
    >>> ys.fft.rfft2(ys.ones((2, 4))).shape
    (2, 3)
    """
    return _real_to_complex(x, s, axes, norm)


@rules.on_tensor
def irfft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft2`.

    >>> import yosegi as ys
    >>> ys.fft.irfft2(ys.fft.rfft2(ys.ones((2, 4)))).shape
    (2, 4)
    """
    return _complex_to_real(x, s, axes, norm)


@rules.on_tensor
def hfft(x: Tensor, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform, which is real, of a signal with Hermitian symmetry, given by its first half."""
    return _complex_to_real(conj(x), _one(n), (axis,), _opposite(norm))


@rules.on_tensor
def ihfft(x: Tensor, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`."""
    return conj(_real_to_complex(x, _one(n), (axis,), _opposite(norm)))


def _complex_to_complex(x: Tensor, s: Any, axes: Any, norm: str, inverse: bool) -> Tensor:
    where, sizes = _settle(x, s, axes, norm)
    for axis, n in zip(where, sizes, strict=True):
        x = _resized(x, axis, n)
    return complex_transform(_complex(x), axes=where, inverse=inverse, norm=norm)


def _real_to_complex(x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    x = _real(x)
    where, sizes = _settle(x, s, axes, norm)
    for axis, n in zip(where, sizes, strict=True):
        x = _resized(x, axis, n)
    half = half_spectrum(x, axis=where[-1], norm=norm)
    return complex_transform(half, axes=where[:-1], inverse=False, norm=norm) if where[:-1] else half


def _complex_to_real(x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    where, sizes = _settle(x, s, axes, norm, halved=True)
    for axis, n in zip(where, (*sizes[:-1], sizes[-1] // 2 + 1), strict=True):
        x = _resized(x, axis, n)
    x = _complex(x)
    x = complex_transform(x, axes=where[:-1], inverse=True, norm=norm) if where[:-1] else x
    return from_half_spectrum(x, n=sizes[-1], axis=where[-1], norm=norm)


@rules.named
def fftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of a transform of n samples at distance d."""
    return _frequencies(np.fft.fftfreq(_count(n), _distance(d)), dtype, device)


@rules.named
def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of a half transform of n samples at distance d."""
    return _frequencies(np.fft.rfftfreq(_count(n), _distance(d)), dtype, device)


def _count(n: int) -> int:
    count = rules.as_index(n, "n")
    if count < 1:
        raise ArgumentError(f"expected at least one sample, got {count}")
    return count


def _distance(d: Any) -> float:
    number: Any = d.item() if isinstance(d, (Tensor, np.generic)) else d
    if number_type(number) not in (int, float) or number == 0:
        raise ArgumentError(f"expected a real number other than 0 for d, got {d!r}")
    return float(number)


def _frequencies(values: np.ndarray[Any, Any], dtype: Any, device: Any) -> Tensor:
    wanted = rules.optional_dtype(dtype) or default_float()
    if not wanted.is_float:
        raise DTypeError(f"expected a real floating dtype, got {wanted.name}")
    return place(from_array(values.astype(wanted.numpy)), device)


@rules.on_tensor
def fftshift(x: Tensor, /, axes: Axes | None = None) -> Tensor:
    """The spectrum with the zero frequency in the middle along some axes (all by default)."""
    return _shifted(x, axes, 1)


@rules.on_tensor
def ifftshift(x: Tensor, /, axes: Axes | None = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, -1)


def _shifted(x: Tensor, axes: Axes | None, sign: int) -> Tensor:
    where = rules.normal_axes(axes, x.ndim)
    return roll(x, tuple(sign * (x.shape[a] // 2) for a in where), axis=where) if where else x


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
