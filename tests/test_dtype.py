"""The dtypes and their promotion."""

from __future__ import annotations

import copy
import pickle
from itertools import permutations, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import yosegi as ys
from yosegi._tensor.dtype import (
    ALL,
    DEFAULT_INT,
    KINDS,
    PROMOTION,
    DType,
    as_dtype,
    complex_of,
    default_complex,
    default_float,
    promote,
    real_of,
    with_scalar,
)
from yosegi.errors import DTypeError

# The standard's tables, as it prints them ----------------------------------------------------------------------------

SIGNED = """
             int8  int16 int32 int64
       int8  int8  int16 int32 int64
       int16 int16 int16 int32 int64
       int32 int32 int32 int32 int64
       int64 int64 int64 int64 int64
"""
UNSIGNED = """
              uint8  uint16 uint32 uint64
       uint8  uint8  uint16 uint32 uint64
       uint16 uint16 uint16 uint32 uint64
       uint32 uint32 uint32 uint32 uint64
       uint64 uint64 uint64 uint64 uint64
"""
MIXED = """
             uint8 uint16 uint32 uint64
       int8  int16 int32  int64  -
       int16 int16 int32  int64  -
       int32 int32 int32  int64  -
       int64 int64 int64  int64  -
"""
FLOATING = """
                  float32    float64    complex64  complex128
       float32    float32    float64    complex64  complex128
       float64    float64    float64    complex128 complex128
       complex64  complex64  complex128 complex64  complex128
       complex128 complex128 complex128 complex128 complex128
"""
HALVES = """
                float16   bfloat16  float32   float64   complex64 complex128
       float16  float16   float32   float32   float64   complex64 complex128
       bfloat16 float32   bfloat16  float32   float64   complex64 complex128
"""
BETWEEN_KINDS = """
              float16 bfloat16 float32 float64 complex64  complex128
       bool   float16 bfloat16 float32 float64 complex64  complex128
       int8   float16 bfloat16 float32 float64 complex64  complex128
       int16  float32 float32  float32 float64 complex64  complex128
       int32  float64 float64  float64 float64 complex128 complex128
       int64  float64 float64  float64 float64 complex128 complex128
       uint8  float16 bfloat16 float32 float64 complex64  complex128
       uint16 float32 float32  float32 float64 complex64  complex128
       uint32 float64 float64  float64 float64 complex128 complex128
       uint64 float64 float64  float64 float64 complex128 complex128
"""
"""Not the standard's, which leaves these open, but NumPy's."""


def entries(table: str) -> list[tuple[str, str, str]]:
    head, *rows = [line.split() for line in table.strip().splitlines()]
    return [(row[0], column, result) for row in rows for column, result in zip(head, row[1:], strict=True)]


@pytest.mark.parametrize("table", [SIGNED, UNSIGNED, MIXED, FLOATING, HALVES, BETWEEN_KINDS])
def test_promotion(table: str) -> None:
    for a, b, result in entries(table):
        for one, other in ((a, b), (b, a)):
            if result == "-":
                with pytest.raises(DTypeError) as error:
                    promote(as_dtype(one), as_dtype(other))
                assert str(error.value) == (
                    f"expected dtypes with a common type, got {one} and {other}; cast one with astype"
                )
            else:
                assert promote(as_dtype(one), as_dtype(other)) is as_dtype(result), (one, other)


def test_promotion_is_commutative_and_keeps_a_dtype_with_itself() -> None:
    assert PROMOTION.keys() == set(product(ALL, ALL))
    for a, b in product(ALL, ALL):
        assert PROMOTION[a, b] is PROMOTION[b, a]
    assert all(PROMOTION[a, a] is a for a in ALL)


def test_promotion_is_associative_where_it_is_defined() -> None:
    """Between integers, and between floats; not across: int8 with uint8 is int16, but float16 holds each of them."""
    for kind in (lambda d: not d.is_inexact, lambda d: d.is_inexact):
        for a, b, c in product(filter(kind, ALL), repeat=3):
            left, right = PROMOTION[a, b], PROMOTION[b, c]
            if left is not None and right is not None:
                assert PROMOTION[left, c] is PROMOTION[a, right], (a, b, c)


def test_promotion_is_that_of_numpy() -> None:
    for a, b in product(ALL, ALL):
        if ys.bfloat16 not in (a, b) and {a.kind, b.kind} != {"signed integer", "unsigned integer"}:
            assert PROMOTION[a, b] is as_dtype(np.promote_types(a.numpy, b.numpy)), (a, b)


def test_nothing_is_lost_inside_a_kind() -> None:
    for a, b in product(ALL, ALL):
        common = PROMOTION[a, b]
        if common is not None and {a.kind, b.kind} <= {"signed integer", "unsigned integer"}:
            for d in (a, b):
                assert np.iinfo(common.numpy).min <= np.iinfo(d.numpy).min
                assert np.iinfo(common.numpy).max >= np.iinfo(d.numpy).max
        elif common is not None and a.is_inexact and b.is_inexact:
            for d in (a, b):
                assert ys.finfo(common).eps <= ys.finfo(d).eps
                assert ys.finfo(common).max >= ys.finfo(d).max


