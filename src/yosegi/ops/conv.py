"""Convolutions, by deep learning's meaning of the word: the kernel is not reversed.

`conv` is closed under differentiation: its gradients are convolutions, of any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .._tensor.batch import Flags
from .._tensor.composite import composite
from .._tensor.node import Shape, Spec, spec
from .._tensor.op import Arr, Normal, Op, OpKind, op
from .._tensor.role import Contraction
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .elementwise import conj
from .shape import expand_dims, flip, moveaxis, permute_dims, reshape, squeeze
from .windows import Windows, convolved, numbers, pads

Numbers = int | tuple[int, ...]
Padding = int | str | tuple[Any, ...]

SPATIAL = (1, 2, 3)


def _ranks(x: Spec, w: Spec) -> int:
    rules.expect(x.dtype, "a numeric dtype", rules.is_numeric)
    rank = x.ndim - 2
    if rank not in SPATIAL or w.ndim != x.ndim:
        raise ShapeError(
            f"expected x of shape (batch, channels, 1 to 3 lengths) and w of as many dimensions, got {x.shape} and "
            f"{w.shape}"
        )
    return rank


def _grouped(x: Spec, w: Spec, groups: Any) -> int:
    count = rules.as_index(groups, "groups")
    if count < 1 or w.shape[0] % count:
        raise ArgumentError(f"expected groups that divide the {w.shape[0]} of w's first dimension, got {count}")
    return count


def _conv_rule(x: Spec, w: Spec, *, stride: Any, padding: Any, dilation: Any, groups: Any, spread: Any) -> Normal:
    _ranks(x, w)
    groups = _grouped(x, w, groups)
    if x.shape[1] != w.shape[1] * groups:
        raise ShapeError(
            f"expected w of shape (outputs, {x.shape[1]} / groups, …) for x of {x.shape[1]} channels in {groups} "
            f"groups, got {w.shape}"
        )
    if 0 in w.shape[2:]:
        raise ShapeError(f"expected a kernel of at least one place in each dimension, got w of shape {w.shape}")
    lengths = x.shape[2:]
    windows = _windows(w.shape[2:], lengths, stride, padding, dilation, spread)
    return Normal(
        spec((x.shape[0], w.shape[0], *windows.counts(lengths)), x.dtype), {**windows.attrs(), "groups": groups}
    )


def _windows(kernel: Shape, lengths: Shape, stride: Any, padding: Any, dilation: Any, spread: Any = 1) -> Windows:
    rank = len(kernel)
    steps = (numbers(stride, rank, "stride"), (), numbers(dilation, rank, "dilation"), numbers(spread, rank, "spread"))
    windows = Windows(kernel, *steps)
    return Windows(kernel, steps[0], pads(padding, lengths, windows), *steps[2:])


def _conv_vjp(g: Tensor, out: Tensor, x: Tensor, w: Tensor, *, groups: int, **attrs: Any) -> tuple[Tensor, Tensor]:
    windows = Windows(w.shape[2:], **attrs)
    return to_input(g, conj(w), x.shape[2:], windows, groups), _to_weight(g, conj(x), windows, groups)


def to_input(g: Tensor, w: Tensor, lengths: Shape, windows: Windows, groups: int) -> Tensor:
    """The gradient by the input: the output's cotangent, carried back through a kernel to an input of these lengths."""
    outputs, channels, *kernel = w.shape
    rest = tuple(range(3, 3 + len(kernel)))
    split = reshape(w, (groups, outputs // groups, channels, *kernel))
    exchanged = reshape(permute_dims(split, (0, 2, 1, *rest)), (groups * channels, outputs // groups, *kernel))
    back = windows.backward(lengths, g.shape[2:])
    return conv(g, flip(exchanged, axis=tuple(range(2, exchanged.ndim))), **back.attrs(), groups=groups)


def _to_weight(g: Tensor, x: Tensor, windows: Windows, groups: int) -> Tensor:
    """The gradient by the kernel: the output's cotangent as a kernel over the input, batch and channels swapped.

    Where the input's elements stand apart, the input is the kernel, over the cotangent: both have no zeros between
    their elements then, and the places of the gradient are found in reverse.
    """
    axes = tuple(range(2, x.ndim))
    is_reversed = max(windows.spread) > 1 and max(windows.stride) == 1
    if is_reversed:
        over = windows.to_reversed_kernel(x.shape[2:], g.shape[2:])
        image, kernel = g, x
    else:
        over = windows.to_kernel(x.shape[2:], g.shape[2:])
        image, kernel = x, g
    batch, channels, *lengths = image.shape
    split = reshape(image, (batch, groups, channels // groups, *lengths))
    split = permute_dims(split, (2, 1, 0, *[a + 1 for a in axes]))
    split = reshape(split, (channels // groups, groups * batch, *lengths))
    made = conv(split, permute_dims(kernel, (1, 0, *axes)), **over.attrs(), groups=groups)
    if not is_reversed:
        return permute_dims(made, (1, 0, *axes))
    apart = reshape(made, (made.shape[0], groups, made.shape[1] // groups, *made.shape[2:]))
    apart = permute_dims(apart, (1, 0, 2, *[a + 1 for a in axes]))
    return flip(reshape(apart, (groups * made.shape[0], *apart.shape[2:])), axis=axes)


def _conv_batch(op: Op[Any], batched: Flags, x: Tensor, w: Tensor, *, groups: int, **attrs: Any) -> Tensor:
    """One convolution: examples of x alone are a larger batch, those of w more outputs, those of both more groups."""
    if batched == (True, False):
        made = conv(reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), w, groups=groups, **attrs)
        return reshape(made, (*x.shape[:2], *made.shape[1:]))
    size, outputs, *kernel = w.shape
    if batched == (False, True):  # the outputs of each group stay together
        split = moveaxis(reshape(w, (size, groups, outputs // groups, *kernel)), 0, 1)
        made = conv(x, reshape(split, (size * outputs, *kernel)), groups=groups, **attrs)
        apart = reshape(made, (x.shape[0], groups, size, outputs // groups, *made.shape[2:]))
        return reshape(moveaxis(apart, 2, 0), (size, x.shape[0], outputs, *made.shape[2:]))
    image = moveaxis(x, 0, 1)
    image = reshape(image, (image.shape[0], size * image.shape[2], *image.shape[3:]))
    made = conv(image, reshape(w, (size * outputs, *kernel)), groups=size * groups, **attrs)
    return moveaxis(reshape(made, (made.shape[0], size, outputs, *made.shape[2:])), 1, 0)


@op(OpKind.CONVOLUTION, infer=_conv_rule, vjp=_conv_vjp, promotes_from=0, batch=_conv_batch,
    role=Contraction.WINDOWS)  # fmt: skip
def conv(
    x: Arr,
    w: Arr,
    /,
    *,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    spread: Numbers = 1,
) -> Arr:
    """The sums over windows of x (batch, channels, lengths), weighted by w (outputs, channels of a group, kernel).

    `spread` is how far apart the elements of x stand, with zeros between: the transpose of a stride.
    """
    windows = Windows(w.shape[2:], stride, padding, dilation, spread)  # type: ignore[arg-type]  # normal form: tuples
    return convolved(x, w, windows, groups)


# The transpose


def _transpose_form(
    x: Spec, w: Spec, *, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: Any
) -> dict[str, Any]:
    rank = _ranks(x, w)
    groups = _grouped(x, w, groups)
    if x.shape[1] != w.shape[0]:
        raise ShapeError(f"expected w of shape ({x.shape[1]}, outputs / groups, …), as x has channels, got {w.shape}")
    if isinstance(padding, str):
        raise ArgumentError(f"expected padding as numbers, got {padding!r}")
    windows = _windows(w.shape[2:], x.shape[2:], stride, padding, dilation)
    extra = numbers(output_padding, rank, "output_padding", least=0)
    for more, s, d in zip(extra, windows.stride, windows.dilation, strict=True):
        if more >= max(s, d):
            raise ArgumentError(f"expected output_padding below the stride or the dilation, got {output_padding}")
    if any(n < 1 for n in _transposed_lengths(x.shape[2:], windows, extra)):
        raise ShapeError(f"expected less padding than the result has places, got {windows.padding} for x of {x.shape}")
    return {"stride": windows.stride, "padding": windows.padding, "output_padding": extra,
            "dilation": windows.dilation, "groups": groups}  # fmt: skip


def _transposed_lengths(lengths: Shape, windows: Windows, extra: Shape) -> Shape:
    return tuple(
        (n - 1) * s - low - high + e + more
        for n, s, (low, high), e, more in zip(
            lengths, windows.stride, windows.padding, windows.extent, extra, strict=True
        )
    )


@composite(OpKind.CONVOLUTION, normal=_transpose_form, promotes_from=0, computes_half=True)
def conv_transpose(
    x: Arr, w: Arr, /, *, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: int
) -> Arr:
    """The transpose of a convolution, which takes its output's shape to its input's: w is (channels, outputs of a
    group, kernel)."""
    windows = Windows(w.shape[2:], stride, padding, dilation, (1,) * len(stride))
    return to_input(x, w, _transposed_lengths(x.shape[2:], windows, output_padding), windows, groups)


# By the number of spatial dimensions


def batched(x: Tensor, rank: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The function of x (batch, channels, lengths), also for an x without a batch."""
    if x.ndim == rank + 1:
        return squeeze(function(expand_dims(x, axis=0)), axis=0)
    if x.ndim != rank + 2:
        raise ShapeError(f"expected x of {rank + 2} dimensions, (batch, channels, {rank} lengths), got shape {x.shape}")
    return function(x)


def _biased(made: Tensor, b: Tensor | None) -> Tensor:
    if b is None:
        return made
    b = rules.as_tensor(b)
    if b.shape != made.shape[1:2]:
        raise ShapeError(f"expected b of shape {made.shape[1:2]}, one number for each output, got {b.shape}")
    return made + reshape(b, (b.shape[0],) + (1,) * (made.ndim - 2))


_CONV: Final = """Compute the convolution of a batch with a kernel, in {rank} dimensions, plus a bias.

    The kernel is not reversed: this is the convolution of deep learning.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, {rank} lengths). The batch may be left out.
    w : Tensor
        The kernel, of shape (outputs, channels / groups, {rank} lengths).
    b : Tensor, optional
        The bias, of shape (outputs,).
    stride : int or tuple of int
        The step between windows, one number for all dimensions or one for each.
    padding : int, tuple, "same" or "valid"
        Zeros around the input: a number, one for each dimension, or a pair (before, after) for each.
    dilation : int or tuple of int
        The step between the elements of a window.
    groups : int
        The number of groups of channels that do not mix.

    Returns
    -------
    Tensor
        A tensor of shape (batch, outputs, {rank} lengths).

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.ones((2, 3) + (8,) * {rank}), ys.ones((4, 3) + (3,) * {rank})
    >>> ys.nn.conv{rank}d(x, w, padding="same").shape == (2, 4) + (8,) * {rank}
    True
    """
_TRANSPOSE: Final = """Compute the transpose of a convolution, in {rank} dimensions, plus a bias.

    It maps the output shape of a convolution to its input shape.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, {rank} lengths). The batch may be left out.
    w : Tensor
        The kernel, of shape (channels, outputs / groups, {rank} lengths).
    b : Tensor, optional
        The bias, of shape (outputs,).
    stride, padding, dilation : int or tuple of int
        The parameters of the convolution that this transposes.
    output_padding : int or tuple of int
        Extra length of the result at the end of each dimension.
    groups : int
        The number of groups of channels that do not mix.

    Returns
    -------
    Tensor
        A tensor of shape (batch, outputs, {rank} lengths).

    Examples
    --------
    >>> import yosegi as ys
    >>> x, w = ys.ones((2, 3) + (4,) * {rank}), ys.ones((3, 5) + (2,) * {rank})
    >>> ys.nn.conv_transpose{rank}d(x, w, stride=2).shape == (2, 5) + (8,) * {rank}
    True
    """


def _conv_of(rank: int) -> Callable[..., Tensor]:
    def function(
        x: Tensor,
        w: Tensor,
        /,
        b: Tensor | None = None,
        stride: Numbers = 1,
        padding: Padding = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> Tensor:
        attrs: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return batched(x, rank, lambda x: _biased(conv(x, w, **attrs), b))

    return called(function, f"conv{rank}d", _CONV.format(rank=rank))


def _transpose_of(rank: int) -> Callable[..., Tensor]:
    def function(
        x: Tensor,
        w: Tensor,
        /,
        b: Tensor | None = None,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        dilation: Numbers = 1,
    ) -> Tensor:
        attrs: dict[str, Any] = {"stride": stride, "padding": padding, "output_padding": output_padding,
                                 "dilation": dilation, "groups": groups}  # fmt: skip
        return batched(x, rank, lambda x: _biased(conv_transpose(x, w, **attrs), b))

    return called(function, f"conv_transpose{rank}d", _TRANSPOSE.format(rank=rank))


def called(function: Callable[..., Tensor], name: str, doc: str) -> Callable[..., Tensor]:
    """The public function of this name."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return rules.on_tensor(function)


conv1d, conv2d, conv3d = map(_conv_of, SPATIAL)
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transpose_of, SPATIAL)

__all__ = [
    "conv", "conv1d", "conv2d", "conv3d", "conv_transpose", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]  # fmt: skip
