"""Rows of the op table for ops that put many elements together: reductions, running totals, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..._graph.graph import Graph
from ..._tensor.dtype import bool_
from ..._tensor.node import Call
from ..model.op_row import Builder, OpRow
from .library import builder
from .movement import reshaped, whole
from .op_row import DTYPES, FLOATS, number


def _reduced(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,) = args
        if not call.attrs["axis"]:
            return x
        keep = call.attrs["keepdims"]
        return getattr(builder(), f"reduce_{name}")(x=x, axes=whole(call.attrs["axis"]), keep_dims=keep)

    return build


def _decided(name: str) -> Builder:
    """All or any of the elements, by the extreme of 0 and 1."""

    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,) = args
        true = x if call.inputs[0].dtype is bool_ else o.not_equal(x, number(o, 0, x))
        made = _reduced(name)(o, call, [o.number(true)])
        return o.not_equal(made, number(o, 0, made))

    return build


def _rounded_first(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    source, target = call.inputs[0].dtype, call.spec.dtype
    return None if source is target else f"it adds {source.name} in {source.name}, not in {target.name}"


def _running_sum(o: Any, call: Call, args: Sequence[Any]) -> Any:
    (x,), axis = args, call.attrs["axis"]
    made = builder().cumsum(x=x, axis=axis)
    if not call.attrs["include_initial"]:
        return made
    edge = [1 if i == axis else n for i, n in enumerate(call.inputs[0].shape)]
    first = builder().fill(shape=whole(edge), value=number(o, 0, x))
    return builder().concat(values=[first, made], axis=axis)


def _product(o: Any, call: Call, args: Sequence[Any]) -> Any:
    """A matrix product. Vectors become matrices, because the runtime's rules for them differ."""
    a, b = args
    a = reshaped(a, (1, *a.shape)) if a.rank == 1 else a
    b = reshaped(b, (*b.shape, 1)) if b.rank == 1 else b
    return reshaped(builder().matmul(x=a, y=b), call.spec.shape)


REDUCTIONS: Final[dict[str, OpRow]] = {
    "sum": OpRow(_reduced("sum"), FLOATS, _rounded_first, sums=True),
    "prod": OpRow(_reduced("prod"), FLOATS, _rounded_first, sums=True),
    "mean": OpRow(_reduced("mean"), FLOATS, sums=True),
    "max": OpRow(_reduced("max"), FLOATS),
    "min": OpRow(_reduced("min"), FLOATS),
    "all": OpRow(_decided("min"), DTYPES),
    "any": OpRow(_decided("max"), DTYPES),
    "cumulative_sum": OpRow(_running_sum, FLOATS, _rounded_first, sums=True),
    "matmul": OpRow(_product, FLOATS, sums=True),
}
