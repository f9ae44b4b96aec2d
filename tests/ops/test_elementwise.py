"""Elementwise functions, against NumPy."""

from __future__ import annotations

import operator
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from native_code import CODES, code, needs_llvm
from values import LAYOUTS, LETTER, check, dtypes_of, in_single, operands, specials
from yosegi._tensor.dtype import ALL, PROMOTION, DType, as_dtype
from yosegi.errors import ArgumentError, DTypeError, ShapeError
from yosegi.ops import elementwise

# The table ----------------------------------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """The dtypes some functions are defined for."""

    what: str
    kinds: str
    cast_to_float: str = ""
    """Of these, the kinds that are first cast to the default float."""


FUNCTIONS = {
    Inputs("any dtype", "biufc"): "equal not_equal real imag conj",
    Inputs("a numeric dtype", "iufc"):
        "add subtract multiply pow negative positive abs sign square round isnan isinf isfinite",
    Inputs("a real numeric dtype", "iuf"): "floor_divide remainder maximum minimum floor ceil trunc",
    Inputs("a real dtype", "biuf"): "less less_equal greater greater_equal",
    Inputs("a floating dtype", "biufc", "biu"):
        "divide reciprocal sqrt exp expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh",
    Inputs("a real floating dtype", "biuf", "biu"): "hypot copysign nextafter logaddexp atan2",
    Inputs("a real floating dtype", "f"): "signbit",
    Inputs("an integer dtype", "iu"): "bitwise_left_shift bitwise_right_shift",
    Inputs("an integer or bool dtype", "biu"): "bitwise_and bitwise_or bitwise_xor bitwise_invert",
    Inputs("a bool dtype", "b"): "logical_and logical_or logical_xor logical_not",
}  # fmt: skip
INPUTS = {name: inputs for inputs, names in FUNCTIONS.items() for name in names.split()}


def _floor_divide(a: Any, b: Any) -> Any:
    """The standard's: an infinity on either side leaves the quotient, where NumPy has NaN or -1."""
    if a.dtype.kind != "f":
        return np.floor_divide(a, b)
    return np.where(np.isinf(a) | np.isinf(b) | (b == 0), a / b, np.floor_divide(a, b))


def _pow(a: Any, b: Any) -> Any:
    """NumPy's, but for integers to negative powers, which NumPy refuses: 1 / x**-n, cut to an integer."""
    if a.dtype.kind != "i":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _expm1(x: Any) -> Any:
    return np.expm1(x) if x.dtype.kind != "c" else np.where(np.isfinite(x), np.expm1(x) + 0, np.exp(x) - 1)


def _tanh(x: Any) -> Any:
    """NumPy's, but for a real infinity, where the standard says ±1 and a zero with the sign of the imaginary part."""
    if x.dtype.kind != "c":
        return np.tanh(x)
    limit = np.empty_like(x)
    limit.real, limit.imag = np.sign(x.real), np.copysign(0, x.imag)
    return np.where(np.isinf(x.real) & np.isfinite(x.imag), limit, np.tanh(x))


REFERENCES = {
    "floor_divide": _floor_divide, "pow": _pow, "expm1": _expm1, "tanh": _tanh,
    "reciprocal": lambda x: np.true_divide(1, x),
    "round": lambda x: np.rint(x) if x.dtype.kind in "fc" else x,
    "conj": lambda x: np.conj(x) if x.dtype.kind == "c" else x,
    "imag": lambda x: np.imag(x) if x.dtype.kind == "c" else np.zeros_like(x),
}  # fmt: skip
"""Where NumPy has another idea."""


def reference(name: str, *arrays: Any) -> Any:
    """What NumPy says the function gives."""
    if LETTER[as_dtype(arrays[0].dtype)] in INPUTS[name].cast_to_float:
        arrays = tuple(a.astype(np.float64) for a in arrays)
    if name == "nextafter":  # the next one of the dtype itself
        with np.errstate(all="ignore"):
            x, y = arrays
            return np.where(x == y, y, np.nextafter(x, y))  # of two zeros NumPy's float16 keeps the first
    return in_single(REFERENCES.get(name) or getattr(np, name), *arrays)


def arity(name: str) -> int:
    return sum(p.default is p.empty for p in signature(getattr(ys, name)).parameters.values())


