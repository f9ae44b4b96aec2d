"""Convolutions as vendors' libraries describe them.

The gradients of a convolution are convolutions. The one by its weights has weights that are larger than its result; the
one by its input, if it has a stride, spreads the elements of its own input. Libraries have operations of their own for
both, which want batch and channels in the other order, and weights that are not reversed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import prod

from ..._tensor.node import Call, Shape


class Form(Enum):
    """An operation of a library that a convolution is."""

    FORWARD = auto()
    TO_WEIGHTS = auto()
    """The gradient of another convolution by its weights. Batch and channels are exchanged in operands and result."""
    TO_INPUT = auto()
    """The gradient of another convolution by its input. The weights are reversed, and their channels exchanged."""


@dataclass(frozen=True, slots=True)
class LibraryConvolution:
    """A convolution, or the one that it is the gradient of."""

    form: Form
    shapes: tuple[Shape, Shape, Shape]
    """Of both operands and the result, in the order of axes that the library wants. There are at least two lengths."""
    pads: tuple[tuple[int, int], ...]
    strides: Shape
    dilations: Shape
    groups: int


def form_refusal(call: Call, library: str, *, pads_sides_alike: bool) -> str | None:
    """Why a library has no operation for a convolution, or `None`."""
    if form_of(call) is not Form.TO_INPUT:
        if any(s > 1 for s in call.attrs["spread"]):
            return f"{library} has no convolution of elements that stand apart"
        pads = library_convolution(call).pads
        if any(pad < 0 for pair in pads for pad in pair):
            return f"{library} has no convolution that cuts the sides off"
        if pads_sides_alike and any(low != high for low, high in pads):
            return f"{library} need not have an engine that pads one side more than the other"
    return None if all(s.size for s in (*call.inputs, call.spec)) else "there is nothing to compute"


def library_convolution(call: Call) -> LibraryConvolution:
    """A convolution that `form_refusal` does not refuse. One along one length is one along two, the first of which
    is 1."""
    attrs, form = call.attrs, form_of(call)
    shapes = [spec.shape for spec in (*call.inputs, call.spec)]
    pads, strides, dilations = attrs["padding"], attrs["stride"], attrs["dilation"]
    if form is Form.TO_WEIGHTS:
        shapes = [exchanged(shape) for shape in shapes]
        strides, dilations = dilations, strides
        pads = [(low, low) for low, _ in pads]
    elif form is Form.TO_INPUT:
        shapes[1] = exchanged(shapes[1])
        pads, strides = [(pad, pad) for pad in _pads(call)], attrs["spread"]
    one = (1,) * (call.spec.ndim == 3)
    x, w, y = (widened(shape) for shape in shapes)
    return LibraryConvolution(
        form, (x, w, y), (*[(0, 0) for _ in one], *pads), (*one, *strides), (*one, *dilations), attrs["groups"]
    )


def exchanged(shape: Shape) -> Shape:
    """A shape with its first two dimensions exchanged."""
    return (shape[1], shape[0], *shape[2:])


def widened(shape: Shape) -> Shape:
    """A shape with at least two lengths."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape


def form_of(call: Call) -> Form:
    """The operation of a library that a convolution is."""
    if call.attrs["groups"] == 1:
        if _is_weight_gradient(call):
            return Form.TO_WEIGHTS
        if _is_input_gradient(call):
            return Form.TO_INPUT
    return Form.FORWARD


def _is_weight_gradient(call: Call) -> bool:
    """True if a convolution is the gradient of another by its weights: its own weights are larger than its result.

    The result has as many elements as the other one's weights, if both pad alike. A gradient whose padding differs from
    side to side leaves out elements that the other convolution did not read.
    """
    x, w = call.inputs
    attrs = call.attrs
    if prod(w.shape[2:]) <= prod(call.spec.shape[2:]) or any(s > 1 for s in attrs["spread"]):
        return False
    lengths = zip(
        x.shape[2:], w.shape[2:], call.spec.shape[2:], attrs["stride"], attrs["dilation"], attrs["padding"], strict=True
    )
    return all(
        _count(size, window, low, dilation, stride) == count
        for size, count, window, dilation, stride, (low, _) in lengths
    )


def _is_input_gradient(call: Call) -> bool:
    """True if a convolution is the gradient by its input of another with strides."""
    x, w = call.inputs
    attrs = call.attrs
    if all(s == 1 for s in attrs["spread"]) or any(s != 1 for s in attrs["stride"]):
        return False
    lengths = zip(x.shape[2:], w.shape[2:], call.spec.shape[2:], attrs["spread"], attrs["dilation"], strict=True)
    return all(
        pad >= 0 and _count(size, window, pad, dilation, stride) == count
        for pad, (count, window, size, stride, dilation) in zip(_pads(call), lengths, strict=True)
    )


def _pads(call: Call) -> list[int]:
    """The padding of the convolution that a convolution is the gradient of by its input."""
    sizes = zip(call.inputs[1].shape[2:], call.attrs["dilation"], call.attrs["padding"], strict=True)
    return [dilation * (window - 1) - low for window, dilation, (low, _) in sizes]


def _count(size: int, window: int, pad: int, dilation: int, stride: int) -> int:
    """The windows along a length that is padded alike on both sides."""
    return (size + 2 * pad - dilation * (window - 1) - 1) // stride + 1
