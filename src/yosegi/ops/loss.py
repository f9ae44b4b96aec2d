"""Losses: how far predictions are from what they should be."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._run.memory import HOST
from .._tensor.composite import composite
from .._tensor.dtype import int64
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, IndexingError, ShapeError
from . import rules
from .creation import arange
from .elementwise import logical_and, logical_or, square, where
from .normal import log_softmax
from .reduce import mean, sum
from .shape import expand_dims, reshape

REDUCTIONS = ("mean", "sum", "none")


def _cross_entropy_form(
    logits: Spec, labels: Spec, *, axis: Any, reduction: str, ignore_index: Any, label_smoothing: Any
) -> dict[str, Any]:
    rules.expect(labels.dtype, "labels of an integer dtype", lambda d: d.is_integer)
    rules.one_of("reduction", reduction, REDUCTIONS)
    classes = rules.normal_axis(axis, logits.ndim)
    rest = (*logits.shape[:classes], *logits.shape[classes + 1 :])
    if labels.shape != rest:
        raise ShapeError(
            f"expected labels of shape {rest}, the logits' {logits.shape} without the classes of axis {classes}, got "
            f"{labels.shape}; name the axis of the classes with axis="
        )
    smoothing = rules.plain_float(label_smoothing, "label_smoothing")
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"expected label_smoothing from 0 to 1, got {smoothing}")
    ignored = None if ignore_index is None else rules.as_index(ignore_index, "ignore_index")
    return {"axis": classes, "reduction": reduction, "ignore_index": ignored, "label_smoothing": smoothing}


@composite(OpKind.NORMALISATION, normal=_cross_entropy_form)
def _cross_entropy(
    logits: Arr, labels: Arr, /, *, axis: int, reduction: str, ignore_index: int | None, label_smoothing: float
) -> Arr:
    """The negative logarithm of the softmax of the logits at the labels."""
    return _at_labels(log_softmax(logits, axis=axis), labels, axis, reduction, ignore_index, label_smoothing)


def _at_labels(
    logs: Tensor, labels: Tensor, axis: int, reduction: str, ignore_index: int | None, label_smoothing: float
) -> Tensor:
    count = logs.shape[axis]
    labels = labels.astype(int64)
    classes = reshape(arange(count), (count,) + (1,) * (logs.ndim - axis - 1))
    # A choice among all classes, where a gather would do: its gradient is a choice again, not a scatter.
    loss = -sum(where(expand_dims(labels, axis=axis) == classes, logs, 0), axis=axis)
    if label_smoothing:
        loss = loss * (1 - label_smoothing) - mean(logs, axis=axis) * label_smoothing
    outside = logical_or(labels < 0, labels >= count)
    if ignore_index is None:
        loss = where(outside, float("nan"), loss)
        return loss if reduction == "none" else sum(loss) if reduction == "sum" else mean(loss)
    counted = labels != ignore_index
    loss = where(counted, where(logical_and(outside, counted), float("nan"), loss), 0)
    if reduction == "none":
        return loss
    return sum(loss) if reduction == "sum" else sum(loss) / sum(counted.astype(loss.dtype))


@rules.on_tensor
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    /,
    *,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross-entropy of integer labels and the softmax of logits.

    Parameters
    ----------
    logits : Tensor
        Unnormalised scores, with the classes along `axis`.
    labels : Tensor
        Classes, of an integer dtype and of the shape of `logits` without `axis`. A label that is no class raises
        `IndexingError` if its value is known, and makes the loss NaN otherwise.
    axis : int
        The axis of the classes. It is 1 for PyTorch's layout.
    reduction : {"mean", "sum", "none"}
        The reduction of the losses of all samples.
    ignore_index : int, optional
        Labels of this value do not count.
    label_smoothing : float
        The share of each label that is spread over all classes.

    Returns
    -------
    Tensor
        A scalar, or the loss of each sample for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.cross_entropy(ys.asarray([[2.0, 0.0], [0.0, 2.0]]), ys.asarray([0, 1]))), 6)
    0.126928
    """
    labels = rules.as_tensor(labels)
    loss = _cross_entropy(logits, labels, axis=axis, reduction=reduction, ignore_index=ignore_index,
                          label_smoothing=label_smoothing)  # fmt: skip
    _check_labels(labels, logits.shape[axis], ignore_index)
    return loss


@rules.on_tensor
def nll_loss(
    log_probs: Tensor, labels: Tensor, /, *, axis: int = -1, reduction: str = "mean", ignore_index: int | None = -100
) -> Tensor:
    """Compute the negative of the logarithms of probabilities at integer labels.

    Parameters
    ----------
    log_probs : Tensor
        Logarithms of probabilities, with the classes along `axis`, as `log_softmax` gives them.
    labels : Tensor
        Classes, of an integer dtype and of the shape of `log_probs` without `axis`.
    axis : int
        The axis of the classes. It is 1 for PyTorch's layout.
    reduction : {"mean", "sum", "none"}
        The reduction of the losses of all samples.
    ignore_index : int, optional
        Labels of this value do not count.

    Returns
    -------
    Tensor
        A scalar, or the loss of each sample for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.nn.nll_loss(ys.asarray([[-1.0, -2.0], [-3.0, -4.0]]), ys.asarray([0, 1])))
    2.5
    """
    labels = rules.as_tensor(labels)
    form = _cross_entropy_form(
        log_probs._node.spec, labels._node.spec, axis=axis, reduction=reduction, ignore_index=ignore_index,
        label_smoothing=0.0,
    )  # fmt: skip
    _check_labels(labels, log_probs.shape[axis], ignore_index)
    return _at_labels(log_probs, labels, **form)


def _check_labels(labels: Tensor, count: int, ignored: int | None) -> None:
    buffer = labels._node.buffer
    if buffer is None or buffer.space is not HOST:
        return
    found = buffer.data
    outside = (found < 0) | (found >= count)
    outside = outside if ignored is None else outside & (found != ignored)
    if np.any(outside):
        raise IndexingError(f"expected labels from 0 to {count - 1}, got {found[outside][0]}")


@composite(OpKind.REDUCTION, promotes_from=0, inexact=True)
def mse_loss(x: Arr, y: Arr, /, *, reduction: str = "mean") -> Arr:
    """Compute the squared differences of two tensors, and their mean or sum.

    Parameters
    ----------
    x : Tensor
        Predictions.
    y : Tensor
        Targets.
    reduction : {"mean", "sum", "none"}
        The reduction of the losses of all samples.

    Returns
    -------
    Tensor
        A scalar, or the squared differences for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.nn.mse_loss(ys.asarray([1.0, 2.0]), ys.asarray([1.0, 4.0])))
    2.0
    """
    rules.one_of("reduction", reduction, REDUCTIONS)
    squares = square(x - y)
    return squares if reduction == "none" else sum(squares) if reduction == "sum" else mean(squares)


__all__ = ["cross_entropy", "mse_loss", "nll_loss"]
