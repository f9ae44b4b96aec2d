"""Activation functions: elementwise, most of them made of a few other ops."""

from __future__ import annotations

from functools import partial
from math import pi, sqrt
from typing import Any, Final

import numpy as np

from .._tensor.batch import elementwise
from .._tensor.composite import composite
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind, op
from . import rules
from .elementwise import exp, expm1, logaddexp, tanh, where
from .erf import error_function

_math = partial(op, OpKind.ACTIVATION, infer=rules.real_floating, promotes_from=0, inexact=True)
_composite = partial(composite, OpKind.ACTIVATION, promotes_from=0, inexact=True, batch=elementwise)
_PARAMETERS: Final = {
    "x": ("Tensor", "The input."),
    "approximate": ('{"none", "tanh"}', '"tanh" selects the tanh formula that some models were trained with.'),
    "beta": ("float", "The sharpness of the bend at 0."),
    "negative_slope": ("float", "The slope below 0."),
    "alpha": ("float", "The negative of the limit at -∞."),
}
_described = partial(rules.described, _PARAMETERS, ("Tensor", "A tensor of the shape of `x`."))


@op(OpKind.ACTIVATION, infer=rules.real, promotes_from=0, vjp=lambda g, out, x: (where(x > 0, g, 0),),
    scalar=lambda k, x: k.max(x, k.const(0, x)))  # fmt: skip
@_described()
def relu(x: Arr, /) -> Arr:
    """Compute max(x, 0) element by element.

    The gradient at 0 is 0.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.relu(ys.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return np.maximum(x, np.zeros((), x.dtype))


@_math(vjp=lambda g, out, x: (g * exp(-x * x) * (2 / sqrt(pi)),), scalar=lambda k, x: k.erf(x))
@_described()
def erf(x: Arr, /) -> Arr:
    """Compute the error function element by element.

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.erf(ys.asarray(1.0))), 6)
    0.842701
    """
    return error_function(x)


@_math(vjp=lambda g, out, x: (g * out * (1 - out),),
       scalar=lambda k, x: k.div(k.const(1, x), k.add(k.const(1, x), k.exp(k.neg(x)))))  # fmt: skip
@_described()
def sigmoid(x: Arr, /) -> Arr:
    """Compute 1 / (1 + exp(-x)) element by element.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.sigmoid(ys.asarray([0.0])).tolist()
    [0.5]
    """
    one = np.ones((), x.dtype)
    return one / (one + np.exp(-x))


@_composite()
@_described()
def silu(x: Arr, /) -> Arr:
    """Compute x * sigmoid(x), also known as swish, element by element.

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.silu(ys.asarray(1.0))), 6)
    0.731059
    """
    return x * sigmoid(x)


def _gelu_form(x: Spec, *, approximate: Any) -> dict[str, Any]:
    rules.one_of("approximate", approximate, ("none", "tanh"))
    return {"approximate": approximate}


@_composite(normal=_gelu_form)
@_described()
def gelu(x: Arr, /, *, approximate: str = "none") -> Arr:
    """Compute x * Φ(x) element by element, where Φ is the standard normal distribution function.

    Examples
    --------
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
@_described()
def softplus(x: Arr, /, *, beta: float = 1.0) -> Arr:
    """Compute log(1 + exp(beta * x)) / beta, a smooth relu, element by element.

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.softplus(ys.asarray(0.0))), 6)
    0.693147
    """
    return logaddexp(x, 0) if beta == 1 else logaddexp(x * beta, 0) / beta


@_composite(normal=_number_form)
@_described()
def leaky_relu(x: Arr, /, negative_slope: float = 0.01) -> Arr:
    """Compute x for x > 0, and negative_slope * x otherwise, element by element.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.leaky_relu(ys.asarray([-1.0, 2.0])).tolist()
    [-0.01, 2.0]
    """
    return where(x > 0, x, x * negative_slope)


@_composite(normal=_number_form)
@_described()
def elu(x: Arr, /, alpha: float = 1.0) -> Arr:
    """Compute x for x > 0, and alpha * (exp(x) - 1) otherwise, element by element.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 6) for v in ys.nn.elu(ys.asarray([-1.0, 2.0])).tolist()]
    [-0.632121, 2.0]
    """
    return where(x > 0, x, expm1(where(x > 0, 0, x)) * alpha)


__all__ = ["elu", "erf", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus"]
