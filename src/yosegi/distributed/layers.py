"""Linear layers whose weights are split over ranks: tensor parallel."""

from __future__ import annotations

from typing import final

from .._tensor.dtype import float32
from .._tensor.tensor import Tensor
from ..nn.init import Rng
from ..nn.layers.linear import scaled_pair
from ..nn.module import Module
from ..ops.creation import DTypeLike
from ..ops.linear import linear
from .collectives import all_reduce, shard
from .layout import Mesh


@final
class ColumnParallelLinear(Module):
    """A linear map, each rank with a part of the outputs. It needs no communication forwards.

    Parameters
    ----------
    in_features : int
        The length of the last axis of the input.
    out_features : int
        The length of the last axis of the output, which is sharded.
    bias : bool
        False: no bias.
    mesh : Mesh
        The ranks.
    axis : str
        The axis of the mesh along which the weight is split.
    rng : Generator or int, optional
        The generator of the initial values, the same on all ranks. The values are those of `ys.nn.Linear`.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("model",))
    >>> ys.distributed.ColumnParallelLinear(3, 4, mesh=mesh)(ys.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, mesh: Mesh, axis: str = "model",
        rng: Rng = None, dtype: DTypeLike = float32,
    ) -> None:  # fmt: skip
        weight, b = scaled_pair((out_features, in_features), out_features, in_features, bias, rng, dtype)
        self.weight = shard(weight, mesh, **{axis: 0})
        self.bias = None if b is None else shard(b, mesh, **{axis: 0})

    def forward(self, x: Tensor) -> Tensor:
        """Compute x @ weight.T + bias, sharded along the last axis."""
        return linear(x, self.weight, self.bias)


@final
class RowParallelLinear(Module):
    """A linear map, each rank with a part of the inputs. The parts of the result are summed by an all-reduce.

    It takes the sharded output of a `ColumnParallelLinear` as it is, after elementwise functions too.

    Parameters
    ----------
    in_features : int
        The length of the last axis of the input, which is sharded, or is split here.
    out_features : int
        The length of the last axis of the output.
    bias : bool
        False: no bias.
    mesh : Mesh
        The ranks.
    axis : str
        The axis of the mesh along which the weight is split.
    rng : Generator or int, optional
        The generator of the initial values, the same on all ranks. The values are those of `ys.nn.Linear`.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("model",))
    >>> ys.distributed.RowParallelLinear(3, 4, mesh=mesh)(ys.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, mesh: Mesh, axis: str = "model",
        rng: Rng = None, dtype: DTypeLike = float32,
    ) -> None:  # fmt: skip
        weight, b = scaled_pair((out_features, in_features), out_features, in_features, bias, rng, dtype)
        self.weight = shard(weight, mesh, **{axis: 1})
        self.bias = b
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Compute x @ weight.T + bias, on all ranks."""
        made = linear(x, self.weight, self.bias)
        return made if made.layout is None else all_reduce(made, self.axis)
