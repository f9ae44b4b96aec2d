"""The op table: our ops that compute something, as OpenVINO's. Those that move elements are in `movement`.

A row is written only for what gives the reference's result, special values included, on the CPU plugin; the tests
show it on random programs, and a trial on each new machine shows it there (`probe`). Where OpenVINO's own op is wrong
for NaN (exp, max, min, its comparisons by greater), the row builds something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, prod
from typing import Any, Final

import numpy as np

from ...dtype import bool_, float32, int32
from ...graph import Graph
from ...node import Call
from .movement import MOVEMENT
from .rows import BOOL, COMPARED, DTYPES, FLOATS, SINGLE, Builder, Row, is_nan, number, places

_LONG: Final = 16384  # elements that a sum along the last axes adds with an error of a few units in the last place
_LONG_ELSEWHERE: Final = 1024  # along other axes it adds one after the other


def _as(name: str) -> Builder:
    """OpenVINO's op of this name, on the same inputs."""
    return lambda o, call, args: getattr(o, name)(*args)


def _each(function: Callable[..., Any]) -> Builder:
    """A builder from a function of the opset and the inputs."""
    return lambda o, call, args: function(o, *args)


# Elementwise


def _exp(o: Any, x: Any) -> Any:
    return o.select(is_nan(o, x), x, o.exp(x))  # of NaN its exp makes infinity


