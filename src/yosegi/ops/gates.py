"""Activation functions that are short formulas of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .._tensor.tensor import Tensor
from ..errors import ShapeError
from . import rules
from .activation import elu, sigmoid, softplus
from .conv import called
from .elementwise import clip, tanh

_ALPHA: Final = 1.6732632423543772
_SCALE: Final = 1.0507009873554805
_DOC: Final = """Compute {formula} element by element.

    Parameters
    ----------
    x : Tensor
        The input.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 4) for v in ys.nn.{name}(ys.asarray([-1.0, 2.0])).tolist()]
    {values}
    """


def _formula(name: str, formula: str, values: str, function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def made(x: Tensor, /) -> Tensor:
        return function(x)

    return called(made, name, _DOC.format(name=name, formula=formula, values=values))


relu6 = _formula("relu6", "min(max(x, 0), 6)", "[0.0, 2.0]", lambda x: clip(x, 0, 6))
selu = _formula("selu", "1.0507 * elu(x, 1.6733)", "[-1.1113, 2.1014]", lambda x: elu(x, alpha=_ALPHA) * _SCALE)
mish = _formula("mish", "x * tanh(softplus(x))", "[-0.3034, 1.944]", lambda x: x * tanh(softplus(x)))
hardsigmoid = _formula("hardsigmoid", "min(max(x + 3, 0), 6) / 6", "[0.3333, 0.8333]", lambda x: clip(x + 3, 0, 6) / 6)
hardswish = _formula("hardswish", "x * hardsigmoid(x)", "[-0.3333, 1.6667]", lambda x: x * clip(x + 3, 0, 6) / 6)
log_sigmoid = _formula("log_sigmoid", "log(sigmoid(x))", "[-1.3133, -0.1269]", lambda x: -softplus(-x))


@rules.on_tensor
def glu(x: Tensor, /, axis: int = -1) -> Tensor:
    """Compute a * sigmoid(b), where a and b are the two halves of x along an axis.

    Parameters
    ----------
    x : Tensor
        The input, of an even length along the axis.
    axis : int
        The axis.

    Returns
    -------
    Tensor
        A tensor of half that length along the axis.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.glu(ys.asarray([2.0, 0.0])).tolist()
    [1.0]
    """
    place = rules.normal_axis(axis, x.ndim)
    if x.shape[place] % 2:
        raise ShapeError(f"expected an even length along axis {axis}, got shape {x.shape}")
    half, before = x.shape[place] // 2, (slice(None),) * place
    return x[(*before, slice(None, half))] * sigmoid(x[(*before, slice(half, None))])


__all__ = ["glu", "hardsigmoid", "hardswish", "log_sigmoid", "mish", "relu6", "selu"]
