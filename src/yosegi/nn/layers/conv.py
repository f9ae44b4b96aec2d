"""Convolutions and their transposes, by the number of spatial dimensions."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Final, final

from ..._tensor.dtype import float32
from ..._tensor.tensor import Tensor
from ...errors import ArgumentError
from ...ops import rules
from ...ops.conv import (
    Numbers,
    Padding,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from ...ops.creation import DTypeLike
from ...ops.layout import pad
from ...ops.windows import numbers
from ..init import Rng
from ..module import Module
from .linear import scaled_pair

_CONVOLUTIONS: Final = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSES: Final = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}
_PAD_MODES: Final = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class _Conv(Module):
    """A convolution in some number of dimensions."""

    rank: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Padding = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        rng: Rng = None,
        dtype: DTypeLike = float32,
    ) -> None:
        if not isinstance(padding_mode, str) or padding_mode not in _PAD_MODES:
            raise ArgumentError(
                f"[{type(self).__name__}] expected padding_mode among {', '.join(map(repr, _PAD_MODES))}, got "
                f"{padding_mode!r}"
            )
        kernel = _kernel(self, in_channels, out_channels, kernel_size, groups)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.padding_mode = groups, padding_mode
        inputs = in_channels // groups
        self.weight, self.bias = scaled_pair(
            (out_channels, inputs, *kernel), out_channels, inputs * prod(kernel), bias, rng, dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the convolution."""
        padding = self.padding
        if self.padding_mode != "zeros":
            widths = [(0, 0)] * (x.ndim - self.rank)
            x, padding = pad(x, (*widths, *self._widths()), _PAD_MODES[self.padding_mode]), 0
        return _CONVOLUTIONS[self.rank](x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _widths(self) -> list[Any]:
        """The elements before and behind each dimension."""
        if self.padding == "valid":
            return [(0, 0)] * self.rank
        if self.padding == "same":
            steps = numbers(self.dilation, self.rank, "dilation")
            totals = [d * (k - 1) for d, k in zip(steps, self.kernel_size, strict=True)]
            return [(t // 2, t - t // 2) for t in totals]
        given = self.padding if isinstance(self.padding, tuple) else (self.padding,) * self.rank
        return [p if isinstance(p, tuple) else (p, p) for p in given]


class _ConvTranspose(Module):
    """The transpose of a convolution in some number of dimensions."""

    rank: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Numbers = 1,
        *,
        rng: Rng = None,
        dtype: DTypeLike = float32,
    ) -> None:
        kernel = _kernel(self, in_channels, out_channels, kernel_size, groups)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation
        outputs = out_channels // groups
        self.weight, self.bias = scaled_pair(
            (in_channels, outputs, *kernel), out_channels, outputs * prod(kernel), bias, rng, dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the transpose of the convolution."""
        attrs = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return _TRANSPOSES[self.rank](x, self.weight, self.bias, *attrs)


def _kernel(module: Any, inputs: int, outputs: int, kernel_size: Numbers, groups: int) -> tuple[int, ...]:
    """The lengths of a kernel, if the groups divide the channels."""
    rules.counts(type(module).__name__, in_channels=inputs, out_channels=outputs, groups=groups)
    if groups < 1 or inputs % groups or outputs % groups:
        raise ArgumentError(
            f"[{type(module).__name__}] expected groups that divide {inputs} and {outputs} channels, got {groups}"
        )
    return numbers(kernel_size, module.rank, "kernel_size")


_CONV_DOC: Final = """A convolution of (batch, channels, {rank} lengths) with a kernel, plus a bias.

    Parameters
    ----------
    in_channels, out_channels : int
        The channels of the input and of the output.
    kernel_size : int or tuple of int
        The lengths of the kernel.
    stride : int or tuple of int
        The step between windows.
    padding : int, tuple, "same" or "valid"
        Elements around the input.
    dilation : int or tuple of int
        The step between the elements of a window.
    groups : int
        The number of groups of channels that do not mix.
    bias : bool
        False: no bias.
    padding_mode : {{"zeros", "reflect", "replicate", "circular"}}
        The elements around the input.
    rng : Generator or int, optional
        The generator of the initial values.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> layer = ys.nn.Conv{rank}d(3, 4, 3, padding="same")
    >>> layer(ys.ones((2, 3) + (8,) * {rank})).shape == (2, 4) + (8,) * {rank}
    True
    """
_TRANSPOSE_DOC: Final = """The transpose of a convolution in {rank} dimensions, from its output to its input shape.

    Parameters
    ----------
    in_channels, out_channels : int
        The channels of the input and of the output.
    kernel_size : int or tuple of int
        The lengths of the kernel.
    stride, padding, dilation : int or tuple of int
        The parameters of the convolution that this transposes.
    output_padding : int or tuple of int
        Extra length of the result at the end of each dimension.
    groups : int
        The number of groups of channels that do not mix.
    bias : bool
        False: no bias.
    rng : Generator or int, optional
        The generator of the initial values.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> layer = ys.nn.ConvTranspose{rank}d(3, 5, 2, stride=2)
    >>> layer(ys.ones((2, 3) + (4,) * {rank})).shape == (2, 5) + (8,) * {rank}
    True
    """


@final
class Conv1d(_Conv):
    __doc__ = _CONV_DOC.format(rank=1)
    rank = 1


@final
class Conv2d(_Conv):
    __doc__ = _CONV_DOC.format(rank=2)
    rank = 2


@final
class Conv3d(_Conv):
    __doc__ = _CONV_DOC.format(rank=3)
    rank = 3


@final
class ConvTranspose1d(_ConvTranspose):
    __doc__ = _TRANSPOSE_DOC.format(rank=1)
    rank = 1


@final
class ConvTranspose2d(_ConvTranspose):
    __doc__ = _TRANSPOSE_DOC.format(rank=2)
    rank = 2


@final
class ConvTranspose3d(_ConvTranspose):
    __doc__ = _TRANSPOSE_DOC.format(rank=3)
    rank = 3
