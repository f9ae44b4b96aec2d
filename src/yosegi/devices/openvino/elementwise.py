"""Rows of the op table for elementwise ops. Where OpenVINO's own op is wrong, the row builds something else.

Its exp makes infinity of NaN and of results above 2.6e38; its max, min and comparisons by greater lose NaN; its relu
makes 0 of NaN; its erf has no digits near 0. Other functions it does not have are made of those that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import exp, log
from typing import Any, Final

from ..._graph.graph import Graph
from ..._tensor.dtype import bool_, float32, int32
from ..._tensor.node import Call
from ...codegen.scalar.error_function import SINGLE as ERF
from ..model import formulas
from ..model.op_row import Builder, OpRow, as_it_is, each
from .op_row import BOOL, COMPARED, DTYPES, FLOATS, SINGLE, is_nan, number

_LARGE: Final = 87.0  # above, what its exp makes is wrong, or about to be
_SHIFT: Final = 64.0  # taken from an exponent above that, no digit of it is lost


# Functions


def _exp(o: Any, x: Any) -> Any:
    large = o.less(number(o, _LARGE, x), x)
    made = o.exp(o.select(large, o.subtract(x, number(o, _SHIFT, x)), x))
    made = o.multiply(made, o.select(large, number(o, exp(_SHIFT), x), number(o, 1, x)))
    return o.select(is_nan(o, x), x, made)


def _erf(o: Any, x: Any) -> Any:
    square = o.multiply(x, x)
    near = number(o, ERF.near[-1], x)
    for coefficient in ERF.near[-2::-1]:
        near = o.add(o.multiply(near, square), number(o, coefficient, x))
    return o.select(o.less(o.abs(x), number(o, 1, x)), o.add(o.multiply(near, x), x), o.erf(x))


def _relu(o: Any, x: Any) -> Any:
    return o.select(o.less_equal(x, number(o, 0, x)), number(o, 0, x), x)


def _extreme(name: str) -> Builder:
    def build(o: Any, call: Call, args: Sequence[Any]) -> Any:
        made = getattr(o, name)(*args)
        for x in args if call.spec.dtype.is_float else ():
            if not (x.get_type_name() == "Constant" and (x.data == x.data).all()):
                made = o.select(is_nan(o, x), x, made)  # it gives the other one
        return made

    return build


UNARY: Final[dict[str, OpRow]] = {
    "abs": OpRow(as_it_is("abs"), FLOATS),
    "negative": OpRow(as_it_is("negative"), FLOATS),
    "sign": OpRow(as_it_is("sign"), FLOATS),
    "floor": OpRow(as_it_is("floor"), FLOATS),
    "ceil": OpRow(as_it_is("ceiling"), FLOATS),
    "trunc": OpRow(each(partial(formulas.truncated, number=number)), FLOATS),
    "round": OpRow(each(lambda o, x: o.round(x, "HALF_TO_EVEN")), FLOATS),
    "isnan": OpRow(each(is_nan), FLOATS),
    "isinf": OpRow(each(lambda o, x: o.equal(o.abs(x), number(o, float("inf"), x))), FLOATS),
    "isfinite": OpRow(each(lambda o, x: o.less(o.abs(x), number(o, float("inf"), x))), FLOATS),
    "square": OpRow(each(lambda o, x: o.multiply(x, x)), SINGLE),
    "reciprocal": OpRow(each(lambda o, x: o.divide(number(o, 1, x), x)), SINGLE),
    "sqrt": OpRow(as_it_is("sqrt"), SINGLE),
    "exp": OpRow(each(_exp), SINGLE),
    "expm1": OpRow(each(lambda o, x: formulas.expm1(o, x, _exp, number)), SINGLE),
    "log": OpRow(as_it_is("log"), SINGLE),
    "log1p": OpRow(each(partial(formulas.log1p, number=number)), SINGLE),
    "log2": OpRow(each(lambda o, x: o.multiply(o.log(x), number(o, 1 / log(2), x))), SINGLE),
    "log10": OpRow(each(lambda o, x: o.multiply(o.log(x), number(o, 1 / log(10), x))), SINGLE),
    "sin": OpRow(as_it_is("sin"), SINGLE),
    "cos": OpRow(as_it_is("cos"), SINGLE),
    "tan": OpRow(as_it_is("tan"), SINGLE),
    "asin": OpRow(as_it_is("asin"), SINGLE),
    "acos": OpRow(as_it_is("acos"), SINGLE),
    "atan": OpRow(as_it_is("atan"), SINGLE),
    "sinh": OpRow(as_it_is("sinh"), SINGLE),
    "cosh": OpRow(as_it_is("cosh"), SINGLE),
    "tanh": OpRow(as_it_is("tanh"), SINGLE),
    "asinh": OpRow(as_it_is("asinh"), SINGLE),
    "acosh": OpRow(as_it_is("acosh"), SINGLE),
    "atanh": OpRow(as_it_is("atanh"), SINGLE),
    "relu": OpRow(each(_relu), FLOATS),
    "sigmoid": OpRow(as_it_is("sigmoid"), SINGLE),
    "erf": OpRow(each(_erf), SINGLE),
    "logical_not": OpRow(as_it_is("logical_not"), BOOL),
    "bitwise_invert": OpRow(as_it_is("logical_not"), BOOL),
}

BINARY: Final[dict[str, OpRow]] = {
    "add": OpRow(as_it_is("add"), SINGLE),
    "subtract": OpRow(as_it_is("subtract"), SINGLE),
    "multiply": OpRow(as_it_is("multiply"), SINGLE),
    "divide": OpRow(as_it_is("divide"), SINGLE),
    "pow": OpRow(as_it_is("power"), SINGLE),
    "logaddexp": OpRow(each(partial(formulas.logaddexp, is_nan=is_nan, number=number)), SINGLE, sums=True),
    "maximum": OpRow(_extreme("maximum"), COMPARED - BOOL),
    "minimum": OpRow(_extreme("minimum"), COMPARED - BOOL),
    "equal": OpRow(as_it_is("equal"), COMPARED),
    "not_equal": OpRow(as_it_is("not_equal"), COMPARED),
    "less": OpRow(as_it_is("less"), COMPARED),
    "less_equal": OpRow(as_it_is("less_equal"), COMPARED),
    "greater": OpRow(each(lambda o, a, b: o.less(b, a)), COMPARED),  # its own says that every number is above NaN
    "greater_equal": OpRow(each(lambda o, a, b: o.less_equal(b, a)), COMPARED),
    "logical_and": OpRow(as_it_is("logical_and"), BOOL),
    "logical_or": OpRow(as_it_is("logical_or"), BOOL),
    "logical_xor": OpRow(as_it_is("logical_xor"), BOOL),
    "bitwise_and": OpRow(as_it_is("logical_and"), BOOL),
    "bitwise_or": OpRow(as_it_is("logical_or"), BOOL),
    "bitwise_xor": OpRow(as_it_is("logical_xor"), BOOL),
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


SELECTION: Final[dict[str, OpRow]] = {
    "convert": OpRow(_converted, DTYPES, _not_converted),
    "where": OpRow(as_it_is("select"), DTYPES, _no_wide_integers),
}
