"""Discrete Fourier transforms: the whole `fft` namespace.

Three ops do the work: complex to complex, real to the half spectrum that tells all, and back. The sizes are settled
before, by cutting off or filling up with zeros, so that each op's gradient is the transform in the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import index as as_index
from typing import Any, Final

import numpy as np

from ..dtype import DEFAULT_FLOAT, as_dtype, complex_of, real_of
from ..errors import ArgumentError, DTypeError, ShapeError, UserError
from ..node import Spec, spec
from ..op import Arr, OpKind, from_array, op
from ..tensor import Tensor
from . import rules
from .creation import place, zeros
from .elementwise import conj
from .shape import Axes, concat, reshape, roll

_op = partial(op, OpKind.COMPLEX)

_OPPOSITE: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The normalisation by the same factor in the other direction."""


# The transforms


def _complex_rule(x: Spec, *, axes: tuple[int, ...], inverse: bool, norm: str) -> Spec:
    rules.expect(x.dtype, "a complex dtype", lambda d: d.is_complex)
    return x


def _complex_vjp(
    g: Tensor, out: Tensor, x: Tensor, *, axes: tuple[int, ...], inverse: bool, norm: str
) -> tuple[Tensor]:
    return (complex_transform(g, axes=axes, inverse=not inverse, norm=_OPPOSITE[norm]),)


@_op(infer=_complex_rule, vjp=_complex_vjp)
def complex_transform(x: Arr, /, *, axes: tuple[int, ...], inverse: bool, norm: str) -> Arr:
    """The transform of complex numbers along some axes."""
    return (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=axes, norm=norm)


def _half_rule(x: Spec, *, axis: int, norm: str) -> Spec:
    rules.expect(x.dtype, "a real floating dtype", lambda d: d.is_float)
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


@_op(infer=_half_rule, vjp=_half_vjp)
def half_spectrum(x: Arr, /, *, axis: int, norm: str) -> Arr:
    """The first half of the transform of real numbers along an axis; the second is its mirror image."""
    return np.fft.rfft(x, axis=axis, norm=norm)


def _from_half_rule(x: Spec, *, n: int, axis: int, norm: str) -> Spec:
    rules.expect(x.dtype, "a complex dtype", lambda d: d.is_complex)
    return spec((*x.shape[:axis], n, *x.shape[axis + 1 :]), real_of(x.dtype))


def _from_half_vjp(g: Tensor, out: Tensor, x: Tensor, *, n: int, axis: int, norm: str) -> tuple[Tensor]:
    return (_weighted(half_spectrum(g, axis=axis, norm=_OPPOSITE[norm]), axis, n, 2),)


@_op(infer=_from_half_rule, vjp=_from_half_vjp)
def from_half_spectrum(x: Arr, /, *, n: int, axis: int, norm: str) -> Arr:
    """The n real numbers along an axis of which this is half the transform."""
    return np.fft.irfft(x, n, axis=axis, norm=norm)


# Their arguments


def _complex(x: Tensor) -> Tensor:
    return x.astype(complex_of(x.dtype))


