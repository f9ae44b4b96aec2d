"""Reductions and running totals. 16-bit floats are accumulated in float32."""

from __future__ import annotations

from functools import partial
from math import prod as _count
from typing import Any

import numpy as np

from .._tensor.composite import composite
from .._tensor.dtype import DType, bool_, int64, uint64
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Normal, OpKind, op
from .._tensor.role import Reduction, Scan
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from . import rules
from .elementwise import conj, imag, real, sqrt
from .shape import Axes, broadcast_to, concat, flip, moveaxis, reshape

_op = partial(op, OpKind.REDUCTION)


def accumulator(dtype: DType) -> DType:
    """The dtype sums and products of `dtype` have: integers widen, floats keep theirs."""
    if dtype.kind == "unsigned integer":
        return uint64
    return int64 if dtype.is_integer or dtype is bool_ else dtype


def _result(x: Spec, dtype: Any) -> DType:
    result = rules.optional_dtype(dtype) or accumulator(x.dtype)
    if x.dtype.is_complex and not result.is_complex:
        raise DTypeError(f"expected a complex dtype for {x.dtype.name}, got {result.name}; take ys.real first")
    return result


def _accumulate_rule(x: Spec, *, axis: Any, dtype: Any, keepdims: bool) -> Normal:
    axes = tuple(sorted(rules.normal_axes(axis, x.ndim)))
    result = _result(x, dtype)
    shape = rules.reduced_shape(x.shape, axes, keepdims)
    return Normal(spec(shape, result), {"axis": axes, "dtype": result, "keepdims": bool(keepdims)})


def _reduce_rule(x: Spec, *, axis: Any, keepdims: bool) -> Normal:
    axes = tuple(sorted(rules.normal_axes(axis, x.ndim)))
    return Normal(
        spec(rules.reduced_shape(x.shape, axes, keepdims), x.dtype), {"axis": axes, "keepdims": bool(keepdims)}
    )


def _extreme_rule(x: Spec, *, axis: Any, keepdims: bool) -> Normal:
    rules.expect(x.dtype, "a real dtype", lambda d: not d.is_complex)
    normal = _reduce_rule(x, axis=axis, keepdims=keepdims)
    if 0 in [x.shape[a] for a in normal.attrs["axis"]]:
        raise ShapeError(f"expected at least one element to reduce, got shape {x.shape}")
    return normal


def _truth_rule(x: Spec, *, axis: Any, keepdims: bool) -> Normal:
    normal = _reduce_rule(x, axis=axis, keepdims=keepdims)
    assert isinstance(normal.outputs, Spec)
    return Normal(spec(normal.outputs.shape, bool_), normal.attrs)


def kept(t: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A reduction's result with the reduced dimensions as length 1, so that it broadcasts against `x`."""
    return reshape(t, rules.reduced_shape(x.shape, axes, keepdims=True))


@_op(infer=_accumulate_rule, operator="sum", role=Reduction("sum"),
     vjp=lambda g, out, x, *, axis, dtype, keepdims: (broadcast_to(kept(g, x, axis), x.shape),))  # fmt: skip
def sum(x: Arr, /, axis: Axes | None = None, *, dtype: DType | None = None, keepdims: bool = False) -> Arr:
    """The sum over some axes (all by default)."""
    return np.sum(x, axis=axis, dtype=_numpy_accumulator(x, dtype), keepdims=keepdims)


def _numpy_accumulator(x: Arr, dtype: DType | None) -> Any:
    assert dtype is not None
    return np.promote_types(x.dtype, np.float32) if dtype.is_half else dtype.numpy  # nothing is summed as halves


def _prod_vjp(
    g: Tensor, out: Tensor, x: Tensor, *, axis: tuple[int, ...], dtype: DType, keepdims: bool
) -> tuple[Tensor]:
    # The product of the others, from both sides: right even where an element is zero.
    n = _count(x.shape[a] for a in axis)
    rest = [a for a in range(x.ndim) if a not in axis]
    lined = reshape(moveaxis(x, axis, tuple(range(len(rest), x.ndim))), (*[x.shape[a] for a in rest], n))
    before = cumulative_prod(lined, axis=-1, include_initial=True)[..., :n]
    after = flip(cumulative_prod(flip(lined, axis=-1), axis=-1, include_initial=True)[..., :n], axis=-1)
    others = reshape(before * after, (*[x.shape[a] for a in rest], *[x.shape[a] for a in axis]))
    return (kept(g, x, axis) * conj(moveaxis(others, tuple(range(len(rest), x.ndim)), axis)),)


@_op(infer=_accumulate_rule, vjp=_prod_vjp, operator="prod", role=Reduction("prod"))
def prod(x: Arr, /, axis: Axes | None = None, *, dtype: DType | None = None, keepdims: bool = False) -> Arr:
    """The product over some axes (all by default)."""
    return np.prod(x, axis=axis, dtype=_numpy_accumulator(x, dtype), keepdims=keepdims)


def _extreme_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: tuple[int, ...], keepdims: bool) -> tuple[Tensor]:
    best = (x == kept(out, x, axis)).astype(x.dtype)  # ties share the gradient
    return (kept(g, x, axis) * best / sum(best, axis=axis, keepdims=True),)


