"""Tensors from data, and tensors of a pattern."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from values import Array, check, specials
from yosegi._tensor.dtype import ALL, DType
from yosegi.errors import ArgumentError, DTypeError, ShapeError

# asarray: what it takes -------------------------------------------------------------------------------------------


class OnlyArray:
    """Something that NumPy can convert."""

    def __init__(self, data: Array) -> None:
        self.data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.data


class OnlyDLPack:
    """Another library's tensor."""

    def __init__(self, data: Array) -> None:
        self.data = data

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.data.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


GRID = np.arange(6.0).reshape(2, 3)
T = ys.asarray(GRID)

OBJECTS: list[tuple[Any, Any]] = [
    # numbers and nested lists, by their kind
    (True, np.bool_(True)), (3, np.int64(3)), (2.5, np.float64(2.5)), (1 - 2j, np.complex128(1 - 2j)),
    (2**63, np.uint64(2**63)),
    ([], np.zeros(0)), ([[]], np.zeros((1, 0))), (((), ()), np.zeros((2, 0))),
    ([1, 2], np.array([1, 2])), ((1, 2.5), np.array([1, 2.5])), ([True, 2], np.array([1, 2])),
    ([1, 2j], np.array([1, 2j])),
    ([[1, 2], (3, 4)], np.array([[1, 2], [3, 4]])), ([[[1.0]]], np.ones((1, 1, 1))), (range(3), np.arange(3)),
    ([float("nan"), float("-inf")], np.array([np.nan, -np.inf])),
    # NumPy's arrays and numbers, alone and in lists
    (GRID, GRID), (GRID.T, GRID.T), (GRID[::-1, ::2], GRID[::-1, ::2]), (np.float32(1.5), np.float32(1.5)),
    (np.array(3, np.int8), np.array(3, np.int8)), (np.zeros((2, 0), np.uint16), np.zeros((2, 0), np.uint16)),
    ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)), ([GRID, GRID], np.stack([GRID, GRID])),
    ([ml_dtypes.bfloat16(1.5)], np.array([1.5], ml_dtypes.bfloat16)), (GRID.astype(">f4"), GRID.astype("f4")),
    # tensors, alone and in lists
    (T, GRID), ([T, T * 2], np.stack([GRID, GRID * 2])), ([T[0, 1], 5], np.array([1.0, 5.0])),
    ([[T[0, 1], 2], (3, T[0, 2])], np.array([[1.0, 2.0], [3.0, 2.0]])), ([T, GRID.tolist()], np.stack([GRID, GRID])),
    ([ys.asarray(1), ys.asarray(2.5)], np.array([1, 2.5])), ((ys.asarray(True),), np.array([True])),
    # buffers
    (b"ab", np.array([97, 98], np.uint8)), (bytearray(b"ab"), np.array([97, 98], np.uint8)),
    (memoryview(b"ab"), np.array([97, 98], np.uint8)), (memoryview(GRID.T), GRID.T),
    (memoryview(GRID)[::-1], GRID[::-1]),
    *[(array(code, [1, 2, 3]), np.array([1, 2, 3], code)) for code in "bBhHiIlLqQfd"],
    ((ctypes.c_float * 2)(1.5, 2.5), np.array([1.5, 2.5], np.float32)),
    # other libraries
    (OnlyArray(GRID), GRID), (OnlyDLPack(GRID), GRID), (OnlyDLPack(GRID[:, 1:].T), GRID[:, 1:].T),
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(OBJECTS)))
def test_asarray_of(n: int) -> None:
    obj, expected = OBJECTS[n]
    check(ys.asarray(obj), np.asarray(expected))
    check(ys.asarray(obj, dtype=ys.complex64), np.asarray(expected).astype(np.complex64))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_asarray_of_every_dtype(dtype: DType) -> None:
    values = specials(dtype)
    for source in (values, values[::2], values[:1].reshape(()), values[:0]):
        check(ys.asarray(source), source)
        check(ys.from_numpy(source), source)
        check(ys.asarray(ys.asarray(source), dtype=dtype, copy=True), source)
    check(ys.asarray([0, 1], dtype=dtype), np.array([0, 1]).astype(dtype.numpy))
    check(ys.asarray([False, 1.0], dtype=dtype), np.array([0, 1]).astype(dtype.numpy))
    for name in (dtype.name, dtype.numpy, dtype):
        assert ys.asarray(1, dtype=name).dtype is dtype