def unsigned_zero(name: str) -> bool:
    """Whether NumPy leaves it open which zero it gives."""
    return name in ("maximum", "minimum")


def test_the_table_holds_every_elementwise_function() -> None:
    public = {name for name, f in vars(ys).items() if getattr(elementwise, name, None) is f and callable(f)}
    assert public - {"Tensor"} == INPUTS.keys() | {"where", "clip"}


@pytest.mark.parametrize("by", CODES)
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in INPUTS for d in dtypes_of(INPUTS[n].kinds)], ids=str)
def test_special_values(name: str, dtype: DType, by: str) -> None:
    values = specials(dtype)
    arrays = [values] if arity(name) == 1 else [values[:, None], values]
    with code(by):
        got = getattr(ys, name)(*map(ys.asarray, arrays))
        check(got, reference(name, *arrays), zero_signs=not unsigned_zero(name))


def check_shapes_and_layouts(name: str, data: Any) -> None:
    pairs = data.draw(operands(arity(name), dtypes_of(INPUTS[name].kinds)))
    got = getattr(ys, name)(*[tensor for tensor, _ in pairs])
    check(got, reference(name, *[array for _, array in pairs]), zero_signs=not unsigned_zero(name))


@pytest.mark.parametrize("name", INPUTS)
@settings(max_examples=12)
@given(st.data())
def test_shapes_and_layouts(name: str, data: Any) -> None:
    check_shapes_and_layouts(name, data)


@needs_llvm
@pytest.mark.parametrize("name", INPUTS)
@settings(max_examples=4)
@given(st.data())
def test_shapes_and_layouts_by_native_code(name: str, data: Any) -> None:
    with code("native"):
        check_shapes_and_layouts(name, data)


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n in INPUTS for d in ALL if LETTER[d] not in INPUTS[n].kinds], ids=str
)
def test_dtypes_a_function_is_not_defined_for(name: str, dtype: DType) -> None:
    text = f"[{name}] expected {INPUTS[name].what}, got {dtype.name}; cast it with astype"
    with pytest.raises(DTypeError) as error:
        getattr(ys, name)(*[ys.zeros(2, dtype=dtype)] * arity(name))
    assert str(error.value) == text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chain_reads_any_layout(layout: str) -> None:
    x, array = LAYOUTS[layout](np.arange(24.0).reshape(2, 3, 4))
    check(ys.sin(x) * x + 1, np.sin(array) * array + 1)
    check(x + x, array + array)


@pytest.mark.parametrize("x", ALL, ids=str)
@pytest.mark.parametrize("y", ALL, ids=str)
def test_mixed_dtypes_are_brought_to_the_common_one(x: DType, y: DType) -> None:
    common = PROMOTION[x, y]
    if common not in (None, ys.bool):
        a, b = np.array([0, 1, 1]), np.array([[1], [0]])
        got = ys.asarray(a).astype(x) - ys.asarray(b).astype(y)
        check(got, in_single(np.subtract, a.astype(common.numpy), b.astype(common.numpy)))


# Python's numbers ---------------------------------------------------------------------------------------------------

NUMBERS: dict[str, Any] = {"b": True, "i": 3, "f": 2.5, "c": 2 - 1j}


def met(dtype: DType, letter: str) -> DType:
    """The dtype of a tensor that met a Python number: its own, unless the number's kind is higher."""
    order = "biufc"
    if (letter == "i" and dtype.is_integer) or order.index(letter) <= order.index(LETTER[dtype]):
        return dtype
    if letter == "c":
        return ys.complex64 if dtype.bits <= 32 and dtype.is_float else ys.complex128
    return {"i": ys.int64, "f": ys.float64}[letter]


@pytest.mark.parametrize("letter", NUMBERS)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_numbers_on_both_sides(dtype: DType, letter: str) -> None:
    number, result = NUMBERS[letter], met(dtype, letter)
    x = ys.asarray([0, 1]).astype(dtype)
    array, value = np.array([0, 1]).astype(result.numpy), np.asarray(number).astype(result.numpy)
    check(ys.where(True, x, number), array)
    check(ys.equal(x, number), array == value)
    check(number == x, array == value)
    if result is not ys.bool:
        for function, named in [(operator.add, ys.add), (operator.sub, ys.subtract), (operator.mul, ys.multiply)]:
            check(function(x, number), in_single(function, array, value))
            check(function(number, x), in_single(function, value, array))
            check(named(number, x), in_single(function, value, array))


