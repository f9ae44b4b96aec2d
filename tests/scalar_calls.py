"""Every op that has a scalar rule, on inputs of every dtype, for builders to be tried on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from values import Array, same, specials
from yosegi._graph import reference
from yosegi._tensor.dtype import ALL, DType, bool_
from yosegi._tensor.node import Call, spec
from yosegi._tensor.op import REGISTRY
from yosegi.errors import DTypeError

RULES = {name: op for name, op in REGISTRY.items() if op.scalar is not None and name != "broadcast_to"}

EXACT = {"add", "subtract", "multiply", "divide", "negative", "positive", "abs", "sign", "sqrt", "floor",
         "ceil", "trunc", "round", "nextafter", "copysign", "where", "square", "reciprocal", "floor_divide",
         "remainder"}  # fmt: skip
LOOSE = {"pow": 16, "sinh": 6, "cosh": 6, "tan": 8, "tanh": 8, "asin": 8, "acos": 8, "atan": 8, "asinh": 8, "acosh": 8,
         "atanh": 8, "sqrt": 6, "expm1": 8, "exp": 6, "log2": 8, "log10": 8, "log": 6, "sin": 6, "cos": 6,
         "log1p": 6, "divide": 6, "reciprocal": 6, "sign": 6}  # fmt: skip
"""Units in the last place that complex functions may be off by: NumPy's own errors are in them too."""

Read = tuple[Call, tuple[int, ...]]
"""A call, and which of the arrays it reads."""


def _values(dtype: DType, more: int) -> Array:
    values = specials(dtype)
    if dtype.is_complex:
        values = values[np.isfinite(values)]  # infinite complex numbers have no one rule
    if dtype.is_inexact:
        rng = np.random.default_rng(3)
        extra = rng.uniform(-4, 4, more) + (1j * rng.uniform(-4, 4, more) if dtype.is_complex else 0)
        values = np.concatenate([values, extra.astype(dtype.numpy)])
    return values


def calls(dtype: DType, arity: int) -> list[Read]:
    """Every call with a rule on this many inputs of this dtype; the last of the arrays is bool."""
    found = []
    for name, op in RULES.items():
        inputs = sum(op._is_tensor)
        truths = op.promotes_from or 0
        if inputs - truths != arity:
            continue
        specs = (spec((), bool_),) * truths + (spec((), dtype),) * arity
        for attrs in [{"dtype": d} for d in ALL] if name == "convert" else [{}]:
            if attrs and dtype.is_complex and not attrs["dtype"].is_complex:
                continue  # astype never builds it
            try:
                call = op.call(specs, attrs)
            except DTypeError:
                continue
            if call.inputs == specs:
                found.append((call, (arity,) * truths + tuple(range(arity))))
    return found


def operands(dtype: DType, arity: int, least: int) -> list[Array]:
    """Every value with every other, and a truth value with each."""
    values = _values(dtype, 40 if arity == 1 else 10)
    pairs = np.meshgrid(*[values] * arity, indexing="ij")
    arrays = [np.asarray(p).ravel() for p in pairs]
    size = max(arrays[0].size, least) | 1
    truth = np.random.default_rng(1).integers(0, 2, size).astype(bool)
    return [*[np.resize(a, size) for a in arrays], truth]


def _allowed(call: Call) -> float:
    source = call.inputs[-1].dtype
    if source.is_complex:
        return LOOSE.get(call.op.name, 2)
    if call.spec.dtype.is_half:
        return 1
    if call.op.name == "logaddexp":
        return 64  # where the sum is near 1 the result is near 0, and NumPy's own error is relative to the inputs
    return 4 if source.is_float and call.op.name not in EXACT else 0


def _in_range(call: Call, arrays: list[Array]) -> Array:
    """Where the reference is defined: not every float can be an integer."""
    target = call.spec.dtype
    x = arrays[0]
    if call.op.name != "convert" or not target.is_integer or not call.inputs[0].dtype.is_float:
        return np.ones(x.shape, bool)
    info = np.iinfo(target.numpy)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (wide > float(info.min) - 1 if target.bits < 64 else wide >= float(info.min)) & (
            wide < 2.0 ** (info.bits - (info.min < 0))
        )


def check(read: Sequence[Read], arrays: list[Array], results: Sequence[Array]) -> None:
    """Each call's result is its reference body's."""
    wrong = defaultdict(list)
    for (call, places), got in zip(read, results, strict=True):
        given = [arrays[n] for n in places]
        with np.errstate(all="ignore"):
            expected = np.asarray(reference.bind(call)(*given))
        at = _in_range(call, given)
        try:
            same(got[at], expected[at], ulps=_allowed(call), zero_signs=call.op.name not in ("maximum", "minimum"))
        except AssertionError as error:
            wrong[repr(call)].append(str(error)[:600])
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