@_op(infer=_extreme_rule, vjp=_extreme_vjp, operator="max", role=Reduction("max"))
def max(x: Arr, /, axis: Axes | None = None, *, keepdims: bool = False) -> Arr:
    """The largest element over some axes (all by default); NaN if there is one."""
    return np.max(x, axis=axis, keepdims=keepdims)


@_op(infer=_extreme_rule, vjp=_extreme_vjp, operator="min", role=Reduction("min"))
def min(x: Arr, /, axis: Axes | None = None, *, keepdims: bool = False) -> Arr:
    """The smallest element over some axes (all by default); NaN if there is one."""
    return np.min(x, axis=axis, keepdims=keepdims)


@_op(infer=_truth_rule, operator="all", role=Reduction("min"))
def all(x: Arr, /, axis: Axes | None = None, *, keepdims: bool = False) -> Arr:
    """Whether every element is true (not zero) over some axes (all by default)."""
    return np.all(x, axis=axis, keepdims=keepdims)


@_op(infer=_truth_rule, operator="any", role=Reduction("max"))
def any(x: Arr, /, axis: Axes | None = None, *, keepdims: bool = False) -> Arr:
    """Whether any element is true (not zero) over some axes (all by default)."""
    return np.any(x, axis=axis, keepdims=keepdims)


def _share(x: Tensor, axes: tuple[int, ...], correction: float = 0.0) -> float:
    """1 / (elements reduced - correction), and NaN where that divides nothing."""
    n = _count(x.shape[a] for a in axes) - correction
    return 1 / n if n > 0 else float("nan")


@_op(infer=_reduce_rule, promotes_from=0, inexact=True, operator="mean", role=Reduction("sum", averages=True),
     vjp=lambda g, out, x, *, axis, keepdims: (broadcast_to(kept(g, x, axis) * _share(x, axis), x.shape),))  # fmt: skip
def mean(x: Arr, /, axis: Axes | None = None, *, keepdims: bool = False) -> Arr:
    """The arithmetic mean over some axes (all by default)."""
    n = _count(x.shape[a] for a in axis)  # type: ignore[union-attr]  # normal form: a tuple
    return np.true_divide(np.sum(x, axis=axis, keepdims=keepdims), np.asarray(n, x.real.dtype), dtype=x.dtype)


def _spread_form(x: Spec, *, axis: Any, correction: Any, keepdims: bool) -> dict[str, Any]:
    rules.expect(x.dtype, "a floating dtype", lambda d: d.is_inexact)
    if not isinstance(correction, (int, float, np.integer, np.floating)):
        raise DTypeError(f"expected correction as a real number, got {correction!r}")
    normal = _reduce_rule(x, axis=axis, keepdims=keepdims)
    return {"axis": normal.attrs["axis"], "correction": float(rules.as_float(correction)), "keepdims": bool(keepdims)}


def _var_vjp(
    g: Tensor, out: Tensor, x: Tensor, *, axis: tuple[int, ...], correction: float, keepdims: bool
) -> tuple[Tensor]:
    return (kept(g, x, axis) * (x - mean(x, axis=axis, keepdims=True)) * (2 * _share(x, axis, correction)),)


_spread = partial(composite, OpKind.REDUCTION, normal=_spread_form, promotes_from=0, inexact=True)


