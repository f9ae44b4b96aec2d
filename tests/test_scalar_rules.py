"""Scalar rules mean what the reference bodies say: each is run through a builder whose values are NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import numpy as np
import pytest

from values import Array, same, specials
from yosegi._graph import reference
from yosegi._tensor.dtype import ALL, DType, as_dtype, bool_, complex64, float32, float64, int32, uint8
from yosegi._tensor.node import Call, spec
from yosegi._tensor.op import REGISTRY, OpKind
from yosegi.codegen.scalar.primitives import Primitives
from yosegi.errors import DTypeError
from yosegi.ops.erf import error_function

DTYPES = (bool_, uint8, int32, float32, float64, complex64)

# The builder --------------------------------------------------------------------------------------------------------


def _is_float(x: Array) -> bool:
    return x.dtype.kind in "fc"


def _floordiv(a: Array, b: Array) -> Any:
    if not _is_float(a):
        return np.floor_divide(a, b)
    quotient = a / b
    return np.where(np.isfinite(quotient) & np.isfinite(b), np.floor_divide(a, b), quotient)


def _pow(a: Array, b: Array) -> Any:
    if a.dtype.kind != "i":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b % 2), 0))
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0))).astype(a.dtype)


def _convert(x: Array, dtype: DType) -> Any:
    if dtype is bool_:
        return x != 0
    return (x.real if x.dtype.kind == "c" and not dtype.is_complex else x).astype(dtype.numpy)


def _rounded(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    return lambda x: function(x) if _is_float(x) else x


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "const": lambda value, like: np.full_like(like, value),
    "convert": _convert,
    "select": np.where,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": _floordiv, "mod": np.remainder,
    "pow": _pow, "neg": np.negative, "abs": np.abs, "sign": np.sign, "min": np.minimum, "max": np.maximum,
    "hypot": np.hypot, "copysign": np.copysign, "nextafter": np.nextafter,
    "floor": _rounded(np.floor), "ceil": _rounded(np.ceil), "trunc": _rounded(np.trunc), "rint": _rounded(np.rint),
    "sqrt": np.sqrt, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2,
    "log10": np.log10, "logaddexp": np.logaddexp,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.asin, "acos": np.acos, "atan": np.atan, "atan2": np.atan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.asinh, "acosh": np.acosh, "atanh": np.atanh,
    "erf": error_function,
    "real": np.real, "imag": np.imag, "conj": np.conj,
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "isinf": np.isinf,
    "not_": np.invert, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift,
    "shr": np.right_shift,
}  # fmt: skip


class NumpyBuilder:
    """The primitives on arrays. It has nothing else, and insists on operands of one dtype."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in PRIMITIVES:
            raise AttributeError(f"a scalar rule uses {name!r}, which is no primitive")

        def primitive(*operands: Any) -> Any:
            alike = [] if name in ("const", "convert") else operands[1:] if name == "select" else operands
            assert len({a.dtype for a in alike}) <= 1, f"{name} of {[a.dtype for a in alike]}"
            assert name != "select" or operands[0].dtype == bool, f"select by {operands[0].dtype}"
            return PRIMITIVES[name](*operands)

        return primitive


def test_the_builder_here_has_all_primitives_and_nothing_else() -> None:
    public = {name for name in vars(Primitives) if not name.startswith("_")}
    assert public - Primitives.__abstractmethods__ - {"paired", "rounded"} == PRIMITIVES.keys()


# The rules ----------------------------------------------------------------------------------------------------------

RULES = {name: op for name, op in REGISTRY.items() if op.scalar is not None}
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "convert": [{"dtype": d} for d in ALL],
    "broadcast_to": [{"shape": (2, 7)}],
}
WITHOUT_A_RULE: set[str] = set()
"""Elementwise ops that no device can generate. There should be none."""


def test_every_elementwise_op_has_a_rule() -> None:
    plain = {name: op for name, op in REGISTRY.items() if op.decomposition is None}
    without = {name for name, op in plain.items() if op.kind is OpKind.ACTIVATION and op.scalar is None}
    assert without == WITHOUT_A_RULE


def _values(dtype: DType) -> Array:
    values = specials(dtype)
    return values[np.isfinite(values)] if dtype.is_complex else values  # infinite complex numbers have no one rule


def _arrays(name: str, dtype: DType) -> list[Array]:
    """Every value with every other; inputs that are not promoted with the rest are bool."""
    op, values = RULES[name], _values(dtype)
    if name == "broadcast_to":
        return [np.resize(values, 7)]
    tensors = sum(p.kind is p.POSITIONAL_ONLY for p in signature(op).parameters.values())
    first = op.promotes_from or 0
    numbers = [np.reshape(values, (-1, *[1] * i)) for i in range(tensors - first)]
    return [np.array([True, False]).reshape(2, *[1] * len(numbers))] * first + numbers


def _call(name: str, dtype: DType, attrs: dict[str, Any]) -> Call | None:
    """The op's call on inputs of this dtype, if it takes them as they are."""
    specs = tuple(spec(a.shape, as_dtype(a.dtype)) for a in _arrays(name, dtype))
    try:
        call = RULES[name].call(specs, attrs)
    except DTypeError:
        return None
    return call if call.inputs == specs else None


def _cases() -> Iterator[Any]:
    for name in RULES:
        for dtype in DTYPES:
            for attrs in ATTRIBUTES.get(name, [{}]):
                if name == "convert" and dtype.is_complex and attrs["dtype"] is bool_:
                    continue  # never built: astype writes it as a comparison with 0
                call = _call(name, dtype, attrs)
                if call is not None:
                    label = "-".join([name, dtype.name, *[getattr(v, "name", str(v)) for v in attrs.values()]])
                    yield pytest.param(call, _arrays(name, dtype), id=label)


@pytest.mark.parametrize(("call", "arrays"), list(_cases()))
def test_a_rule_is_its_reference_body(call: Call, arrays: list[Array]) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(reference.bind(call)(*arrays))
        got = np.asarray(call.op.scalar(NumpyBuilder(), *arrays, **call.attrs))  # type: ignore[misc]
    assert got.dtype == expected.dtype == call.spec.dtype.numpy
    same(np.broadcast_to(got, call.spec.shape), expected, ulps=4 if call.spec.dtype.is_complex else 0)


def test_every_rule_is_run() -> None:
    assert {case.values[0].op.name for case in _cases()} == RULES.keys()
