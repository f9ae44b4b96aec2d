"""Casts, and functions on dtypes, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import yosegi as ys
from values import LETTER, check, specials
from yosegi._tensor.dtype import ALL, PROMOTION, DType
from yosegi.errors import DTypeError

# astype --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_astype(source: DType, target: DType) -> None:
    low = -3 if LETTER[source] in "ifc" and LETTER[target] in "ifcb" else 0
    array = np.array([[0, 1, 2.75], [3, low, 0.25]]).astype(source.numpy)  # what any target can hold
    x = ys.asarray(array)
    if source.is_complex and not (target.is_complex or target is ys.bool):
        with pytest.raises(DTypeError) as error:
            ys.astype(x, target)
        text = f"[astype] expected a complex dtype for {source.name}, got {target.name}; take ys.real first"
        assert str(error.value) == text
        return
    for got in (
        ys.astype(x, target),
        x.astype(target),
        x.astype(target.name),
        ys.astype(array, target.numpy, copy=False),
    ):
        check(got, array.astype(target.numpy))
    check(ys.astype(x[:, ::-1].T, target), array[:, ::-1].T.astype(target.numpy))
    check(ys.astype(x[:, :0], target), array[:, :0].astype(target.numpy))


@pytest.mark.parametrize("target", [ys.bool, ys.float16, ys.bfloat16, ys.float32, ys.float64, ys.complex64], ids=str)
@pytest.mark.parametrize(
    "source", [ys.float16, ys.bfloat16, ys.float32, ys.float64, ys.complex128, ys.int64, ys.uint64]
)
def test_special_values(source: DType, target: DType) -> None:
    if source.is_complex and target.is_float:
        return
    values = specials(source)
    with np.errstate(all="ignore"):
        expected = values != 0 if target is ys.bool else values.astype(target.numpy)
    check(ys.asarray(values).astype(target), expected)


def test_integers_wrap() -> None:
    check(ys.asarray([300, -1]).astype(ys.uint8), np.array([44, 255], np.uint8))
    check(ys.asarray([128, 255], dtype=ys.uint8).astype(ys.int8), np.array([-128, -1], np.int8))


def test_numbers_can_be_cast() -> None:
    check(ys.astype(3, ys.float32), np.asarray(np.float32(3)))


@pytest.mark.parametrize("target", [None, "float8", object])
def test_astype_to_nothing(target: Any) -> None:
    for call in (lambda: ys.astype(ys.ones(2), target), lambda: ys.ones(2).astype(target)):
        with pytest.raises(DTypeError, match=r"expected a dtype among bool, .*, got "):
            call()


# can_cast and result_type --------------------------------------------------------------------------------------------


def test_can_cast_is_promotion() -> None:
    for a, b in product(ALL, ALL):
        assert ys.can_cast(a, b) is (PROMOTION[a, b] is b)
        assert ys.can_cast(ys.zeros(2, dtype=a), b) is ys.can_cast(a.name, b.numpy) is ys.can_cast(a, b)
        assert ys.can_cast(np.zeros(2, a.numpy), b) is ys.can_cast(a, b)


@pytest.mark.parametrize(
    ("source", "target", "can"),
    [
        ("int8", "int16", True), ("int16", "int8", False), ("uint8", "int8", False), ("uint8", "int16", True),
        ("uint64", "int64", False), ("int64", "uint64", False), ("bool", "int8", True), ("int8", "bool", False),
        ("int64", "float32", False), ("int16", "float32", True), ("float32", "int64", False),
        ("float16", "bfloat16", False),
        ("bfloat16", "float32", True), ("float64", "complex64", False), ("float32", "complex64", True),
        ("complex64", "float64", False),
    ],
)  # fmt: skip
def test_can_cast(source: str, target: str, can: bool) -> None:
    assert ys.can_cast(getattr(ys, source), getattr(ys, target)) is can


def test_result_type_of_two() -> None:
    for a, b in product(ALL, ALL):
        if PROMOTION[a, b] is not None:
            for pair in (
                (a, b),
                (ys.zeros(2, dtype=a), b),
                (a.name, ys.zeros((), dtype=b)),
                (np.zeros(1, a.numpy), b.numpy),
            ):
                assert ys.result_type(*pair) is PROMOTION[a, b]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((ys.int8,), "int8"), ((ys.int8, ys.int16, ys.int32), "int32"), ((ys.float16, ys.bfloat16, 1j), "complex64"),
        ((1, ys.uint8, True), "uint8"), ((2.5, ys.int8, ys.float16), "float16"), ((1, 2.5, ys.bool), "float64"),
        ((ys.float32, np.float64(1)), "float64"), ((ys.float32, np.int16(1)), "float32"),
        ((ys.float32, np.array([1.0])), "float64"), ((np.float32, int), "float64"),
    ],
)  # fmt: skip
def test_result_type(items: Any, expected: str) -> None:
    assert ys.result_type(*items) is getattr(ys, expected)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ys.result_type(), "[result_type] expected at least one tensor or dtype, got none"),
        (lambda: ys.result_type(1, 2.5), "[result_type] expected at least one tensor or dtype, got none"),
        (lambda: ys.result_type(ys.uint64, ys.int8),
         "[result_type] expected dtypes with a common type, got uint64 and int8; cast one with astype"),
        (lambda: ys.finfo(ys.int8), "[finfo] expected a floating dtype, got int8; iinfo is for integers"),
        (lambda: ys.finfo(ys.bool), "[finfo] expected a floating dtype, got bool; iinfo is for integers"),
        (lambda: ys.iinfo(ys.float32), "[iinfo] expected an integer dtype, got float32; finfo is for floats"),
        (lambda: ys.iinfo(ys.bool), "[iinfo] expected an integer dtype, got bool; finfo is for floats"),
        (lambda: ys.isdtype(ys.int8, "number"),
         "[isdtype] expected a kind among bool, signed integer, unsigned integer, integral, real floating, "
         "complex floating, numeric, got 'number'"),
        *[(lambda f=f: getattr(ys, f)("float8", *["numeric"] * (f == "isdtype"), *[ys.int8] * (f == "can_cast")),
           f"[{f}] expected a dtype among {', '.join(d.name for d in ALL)}, got 'float8'")
          for f in ("result_type", "finfo", "iinfo", "isdtype", "can_cast")],
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(DTypeError) as error:
        call()
    assert str(error.value) == text


# finfo, iinfo and isdtype --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_inexact], ids=str)
def test_finfo(dtype: DType) -> None:
    for info in (ys.finfo(dtype), ys.finfo(ys.zeros(2, dtype=dtype)), ys.finfo(np.zeros(2, dtype.numpy))):
        real = {ys.complex64: ys.float32, ys.complex128: ys.float64}.get(dtype, dtype)
        expected = ml_dtypes.finfo(real.numpy)
        assert (info.dtype, info.bits) == (real, expected.bits)
        for field in ("eps", "max", "min", "smallest_normal"):
            assert type(getattr(info, field)) is float
            assert getattr(info, field) == float(getattr(expected, field))
    one = np.ones((), real.numpy)
    assert float(ys.nextafter(ys.asarray(one), ys.asarray(one + one))) - 1 == info.eps


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_integer], ids=str)
def test_iinfo(dtype: DType) -> None:
    for info in (ys.iinfo(dtype), ys.iinfo(ys.zeros(2, dtype=dtype)), ys.iinfo(np.zeros(2, dtype.numpy))):
        expected = np.iinfo(dtype.numpy)
        assert (info.dtype, info.bits, info.min, info.max) == (dtype, expected.bits, expected.min, expected.max)
        assert type(info.min) is type(info.max) is int


NAMES = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_isdtype(dtype: DType) -> None:
    for kind in NAMES:
        expected = kind in ("real floating", "numeric") if dtype is ys.bfloat16 else np.isdtype(dtype.numpy, kind)
        assert ys.isdtype(dtype, kind) is expected
        assert ys.isdtype(dtype, ("bool", kind)) is (expected or dtype is ys.bool)
    for other in ALL:
        assert ys.isdtype(dtype, other) is (dtype is other)
        assert ys.isdtype(dtype, (other, ys.int8)) is (dtype in (other, ys.int8))
    assert ys.isdtype(dtype, ()) is False
    for wrong in (["bool"], None, ("bool", 1)):
        with pytest.raises(DTypeError, match=r"^\[isdtype\] expected a kind by its name, a dtype, or a tuple of them"):
            ys.isdtype(dtype, wrong)