@_spread(operator="var", vjp=_var_vjp)
def var(x: Arr, /, axis: Axes | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Arr:
    """The variance over some axes (all by default): squares are divided by the count less `correction`."""
    away = x - mean(x, axis=axis, keepdims=True)
    squares = real(away) * real(away) + imag(away) * imag(away) if x.dtype.is_complex else away * away
    made = mean(squares, axis=axis, keepdims=keepdims)  # their sum may be too large for a number, where this is not
    n = _count(x.shape[a] for a in axis)  # type: ignore[union-attr]  # normal form: a tuple
    if correction == 0:
        return made
    return made * (n / (n - correction) if n > correction else float("nan"))


@_spread(operator="std", vjp=lambda g, out, x, **attrs: _var_vjp(g / (2 * out), out, x, **attrs))
def std(x: Arr, /, axis: Axes | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Arr:
    """The standard deviation over some axes (all by default)."""
    return sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


# Running totals


def _running_rule(x: Spec, *, axis: int | None, dtype: Any, include_initial: bool) -> Normal:
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"expected axis= for a tensor that is not 1-d, got shape {x.shape}")
        axis = 0
    axis = rules.normal_axis(axis, x.ndim)
    result = _result(x, dtype)
    shape = tuple(n + (i == axis and include_initial) for i, n in enumerate(x.shape))
    return Normal(spec(shape, result), {"axis": axis, "dtype": result, "include_initial": bool(include_initial)})


def _with_initial(total: Arr, axis: int, initial: int) -> Arr:
    edge = list(total.shape)
    edge[axis] = 1
    return np.concatenate([np.full(edge, initial, total.dtype), total], axis)


def _without_initial(t: Tensor, axis: int, include_initial: bool) -> Tensor:
    return t[(slice(None),) * axis + (slice(1, None),)] if include_initial else t


def _cumulative_sum_vjp(
    g: Tensor, out: Tensor, x: Tensor, *, axis: int, dtype: DType, include_initial: bool
) -> tuple[Tensor]:
    g = _without_initial(g, axis, include_initial)
    return (flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis),)


@_op(infer=_running_rule, vjp=_cumulative_sum_vjp, role=Scan("sum"))
def cumulative_sum(
    x: Arr, /, axis: int | None = None, *, dtype: DType | None = None, include_initial: bool = False
) -> Arr:
    """The running sum along an axis, beginning with 0 if `include_initial`."""
    total = np.cumsum(x, axis, dtype=_numpy_accumulator(x, dtype))
    return _with_initial(total, axis, 0) if include_initial else total  # type: ignore[arg-type]


def _cumulative_prod_vjp(
    g: Tensor, out: Tensor, x: Tensor, *, axis: int, dtype: DType, include_initial: bool
) -> tuple[Tensor]:
    # d out_j / d x_i is the product of the others up to j. Summed over j from the back: s_i = g_i + x_(i+1) s_(i+1),
    # which needs no division, so that zeros are as good as any number.
    n = x.shape[axis]
    before = (slice(None),) * axis
    if n == 0:
        return (x * 0,)
    weights = _without_initial(g, axis, include_initial)
    lead = cumulative_prod(x, axis=axis, include_initial=True)
    sums = [weights[(*before, slice(n - 1, n))]]
    for i in range(n - 2, -1, -1):
        sums.append(weights[(*before, slice(i, i + 1))] + conj(x[(*before, slice(i + 1, i + 2))]) * sums[-1])
    return (concat(sums[::-1], axis=axis) * conj(lead[(*before, slice(0, n))]),)


@_op(infer=_running_rule, vjp=_cumulative_prod_vjp, role=Scan("prod"))
def cumulative_prod(
    x: Arr, /, axis: int | None = None, *, dtype: DType | None = None, include_initial: bool = False
) -> Arr:
    """The running product along an axis, beginning with 1 if `include_initial`."""
    total = np.cumprod(x, axis, dtype=_numpy_accumulator(x, dtype))
    return _with_initial(total, axis, 1) if include_initial else total  # type: ignore[arg-type]


@rules.on_tensor
def diff(
    x: Tensor, /, n: int = 1, axis: int = -1, *, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th difference between neighbours along an axis, with values put before or behind first."""
    axis = rules.normal_axis(axis, x.ndim)
    if rules.as_index(n, "n") < 0:
        raise ArgumentError(f"expected n of at least 0, got {n}")
    parts = [t for t in (prepend, x, append) if t is not None]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    before = (slice(None),) * axis
    for _ in range(n):
        upper, lower = x[(*before, slice(1, None))], x[(*before, slice(None, -1))]
        x = upper != lower if x.dtype is bool_ else upper - lower
    return x


__all__ = ["all", "any", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std", "sum", "var"]
