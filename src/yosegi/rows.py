"""Which rows of a region's inputs give which rows of its outputs: for looking at some rows, and not at all.

A row is an index of one dimension. From the outputs backwards, every op says of which dimension of its inputs the
rows of its output are made, or that it needs an input whole. Where an op cannot say, or a value is wanted in two ways,
the region is not looked at in rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .fuse import Region, is_constant
from .node import Call

_WHOLE: Final = -1
Axes = dict[int, int]
"""For inputs and outputs, by entry, the dimension along which they are cut. What is needed whole is left out."""


def rows_of(region: Region) -> Axes | None:
    """The dimensions along which a region can be cut, with outputs along their first; `None` if it cannot be."""
    graph = region.graph
    first = {graph.calls[o].spec.shape[:1] for o in region.outputs}
    if len(first) != 1 or first == {()} or any(len(c.outputs) > 1 for c in region.calls):
        return None
    wanted: dict[int, int] = dict.fromkeys(region.outputs, 0)
    for entry in reversed(region.nodes):
        if entry not in wanted or is_constant(graph, entry):
            continue
        for place, arg in enumerate(graph.args[entry]):
            axis = _WHOLE if wanted[entry] == _WHOLE else _axis(graph.calls[entry], place, wanted[entry])
            if axis is None or wanted.setdefault(arg, axis) != axis:
                return None
    if any(axis != _WHOLE for e, axis in wanted.items() if is_constant(graph, e)):
        return None
    return {e: wanted[e] for e in (*region.inputs, *region.outputs) if wanted.get(e, _WHOLE) != _WHOLE}


def _axis(call: Call, place: int, axis: int) -> int | None:
    """The dimension of an input of which the rows along a dimension of the output are made; `None`: nobody knows."""
    given, made = call.inputs[place].shape, call.spec.shape
    if call.op.scalar is not None:
        return _broadcast(given, made, axis)
    name = call.op.name
    if name == "matmul":
        return _of_product(call.inputs[0].ndim, call.inputs[1].ndim, given, made, place, axis)
    if name == "conv":
        return (0 if place == 0 else _WHOLE) if axis == 0 else None
    if name == "permute_dims":
        axes: Sequence[int] = call.attrs["axes"]
        return axes[axis]
    if "axis" in call.attrs and "keepdims" in call.attrs and isinstance(call.attrs["axis"], tuple):
        return _of_reduction(call.attrs["axis"], call.attrs["keepdims"], len(given), axis)
    return None


def _broadcast(given: tuple[int, ...], made: tuple[int, ...], axis: int) -> int:
    own = axis - (len(made) - len(given))
    return _WHOLE if own < 0 or given[own] != made[axis] else own


def _of_product(
    left: int, right: int, given: tuple[int, ...], made: tuple[int, ...], place: int, axis: int
) -> int | None:
    if left < 2 or right < 2:
        return None
    from_end = axis - len(made)
    if from_end == -1:
        return len(given) - 1 if place == 1 else _WHOLE
    if from_end == -2:
        return len(given) - 2 if place == 0 else _WHOLE
    return _broadcast(given[:-2], made[:-2], axis)


def _of_reduction(reduced: Sequence[int], keeps: bool, ndim: int, axis: int) -> int | None:
    if keeps:
        return None if axis in reduced else axis
    return [a for a in range(ndim) if a not in reduced][axis]
