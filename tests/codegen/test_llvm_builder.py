"""Every scalar rule as LLVM IR, at several widths, against the reference bodies; and elements from memory and to it.

All ops of one dtype are one program.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from llvm_code import LESSER, Program, assembly, placed, written
from scalar_calls import Read, calls, check, operands
from values import Array, specials
from yosegi._tensor.dtype import ALL, DType, bfloat16, bool_, complex64, float16, float32, float64, int32, int64
from yosegi.codegen.llvm import ir, load_store
from yosegi.codegen.llvm.builder import LlvmBuilder
from yosegi.codegen.scalar.value import Value

# Rules ---------------------------------------------------------------------------------------------------------------


def _rules(read: list[Read], dtypes: list[DType], width: int, *, converts_halves: bool = True) -> ir.Module:
    def body(k: LlvmBuilder, *inputs: Value) -> list[Value]:
        return [
            k.rounded(call.op.scalar(k, *[inputs[n] for n in places], **call.attrs))  # type: ignore[misc]
            for call, places in read
        ]

    return written(body, dtypes, width, converts_halves=converts_halves)


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_rules_give_what_the_reference_gives(dtype: DType, arity: int, width: int) -> None:
    read, arrays = calls(dtype, arity), operands(dtype, arity, 1)
    program = Program(_rules(read, [dtype] * arity + [bool_], width))
    check(read, arrays, program(arrays, [call.spec.dtype for call, _ in read]))


@pytest.mark.parametrize(("cpu", "width"), LESSER)
@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", [bool_, int32, int64, float16, bfloat16, float32, float64, complex64], ids=str)
def test_they_do_on_lesser_processors(dtype: DType, arity: int, cpu: str, width: int) -> None:
    read, arrays = calls(dtype, arity), operands(dtype, arity, 1)
    module = _rules(read, [dtype] * arity + [bool_], width, converts_halves=cpu != "x86-64")
    check(read, arrays, Program(module, cpu)(arrays, [call.spec.dtype for call, _ in read]))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_there_is_code_for_another_architecture(dtype: DType) -> None:
    read = [pair for arity in (1, 2) for pair in calls(dtype, arity)]
    assert "run:" in assembly(_rules(read, [dtype, dtype, bool_], 4), triple="aarch64-linux-gnu")


def test_a_product_and_a_sum_are_rounded_one_by_one() -> None:
    a, b, c = (np.random.default_rng(n).normal(size=999).astype(np.float32) for n in range(3))
    (got,) = Program(written(lambda k, x, y, z: [k.add(k.mul(x, y), z)], [float32] * 3, 16))([a, b, c], [float32])
    np.testing.assert_array_equal(got, a * b + c)


def test_doubles_are_rounded_to_16_bits_at_once() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = (halves[1:] + halves[:-1]) / 2
    x = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), specials(float64)])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float16)
    (got,) = Program(written(lambda k, x: [k.rounded(k.convert(x, float16))], [float64], 16))([x], [float16])
    np.testing.assert_array_equal(got, wanted)


# What is written -----------------------------------------------------------------------------------------------------


def _builder(width: int = 16) -> LlvmBuilder:
    return LlvmBuilder(ir.Module().function("run", [("float", "x")]), width)


def test_equal_expressions_are_written_once() -> None:
    k = _builder(1)
    x = Value(float32, "%x")
    lines = len(k.code.lines)
    assert k.mul(x, x) == k.mul(x, x)
    assert k.tanh(x) == k.tanh(x)
    assert len(k.code.lines) > lines
    lines = len(k.code.lines)
    k.tanh(x)
    assert len(k.code.lines) == lines


def test_what_is_known_is_folded() -> None:
    k = _builder()
    lines = len(k.code.lines)
    made = k.shr(k.literal(40, int32), k.add(k.literal(1, int32), k.literal(2, int32)))
    assert k.number(made) == 5
    assert k.number(k.select(k.lt(made, k.const(6, made)), made, k.const(0, made))) == 5
    assert len(k.code.lines) == lines


def test_a_branch_forgets_what_was_known_inside() -> None:
    k = _builder(1)
    x = Value(float32, "%x")
    with k.code.when("true"):
        inside = k.mul(x, x)
    outside = k.mul(x, x)
    assert outside != inside
    with k.code.loop(0, 3) as loop:
        assert k.mul(x, x) == outside
        loop.carry()


# Memory --------------------------------------------------------------------------------------------------------------


def _elements(dtype: DType, count: int) -> Array:
    rng = np.random.default_rng(5)
    if not dtype.is_inexact:
        return rng.integers(0, 2 if dtype is bool_ else 120, count).astype(dtype.numpy)
    return (rng.normal(size=count) + (1j * rng.normal(size=count) if dtype.is_complex else 0)).astype(dtype.numpy)


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_elements_come_from_anywhere(dtype: DType, width: int) -> None:
    """One element for all lanes, some that are apart by a number known or not, some from given places."""
    x = _elements(dtype, 64)
    order = np.random.default_rng(2).permutation(64)[:width].astype(np.int64)

    def body(k: LlvmBuilder, source: str, places: str) -> list[Value]:
        at = k.code.let(f"load {k.vector('i64')}, ptr {places}, align 8")
        three = k.code.let("add i64 1, 2")
        return [
            load_store.repeated(k, dtype, source),
            load_store.strided(k, dtype, source, 2),
            load_store.strided(k, dtype, source, three),
            load_store.gather(k, dtype, source, at),
        ]

    got = placed(body, [x, order], [dtype] * 4, width)
    lanes = np.arange(width)
    for made, wanted in zip(got, [x[0 * lanes], x[2 * lanes], x[3 * lanes], x[order]], strict=True):
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_lanes_behind_the_end_are_left_alone(dtype: DType, width: int) -> None:
    x = _elements(dtype, 64)
    given = x.copy()

    def body(k: LlvmBuilder, source: str, target: str) -> list[Value]:
        mask = load_store.lanes_below(k, "3")
        load_store.store(k, load_store.load(k, dtype, source), target, mask)
        return [load_store.load(k, dtype, source, mask), load_store.strided(k, dtype, source, 2, mask)]

    target = _elements(dtype, 80)[16:].copy()
    before = target.copy()
    near, apart = placed(body, [x, target], [dtype] * 2, width)
    np.testing.assert_array_equal(target, np.concatenate([x[:3], before[3:]]))
    np.testing.assert_array_equal(near, np.concatenate([x[:3], np.zeros(width - 3, dtype.numpy)]))
    np.testing.assert_array_equal(apart, np.concatenate([x[0:6:2], np.zeros(width - 3, dtype.numpy)]))
    np.testing.assert_array_equal(x, given)


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_elements_go_past_the_caches_and_apart(dtype: DType, width: int) -> None:
    x = _elements(dtype, 64)
    room = np.zeros(64 * 16 + 256, np.uint8)
    start = -room.ctypes.data % 256
    target = room[start : start + 64 * dtype.itemsize].view(dtype.numpy)
    spread = np.zeros(64, dtype.numpy)

    def body(k: LlvmBuilder, source: str, past: str, apart: str) -> list[Value]:
        value = load_store.load(k, dtype, source)
        load_store.store(k, value, past, nontemporal=True)
        load_store.spaced(k, value, apart, 3)
        return [value]

    (same,) = placed(body, [x, target, spread], [dtype], width)
    np.testing.assert_array_equal(same, x[:width])
    np.testing.assert_array_equal(target[:width], x[:width])
    np.testing.assert_array_equal(spread[: 3 * width : 3], x[:width])
    assert not spread[1::3].any()


@pytest.mark.parametrize("width", [1, 16])
def test_any_byte_but_zero_is_true(width: int) -> None:
    bytes_ = np.array([0, 1, 2, 255, 0, 128, 7, 0] * 4, np.uint8)
    got, other = Program(written(lambda k, x: [x, k.not_(x)], [bool_], width))([bytes_.view(bool)], [bool_] * 2)
    np.testing.assert_array_equal(got.view(np.uint8), bytes_ != 0)
    np.testing.assert_array_equal(other.view(np.uint8), bytes_ == 0)


@pytest.mark.parametrize("converts_halves", [True, False])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_every_16_bit_float_comes_and_goes(dtype: DType, converts_halves: bool) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(dtype.numpy)
    with np.errstate(all="ignore"):
        known = x.astype(np.float32)

    def body(k: LlvmBuilder, x: Value) -> list[Value]:
        return [x, k.convert(x, float32)]

    same, single = Program(written(body, [dtype], 16, converts_halves=converts_halves))([x], [dtype, float32])
    number = known == known
    np.testing.assert_array_equal(same.view(np.uint16)[number], bits[number])
    np.testing.assert_array_equal(single, known)
    assert np.isnan(same[~number].astype(np.float32)).all()