@pytest.mark.parametrize("dtype", dtypes_of("biu"), ids=str)
def test_float_functions_of_integers_and_numbers(dtype: DType) -> None:
    x = ys.asarray([0, 1]).astype(dtype)
    check(x / 4, np.array([0, 0.25]))
    check(x / 4j, np.array([0, -0.25j]))
    check(ys.atan2(x, 2.0), np.arctan2([0.0, 1.0], 2))
    check(ys.exp(x), np.exp([0.0, 1.0]))


def test_functions_of_numbers_alone() -> None:
    for got, expected in [
        (ys.add(1, 2), np.int64(3)), (ys.add(1, 2.5), np.float64(3.5)), (ys.exp(1), np.exp(1.0)),
        (ys.divide(1, 4), np.float64(0.25)), (ys.sqrt(-1 + 0j), np.complex128(1j)), (ys.maximum(2, True), np.int64(2)),
        (ys.real(2 + 1j), np.float64(2)), (ys.imag(3), np.int64(0)), (ys.clip(5, 0, 3), np.int64(3)),
    ]:  # fmt: skip
        check(got, np.asarray(expected))


def test_numpy_numbers_keep_their_dtype() -> None:
    x = ys.asarray([1, 2], dtype=ys.float32)
    for got in (x * np.float64(2), np.float64(2) * x, ys.multiply(x, np.float64(2)), ys.multiply(np.array(2.0), x)):
        check(got, np.array([2.0, 4.0]))


def test_numbers_are_told_apart() -> None:
    x = ys.asarray([1.0, -2.0])
    for zero in (0.0, -0.0, 0, False):
        check(x * zero, np.array([1.0, -2.0]) * zero)
    ys.full(2, 2.5, dtype=ys.int64)
    ys.full(2, 3, dtype=ys.bool)
    check(ys.asarray([1, 2]) * 2.5, np.array([2.5, 5.0]))
    check(ys.asarray([True, False]) == 3, np.array([False, False]))
    check(ys.asarray([2, 3]) * True, np.array([2, 3]))


def test_complex_numbers_are_told_apart_by_the_signs_of_their_zeros() -> None:
    assert complex(ys.sqrt(complex(-1, 0.0))) == 1j
    assert complex(ys.sqrt(complex(-1, -0.0))) == -1j


# Operators ----------------------------------------------------------------------------------------------------------

OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
UNARY = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}


@pytest.mark.parametrize("name", [*OPERATORS, *COMPARISONS])
def test_binary_operators(name: str) -> None:
    a, b = np.array([[7, 3, 5]]), np.array([[2], [1]])
    apply = getattr(operator, f"__{name}__")
    function = (OPERATORS | COMPARISONS)[name]
    for got in (apply(ys.asarray(a), ys.asarray(b)), apply(ys.asarray(a), b), apply(a, ys.asarray(b))):
        check(got, reference(function, a, b))
    check(apply(ys.asarray(a), 2), reference(function, a, np.array(2)))
    for nine in (9, np.int64(9), np.array(9)):
        check(apply(nine, ys.asarray(b)), reference(function, np.array(9), b))


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators(name: str) -> None:
    a = np.array([3, 0, -5])
    check(getattr(operator, name)(ys.asarray(a)), reference(UNARY[name], a))


@pytest.mark.parametrize("name", OPERATORS)
def test_in_place_operators_change_the_handle_alone(name: str) -> None:
    kind = float if name == "truediv" else int
    x = ys.asarray(np.array([[7, 3, 5]], kind))
    before, made, same = x + 0, x * 2, x
    x = getattr(operator, f"__i{name}__")(x, 2)
    assert x is same
    check(x, reference(OPERATORS[name], before.numpy(), np.array(2, kind)))
    check(made, before.numpy() * 2)
    with pytest.raises(ShapeError) as shape:
        getattr(operator, f"__i{name}__")(x, ys.ones((2, 1), dtype=x.dtype))
    assert str(shape.value) == (
        f"[{name}] expected the result of the in-place operator to keep the shape (1, 3), got (2, 3); "
        "write x = x <op> y"
    )
    check(x, reference(OPERATORS[name], before.numpy(), np.array(2, kind)))


