"""Losses of two tensors: element by element, then their mean or sum."""

from __future__ import annotations

from .._tensor.tensor import Tensor
from . import rules
from .elementwise import abs, exp, log, logaddexp, maximum, minimum, sqrt, square, where
from .loss import REDUCTIONS
from .reduce import mean, sum


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    rules.one_of("reduction", reduction, REDUCTIONS)
    return loss if reduction == "none" else sum(loss) if reduction == "sum" else mean(loss)


@rules.on_tensor
def l1_loss(x: Tensor, y: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """Compute the absolute differences of two tensors, and their mean or sum.

    Parameters
    ----------
    x : Tensor
        Predictions.
    y : Tensor
        Targets.
    reduction : {"mean", "sum", "none"}
        The reduction of all differences.

    Returns
    -------
    Tensor
        A scalar, or the differences for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.nn.l1_loss(ys.asarray([1.0, 2.0]), ys.asarray([1.0, 4.0])))
    1.0
    """
    return _reduced(abs(x - y), reduction)


@rules.on_tensor
def huber_loss(x: Tensor, y: Tensor, /, *, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Compute half of the squared differences where these are small, and a linear loss beyond, and their mean or sum.

    Parameters
    ----------
    x : Tensor
        Predictions.
    y : Tensor
        Targets.
    delta : float
        The difference from which on the loss is linear.
    reduction : {"mean", "sum", "none"}
        The reduction of all losses.

    Returns
    -------
    Tensor
        A scalar, or the losses for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.huber_loss(ys.asarray([0.5, 3.0]), ys.asarray([0.0, 0.0]), reduction="none").tolist()
    [0.125, 2.5]
    """
    distance = abs(x - y)
    return _reduced(where(distance < delta, square(distance) * 0.5, (distance - 0.5 * delta) * delta), reduction)


@rules.on_tensor
def binary_cross_entropy(x: Tensor, y: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy of targets and probabilities of two classes.

    Parameters
    ----------
    x : Tensor
        Probabilities, from 0 to 1. `binary_cross_entropy_with_logits` is exact where they are near the ends.
    y : Tensor
        Targets, from 0 to 1.
    reduction : {"mean", "sum", "none"}
        The reduction of all losses.

    Returns
    -------
    Tensor
        A scalar, or the losses for "none". A logarithm counts as at least -100, as in PyTorch.

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.binary_cross_entropy(ys.asarray([0.5]), ys.asarray([1.0]))), 4)
    0.6931
    """
    return _reduced(-(y * maximum(log(x), -100.0) + (1 - y) * maximum(log(1 - x), -100.0)), reduction)


@rules.on_tensor
def binary_cross_entropy_with_logits(
    x: Tensor, y: Tensor, /, *, pos_weight: Tensor | float | None = None, reduction: str = "mean"
) -> Tensor:
    """Compute the cross-entropy of targets and sigmoid(x) of two classes.

    Parameters
    ----------
    x : Tensor
        Logits.
    y : Tensor
        Targets, from 0 to 1.
    pos_weight : Tensor or float, optional
        The weight of the targets 1.
    reduction : {"mean", "sum", "none"}
        The reduction of all losses.

    Returns
    -------
    Tensor
        A scalar, or the losses for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.binary_cross_entropy_with_logits(ys.asarray([0.0]), ys.asarray([1.0]))), 4)
    0.6931
    """
    weight = 1.0 if pos_weight is None else pos_weight
    return _reduced((1 - y) * x + (1 + (weight - 1) * y) * logaddexp(-x, 0), reduction)


@rules.on_tensor
def kl_div(x: Tensor, y: Tensor, /, *, log_target: bool = False, reduction: str = "mean") -> Tensor:
    """Compute the Kullback-Leibler divergence from logarithms of probabilities.

    Parameters
    ----------
    x : Tensor
        Logarithms of the predicted probabilities.
    y : Tensor
        The target probabilities.
    log_target : bool
        True: `y` has logarithms, too.
    reduction : {"mean", "sum", "none", "batchmean"}
        The reduction of all terms. "batchmean" is the sum by the length of the first axis: the divergence itself.

    Returns
    -------
    Tensor
        A scalar, or the terms for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([[0.5, 0.5]])
    >>> float(ys.nn.kl_div(ys.log(p), p, reduction="batchmean"))
    0.0
    """
    y = rules.as_tensor(y)
    if log_target:
        terms = exp(y) * (y - x)
    else:
        terms = where(y > 0, y * (log(where(y > 0, y, 1)) - x), 0)
    return sum(terms) / x.shape[0] if reduction == "batchmean" else _reduced(terms, reduction)


@rules.on_tensor
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    /,
    *,
    margin: float = 1.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Compute by how much the distance to a positive sample, plus a margin, exceeds that to a negative one.

    Parameters
    ----------
    anchor, positive, negative : Tensor
        Samples, of shape (…, features).
    margin : float
        The wanted difference of the distances.
    eps : float
        Added to each difference, so that the gradient at 0 is defined.
    swap : bool
        True: the negative sample is compared with the nearer one of anchor and positive sample.
    reduction : {"mean", "sum", "none"}
        The reduction of the losses of all samples.

    Returns
    -------
    Tensor
        A scalar, or the loss of each sample for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> a, p, n = (ys.asarray([[v, 0.0]]) for v in (0.0, 1.0, 1.5))
    >>> round(float(ys.nn.triplet_margin_loss(a, p, n)), 3)
    0.5
    """
    far = _distance(anchor, negative, eps)
    far = minimum(far, _distance(positive, negative, eps)) if swap else far
    return _reduced(maximum(_distance(anchor, positive, eps) - far + margin, 0.0), reduction)


def _distance(x: Tensor, y: Tensor, eps: float) -> Tensor:
    return sqrt(sum(square(x - y + eps), axis=-1))


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss",
    "triplet_margin_loss",
]  # fmt: skip
