"""Activation functions as modules: for models that name them, and for the one with a parameter."""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar, Final, final

from ..._tensor.dtype import float32
from ..._tensor.tensor import Tensor
from ...errors import ShapeError
from ...ops.activation import elu, gelu, leaky_relu, relu, sigmoid, silu, softplus
from ...ops.creation import DTypeLike, full
from ...ops.elementwise import tanh, where
from ...ops.gates import glu, hardsigmoid, hardswish, log_sigmoid, mish, relu6, selu
from ...ops.normal import log_softmax, softmax
from ...ops.shape import reshape
from ..module import Module

_DOC: Final = """The activation function `ys.{function}` as a module.

    Parameters
    ----------
    *args, **settings
        The arguments of the function behind the tensor.

    Examples
    --------
    >>> import yosegi as ys
    >>> bool(ys.all(ys.nn.{name}()(ys.ones((4,))) == ys.{function}(ys.ones((4,)))))
    True
    """


class _Activation(Module):
    """A function of one tensor with settings."""

    function: ClassVar[Any]

    def __init__(self, *args: Any, **settings: Any) -> None:
        try:
            given = signature(self.function).bind(None, *args, **settings).arguments
        except TypeError as error:
            raise TypeError(f"[{type(self).__name__}] {error}") from None
        for name, value in list(given.items())[1:]:
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        settings = {name: value for name, value in vars(self).items() if name not in ("training", "_form")}
        return self.function(x, **settings)  # type: ignore[no-any-return]


@final
class ReLU(_Activation):
    __doc__ = _DOC.format(name="ReLU", function="nn.relu")
    function = relu


@final
class LeakyReLU(_Activation):
    __doc__ = _DOC.format(name="LeakyReLU", function="nn.leaky_relu")
    function = leaky_relu


@final
class ELU(_Activation):
    __doc__ = _DOC.format(name="ELU", function="nn.elu")
    function = elu


@final
class SELU(_Activation):
    __doc__ = _DOC.format(name="SELU", function="nn.selu")
    function = staticmethod(selu)


@final
class GELU(_Activation):
    __doc__ = _DOC.format(name="GELU", function="nn.gelu")
    function = gelu


@final
class SiLU(_Activation):
    __doc__ = _DOC.format(name="SiLU", function="nn.silu")
    function = silu


@final
class Mish(_Activation):
    __doc__ = _DOC.format(name="Mish", function="nn.mish")
    function = staticmethod(mish)


@final
class Hardswish(_Activation):
    __doc__ = _DOC.format(name="Hardswish", function="nn.hardswish")
    function = staticmethod(hardswish)


@final
class ReLU6(_Activation):
    __doc__ = _DOC.format(name="ReLU6", function="nn.relu6")
    function = staticmethod(relu6)


@final
class Hardsigmoid(_Activation):
    __doc__ = _DOC.format(name="Hardsigmoid", function="nn.hardsigmoid")
    function = staticmethod(hardsigmoid)


@final
class LogSigmoid(_Activation):
    __doc__ = _DOC.format(name="LogSigmoid", function="nn.log_sigmoid")
    function = staticmethod(log_sigmoid)


@final
class GLU(_Activation):
    __doc__ = _DOC.format(name="GLU", function="nn.glu")
    function = staticmethod(glu)


@final
class Sigmoid(_Activation):
    __doc__ = _DOC.format(name="Sigmoid", function="nn.sigmoid")
    function = sigmoid


@final
class Tanh(_Activation):
    __doc__ = _DOC.format(name="Tanh", function="tanh")
    function = tanh


@final
class Softplus(_Activation):
    __doc__ = _DOC.format(name="Softplus", function="nn.softplus")
    function = softplus


@final
class Softmax(_Activation):
    __doc__ = _DOC.format(name="Softmax", function="nn.softmax")
    function = softmax


@final
class LogSoftmax(_Activation):
    __doc__ = _DOC.format(name="LogSoftmax", function="nn.log_softmax")
    function = log_softmax


@final
class PReLU(Module):
    """Compute x for x > 0, and weight * x otherwise. The channels are the second axis.

    Parameters
    ----------
    num_parameters : int
        1, or the number of channels.
    init : float
        The initial slope.
    dtype : dtype
        The dtype of the parameter.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.PReLU()(ys.asarray([-4.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: DTypeLike = float32) -> None:
        self.weight = full((num_parameters,), init, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the negative elements."""
        slope = self.weight
        if slope.shape[0] > 1:
            if x.ndim < 2 or x.shape[1] != slope.shape[0]:
                raise ShapeError(f"[PReLU] expected x of shape (batch, {slope.shape[0]}, …), got {x.shape}")
            slope = reshape(slope, (slope.shape[0],) + (1,) * (x.ndim - 2))
        return where(x > 0, x, x * slope)