@pytest.mark.parametrize(
    ("name", "x", "other", "became"),
    [
        ("truediv", ys.int64, 2, "float64"), ("add", ys.int32, 1.5, "float64"), ("mul", ys.float32, 1j, "complex64"),
        ("sub", ys.float32, np.float64(1), "float64"), ("add", ys.int8, ys.ones(2, dtype=ys.int16), "int16"),
    ],
)  # fmt: skip
def test_in_place_operators_keep_the_dtype(name: str, x: DType, other: Any, became: str) -> None:
    tensor = ys.ones(2, dtype=x)
    with pytest.raises(DTypeError) as error:
        getattr(operator, f"__i{name}__")(tensor, other)
    assert str(error.value) == (
        f"[{name}] expected the result of the in-place operator to keep the dtype {x.name}, got {became}; "
        "write x = x <op> y, or cast the other side"
    )
    check(tensor, np.ones(2, x.numpy))


def test_comparison_with_none_and_strangers() -> None:
    x = ys.asarray([1, 2])
    assert ((x == None), (x != None), (None == x)) == (False, True, False)  # noqa: E711, SIM300
    assert (x == "a", x != {}) == (False, True)
    with pytest.raises(TypeError, match="got list; convert it"):  # not False: a list may hold the same numbers
        x == [1, 2]  # noqa: B015
    for stranger in (None, "a", [1, 2], {}, object()):
        for function in (operator.add, operator.lt, operator.sub, operator.pow, operator.and_):
            with pytest.raises(TypeError):
                function(x, stranger)
            with pytest.raises(TypeError):
                function(stranger, x)


def test_the_other_side_gets_its_chance() -> None:
    class Right:
        def __radd__(self, other: Any) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    assert ys.asarray([1]) + Right() == "mine"
    assert (ys.asarray([1]) == Right()) is True


# Selection ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(operands(3, list(ALL)))
def test_where_in_any_shape(pairs: Any) -> None:
    (c, condition), (x, first), (y, second) = pairs
    check(ys.where(c != 0, x, y), np.where(condition != 0, first, second))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_where_of_every_dtype(dtype: DType) -> None:
    values = specials(dtype)
    condition = np.arange(values.size) % 3 == 0
    got = ys.where(ys.asarray(condition), ys.asarray(values), ys.asarray(values[::-1].copy()))
    check(got, np.where(condition, values, values[::-1]))
    grid = ys.where(ys.asarray(condition)[:, None], ys.asarray(values), ys.zeros((), dtype=dtype))
    check(grid, np.where(condition[:, None], values, np.zeros((), dtype.numpy)))


@pytest.mark.parametrize("dtype", dtypes_of("iuf"), ids=str)
def test_clip(dtype: DType) -> None:
    values = specials(dtype)
    x, low, high = ys.asarray(values), np.asarray(1).astype(dtype.numpy), np.asarray(2).astype(dtype.numpy)
    for bounds in [(1, 2), (1, None), (None, 2), (None, None)]:
        expected = values
        if bounds != (None, None):
            expected = in_single(lambda v, b=bounds: np.clip(v, *b), values)
        check(ys.clip(x, *bounds), expected, zero_signs=False)
        tensors = [None if b is None else ys.asarray(a) for b, a in zip(bounds, (low, high), strict=True)]
        check(ys.clip(x, min=tensors[0], max=tensors[1]), expected, zero_signs=False)
    check(
        ys.clip(x[:, None], ys.asarray(values), None), in_single(np.maximum, values[:, None], values), zero_signs=False
    )


