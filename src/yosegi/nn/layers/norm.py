"""Normalisation: over the batch, over features, over groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

from ..._tensor.dtype import float32, int64
from ..._tensor.tensor import Tensor
from ...errors import ShapeError
from ...ops.creation import DTypeLike, ones, zeros
from ...ops.normal import batch_norm, batch_norm_train, group_norm, layer_norm, rms_norm
from ..module import Module


class _BatchNorm(Module):
    """Batch norm of inputs (batch, channels, …) with some numbers of axes."""

    state = ("running_mean", "running_var", "num_batches_tracked")
    axes: ClassVar[tuple[int, ...]]
    """The numbers of axes that an input may have."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: DTypeLike = float32,
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight, self.bias = affine_pair((num_features,), affine, affine, dtype)
        self.running_mean = zeros((num_features,), dtype=dtype) if track_running_stats else None
        self.running_var = ones((num_features,), dtype=dtype) if track_running_stats else None
        self.num_batches_tracked = zeros((), dtype=int64) if track_running_stats else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the statistics of the batch in training, by the running ones otherwise."""
        if x.ndim not in self.axes:
            raise ShapeError(f"[{type(self).__name__}] expected x of {_either(self.axes)} dimensions, got {x.shape}")
        if not self.training and self.running_mean is not None:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        y, mean, var = batch_norm_train(x, self.weight, self.bias, eps=self.eps)
        if self.training and self.running_mean is not None:
            self._track(mean, var, x.size // x.shape[1])
        return y

    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards those of a batch. The running variance is divided by count - 1."""
        batches = self.current("num_batches_tracked") + 1
        rate: Any = self.momentum if self.momentum is not None else 1 / batches.astype(mean.dtype)
        old = self.current("running_mean"), self.current("running_var")
        new = mean, var * (count / max(count - 1, 1))
        after = [((1 - rate) * a + rate * b).astype(a.dtype) for a, b in zip(old, new, strict=True)]
        self.update(running_mean=after[0], running_var=after[1], num_batches_tracked=batches)


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


def affine_pair(
    shape: tuple[int, ...], weight: bool, bias: bool, dtype: DTypeLike
) -> tuple[Tensor | None, Tensor | None]:
    """The initial scale and shift of a norm: ones and zeros."""
    return ones(shape, dtype=dtype) if weight else None, zeros(shape, dtype=dtype) if bias else None


_BATCH_DOC = """Normalise each channel of {inputs} to mean 0 and variance 1, then scale and shift.

    In training the mean and variance are those of the batch, and the running statistics move towards them: `stateful`
    returns the module with the new ones. The running variance is divided by the count less 1, as in PyTorch.

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of a batch in the running statistics. `None` keeps the mean of all batches.
    affine : bool
        False: no scale and shift.
    track_running_stats : bool
        False: no running statistics; the batch's are taken in evaluation, too.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> norm = ys.nn.{name}(3)
    >>> y, norm = ys.nn.stateful(norm)(ys.ones({shape}))
    >>> int(norm.num_batches_tracked)
    1
    """


@final
class BatchNorm1d(_BatchNorm):
    __doc__ = _BATCH_DOC.format(inputs="(batch, channels) or (batch, channels, length)", name="BatchNorm1d",
                                shape="(2, 3)")  # fmt: skip
    axes = (2, 3)


@final
class BatchNorm2d(_BatchNorm):
    __doc__ = _BATCH_DOC.format(inputs="images", name="BatchNorm2d", shape="(2, 3, 4, 4)")
    axes = (4,)


@final
class BatchNorm3d(_BatchNorm):
    __doc__ = _BATCH_DOC.format(inputs="volumes", name="BatchNorm3d", shape="(2, 3, 4, 4, 4)")
    axes = (5,)


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


@final
class LayerNorm(Module):
    """Normalise the last axes to mean 0 and variance 1, then scale and shift.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The lengths of these axes.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        False: no scale and shift.
    bias : bool
        False: no shift.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 3) for v in ys.nn.LayerNorm(3)(ys.asarray([1.0, 2.0, 3.0])).tolist()]
    [-1.225, 0.0, 1.225]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: DTypeLike = float32,
    ) -> None:
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.weight, self.bias = affine_pair(
            self.normalized_shape, elementwise_affine, elementwise_affine and bias, dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axes."""
        axes = tuple(range(-len(self.normalized_shape), 0))
        _check_last(self, x, self.normalized_shape)
        return layer_norm(x, self.weight, self.bias, axis=axes, eps=self.eps)


@final
class RMSNorm(Module):
    """Divide by the root of the mean square over the last axes, then scale.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The lengths of these axes.
    eps : float or None
        Added to the mean square; `None` is the distance from 1 to the next float32.
    elementwise_affine : bool
        False: no scale.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 3) for v in ys.nn.RMSNorm(2)(ys.asarray([3.0, 4.0])).tolist()]
    [0.849, 1.131]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: DTypeLike = float32,
    ) -> None:
        self.normalized_shape, self.eps = _shape(normalized_shape), 2.0**-23 if eps is None else eps
        self.weight, _ = affine_pair(self.normalized_shape, elementwise_affine, False, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the last axes."""
        axes = tuple(range(-len(self.normalized_shape), 0))
        _check_last(self, x, self.normalized_shape)
        return rms_norm(x, self.weight, axis=axes, eps=self.eps)


def _check_last(module: Module, x: Tensor, shape: tuple[int, ...]) -> None:
    if x.shape[-len(shape) :] != shape:
        raise ShapeError(f"[{type(module).__name__}] expected x of shape (…, {str(shape)[1:]}, got {x.shape}")


@final
class GroupNorm(Module):
    """Normalise each group of channels of each sample to mean 0 and variance 1, then scale and shift.

    Parameters
    ----------
    num_groups : int
        The number of groups.
    num_channels : int
        The number of channels, a multiple of the groups.
    eps : float
        Added to the variance.
    affine : bool
        False: no scale and shift.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.GroupNorm(2, 4)(ys.ones((2, 4, 8, 8))).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: DTypeLike = float32
    ) -> None:
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight, self.bias = affine_pair((num_channels,), affine, affine, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the groups."""
        return group_norm(x, self.num_groups, self.weight, self.bias, eps=self.eps)


@final
class InstanceNorm(Module):
    """Normalise each channel of each sample to mean 0 and variance 1. The input is (batch, channels, 1 to 3 lengths).

    It stands for PyTorch's `InstanceNorm1d`, `InstanceNorm2d` and `InstanceNorm3d` without running statistics.

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps : float
        Added to the variance.
    affine : bool
        True: a scale and a shift of each channel follow.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.InstanceNorm(4)(ys.ones((2, 4, 8, 8))).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, affine: bool = False, *, dtype: DTypeLike = float32
    ) -> None:
        self.num_features, self.eps = num_features, eps
        self.weight, self.bias = affine_pair((num_features,), affine, affine, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of each sample."""
        return group_norm(x, self.num_features, self.weight, self.bias, eps=self.eps)
