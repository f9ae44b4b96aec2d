"""Activation functions: elementwise, most of them made of a few other ops."""

from __future__ import annotations

from functools import partial
from math import pi, sqrt
from typing import Any

import numpy as np

from .._tensor.composite import composite
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind, op
from . import rules
from .elementwise import exp, expm1, logaddexp, tanh, where
from .erf import error_function

_math = partial(op, OpKind.ACTIVATION, infer=rules.real_floating, promotes_from=0, inexact=True)
_composite = partial(composite, OpKind.ACTIVATION, promotes_from=0, inexact=True)


@op(OpKind.ACTIVATION, infer=rules.real, promotes_from=0, vjp=lambda g, out, x: (where(x > 0, g, 0),),
    scalar=lambda k, x: k.max(x, k.const(0, x)))  # fmt: skip
def relu(x: Arr, /) -> Arr:
    """Element-wise max(x, 0). Its gradient at 0 is 0.

    >>> import yosegi as ys
    >>> ys.nn.relu(ys.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return np.maximum(x, np.zeros((), x.dtype))


@_math(vjp=lambda g, out, x: (g * exp(-x * x) * (2 / sqrt(pi)),), scalar=lambda k, x: k.erf(x))
def erf(x: Arr, /) -> Arr:
    """Element-wise error function."""
    return error_function(x)


@_math(vjp=lambda g, out, x: (g * out * (1 - out),),
       scalar=lambda k, x: k.div(k.const(1, x), k.add(k.const(1, x), k.exp(k.neg(x)))))  # fmt: skip
def sigmoid(x: Arr, /) -> Arr:
    """Element-wise 1 / (1 + e**-x)."""
    one = np.ones((), x.dtype)
    return one / (one + np.exp(-x))


@_composite()
def silu(x: Arr, /) -> Arr:
    """Element-wise x * sigmoid(x), also known as swish."""
    return x * sigmoid(x)


def _gelu_form(x: Spec, *, approximate: Any) -> dict[str, Any]:
    rules.one_of("approximate", approximate, ("none", "tanh"))
    return {"approximate": approximate}


@_composite(normal=_gelu_form)
def gelu(x: Arr, /, *, approximate: str = "none") -> Arr:
    """Element-wise x times the probability of a standard normal number below x; `approximate="tanh"` for the formula
    that some models were trained with.

    >>> import yosegi as ys
    >>> round(float(ys.nn.gelu(ys.asarray(1.0))), 6)
    0.841345
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * sqrt(0.5)))


def _number_form(x: Spec, **attrs: Any) -> dict[str, Any]:
    return {name: rules.plain_float(value, name) for name, value in attrs.items()}


@_composite(normal=_number_form)
def softplus(x: Arr, /, *, beta: float = 1.0) -> Arr:
    """Element-wise log(1 + e**(beta x)) / beta: a smooth relu."""
    return logaddexp(x, 0) if beta == 1 else logaddexp(x * beta, 0) / beta


@_composite(normal=_number_form)
def leaky_relu(x: Arr, /, negative_slope: float = 0.01) -> Arr:
    """Element-wise x, times `negative_slope` below 0."""
    return where(x > 0, x, x * negative_slope)


@_composite(normal=_number_form)
def elu(x: Arr, /, alpha: float = 1.0) -> Arr:
    """Element-wise x, and alpha * (e**x - 1) below 0."""
    return where(x > 0, x, expm1(where(x > 0, 0, x)) * alpha)


__all__ = ["elu", "erf", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus"]