def test_dtypes_on_the_way_in() -> None:
    check(ys.asarray([1.7, -1.7], dtype=ys.int8), np.array([1, -1], np.int8))
    check(ys.asarray([2**70], dtype=ys.float32), np.array([2.0**70], np.float32))
    check(ys.asarray(1e300, dtype=ys.float32), np.float32(np.inf))
    check(ys.asarray([0j, 1j], dtype=ys.bool), np.array([False, True]))
    check(ys.asarray(np.array([300, -1]), dtype=ys.uint8), np.array([44, 255], np.uint8))
    check(ys.asarray([ys.asarray(1), 2], dtype=ys.float16), np.array([1, 2], np.float16))
    check(ys.asarray([2**63, -1], dtype=ys.float32), np.array([2.0**63, -1], np.float32))
    check(ys.asarray([True, 2**70], dtype=ys.float32), np.array([1, 2.0**70], np.float32))


def test_gradients_flow_through_lists_of_tensors() -> None:
    gradient = ys.grad(lambda x: ys.sum(ys.asarray([x[1] * 3, [0.0, 1.0][0], x[0] * x[1]])))(ys.asarray([2.0, 5.0]))
    assert gradient.tolist() == [5.0, 5.0]


# asarray: whose memory --------------------------------------------------------------------------------------------


def frozen(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


def view_of_writable(a: Array) -> Array:
    view = a.copy()[:]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        (GRID.copy, False),
        (lambda: GRID.copy()[:, 1:], False),
        (lambda: view_of_writable(GRID), False),
        (lambda: np.asarray(bytearray(16)), False),
        (lambda: frozen(GRID), False),  # whoever owns it may thaw it
        (lambda: np.broadcast_to(frozen(GRID[0]), (4, 3)), False),
        (lambda: np.frombuffer(b"abcdefgh"), True),
        (lambda: np.frombuffer(b"abcdefgh", np.uint8)[::-2], True),
        (lambda: np.broadcast_to(np.frombuffer(b"abcdefgh"), (4, 1)), True),
    ],
)
def test_memory_that_somebody_could_write_to_is_copied(source: Callable[[], Array], shared: bool) -> None:
    for make in (ys.asarray, ys.from_numpy):
        a = source()
        assert np.shares_memory(make(a).numpy(), a) is shared
        assert np.shares_memory(make(a, copy=False).numpy(), a)
        assert not np.shares_memory(make(a, copy=True).numpy(), a)


def test_no_later_write_changes_a_result() -> None:
    for source in (GRID.copy(), array("d", [1.0, 2.0]), bytearray(b"ab"), memoryview(array("i", [1, 2]))):
        x = ys.asarray(source)
        before = x.tolist()
        source[0] = 7
        assert x.tolist() == before
    a = GRID.copy()
    x = ys.asarray(a, copy=False)
    a[0, 0] = 7
    assert float(x[0, 0]) == 7


def test_what_comes_out_cannot_be_written() -> None:
    for x in (ys.asarray(GRID), ys.asarray(GRID.copy(), copy=False), ys.zeros(3), ys.asarray([1, 2])):
        assert not x.numpy().flags.writeable


def test_dlpack_shares() -> None:
    a = GRID.copy()
    assert np.shares_memory(ys.from_dlpack(OnlyDLPack(a)).numpy(), a)
    assert not np.shares_memory(ys.from_dlpack(OnlyDLPack(a), copy=True).numpy(), a)
    assert not np.shares_memory(ys.asarray(OnlyDLPack(a)).numpy(), a)
    assert np.shares_memory(ys.asarray(OnlyDLPack(a), copy=False).numpy(), a)
    assert np.shares_memory(ys.from_dlpack(T).numpy(), T.numpy())


