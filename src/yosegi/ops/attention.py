"""Attention: which rows of a sequence look at which others, and what they see there."""

from __future__ import annotations

from functools import partial
from math import inf, sqrt
from typing import Any

from .._tensor.batch import elementwise
from .._tensor.composite import composite
from .._tensor.dtype import bool_, float32, float64, float_info
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind
from .._tensor.role import Attention, AttentionGradient
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange
from .elementwise import cos, sin, where
from .normal import softmax
from .products import matmul, matrix_transpose
from .reduce import sum
from .shape import concat, expand_dims

_composite = partial(composite, OpKind.LINEAR_ALGEBRA, computes_half=True, batch=elementwise)


def _scores_form(q: Spec, k: Spec, mask: Spec | None, *, is_causal: Any, scale: Any) -> dict[str, Any]:
    for name, t in (("q", q), ("k", k)):
        if t.ndim < 2:
            raise ShapeError(f"expected {name} of shape (…, length, features), got {t.shape}")
        rules.expect(t.dtype, f"{name} of a real floating dtype", lambda d: d.is_float)
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"expected q and k of as many features, got {q.shape[-1]} and {k.shape[-1]} "
            f"(shapes {q.shape} and {k.shape})"
        )
    if not q.shape[-1] and scale is None:
        raise ShapeError(f"expected at least one feature, got shape {q.shape}")
    if mask is not None:
        rules.expect(mask.dtype, "a mask of bool or of a real floating dtype", lambda d: d is bool_ or d.is_float)
        if is_causal:
            raise ArgumentError("expected a mask or is_causal=True, got both; put the causal part into the mask")
    chosen = 1 / sqrt(q.shape[-1]) if scale is None else rules.plain_float(scale, "scale")
    return {"is_causal": bool(is_causal), "scale": chosen}


def _attention_form(q: Spec, k: Spec, v: Spec, mask: Spec | None, **attrs: Any) -> dict[str, Any]:
    if k.ndim < 2:
        raise ShapeError(f"expected k of shape (…, keys, features), got {k.shape}")
    if v.ndim < 2 or v.shape[-2] != k.shape[-2]:
        raise ShapeError(f"expected v of shape (…, {k.shape[-2]}, features), as long as k, got {v.shape}")
    return _scores_form(q, k, mask, **attrs)