# With Python's numbers -----------------------------------------------------------------------------------------------

WITH_SCALAR = """
              bool       int        float      complex
   bool       bool       int64      float64    complex128
   int8       int8       int8       float64    complex128
   int16      int16      int16      float64    complex128
   int32      int32      int32      float64    complex128
   int64      int64      int64      float64    complex128
   uint8      uint8      uint8      float64    complex128
   uint16     uint16     uint16     float64    complex128
   uint32     uint32     uint32     float64    complex128
   uint64     uint64     uint64     float64    complex128
   float16    float16    float16    float16    complex64
   bfloat16   bfloat16   bfloat16   bfloat16   complex64
   float32    float32    float32    float32    complex64
   float64    float64    float64    float64    complex128
   complex64  complex64  complex64  complex64  complex64
   complex128 complex128 complex128 complex128 complex128
"""
NUMBERS: dict[str, Any] = {"bool": True, "int": 1, "float": 0.5, "complex": 1j}


def test_a_number_takes_on_the_dtype_unless_its_kind_is_higher() -> None:
    assert {row for row, _, _ in entries(WITH_SCALAR)} == {d.name for d in ALL}
    for name, number, result in entries(WITH_SCALAR):
        dtype, value = as_dtype(name), NUMBERS[number]
        assert with_scalar(dtype, type(value)) is as_dtype(result)
        x = ys.zeros(2, dtype=dtype)
        assert ys.where(True, x, value).dtype is ys.where(True, value, x).dtype is as_dtype(result)
        assert ys.result_type(x, value) is ys.result_type(value, dtype) is as_dtype(result)


# What a dtype is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_dtype_is_one_object(dtype: DType) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(dtype, protocol)) is dtype
    assert copy.copy(dtype) is copy.deepcopy(dtype) is dtype
    assert as_dtype(dtype) is as_dtype(dtype.name) is as_dtype(dtype.numpy) is as_dtype(dtype.numpy.type) is dtype
    assert as_dtype(dtype.numpy.newbyteorder(">")) is dtype
    assert getattr(ys, dtype.name) is dtype
    assert repr(dtype) == f"yosegi.{dtype.name}"
    assert dtype in {dtype}
    assert [d for d in ALL if d == dtype] == [dtype]
    assert (dtype.itemsize, dtype.bits) == (dtype.numpy.itemsize, 8 * dtype.numpy.itemsize)
    assert dtype.kind in KINDS


def test_kinds() -> None:
    flags = ("is_float", "is_complex", "is_inexact", "is_integer", "is_half")
    expected = {
        "bool": set(), "signed integer": {"is_integer"}, "unsigned integer": {"is_integer"},
        "real floating": {"is_float", "is_inexact"}, "complex floating": {"is_complex", "is_inexact"},
    }  # fmt: skip
    for dtype in ALL:
        half = {"is_half"} if dtype in (ys.float16, ys.bfloat16) else set()
        assert {f for f in flags if getattr(dtype, f)} == expected[dtype.kind] | half
    assert (ys.int64, ys.float64, ys.complex128) == (DEFAULT_INT, default_float(), default_complex())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (bool, ys.bool), (int, ys.int64), (float, ys.float64), (complex, ys.complex128), ("f4", ys.float32),
        (np.longlong, ys.int64), (np.intc, ys.int32), ("bfloat16", ys.bfloat16), (ml_dtypes.bfloat16, ys.bfloat16),
        (">i2", ys.int16), (np.bool, ys.bool),
    ],
)  # fmt: skip
def test_other_ways_to_say_a_dtype(given: Any, expected: DType) -> None:
    assert as_dtype(given) is expected


@pytest.mark.parametrize(
    "given",
    [None, "float8", 3, object, str, np.longdouble, "M8[s]", "i4,f4", "(1,f4", ml_dtypes.float8_e5m2, [1], {"a": 1}],
)
def test_what_is_no_dtype(given: Any) -> None:
    with pytest.raises(DTypeError) as error:
        as_dtype(given)
    names = ", ".join(d.name for d in ALL)
    assert str(error.value) == f"expected a dtype among {names}, got {given!r}"


def test_real_and_complex_partners() -> None:
    for dtype in ALL:
        assert real_of(dtype) is {ys.complex64: ys.float32, ys.complex128: ys.float64}.get(dtype, dtype)
    small = {ys.float16, ys.bfloat16, ys.float32, ys.complex64}
    for dtype in ALL:
        assert complex_of(dtype) is (ys.complex64 if dtype in small else ys.complex128)


@pytest.mark.parametrize("names", ["uint64 int8 float32", "int8 uint8 float16", "int16 uint16 bfloat16"])
def test_the_order_of_operands_does_not_matter(names: str) -> None:
    assert len({ys.result_type(*order) for order in permutations(names.split())}) == 1