@pytest.mark.parametrize(
    ("obj", "dtype", "text"),
    [
        ([1, 2], None, "an array or a buffer for copy=False, got list"),
        (2.5, None, "an array or a buffer for copy=False, got float"),
        ([T, T], None, "an array or a buffer for copy=False, got list"),
        (GRID, ys.float32, "dtype float64 for copy=False, got float32; leave copy out"),
        (GRID.astype(">f8"), None, "dtype >f8 for copy=False, got float64; leave copy out"),
        (b"ab", ys.int8, "dtype uint8 for copy=False, got int8; leave copy out"),
        (OnlyDLPack(GRID), ys.int8, "dtype float64 for copy=False, got int8; leave copy out"),
        (T, ys.int8, "dtype float64 for copy=False, got int8; leave copy out"),
    ],
)
def test_copy_false_that_needs_a_copy(obj: Any, dtype: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        ys.asarray(obj, dtype=dtype, copy=False)
    assert str(error.value) == f"[asarray] expected {text}"


# Patterns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, *ALL], ids=str)
def test_full_and_its_kin(dtype: DType | None) -> None:
    numpy = np.float64 if dtype is None else dtype.numpy
    x = ys.zeros((2, 3), dtype=ys.int16)
    like = np.int16 if dtype is None else dtype.numpy
    for shape in [(), 3, (2, 0), (2, 3), [4, 1]]:
        check(ys.zeros(shape, dtype=dtype), np.zeros(shape, numpy))
        check(ys.empty(shape, dtype=dtype), np.zeros(shape, numpy))
        check(ys.ones(shape, dtype=dtype), np.ones(shape, numpy))
    check(ys.zeros_like(x, dtype=dtype), np.zeros((2, 3), like))
    check(ys.empty_like(x, dtype=dtype), np.zeros((2, 3), like))
    check(ys.ones_like(x, dtype=dtype), np.ones((2, 3), like))
    check(ys.full_like(x, 1, dtype=dtype), np.ones((2, 3), like))


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (True, None, np.bool_(True)), (3, None, np.int64(3)), (2.5, None, np.float64(2.5)),
        (1j, None, np.complex128(1j)),
        (3, ys.float16, np.float16(3)), (2.5, ys.int32, np.int32(2)), (-2.5, ys.int32, np.int32(-2)),
        (5, ys.bool, np.bool_(True)), (0.1, ys.float32, np.float32(0.1)), (-0.0, None, np.float64(-0.0)),
        (float("nan"), ys.bfloat16, ml_dtypes.bfloat16("nan")), (1j, ys.bool, np.bool_(True)),
        (np.float32(1.5), None, np.float32(1.5)), (np.int8(7), ys.float64, np.float64(7)),
        (ys.asarray(2), None, np.int64(2)), (ys.asarray(2.5), ys.float32, np.float32(2.5)),
        (np.array(2), None, np.int64(2)), (np.array(2.5), ys.float32, np.float32(2.5)),
        (2**63, ys.uint64, np.uint64(2**63)),
    ],
)  # fmt: skip
def test_full(value: Any, dtype: DType | None, expected: Any) -> None:
    check(ys.full((2, 1), value, dtype=dtype), np.full((2, 1), expected))
    check(ys.full((), value, dtype=dtype), np.asarray(expected))


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool))
def test_arange_of_integers(start: int, stop: int, step: int) -> None:
    check(ys.arange(start, stop, step), np.arange(start, stop, step))
    check(ys.arange(start, stop, step, dtype=ys.float32), np.arange(start, stop, step, dtype=np.float32))
    check(ys.arange(start, stop), np.arange(start, stop))
    check(ys.arange(stop), np.arange(stop))


@pytest.mark.parametrize(
    ("args", "dtype", "expected"),
    [
        ((0.5, 3), None, [0.5, 1.5, 2.5]), ((0, 1, 0.25), None, [0, 0.25, 0.5, 0.75]), ((3, 0, -1.5), None, [3, 1.5]),
        ((3.0,), None, [0.0, 1.0, 2.0]), ((1, 0), ys.int8, []), ((2**63, 2**63 + 2), ys.uint64, [2**63, 2**63 + 1]),
        ((2**53, 2**53 + 3), None, [2**53, 2**53 + 1, 2**53 + 2]), ((-2, 3, 2), ys.int8, [-2, 0, 2]),
        ((5, 0, -2), ys.uint8, [5, 3, 1]), ((2,), ys.bfloat16, [0, 1]), ((2,), ys.complex64, [0, 1]),
        ((2,), ys.bool, [0, 1]),
        ((np.int32(3),), None, [0, 1, 2]), ((ys.asarray(1), ys.asarray(3)), None, [1, 2]),
        ((np.array(2),), None, [0, 1]),
        ((2**63 - 2, 2**63), None, [2**63 - 2, 2**63 - 1]), ((255, 256), ys.uint8, [255]), ((300, 300), ys.uint8, []),
        ((0, 1, 10**400), None, [0]),
        ((-1e308, 1e308, 1e308), None, [-1e308, 0.0]),
        ((-1.5e308, 1.5e308, 1e308), None, [-1.5e308, -0.5e308, 0.5e308]),
    ],
)  # fmt: skip
def test_arange(args: Any, dtype: DType | None, expected: list[Any]) -> None:
    default = np.int64 if all(type(v) is int for v in expected) else np.float64
    check(ys.arange(*args, dtype=dtype), np.array(expected, default if dtype is None else dtype.numpy))