def _extreme(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        made = getattr(o, name)(*args)
        for x in args if call.spec.dtype.is_float else ():
            if not (x.get_type_name() == "Constant" and (x.data == x.data).all()):
                made = o.select(is_nan(o, x), x, made)  # it gives the other one
        return made

    return build


def _truncated(o: Any, x: Any) -> Any:
    return o.select(o.less(x, number(o, 0, x)), o.ceiling(x), o.floor(x))


UNARY: Final[dict[str, Row]] = {
    "abs": Row(_as("abs"), FLOATS),
    "negative": Row(_as("negative"), FLOATS),
    "sign": Row(_as("sign"), FLOATS),
    "floor": Row(_as("floor"), FLOATS),
    "ceil": Row(_as("ceiling"), FLOATS),
    "trunc": Row(_each(_truncated), FLOATS),
    "round": Row(_each(lambda o, x: o.round(x, "HALF_TO_EVEN")), FLOATS),
    "isnan": Row(_each(is_nan), FLOATS),
    "isinf": Row(_each(lambda o, x: o.equal(o.abs(x), number(o, float("inf"), x))), FLOATS),
    "isfinite": Row(_each(lambda o, x: o.less(o.abs(x), number(o, float("inf"), x))), FLOATS),
    "square": Row(_each(lambda o, x: o.multiply(x, x)), SINGLE),
    "reciprocal": Row(_each(lambda o, x: o.divide(number(o, 1, x), x)), SINGLE),
    "sqrt": Row(_as("sqrt"), SINGLE),
    "exp": Row(_each(_exp), SINGLE),
    "log": Row(_as("log"), SINGLE),
    "log2": Row(_each(lambda o, x: o.multiply(o.log(x), number(o, 1 / log(2), x))), SINGLE),
    "log10": Row(_each(lambda o, x: o.multiply(o.log(x), number(o, 1 / log(10), x))), SINGLE),
    "sin": Row(_as("sin"), SINGLE),
    "cos": Row(_as("cos"), SINGLE),
    "tan": Row(_as("tan"), SINGLE),
    "asin": Row(_as("asin"), SINGLE),
    "acos": Row(_as("acos"), SINGLE),
    "atan": Row(_as("atan"), SINGLE),
    "sinh": Row(_as("sinh"), SINGLE),
    "cosh": Row(_as("cosh"), SINGLE),
    "tanh": Row(_as("tanh"), SINGLE),
    "asinh": Row(_as("asinh"), SINGLE),
    "acosh": Row(_as("acosh"), SINGLE),
    "atanh": Row(_as("atanh"), SINGLE),
    "logical_not": Row(_as("logical_not"), BOOL),
    "bitwise_invert": Row(_as("logical_not"), BOOL),
}

BINARY: Final[dict[str, Row]] = {
    "add": Row(_as("add"), SINGLE),
    "subtract": Row(_as("subtract"), SINGLE),
    "multiply": Row(_as("multiply"), SINGLE),
    "divide": Row(_as("divide"), SINGLE),
    "pow": Row(_as("power"), SINGLE),
    "maximum": Row(_extreme("maximum"), COMPARED - BOOL),
    "minimum": Row(_extreme("minimum"), COMPARED - BOOL),
    "equal": Row(_as("equal"), COMPARED),
    "not_equal": Row(_as("not_equal"), COMPARED),
    "less": Row(_as("less"), COMPARED),
    "less_equal": Row(_as("less_equal"), COMPARED),
    "greater": Row(_each(lambda o, a, b: o.less(b, a)), COMPARED),  # its own says that every number is above NaN
    "greater_equal": Row(_each(lambda o, a, b: o.less_equal(b, a)), COMPARED),
    "logical_and": Row(_as("logical_and"), BOOL),
    "logical_or": Row(_as("logical_or"), BOOL),
    "logical_xor": Row(_as("logical_xor"), BOOL),
    "bitwise_and": Row(_as("logical_and"), BOOL),
    "bitwise_or": Row(_as("logical_or"), BOOL),
    "bitwise_xor": Row(_as("logical_xor"), BOOL),
}


# Casts and selection


def _converted(o: Any, call: Call, args: Sequence[Any]) -> Any:
    if call.spec.dtype is bool_:
        return o.not_equal(args[0], number(o, 0, args[0]))
    return o.convert(args[0], "f32" if call.spec.dtype is float32 else "i32")


def _not_converted(graph: Graph, entry: int) -> str | None:
    source, target = graph.calls[entry].inputs[0].dtype, graph.calls[entry].spec.dtype
    exact = target in (float32, bool_) or (target is int32 and (source is bool_ or source.is_integer))
    return None if exact else f"it might not round {source.name} to {target.name}"


def _no_wide_integers(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    wide = call.spec.dtype.is_integer and call.spec.dtype.bits > 8
    return f"it might select {call.spec.dtype.name} in float32" if wide else None


# Reductions


def _reduced(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,) = args
        if call.spec.dtype is bool_ and call.inputs[0].dtype is not bool_:
            x = o.not_equal(x, number(o, 0, x))
        if not call.attrs["axis"]:
            return x
        return getattr(o, name)(x, places(o, call.attrs["axis"]), call.attrs["keepdims"])

    return build


def _reduced_extreme(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        (x,) = args
        if not call.attrs["axis"]:
            return x
        axes, keep = places(o, call.attrs["axis"]), call.attrs["keepdims"]
        made = getattr(o, name)(x, axes, keep)
        return o.select(o.reduce_logical_or(is_nan(o, x), axes, keep), number(o, float("nan"), made), made)

    return build


def _too_long(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    (x,) = call.inputs
    axes = call.attrs["axis"]
    along_the_last = axes == tuple(range(x.ndim - len(axes), x.ndim))
    most = _LONG if along_the_last else _LONG_ELSEWHERE
    count = prod(x.shape[a] for a in axes)
    return f"it would lose digits over {count} elements" if count > most else None


def _not_a_sum(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    if call.spec.dtype is not call.inputs[0].dtype:
        return f"it might not round {call.inputs[0].dtype.name} to {call.spec.dtype.name}"
    return _too_long(graph, entry)


def _variance(o: Any, call: Call, args: Sequence[Any]) -> Any:
    (x,) = args
    axes = call.attrs["axis"]
    away = o.subtract(x, o.reduce_mean(x, places(o, axes), True))
    count = prod(call.inputs[0].shape[a] for a in axes) - call.attrs["correction"]
    total = o.reduce_sum(o.multiply(away, away), places(o, axes), call.attrs["keepdims"])
    spread = o.divide(total, number(o, count, x))
    return spread if call.op.name == "var" else o.sqrt(spread)


def _no_variance(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    count = prod(call.inputs[0].shape[a] for a in call.attrs["axis"]) - call.attrs["correction"]
    return "no elements to tell a spread from" if count <= 0 or not call.attrs["axis"] else _too_long(graph, entry)


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
    length = call.inputs[0].shape[call.attrs["axis"]]
    return f"it would lose digits over {length} elements" if length > _LONG_ELSEWHERE else None


OTHERS: Final[dict[str, Row]] = {
    "convert": Row(_converted, DTYPES, _not_converted),
    "where": Row(_as("select"), DTYPES, _no_wide_integers),
    "sum": Row(_reduced("reduce_sum"), SINGLE, _not_a_sum),
    "prod": Row(_reduced("reduce_prod"), SINGLE, _not_a_sum),
    "mean": Row(_reduced("reduce_mean"), SINGLE, _too_long),
    "max": Row(_reduced_extreme("reduce_max"), FLOATS),
    "min": Row(_reduced_extreme("reduce_min"), FLOATS),
    "all": Row(_reduced("reduce_logical_and"), FLOATS | BOOL),
    "any": Row(_reduced("reduce_logical_or"), FLOATS | BOOL),
    "var": Row(_variance, SINGLE, _no_variance),
    "std": Row(_variance, SINGLE, _no_variance),
    "cumulative_sum": Row(_running_sum, SINGLE, _too_long_a_run),
    "matmul": Row(_each(lambda o, a, b: o.matmul(a, b, False, False)), SINGLE),
    "einsum": Row(lambda o, call, args: o.einsum(list(args), call.attrs["subscripts"]), SINGLE),
}

LEFT_OUT: Final = {
    "expm1": "by its exp the digits near 0 are lost",
    "log1p": "by its log the digits near 0 are lost",
    "logaddexp": "by its log the digits near 0 are lost",
    "floor_divide": "it rounds the quotient before it takes the floor",
    "remainder": "its remainder of a large quotient is off",
    "signbit": "it does not tell -0.0 from 0.0",
    "copysign": "it does not tell -0.0 from 0.0",
}
"""What it could be given, but would get wrong."""

ROWS: Final[dict[str, Row]] = {**UNARY, **BINARY, **OTHERS, **MOVEMENT}
"""Every op that OpenVINO can have, by name."""
