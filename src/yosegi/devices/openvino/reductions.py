"""Rows of the op table for ops that put many elements together: reductions, running totals, products."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._tensor.dtype import DType, bool_, float_info
from ..._tensor.node import Call, Spec
from ..model.op_row import Builder, OpRow, each
from .op_row import BOOL, FLOATS, SINGLE, is_nan, number, places

LONG: Final = 16384
"""Elements that a sum along the last axes adds with an error of a few units in the last place."""
LONG_ELSEWHERE: Final = 512
"""Elements of a sum along other axes, or over a whole array, with that error: they are added one by one."""
_COUNTED: Final = 1 << 24  # positions that float32 tells apart


def _reduced(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,) = args
        if call.spec.dtype is bool_ and call.inputs[0].dtype is not bool_:
            x = o.not_equal(x, number(o, 0, x))
        if not call.attrs["axis"]:
            return x
        return getattr(o, name)(x, places(o, call.attrs["axis"]), call.attrs["keepdims"])

    return build


def _extreme(name: str, o: Any, call: Call, x: Any, axes: Any, keep: bool) -> Any:
    """The extreme along some axes. Its own loses NaN, and of infinities alone it makes the largest number."""
    lost = infinite(o, x, call.inputs[0].dtype, is_least=name == "min")
    made = getattr(o, f"reduce_{name}")(x, axes, keep)
    return restored(o, made, o.reduce_max(lost, axes, keep), is_least=name == "min")


def infinite(o: Any, x: Any, dtype: DType, *, is_least: bool) -> Any:
    """For each element what the search for an extreme would do to it: 2 for a NaN, which it loses, 0 for an infinity
    that no number is beyond, 1 for any other."""
    info = float_info(dtype)
    none = o.less(number(o, info.max, x), x) if is_least else o.less(x, number(o, info.min, x))
    zero, one, two = (o.constant(np.float32(n)) for n in range(3))
    return o.select(is_nan(o, x), two, o.select(none, zero, one))


def restored(o: Any, made: Any, most: Any, *, is_least: bool) -> Any:
    """The extreme with what its search lost; `most` is the largest result of `infinite` for the elements."""
    infinity, nan = number(o, inf if is_least else -inf, made), number(o, float("nan"), made)
    made = o.select(o.less(most, o.constant(np.float32(1))), infinity, made)
    return o.select(o.less(o.constant(np.float32(1)), most), nan, made)


def _reduced_extreme(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,) = args
        if not call.attrs["axis"]:
            return x
        return _extreme(name, o, call, x, places(o, call.attrs["axis"]), call.attrs["keepdims"])

    return build


def too_long(x: Spec, axes: Sequence[int]) -> str | None:
    """Why a sum along some axes would not be right, if it would not."""
    in_rows = tuple(axes) == tuple(range(x.ndim - len(axes), x.ndim))
    count = prod(x.shape[a] for a in axes)
    return too_many(count, LONG if in_rows and count < x.size else LONG_ELSEWHERE)


def too_many(count: int, most: int) -> str | None:
    """Why a sum of so many elements would not be right, if it would not."""
    return f"it would lose digits over {count} elements" if count > most else None


def _too_long(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    return too_long(call.inputs[0], call.attrs["axis"])


def _not_a_sum(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    if call.spec.dtype is not call.inputs[0].dtype:
        return f"it might not round {call.inputs[0].dtype.name} to {call.spec.dtype.name}"
    return _too_long(graph, entry)


def _running_sum(o: Any, call: Call, args: Sequence[Any]) -> Any:
    (x,) = args
    made = o.cum_sum(x, o.constant(np.int64(call.attrs["axis"])))
    if not call.attrs["include_initial"]:
        return made
    edge = [1 if i == call.attrs["axis"] else n for i, n in enumerate(call.inputs[0].shape)]
    return o.concat([o.broadcast(number(o, 0, x), places(o, edge)), made], call.attrs["axis"])


def _too_long_a_run(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    if call.spec.dtype is not call.inputs[0].dtype:
        return f"it might not round {call.inputs[0].dtype.name} to {call.spec.dtype.name}"
    return too_many(call.inputs[0].shape[call.attrs["axis"]], LONG_ELSEWHERE)


# The first of the largest, or the smallest


def _first_extreme(name: str) -> Builder:
    """The least of the positions that have the extreme value, after those that have a NaN."""

    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,), (given,) = args, call.inputs
        axis, shape = call.attrs["axis"], given.shape
        if axis is None:
            axis, shape = 0, (given.size,)
            x = o.reshape(x, places(o, shape), False)
        axes = places(o, [axis])
        along = [n if i == axis else 1 for i, n in enumerate(shape)]
        positions = o.constant(np.arange(shape[axis], dtype=np.float32).reshape(along))
        last = number(o, _COUNTED, positions)
        chosen = o.select(o.equal(x, _extreme(name, o, call, x, axes, keep=True)), positions, last)
        least = o.reduce_min(o.select(is_nan(o, x), o.subtract(positions, last), chosen), axes, False)
        least = o.select(o.less(least, number(o, 0, least)), o.add(least, last), least)
        return o.reshape(o.convert(least, "i64"), places(o, call.spec.shape), False)

    return build


def _too_many_positions(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    (x,) = call.inputs
    count = x.size if call.attrs["axis"] is None else x.shape[call.attrs["axis"]]
    return f"it does not count {count} positions exactly" if count >= _COUNTED else None


REDUCTIONS: Final[dict[str, OpRow]] = {
    "sum": OpRow(_reduced("reduce_sum"), SINGLE, _not_a_sum, sums=True),
    "prod": OpRow(_reduced("reduce_prod"), SINGLE, _not_a_sum, sums=True),
    "mean": OpRow(_reduced("reduce_mean"), SINGLE, _too_long, sums=True),
    "max": OpRow(_reduced_extreme("max"), FLOATS),
    "min": OpRow(_reduced_extreme("min"), FLOATS),
    "all": OpRow(_reduced("reduce_logical_and"), FLOATS | BOOL),
    "any": OpRow(_reduced("reduce_logical_or"), FLOATS | BOOL),
    "argmax": OpRow(_first_extreme("max"), FLOATS, _too_many_positions, gives_places=True),
    "argmin": OpRow(_first_extreme("min"), FLOATS, _too_many_positions, gives_places=True),
    "cumulative_sum": OpRow(_running_sum, SINGLE, _too_long_a_run, sums=True),
    "matmul": OpRow(each(lambda o, a, b: o.matmul(a, b, False, False)), SINGLE, sums=True),
    "einsum": OpRow(lambda o, call, args: o.einsum(list(args), call.attrs["subscripts"]), SINGLE, sums=True),
}
