"""Meshes of ranks, and the layout of a tensor on a mesh.

A tensor with a layout has the shape of the whole value. The layout says, for each axis of the mesh, how the ranks along
that axis share the value: each has a part of a dimension (`Shard`), each has all of it (`Replicate`), or the value is
the combination of what they have (`Partial`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np

from .._place.cost_model import TransferCost
from .._tensor.options import current as options
from ..errors import ArgumentError, ShapeError
from .communicator import Combine, Communicator
from .costs import PRIOR
from .links import connect
from .runtime import current

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """Each rank along the axis has a part of one dimension. The first ranks have one element more if it is uneven.

    Parameters
    ----------
    dim : int
        The dimension.
    on_use : bool
        True: the whole value is gathered whenever it is used, and dropped behind that. Only elementwise ops on values
        of this shape, such as updates of parameters, and reductions read the parts.

    Examples
    --------
    >>> import yosegi as ys
    >>> print(ys.distributed.Shard(1), ys.distributed.Shard(0, on_use=True))
    Shard(1) Shard(0, gathered on use)
    """

    dim: int
    on_use: bool = False

    def __str__(self) -> str:
        return f"Shard({self.dim}{', gathered on use' if self.on_use else ''})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Each rank along the axis has the whole value.

    Examples
    --------
    >>> import yosegi as ys
    >>> print(ys.distributed.Replicate())
    Replicate
    """

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True, slots=True)
class Partial:
    """The value is the sum, or another combination, of the values that the ranks along the axis have.

    Parameters
    ----------
    combine : Combine
        The combination.

    Examples
    --------
    >>> import yosegi as ys
    >>> print(ys.distributed.Partial(ys.distributed.Combine.MAX))
    Partial(max)
    """

    combine: Combine = Combine.SUM

    def __str__(self) -> str:
        return f"Partial({self.combine.value})"


Placement: TypeAlias = Shard | Replicate | Partial
REPLICATE: Final = Replicate()

_Axes: TypeAlias = tuple[tuple[Communicator, ...], tuple[Mapping[str, TransferCost], ...]]
_axes: Final[WeakKeyDictionary[Communicator, dict[Shape, _Axes]]] = WeakKeyDictionary()
"""The groups along the axes of the meshes that a communicator was arranged in, with their cost models."""
_TIMED: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "handover")
_SIZES: Final = (64, 1 << 18)
"""Bytes for which collectives are timed."""


@final
class Mesh:
    """The ranks of a program, arranged along named axes.

    All ranks make the same meshes in the same order. The first mesh of a shape times the collectives along its axes,
    which takes some milliseconds; under `ys.deterministic()` fixed costs are used instead. Layouts and the sizes of
    messages follow from these costs. If the options name a device, the devices of the ranks are connected, too.

    Parameters
    ----------
    shape : tuple of int
        The number of ranks along each axis. The product is the number of ranks.
    names : tuple of str
        A name for each axis.
    communicator : Communicator, optional
        The ranks; by default all ranks of the program.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1, 1), ("data", "model"))
    >>> mesh.size
    1
    """

    __slots__ = ("_key", "communicator", "coordinates", "costs", "groups", "names", "shape", "size")

    def __init__(self, shape: Sequence[int], names: Sequence[str], communicator: Communicator | None = None) -> None:
        self.shape, self.names = tuple(shape), tuple(names)
        self.communicator = current() if communicator is None else communicator
        self.size = prod(self.shape)
        if len(self.names) != len(self.shape) or len(set(self.names)) != len(self.names):
            raise ArgumentError(
                f"[Mesh] expected a name for each axis of {self.shape}, all different, got {self.names}"
            )
        if self.size != self.communicator.size:
            raise ArgumentError(
                f"[Mesh] expected a shape of {self.communicator.size} ranks, got {self.shape}, which has {self.size}"
            )
        self._key = (self.shape, self.names, id(self.communicator))
        self.coordinates = _coordinates(self.communicator.rank, self.shape)
        """The position of this rank along each axis."""
        known = _axes.setdefault(self.communicator, {})
        if self.shape not in known:
            groups = _split(self.communicator, self.shape, self.coordinates)
            known[self.shape] = groups, _costs(self.communicator, groups)
        self.groups, self.costs = known[self.shape]
        for group in (*self.groups, *([self.communicator] if len(self.shape) > 1 else [])):
            if group.size > 1:
                connect(group)
        """For each axis, the ranks that differ from this one only along it, and the cost models of their collectives
        for the bytes that each rank gives."""

    def axis(self, name: str) -> int:
        """The number of the axis with this name."""
        if name not in self.names:
            raise ArgumentError(f"[Mesh] expected an axis among {', '.join(self.names)}, got {name!r}")
        return self.names.index(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, {self.names})"