@settings(max_examples=40)
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(0, 9), st.booleans())
def test_linspace(start: float, stop: float, num: int, endpoint: bool) -> None:
    for dtype in (None, ys.float32, ys.float16, ys.complex64):
        with np.errstate(all="ignore"):
            expected = np.linspace(start, stop, num, endpoint=endpoint).astype(dtype.numpy if dtype else float)
        check(ys.linspace(start, stop, num, dtype=dtype, endpoint=endpoint), expected)


def test_linspace_of_other_numbers() -> None:
    check(ys.linspace(0, 1j, 3), np.array([0, 0.5j, 1j]))
    check(ys.linspace(ys.asarray(1), np.float32(2), 3), np.array([1, 1.5, 2]))
    check(ys.linspace(1, 2, ys.asarray(3)), np.array([1, 1.5, 2]))
    check(ys.linspace(np.array(1), 2**70, 2), np.array([1, 2.0**70]))


def test_linspace_of_integers() -> None:
    check(ys.linspace(0, 2**63 - 1, 3, dtype=ys.int64), np.array([0, 2**62 - 1, 2**63 - 1]))
    check(ys.linspace(2**63 - 3, 2**63 - 1, 3, dtype=ys.int64), np.array([2**63 - 3, 2**63 - 2, 2**63 - 1]))
    check(ys.linspace(0, 256, 4, dtype=ys.uint8, endpoint=False), np.array([0, 64, 128, 192], np.uint8))
    check(ys.linspace(7, 300, 1, dtype=ys.uint8), np.array([7], np.uint8))
    check(ys.linspace(7, 300, 0, dtype=ys.uint8), np.array([], np.uint8))
    for stop in (-1, -1.0):
        check(ys.linspace(-6, stop, 3, dtype=ys.int8), np.linspace(-6, stop, 3, dtype=np.int8))


def test_arrays_and_numbers_are_taken_for_tensors() -> None:
    for like in (ys.zeros_like, ys.ones_like, ys.empty_like, lambda x: ys.full_like(x, 7)):
        assert like(3).dtype is ys.int64
        assert like(np.ones((2, 1), np.float32)).shape == (2, 1)
        assert like(np.ones((2, 1), np.float32)).dtype is ys.float32
    first, second = ys.meshgrid(np.array([1, 2]), 3.0)
    check(first, np.array([[1, 2]]))
    check(second, np.array([[3.0, 3.0]]))


@pytest.mark.parametrize("dtype", [None, *ALL], ids=str)
def test_eye(dtype: DType | None) -> None:
    for size in [(3,), (2, 4), (4, 2), (0,), (2, 0)]:
        for k in (0, 1, -2, 9, 2**70, -(2**70)):
            check(ys.eye(*size, k=k, dtype=dtype), np.eye(*size, k=k).astype(dtype.numpy if dtype else float))


@given(
    st.lists(hnp.array_shapes(min_dims=0, max_dims=1, min_side=0, max_side=4), max_size=4),
    st.sampled_from(["xy", "ij"]),
)
def test_meshgrid(shapes: list[tuple[int, ...]], indexing: Any) -> None:
    arrays = [np.arange(np.prod(s, dtype=int)).reshape(s) for s in shapes]
    got = ys.meshgrid(*map(ys.asarray, arrays), indexing=indexing)
    expected = np.meshgrid(*arrays, indexing=indexing)
    assert len(got) == len(expected)
    for tensor, wanted in zip(got, expected, strict=True):
        check(tensor, wanted)


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "arange", "eye"])
def test_a_device_can_be_named(name: str) -> None:
    make, device = getattr(ys, name), ys.devices()[-1]
    assert make(2, device=device).device is device
    assert ys.asarray([1], device=str(device)).tolist() == [1]
    with pytest.raises(ArgumentError, match=rf"^\[{name}\] expected one of .*, got 'abacus'"):
        make(2, device="abacus")


# Mistakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ys.asarray([[1, 2], [3]]), ArgumentError,
         "[asarray] expected numbers in lists of even lengths, got [[1, 2], [3]]"),
        (lambda: ys.asarray([[1], 2]), ArgumentError,
         "[asarray] expected numbers in lists of even lengths, got [[1], 2]"),
        (lambda: ys.asarray([T[0], T[0, :2]]), ShapeError, "[asarray] expected tensors of one shape, got [(2,), (3,)]"),
        (lambda: ys.asarray([T, 1]), ShapeError, "[asarray] expected tensors of one shape, got [(), (2, 3)]"),
        (lambda: ys.asarray([None]), DTypeError, "[asarray] expected numbers that fit a dtype, got [None]"),
        (lambda: ys.asarray([None], dtype=ys.float64), DTypeError,
         "[asarray] expected numbers that fit a dtype, got [None]"),
        (lambda: ys.asarray(["1"], dtype=ys.float64), DTypeError,
         "[asarray] expected numbers that fit a dtype, got ['1']"),
        (lambda: ys.asarray(2**64), DTypeError,
         "[asarray] expected numbers that fit a dtype, got 18446744073709551616"),
        (lambda: ys.asarray([1, 300], dtype=ys.uint8), DTypeError,
         "[asarray] expected numbers that fit uint8, got [1, 300]"),
        (lambda: ys.asarray(-1, dtype=ys.uint64), DTypeError, "[asarray] expected numbers that fit uint64, got -1"),
        (lambda: ys.asarray(list(range(99)) + [2**64], dtype=ys.int64), DTypeError,
         "[asarray] expected numbers that fit int64, got [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11..."),
        (lambda: ys.asarray([2**63, -1], dtype=ys.int64), DTypeError,
         "[asarray] expected numbers that fit int64, got [9223372036854775808, -1]"),
        (lambda: ys.asarray([2**63, -1], dtype=ys.uint64), DTypeError,
         "[asarray] expected numbers that fit uint64, got [9223372036854775808, -1]"),
        (lambda: ys.asarray([1j], dtype=ys.float32), DTypeError,
         "[asarray] expected a complex dtype for complex128, got float32; take the real part first"),
        (lambda: ys.asarray(np.array([1j]), dtype=ys.int8), DTypeError,
         "[asarray] expected a complex dtype for complex128, got int8; take the real part first"),
        (lambda: ys.asarray(ys.asarray(1j), dtype=ys.float32), DTypeError,
         "[asarray] expected a complex dtype for complex128, got float32; take ys.real first"),
        (lambda: ys.asarray(None), DTypeError, "[asarray] expected numbers, an array or a buffer, got NoneType"),
        (lambda: ys.asarray("abc"), DTypeError, "[asarray] expected numbers, an array or a buffer, got str"),
        (lambda: ys.asarray({1, 2}), DTypeError, "[asarray] expected numbers, an array or a buffer, got set"),
        (lambda: ys.from_numpy([1, 2]), DTypeError, "[from_numpy] expected a NumPy array, got list; use asarray"),
        (lambda: ys.from_dlpack([1, 2]), DTypeError, "[from_dlpack] expected an object with __dlpack__, got list"),
        (lambda: ys.zeros((2, -1)), ShapeError, "[zeros] expected lengths of at least 0, got (2, -1)"),
        (lambda: ys.ones(2.0), DTypeError, "[ones] expected a length as an integer, got 2.0"),
        (lambda: ys.empty(("a",)), DTypeError, "[empty] expected a length as an integer, got 'a'"),
        (lambda: ys.full(2, "a"), DTypeError, "[full] expected a number, got str"),
        (lambda: ys.full(2, ys.zeros(2)), ShapeError, "[full] expected one value, got shape (2,); use broadcast_to"),
        (lambda: ys.full(2, 300, dtype=ys.uint8), DTypeError,
         "[full] expected a number that fits uint8, got 300; cast the tensor first"),
        (lambda: ys.full(2, 1j, dtype=ys.float32), DTypeError, "[full] expected a number that fits float32, got 1j"),
        (lambda: ys.full(2, float("nan"), dtype=ys.int8), DTypeError,
         "[full] expected a number that fits int8, got nan"),
        (lambda: ys.full(2, float("inf"), dtype=ys.int8), DTypeError,
         "[full] expected a number that fits int8, got inf"),
        (lambda: ys.full_like(ys.zeros(2, dtype=ys.int8), 1j), DTypeError,
         "[full_like] expected a number that fits int8, got 1j"),
        (lambda: ys.arange(0, 5, 0), ArgumentError, "[arange] expected a step other than 0, got 0"),
        (lambda: ys.arange(float("inf")), ArgumentError, "[arange] expected a finite real number, got inf"),
        (lambda: ys.arange(1j), DTypeError, "[arange] expected a finite real number, got 1j"),
        (lambda: ys.arange("a"), DTypeError, "[arange] expected a finite real number, got 'a'"),
        (lambda: ys.arange(2**64, 2**64 + 2), DTypeError,
         "[arange] expected numbers that fit int64, got 18446744073709551616; choose another dtype"),
        (lambda: ys.arange(298, 300, dtype=ys.uint8), DTypeError,
         "[arange] expected numbers that fit uint8, got 298; choose another dtype"),
        (lambda: ys.arange(250, 260.5, dtype=ys.uint8), DTypeError,
         "[arange] expected numbers that fit uint8, got 260; choose another dtype"),
        (lambda: ys.arange(0, -3, -1, dtype=ys.uint8), DTypeError,
         "[arange] expected numbers that fit uint8, got -2; choose another dtype"),
        (lambda: ys.arange(10**400, 10**400 + 2, 0.5), DTypeError,
         "[arange] expected numbers that fit float64, got 10000000000000000000..."),
        (lambda: ys.arange(0, 1e308, 1e-308), ArgumentError,
         "[arange] expected a range of finite length, got 0 to 1e+308 by 1e-308"),
        (lambda: ys.linspace(0, 10**400, 3), DTypeError,
         "[linspace] expected numbers that fit float64, got 10000000000000000000..."),
        (lambda: ys.linspace(0, 256, 3, dtype=ys.uint8), DTypeError,
         "[linspace] expected numbers that fit uint8, got 256; choose another dtype"),
        (lambda: ys.linspace(float("nan"), 1, 3, dtype=ys.int8), DTypeError,
         "[linspace] expected numbers that fit int8, got nan; choose another dtype"),
        (lambda: ys.linspace(0, 1, -1), ArgumentError, "[linspace] expected num of at least 0, got -1"),
        (lambda: ys.linspace(0, 1, 2.5), DTypeError, "[linspace] expected num as an integer, got 2.5"),
        (lambda: ys.linspace(0, "a", 2), DTypeError, "[linspace] expected a number, got 'a'"),
        (lambda: ys.linspace(0, 1j, 2, dtype=ys.float32), DTypeError,
         "[linspace] expected a complex dtype from 0 to 1j, got float32; take ys.real first"),
        (lambda: ys.eye(2, -1), ShapeError, "[eye] expected lengths of at least 0, got (2, -1)"),
        (lambda: ys.eye(2, k=0.5), DTypeError, "[eye] expected k as an integer, got 0.5"),
        (lambda: ys.zeros_like([3]), DTypeError,
         "[zeros_like] expected a tensor or a number, got list; convert it with ys.asarray"),
        (lambda: ys.meshgrid([1, 2], [3]), DTypeError,
         "[meshgrid] expected a tensor or a number, got list; convert it with ys.asarray"),
        (lambda: ys.meshgrid(T), ShapeError, "[meshgrid] expected 1-d tensors, got shapes [(2, 3)]"),
        (lambda: ys.meshgrid(T[0], indexing="yx"), ArgumentError,
         "[meshgrid] expected indexing 'xy' or 'ij', got 'yx'"),
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == text


@pytest.mark.parametrize("obj", [np.array(["a"]), np.array([None]), np.array(0, "M8[s]"), np.zeros(2, "i4,f4")])
def test_arrays_of_other_things(obj: Any) -> None:
    with pytest.raises(DTypeError, match=r"^\[asarray\] expected a dtype among bool, .*, got dtype\("):
        ys.asarray(obj)
    with pytest.raises(DTypeError, match=r"^\[zeros\] expected a dtype among bool, .*, got dtype\("):
        ys.zeros(2, dtype=obj.dtype)
