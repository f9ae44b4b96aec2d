"""Affine maps, dropout before them, and the patterns of layers that devices fuse: each is one op in the graph.

The names tell the order in which the work is done: `gelu_linear` is a linear map of a gelu.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from .._tensor.batch import along_first
from .._tensor.composite import composite
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .activation import gelu, relu
from .elementwise import where
from .normal import batch_norm, layer_norm
from .philox import random_words
from .products import matmul, matrix_transpose
from .random import Generator, generator_of

# Products keep 16-bit floats as they are; what is around them is computed in float32.
_composite = partial(composite, OpKind.LINEAR_ALGEBRA, promotes_from=0, inexact=True, computes_half=True)

_WORDS: Final = 1 << 32
_PARAMETERS: Final = {
    "x": ("Tensor", "The input, of shape (…, inputs)."),
    "w": ("Tensor", "The weight, of shape (outputs, inputs)."),
    "b": ("Tensor, optional", "The bias, of shape (outputs,)."),
    "rate": ("float", "The probability of a zero, from 0 to below 1."),
    "rng": (
        "Generator, int or Tensor, optional",
        "A generator, a seed, or the state of one draw as four numbers of uint32; the global generator of `ys.random` "
        "by default. Every device drops the same elements.",
    ),
    "training": ("bool", "False: nothing is dropped."),
    "residual": ("Tensor", "Added to the product; broadcasts to (…, outputs)."),
    "approximate": ('{"none", "tanh"}', "The formula of `gelu`."),
    "mean": ("Tensor", "The mean of each output."),
    "var": ("Tensor", "The variance of each output."),
    "weight": ("Tensor, optional", "Multiplies the normalised values, of shape (outputs,)."),
    "bias": ("Tensor, optional", "Added last, of shape (outputs,)."),
    "eps": ("float", "Added to the variance."),
}
_described = partial(rules.described, _PARAMETERS, ("Tensor", "A tensor of shape (…, outputs)."))


def _linear_form(x: Spec, w: Spec, b: Spec | None, **attrs: Any) -> dict[str, Any]:
    if w.ndim != 2 or not x.ndim or x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"expected w of shape (outputs, {x.shape[-1] if x.ndim else 'inputs'}) for x of shape {x.shape}, got "
            f"{w.shape}; transpose it?"
        )
    if b is not None and b.shape != w.shape[:1]:
        raise ShapeError(f"expected b of shape {w.shape[:1]}, one number for each output, got {b.shape}")
    return attrs


@_composite(normal=_linear_form, batch=along_first())
@_described()
def linear(x: Arr, w: Arr, /, b: Arr = None) -> Arr:
    """Compute x @ w.T + b.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.linear(ys.asarray([1.0, 2.0]), ys.asarray([[3.0, 4.0]]), ys.asarray([5.0])).tolist()
    [16.0]
    """
    product = matmul(x, matrix_transpose(w))
    return product if b is None else product + b


# Dropout


def _rate_form(state: Spec, *tensors: Spec, rate: Any, **rest: Any) -> dict[str, Any]:
    return {"rate": rules.plain_float(rate, "rate")}


@composite(OpKind.RANDOM, normal=_rate_form, promotes_from=1, inexact=True)
def _dropout(state: Arr, x: Arr, /, *, rate: float) -> Arr:
    """x with a share of its elements, chosen by the draw `state`, set to 0, and the others scaled up."""
    word = random_words(state, shape=x.shape)
    # Integers decide, so that every device drops the same elements.
    return where(word >= min(round(rate * _WORDS), _WORDS - 1), x * (1 / (1 - rate)), 0)


@composite(OpKind.LINEAR_ALGEBRA, promotes_from=1, inexact=True, computes_half=True,
           normal=lambda state, x, w, b, *, rate: _linear_form(x, w, b, **_rate_form(state, rate=rate)))  # fmt: skip
def _dropout_linear(state: Arr, x: Arr, w: Arr, /, b: Arr = None, *, rate: float) -> Arr:
    """A linear map of x after dropout."""
    return linear(_dropout(state, x, rate=rate), w, b)


def _is_dropping(rate: Any, training: bool) -> bool:
    share = rules.plain_float(rate, "rate")
    if not 0 <= share < 1:
        raise ArgumentError(f"expected a rate from 0 to below 1, got {rate}")
    return bool(training) and share > 0


def _next_draw(rng: Generator | Tensor | int | None) -> Tensor:
    return rng if isinstance(rng, Tensor) else generator_of(rng).draw()


@rules.on_tensor
@rules.described(_PARAMETERS, ("Tensor", "A tensor of the shape of `x`."), x="The input.")
def dropout(
    x: Tensor, /, rate: float = 0.5, *, rng: Generator | Tensor | int | None = None, training: bool = True
) -> Tensor:
    """Set each element to 0 with probability `rate`, and divide the others by 1 - rate.

    A jitted function draws anew at every call.

    Examples
    --------
    >>> import yosegi as ys
    >>> sorted(set(ys.nn.dropout(ys.ones((100,)), 0.5, rng=ys.random.default_rng(0)).tolist()))
    [0.0, 2.0]
    """
    return _dropout(_next_draw(rng), x, rate=rate) if _is_dropping(rate, training) else Tensor(x._node)


# The patterns


@rules.on_tensor
@_described()
def dropout_linear(
    x: Tensor,
    w: Tensor,
    /,
    b: Tensor | None = None,
    *,
    rate: float = 0.5,
    rng: Generator | Tensor | int | None = None,
    training: bool = True,
) -> Tensor:
    """Compute linear(dropout(x, rate), w, b) as one operation.

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.asarray([1.0, 2.0]), ys.asarray([[3.0, 4.0]])
    >>> ys.nn.dropout_linear(x, w, rate=0.5, training=False).tolist()
    [11.0]
    """
    return _dropout_linear(_next_draw(rng), x, w, b, rate=rate) if _is_dropping(rate, training) else linear(x, w, b)


@_composite(normal=lambda x, w, residual, b: _linear_form(x, w, b))
@_described()
def linear_residual_relu(x: Arr, w: Arr, residual: Arr, /, b: Arr = None) -> Arr:
    """Compute relu(x @ w.T + b + residual) as one operation.

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.asarray([1.0, 2.0]), ys.asarray([[3.0, 4.0]])
    >>> ys.nn.linear_residual_relu(x, w, ys.asarray([-20.0])).tolist()
    [0.0]
    """
    return relu(linear(x, w, b) + residual)


@_composite(normal=lambda x, w, b, *, approximate: _linear_form(x, w, b, approximate=approximate), batch=along_first())
@_described()
def gelu_linear(x: Arr, w: Arr, /, b: Arr = None, *, approximate: str = "none") -> Arr:
    """Compute gelu(x) @ w.T + b as one operation.

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.asarray([1.0, 2.0]), ys.asarray([[3.0, 4.0]])
    >>> round(float(ys.nn.gelu_linear(x, w)[0]), 4)
    10.342
    """
    return linear(gelu(x, approximate=approximate), w, b)


def _normed_form(
    x: Spec, w: Spec, mean: Spec, var: Spec, b: Spec | None, weight: Spec | None, bias: Spec | None, *, eps: Any
) -> dict[str, Any]:
    return _linear_form(x, w, b, eps=rules.plain_float(eps, "eps"))


@_composite(normal=_normed_form)
@_described()
def linear_batch_norm_relu(
    x: Arr, w: Arr, mean: Arr, var: Arr, /, b: Arr = None, weight: Arr = None, bias: Arr = None, *, eps: float = 1e-5
) -> Arr:
    """Compute relu(batch_norm(x @ w.T + b, mean, var, weight, bias)) as one operation.

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.asarray([1.0, 2.0]), ys.asarray([[3.0, 4.0]])
    >>> ys.nn.linear_batch_norm_relu(x, w, ys.asarray([11.0]), ys.asarray([1.0])).tolist()
    [0.0]
    """
    return relu(batch_norm(linear(x, w, b), mean, var, weight, bias, axis=-1, eps=eps))


def _after_norm_form(
    x: Spec, w: Spec, b: Spec | None, weight: Spec | None, bias: Spec | None, *, eps: Any
) -> dict[str, Any]:
    return _linear_form(x, w, b, eps=rules.plain_float(eps, "eps"))


@_composite(normal=_after_norm_form, batch=along_first())
@_described(weight="Multiplies the normalised values, of shape (inputs,).", bias="Added last, of shape (inputs,).")
def layer_norm_linear(
    x: Arr, w: Arr, /, b: Arr = None, weight: Arr = None, bias: Arr = None, *, eps: float = 1e-5
) -> Arr:
    """Compute layer_norm(x, weight, bias) @ w.T + b as one operation.

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.asarray([1.0, 2.0]), ys.asarray([[3.0, 4.0]])
    >>> round(float(ys.nn.layer_norm_linear(x, w)[0]), 3)
    1.0
    """
    return linear(layer_norm(x, weight, bias, eps=eps), w, b)


__all__ = [
    "dropout", "dropout_linear", "gelu_linear", "layer_norm_linear", "linear", "linear_batch_norm_relu",
    "linear_residual_relu",
]  # fmt: skip