def _coordinates(rank: int, shape: Shape) -> Shape:
    found = []
    for length in reversed(shape):
        rank, place = divmod(rank, length)
        found.append(place)
    return tuple(reversed(found))


def _split(communicator: Communicator, shape: Shape, coordinates: Shape) -> tuple[Communicator, ...]:
    """The groups along each axis: the ranks whose other coordinates are the same."""
    groups = []
    for axis, place in enumerate(coordinates):
        color = 0
        for other, length in enumerate(shape):
            color = color * length + (0 if other == axis else coordinates[other])
        groups.append(communicator.split(color, place))
    return tuple(groups)


def _costs(communicator: Communicator, groups: Sequence[Communicator]) -> tuple[Mapping[str, TransferCost], ...]:
    """The cost models of collectives along each axis, by the slowest rank of all: so all ranks choose alike."""
    if communicator.size == 1:
        return ({},) * len(groups)

    def seconds(group: Communicator, name: str, nbytes: int) -> float:
        return PRIOR.seconds(name, group.size, nbytes) if options().deterministic else group.seconds(name, nbytes)

    np.empty(16 * _SIZES[1], np.uint8)  # once such an array is freed, as in all programs, malloc keeps smaller ones
    own = [[[seconds(group, name, n) for n in _SIZES] for name in _TIMED] for group in groups]
    slowest = communicator.all_reduce(np.asarray(own), Combine.MAX).tolist()
    return tuple([{name: _line(*times) for name, times in zip(_TIMED, axis, strict=True)} for axis in slowest])


def _line(small: float, large: float) -> TransferCost:
    rate = (large - small) / (_SIZES[1] - _SIZES[0])
    return TransferCost(max(0.0, small - rate * _SIZES[0]), 1 / rate) if rate > 0 else TransferCost(small)


def bounds(length: int, count: int, index: int) -> tuple[int, int]:
    """The first element and the number of elements of a part, if a dimension is split in `count` parts."""
    least, more = divmod(length, count)
    return index * least + min(index, more), least + (index < more)


@dataclass(frozen=True, slots=True)
class Layout:
    """The distribution of a tensor over the ranks of a mesh.

    Attributes
    ----------
    mesh : Mesh
        The ranks.
    placements : tuple of Shard, Replicate or Partial
        One for each axis of the mesh. A dimension that several axes shard is split by the first of them, and its parts
        by the next.

    Examples
    --------
    >>> import yosegi as ys
    >>> from yosegi.distributed import Layout, Mesh, Shard
    >>> print(Layout(Mesh((1,), ("data",)), (Shard(0),)))
    data=Shard(0)
    """

    mesh: Mesh
    placements: tuple[Placement, ...]

    def local_shape(self, shape: Shape) -> Shape:
        """The shape of the part that this rank has."""
        lengths = list(shape)
        for placement, count, place in zip(self.placements, self.mesh.shape, self.mesh.coordinates, strict=True):
            if isinstance(placement, Shard):
                lengths[placement.dim] = bounds(lengths[placement.dim], count, place)[1]
        return tuple(lengths)

    def of_parts(self) -> Layout:
        """The layout with the same parts, without what is said about their use."""
        plain = tuple([Shard(p.dim) if isinstance(p, Shard) else p for p in self.placements])
        return self if plain == self.placements else Layout(self.mesh, plain)

    def __str__(self) -> str:
        shown = zip(self.mesh.names, self.placements, strict=True)
        return " ".join([f"{name}={placement}" for name, placement in shown if placement != REPLICATE])


def layout_of(mesh: Mesh, placements: Sequence[Placement], shape: Shape) -> Layout | None:
    """The layout of a tensor of this shape; `None` if every rank has the whole value.

    An axis of one rank distributes nothing.
    """
    normal: list[Placement] = []
    for placement, count in zip(placements, mesh.shape, strict=True):
        if isinstance(placement, Shard):
            if not -len(shape) <= placement.dim < len(shape):
                raise ShapeError(f"expected a dimension of shape {shape} to shard, got {placement.dim}")
            placement = Shard(placement.dim % len(shape), placement.on_use)
        normal.append(REPLICATE if count == 1 else placement)
    return None if all(p == REPLICATE for p in normal) else Layout(mesh, tuple(normal))