@pytest.mark.parametrize("dtype", dtypes_of("iu"), ids=str)
def test_float_bounds_of_integers(dtype: DType) -> None:
    values = specials(dtype)
    info, infinity = np.iinfo(dtype.numpy), float("inf")
    x = ys.asarray(values)
    for low, high, expected in [
        (1.5, 4.7, np.clip(values, 2, 4)),
        (-infinity, infinity, values),
        (-1e300, 7.0, np.minimum(values, 7)),
        (1e300, None, np.full_like(values, info.max)),
        (None, -1e300, np.full_like(values, info.min)),
    ]:
        expected = expected.astype(dtype.numpy)
        check(ys.clip(x, low, high), expected)
        check(ys.jit(ys.clip, static_argnames=("min", "max") if None in (low, high) else ())(x, low, high), expected)
        for bound in (ys.float64, ys.bfloat16):
            tensors = [None if b is None else ys.asarray([b], dtype=bound) for b in (low, high)]
            check(ys.clip(x, *tensors), expected)
    nans = ys.asarray([np.nan])
    check(ys.clip(x, nans, nans), values)


# Errors -------------------------------------------------------------------------------------------------------------

PAIR = ys.zeros(2)


def clash(name: str, shapes: str, at: int, one: int, other: int) -> str:
    return (
        f"[{name}] expected shapes that broadcast together, got {shapes}; "
        f"dimension {at} is both {one} and {other}: reshape or expand_dims one of them"
    )


def no_tensor(name: str, kind: str) -> str:
    return f"[{name}] expected a tensor or a number, got {kind}; convert it with ys.asarray"


def no_fit(name: str, dtype: str, number: int) -> str:
    return f"[{name}] expected a number that fits {dtype}, got {number}; cast the tensor first"


def not_defined(name: str, what: str, dtype: str) -> str:
    return f"[{name}] expected {what}, got {dtype}; cast it with astype"


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ys.add(PAIR, ys.zeros(3)), ShapeError, clash("add", "(2,) and (3,)", 0, 2, 3)),
        (lambda: PAIR * ys.zeros((2, 3)), ShapeError, clash("multiply", "(2,) and (2, 3)", 1, 2, 3)),
        (lambda: PAIR + ys.zeros(0), ShapeError, clash("add", "(2,) and (0,)", 0, 2, 0)),
        (lambda: ys.where(PAIR == 0, ys.zeros(3), 1), ShapeError, clash("where", "(2,) and (3,) and ()", 0, 2, 3)),
        (lambda: ys.clip(PAIR, 0, ys.zeros(3)), ShapeError, clash("clip", "(2,) and (3,)", 0, 2, 3)),
        (lambda: ys.clip(ys.asarray(1), float("nan")), ArgumentError,
         "[clip] expected bounds that are numbers, got nan"),
        (lambda: ys.clip(ys.asarray(1), 0, np.float32("nan")), ArgumentError,
         "[clip] expected bounds that are numbers, got nan"),
        (lambda: ys.add(PAIR, "a"), DTypeError, no_tensor("add", "str")),
        (lambda: ys.sin([1.0]), DTypeError, no_tensor("sin", "list")),
        (lambda: ys.conj(None), DTypeError, no_tensor("conj", "NoneType")),
        (lambda: ys.clip(PAIR, "a"), DTypeError, no_tensor("clip", "str")),
        (lambda: ys.zeros(2, dtype=ys.uint8) + 256, DTypeError, no_fit("add", "uint8", 256)),
        (lambda: -1 - ys.zeros(2, dtype=ys.uint64), DTypeError, no_fit("subtract", "uint64", -1)),
        (lambda: PAIR < 1j, DTypeError, not_defined("less", "a real dtype", "complex128")),
        (lambda: PAIR & 1, DTypeError, not_defined("bitwise_and", "an integer or bool dtype", "float64")),
        (lambda: ys.where(PAIR, 1, 2), DTypeError, not_defined("where", "a bool condition", "float64")),
        (lambda: ys.clip(1j, 0), DTypeError, not_defined("clip", "a real numeric dtype", "complex128")),
        (lambda: ys.zeros(2, dtype=ys.uint64) + ys.zeros(2, dtype=ys.int8), DTypeError,
         "[add] expected dtypes with a common type, got uint64 and int8; cast one with astype"),
        (lambda: ys.add(PAIR), TypeError, "[add] missing a required argument: 'x2'"),
        (lambda: ys.sin(PAIR, PAIR), TypeError, "[sin] too many positional arguments"),
        (lambda: ys.sin(PAIR, out=PAIR), TypeError, "[sin] has no out=; use the result: tensors are values"),
    ],
)  # fmt: skip
def test_mistakes(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == text
