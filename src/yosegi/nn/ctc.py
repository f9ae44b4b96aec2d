"""Connectionist temporal classification: the loss of a sequence of labels that no one has aligned with its input."""

from __future__ import annotations

from .._tensor.dtype import float_info
from .._tensor.tensor import Tensor
from .._trace.control.scans import scan
from ..errors import ShapeError
from ..ops import rules
from ..ops.creation import arange, full, full_like
from ..ops.elementwise import logaddexp, maximum, where
from ..ops.index import take_along_axis
from ..ops.loss import REDUCTIONS
from ..ops.reduce import mean, sum
from ..ops.shape import broadcast_to, concat, expand_dims, reshape, stack


@rules.on_tensor
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    /,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Compute the negative logarithm of the probability of label sequences, over all their alignments with the input.

    Parameters
    ----------
    log_probs : Tensor
        Logarithms of the probabilities of the classes, of shape (length, batch, classes), as `log_softmax` gives them.
    targets : Tensor
        The labels, of an integer dtype and of shape (batch, labels). Those beyond a target's length do not count.
    input_lengths : Tensor
        The length of each input, of shape (batch,).
    target_lengths : Tensor
        The length of each target, of shape (batch,).
    blank : int
        The class that stands for no label.
    reduction : {"mean", "sum", "none"}
        The reduction of the losses of all sequences. "mean" divides each by the length of its target first.
    zero_infinity : bool
        True: a sequence without any alignment has the loss 0, else it is infinite.

    Returns
    -------
    Tensor
        A scalar, or the loss of each sequence for "none".

    Examples
    --------
    >>> import yosegi as ys
    >>> logs = ys.nn.log_softmax(ys.zeros((4, 1, 3)))
    >>> round(float(ys.nn.ctc_loss(logs, ys.asarray([[1, 2]]), ys.asarray([4]), ys.asarray([2]))), 4)
    0.8432
    """
    rules.one_of("reduction", reduction, REDUCTIONS)
    labels, ends, sizes = (rules.as_tensor(t) for t in (targets, input_lengths, target_lengths))
    if log_probs.ndim != 3 or labels.ndim != 2 or labels.shape[0] != log_probs.shape[1]:
        raise ShapeError(
            f"expected log_probs (length, batch, classes) and targets (batch, labels), got {log_probs.shape} and "
            f"{labels.shape}"
        )
    length, batch, _ = log_probs.shape
    count = 2 * labels.shape[1] + 1
    # The labels with blanks between them and around, and the probabilities of these at each time.
    blanks = full_like(labels, blank)
    states = concat([reshape(stack([blanks, labels], axis=2), (batch, count - 1)), blanks[:, :1]], axis=1)
    emitted = take_along_axis(log_probs, broadcast_to(states, (length, batch, count)), axis=2)
    # A logarithm of 0 that stays finite in sums: the gradient of an infinity is not a number.
    never = float_info(log_probs.dtype).min / 8
    place = arange(count)
    earlier = concat([full_like(states[:, :2], blank), states[:, :-2]], axis=1)
    skips = (states != blank) & (states != earlier) & (place >= 2)
    start = where(place < 2, emitted[0], never)
    edge = full((batch, 2), never, dtype=log_probs.dtype)

    def step(before: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        row, time = now
        wide = concat([edge, before], axis=1)
        reached = logaddexp(logaddexp(before, wide[:, 1:-1]), where(skips, wide[:, :-2], never))
        after = maximum(reached + row, never)
        return where(expand_dims(time < ends, axis=1), after, before), None

    last, _ = scan(step, start, (emitted[1:], arange(1, length)))
    final = expand_dims(2 * sizes, axis=1)
    ended = take_along_axis(last, final, axis=1)[:, 0]
    label = take_along_axis(last, maximum(final - 1, 0), axis=1)[:, 0]
    loss = -where(sizes > 0, logaddexp(ended, label), ended)
    loss = where(loss > -never / 2, 0.0 if zero_infinity else float("inf"), loss)
    if reduction == "none":
        return loss
    return sum(loss) if reduction == "sum" else mean(loss / maximum(sizes, 1).astype(loss.dtype))