def _real(name: str, x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        raise DTypeError(f"[{name}] expected a real dtype, got {x.dtype.name}; use fft, or take ys.real first")
    return x if x.dtype.is_float else x.astype(DEFAULT_FLOAT)


def _resized(x: Tensor, axis: int, n: int) -> Tensor:
    """The tensor cut off, or filled up with zeros, to n elements along an axis."""
    length = x.shape[axis]
    if n < length:
        return x[(slice(None),) * axis + (slice(n),)]
    if n > length:
        return concat([x, zeros((*x.shape[:axis], n - length, *x.shape[axis + 1 :]), dtype=x.dtype)], axis=axis)
    return x


def _settle(
    name: str, x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str, halved: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes counted from the front, and the length of the transform along each. If `halved`, the last axis of x is half
    of a spectrum."""
    try:
        rules.one_of("norm", norm, tuple(_OPPOSITE))
        where = rules.normal_axes(None if axes is None else tuple(axes), x.ndim)
    except UserError as error:
        raise error.of(name) from None
    if not where:
        raise ShapeError(f"[{name}] expected at least one axis to transform, got shape {x.shape} and axes {axes}")
    sizes = [x.shape[a] for a in where]
    if halved:
        sizes[-1] = 2 * (sizes[-1] - 1)
    if s is not None:
        if axes is None or len(s) != len(where):
            raise ArgumentError(f"[{name}] expected axes= with one axis for each size of {tuple(s)}, got {axes}")
        sizes = [have if as_index(n) == -1 else as_index(n) for n, have in zip(s, sizes, strict=True)]
    if any(n < 1 for n in sizes):
        raise ShapeError(f"[{name}] expected transforms of at least one element, got sizes {sizes}; give other sizes")
    return where, tuple(sizes)


def _one(n: int | None) -> tuple[int] | None:
    return None if n is None else (n,)


# The namespace


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform along one axis."""
    return _complex_to_complex("fft", x, _one(n), (axis,), norm, inverse=False)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse transform along one axis."""
    return _complex_to_complex("ifft", x, _one(n), (axis,), norm, inverse=True)


def fftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The transform along several axes (all by default)."""
    return _complex_to_complex("fftn", x, s, axes, norm, inverse=False)


def ifftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The inverse transform along several axes (all by default)."""
    return _complex_to_complex("ifftn", x, s, axes, norm, inverse=True)


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The first half of the transform of real numbers along one axis."""
    return _real_to_complex("rfft", x, _one(n), (axis,), norm)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers (an even count by default)."""
    return _complex_to_real("irfft", x, _one(n), (axis,), norm)


def rfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The transform of real numbers along several axes (all by default), the first half of it along the last."""
    return _real_to_complex("rfftn", x, s, axes, norm)


def irfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfftn`."""
    return _complex_to_real("irfftn", x, s, axes, norm)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform, which is real, of a signal with Hermitian symmetry, given by its first half."""
    return _complex_to_real("hfft", conj(x), _one(n), (axis,), _OPPOSITE.get(norm, norm))


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`."""
    return conj(_real_to_complex("ihfft", x, _one(n), (axis,), _OPPOSITE.get(norm, norm)))


def _complex_to_complex(name: str, x: Tensor, s: Any, axes: Any, norm: str, inverse: bool) -> Tensor:
    where, sizes = _settle(name, x, s, axes, norm)
    for axis, n in zip(where, sizes, strict=True):
        x = _resized(x, axis, n)
    return complex_transform(_complex(x), axes=where, inverse=inverse, norm=norm)


def _real_to_complex(name: str, x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    x = _real(name, x)
    where, sizes = _settle(name, x, s, axes, norm)
    for axis, n in zip(where, sizes, strict=True):
        x = _resized(x, axis, n)
    half = half_spectrum(x, axis=where[-1], norm=norm)
    return complex_transform(half, axes=where[:-1], inverse=False, norm=norm) if where[:-1] else half


def _complex_to_real(name: str, x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    where, sizes = _settle(name, x, s, axes, norm, halved=True)
    for axis, n in zip(where, (*sizes[:-1], sizes[-1] // 2 + 1), strict=True):
        x = _resized(x, axis, n)
    x = _complex(x)
    x = complex_transform(x, axes=where[:-1], inverse=True, norm=norm) if where[:-1] else x
    return from_half_spectrum(x, n=sizes[-1], axis=where[-1], norm=norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of a transform of n samples at distance d."""
    return _frequencies("fftfreq", np.fft.fftfreq(_count("fftfreq", n), d), dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of a half transform of n samples at distance d."""
    return _frequencies("rfftfreq", np.fft.rfftfreq(_count("rfftfreq", n), d), dtype, device)


def _count(name: str, n: int) -> int:
    if as_index(n) < 1:
        raise ArgumentError(f"[{name}] expected at least one sample, got {n}")
    return as_index(n)


def _frequencies(name: str, values: np.ndarray[Any, Any], dtype: Any, device: Any) -> Tensor:
    wanted = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    if not wanted.is_float:
        raise DTypeError(f"[{name}] expected a real floating dtype, got {wanted.name}")
    return place(from_array(values.astype(wanted.numpy)), device)


def fftshift(x: Tensor, /, *, axes: Axes | None = None) -> Tensor:
    """The spectrum with the zero frequency in the middle along some axes (all by default)."""
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: Tensor, /, *, axes: Axes | None = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", x, axes, -1)


def _shifted(name: str, x: Tensor, axes: Axes | None, sign: int) -> Tensor:
    try:
        where = rules.normal_axes(axes, x.ndim)
    except UserError as error:
        raise error.of(name) from None
    return roll(x, tuple(sign * (x.shape[a] // 2) for a in where), axis=where) if where else x


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip
