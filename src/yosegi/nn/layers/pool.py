"""Pools and interpolation as modules."""

from __future__ import annotations

from typing import Any, ClassVar, Final, final

from ..._tensor.tensor import Tensor
from ...ops import pool, resize
from ...ops.conv import Numbers
from ..module import Module


class _MaxPool(Module):
    """The largest element of each window."""

    function: ClassVar[Any]

    def __init__(
        self, kernel_size: Numbers, stride: Numbers | None = None, padding: Numbers = 0, dilation: Numbers = 1
    ) -> None:
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        """Pool the windows."""
        return self.function(x, self.kernel_size, self.stride, self.padding, self.dilation)  # type: ignore[no-any-return]


class _AvgPool(Module):
    """The mean of each window."""

    function: ClassVar[Any]

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        """Pool the windows."""
        return self.function(x, self.kernel_size, self.stride, self.padding, self.count_include_pad)  # type: ignore[no-any-return]


class _AdaptivePool(Module):
    """A pool of a given number of windows."""

    function: ClassVar[Any]

    def __init__(self, output_size: Numbers) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """Pool the windows."""
        return self.function(x, self.output_size)  # type: ignore[no-any-return]


_DOC: Final = """The function `ys.nn.{function}` as a module, with its settings.

    Parameters
    ----------
    {settings}
        The settings of the function.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.{name}(2)(ys.ones((1, 3) + (6,) * {rank})).shape == (1, 3) + ({size},) * {rank}
    True
    """


def _doc(name: str, function: str, settings: str, size: int) -> str:
    return _DOC.format(name=name, function=function, settings=settings, rank=name[-2], size=size)


_MAX: Final = "kernel_size, stride, padding, dilation"
_MEAN: Final = "kernel_size, stride, padding, count_include_pad"


@final
class MaxPool1d(_MaxPool):
    __doc__ = _doc("MaxPool1d", "max_pool1d", _MAX, 3)
    function = staticmethod(pool.max_pool1d)


@final
class MaxPool2d(_MaxPool):
    __doc__ = _doc("MaxPool2d", "max_pool2d", _MAX, 3)
    function = staticmethod(pool.max_pool2d)


@final
class MaxPool3d(_MaxPool):
    __doc__ = _doc("MaxPool3d", "max_pool3d", _MAX, 3)
    function = staticmethod(pool.max_pool3d)


@final
class AvgPool1d(_AvgPool):
    __doc__ = _doc("AvgPool1d", "avg_pool1d", _MEAN, 3)
    function = staticmethod(pool.avg_pool1d)


@final
class AvgPool2d(_AvgPool):
    __doc__ = _doc("AvgPool2d", "avg_pool2d", _MEAN, 3)
    function = staticmethod(pool.avg_pool2d)


@final
class AvgPool3d(_AvgPool):
    __doc__ = _doc("AvgPool3d", "avg_pool3d", _MEAN, 3)
    function = staticmethod(pool.avg_pool3d)


@final
class AdaptiveAvgPool1d(_AdaptivePool):
    __doc__ = _doc("AdaptiveAvgPool1d", "adaptive_avg_pool1d", "output_size", 2)
    function = staticmethod(resize.adaptive_avg_pool1d)


@final
class AdaptiveAvgPool2d(_AdaptivePool):
    __doc__ = _doc("AdaptiveAvgPool2d", "adaptive_avg_pool2d", "output_size", 2)
    function = staticmethod(resize.adaptive_avg_pool2d)


@final
class AdaptiveAvgPool3d(_AdaptivePool):
    __doc__ = _doc("AdaptiveAvgPool3d", "adaptive_avg_pool3d", "output_size", 2)
    function = staticmethod(resize.adaptive_avg_pool3d)


@final
class AdaptiveMaxPool1d(_AdaptivePool):
    __doc__ = _doc("AdaptiveMaxPool1d", "adaptive_max_pool1d", "output_size", 2)
    function = staticmethod(resize.adaptive_max_pool1d)


@final
class AdaptiveMaxPool2d(_AdaptivePool):
    __doc__ = _doc("AdaptiveMaxPool2d", "adaptive_max_pool2d", "output_size", 2)
    function = staticmethod(resize.adaptive_max_pool2d)


@final
class AdaptiveMaxPool3d(_AdaptivePool):
    __doc__ = _doc("AdaptiveMaxPool3d", "adaptive_max_pool3d", "output_size", 2)
    function = staticmethod(resize.adaptive_max_pool3d)


@final
class Upsample(Module):
    """The function `ys.nn.interpolate` as a module, with its settings.

    Parameters
    ----------
    size : int or tuple of int, optional
        The new lengths.
    scale_factor : float or tuple of float, optional
        The new lengths by the old ones.
    mode : {"nearest", "linear", "bilinear", "trilinear"}
        The kind of interpolation.
    align_corners : bool
        True: the outermost elements keep their places.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.Upsample(scale_factor=2.0)(ys.ones((1, 3, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def __init__(
        self,
        size: Numbers | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        """Interpolate."""
        return resize.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
