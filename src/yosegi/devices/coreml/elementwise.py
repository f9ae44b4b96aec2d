"""Rows of the op table for elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log
from typing import Any, Final

from ..._tensor.dtype import bool_
from ..._tensor.node import Call
from ..model import formulas
from ..model.op_row import OpRow, as_it_is, each
from .op_row import BOOL, DTYPES, FLOATS, is_nan, number

_AS_THEY_ARE: Final = (
    "abs", "sign", "floor", "round", "sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "atanh", "relu", "sigmoid", "erf", "negative",
)  # fmt: skip

UNARY: Final[dict[str, OpRow]] = {
    **{name: OpRow(as_it_is(name), FLOATS) for name in _AS_THEY_ARE},
    "ceil": OpRow(as_it_is("ceiling"), FLOATS),
    "trunc": OpRow(each(partial(formulas.truncated, number=number)), FLOATS),
    "isnan": OpRow(each(is_nan), FLOATS),
    "isinf": OpRow(each(lambda o, x: o.equal(o.abs(x), number(o, float("inf"), x))), FLOATS),
    "isfinite": OpRow(each(lambda o, x: o.less(o.abs(x), number(o, float("inf"), x))), FLOATS),
    "square": OpRow(each(lambda o, x: o.multiply(x, x)), FLOATS),
    "reciprocal": OpRow(each(lambda o, x: o.divide(number(o, 1, x), x)), FLOATS),
    "expm1": OpRow(each(lambda o, x: formulas.expm1(o, x, lambda o, x: o.exp(x), number)), FLOATS),
    "log1p": OpRow(each(partial(formulas.log1p, number=number)), FLOATS),
    "log2": OpRow(each(lambda o, x: o.multiply(o.log(x), number(o, 1 / log(2), x))), FLOATS),
    "log10": OpRow(each(lambda o, x: o.multiply(o.log(x), number(o, 1 / log(10), x))), FLOATS),
    "logical_not": OpRow(as_it_is("logical_not"), BOOL),
    "bitwise_invert": OpRow(as_it_is("logical_not"), BOOL),
}

_COMPARISONS: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

BINARY: Final[dict[str, OpRow]] = {
    **{name: OpRow(as_it_is(name), FLOATS) for name in ("add", "subtract", "multiply", "divide", *_COMPARISONS)},
    "pow": OpRow(as_it_is("power"), FLOATS),
    "logaddexp": OpRow(each(partial(formulas.logaddexp, is_nan=is_nan, number=number)), FLOATS, sums=True),
    "maximum": OpRow(as_it_is("maximum"), FLOATS),
    "minimum": OpRow(as_it_is("minimum"), FLOATS),
    **{f"{kind}_{name}": OpRow(as_it_is(f"logical_{name}"), BOOL) for kind in ("logical", "bitwise")
       for name in ("and", "or", "xor")},
}  # fmt: skip


def _converted(o: Any, call: Call, args: Sequence[Any]) -> Any:
    """To another dtype. Floats are carried in one; the translation rounds those of 16 bits."""
    (x,), source = args, call.inputs[0].dtype
    if call.spec.dtype is bool_:
        return x if source is bool_ else o.not_equal(x, number(o, 0, x))
    return o.number(x) if source is bool_ else x


SELECTION: Final[dict[str, OpRow]] = {
    "convert": OpRow(_converted, DTYPES),
    "where": OpRow(as_it_is("select"), DTYPES),
}