@_composite(normal=_scores_form)
def attention_scores(
    q: Arr, k: Arr, /, mask: Arr = None, *, is_causal: bool = False, scale: float | None = None
) -> Arr:
    """Compute softmax(q @ k.mT * scale + mask) along the last axis.

    Parameters
    ----------
    q : Tensor
        Queries, of shape (…, n, features).
    k : Tensor
        Keys, of shape (…, m, features).
    mask : Tensor, optional
        Broadcasts to (…, n, m). A bool mask is True where a query may attend to a key; a row without any True gives 0.
        A floating-point mask is added to the scaled products.
    is_causal : bool
        True: query i attends to the keys 0 to i. It excludes `mask`.
    scale : float, optional
        The factor before the softmax; 1 / sqrt(features) by default.

    Returns
    -------
    Tensor
        The scores, of shape (…, n, m).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.attention_scores(ys.ones((2, 4)), ys.ones((2, 4)), is_causal=True).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    scores = matmul(q * scale, matrix_transpose(k))
    allowed: Tensor | None = mask
    if is_causal and k.shape[-2]:
        rows, columns = scores.shape[-2:]
        allowed = expand_dims(arange(rows), axis=1) >= arange(columns)
        return softmax(where(allowed, scores, -inf))  # every row has a key: nothing becomes 0/0
    if allowed is None:
        return softmax(scores)
    if allowed.dtype is not bool_:
        return softmax(scores + allowed)
    # The lowest number, not an infinity: a row that may look nowhere must not become 0/0, nor its gradient.
    hidden = where(allowed, scores, float_info(scores.dtype).min)
    return where(allowed, softmax(hidden), 0)


def _gradient_form(q: Spec, k: Spec, v: Spec, out: Spec, g: Spec, mask: Spec | None, **attrs: Any) -> dict[str, Any]:
    return _attention_form(q, k, v, mask, **attrs)


@_composite(normal=_gradient_form, role=AttentionGradient())
def _attention_gradient(
    q: Arr,
    k: Arr,
    v: Arr,
    out: Arr,
    g: Arr,
    /,
    mask: Arr = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Arr:
    """The gradients of attention with respect to q, k and v, each with the stack of the result."""
    scores = attention_scores(q, k, mask, is_causal=is_causal, scale=scale)
    slopes = _score_gradient(scores, v, out, g) * scale
    return matmul(slopes, k), matmul(matrix_transpose(slopes), q), matmul(matrix_transpose(scores), g)


def _score_gradient(scores: Tensor, v: Tensor, out: Tensor, g: Tensor) -> Tensor:
    """The gradient with respect to what the softmax is taken of."""
    return scores * (matmul(g, matrix_transpose(v)) - sum(out * g, axis=-1, keepdims=True))


def _attention_vjp(
    g: Tensor, out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **attrs: Any
) -> tuple[Tensor | None, ...]:
    given = () if mask is None else (mask,)
    own = {name: attrs[name] for name in ("is_causal", "scale")}
    made = _attention_gradient.outputs(q, k, v, out, g, *given, **own)
    if mask is None or mask.dtype is bool_:
        return (*made, *[None for _ in given])
    return (*made, _score_gradient(attention_scores(q, k, mask, **own), v, out, g))


@_composite(normal=_attention_form, role=Attention(), vjp=_attention_vjp)
def scaled_dot_product_attention(
    q: Arr, k: Arr, v: Arr, /, mask: Arr = None, *, is_causal: bool = False, scale: float | None = None
) -> Arr:
    """Compute attention_scores(q, k, mask) @ v.

    Parameters
    ----------
    q : Tensor
        Queries, of shape (…, n, features).
    k : Tensor
        Keys, of shape (…, m, features).
    v : Tensor
        Values, of shape (…, m, value features).
    mask : Tensor, optional
        Broadcasts to (…, n, m). A bool mask is True where a query may attend to a key; a row without any True gives 0.
        A floating-point mask is added to the scaled products.
    is_causal : bool
        True: query i attends to the keys 0 to i. It excludes `mask`.
    scale : float, optional
        The factor before the softmax; 1 / sqrt(features) by default.

    Returns
    -------
    Tensor
        The results, of shape (…, n, value features).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.scaled_dot_product_attention(ys.ones((2, 4)), ys.ones((3, 4)), ys.ones((3, 5))).shape
    (2, 5)
    """
    return matmul(attention_scores(q, k, mask, is_causal=is_causal, scale=scale), v)


@rules.on_tensor
def rotary_embedding(x: Tensor, /, positions: Tensor | None = None, *, base: float = 10000.0) -> Tensor:
    """Rotate pairs of features by angles that grow with the position: rotary positions.

    Feature i of the first half and feature i of the second half are a pair, and rotate by position * base**(-2 i / n).

    Parameters
    ----------
    x : Tensor
        Queries or keys, of shape (…, length, features), with an even number of features n.
    positions : Tensor, optional
        The position of each row; 0 to length - 1 by default.
    base : float
        The base of the angles.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 4) for v in ys.nn.rotary_embedding(ys.asarray([[1.0, 0.0], [1.0, 0.0]]))[1].tolist()]
    [0.5403, 0.8415]
    """
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ShapeError(f"expected x of shape (…, length, an even number of features), got {x.shape}")
    half = x.shape[-1] // 2
    at = arange(x.shape[-2]) if positions is None else rules.as_tensor(positions)
    kind = float64 if x.dtype is float64 else float32
    angles = expand_dims(at.astype(kind), axis=-1) * base ** (arange(half, dtype=kind) * (-1 / half))
    turn = cos(angles).astype(x.dtype), sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return concat([first * turn[0] - second * turn[1], first * turn[1] + second * turn[0]], axis=-1)


__all__ = ["attention_scores", "rotary_embedding", "scaled_dot_product_attention"]
