"""Generated products with bfloat16 numbers inside, on emulated matrix units: sizes, layouts, stacks, splits, functions
before and after, and the instructions that the real ones get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product as combinations
from math import sqrt
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("llvmlite")

from hypothesis import given
from hypothesis import strategies as st

from matrix_emulation import EmulatingCompiler, emulated
from native_code import needs_llvm
from values import Array
from yosegi._tensor.dtype import bfloat16, float16, float32
from yosegi._tensor.precision import Precision
from yosegi._tune.certificate import _FIRST, _bound, random_matrix
from yosegi.codegen.llvm import ir
from yosegi.codegen.llvm.bfloat16_units import BFloat16Unit, unit_shape, unit_tile_source
from yosegi.codegen.llvm.blocking import BFLOAT16, BlockingPolicy
from yosegi.codegen.llvm.builder import LlvmBuilder
from yosegi.codegen.llvm.entry import PARAMETERS
from yosegi.codegen.llvm.half_packing import unit_lines_source, unit_panel_source
from yosegi.codegen.llvm.product import FusedStage, Product, Side
from yosegi.codegen.llvm.product_kernels import product_source
from yosegi.codegen.scalar.value import Value
from yosegi.devices.cpu.bfloat16_support import LARGEST_ERRORS
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.half_calls import HalfProducts, machine_for, random_rows
from yosegi.devices.cpu.operand_layout import Arrays
from yosegi.devices.cpu.product_calls import GeneratedProducts
from yosegi.devices.cpu.results import Results

HOST = HostMachine.host()
pytestmark = [
    needs_llvm,
    pytest.mark.skipif(HOST.vector_bytes < 64, reason="the emulation is written in 512-bit vectors"),
]
UNITS = pytest.mark.parametrize("unit", list(BFloat16Unit), ids=lambda unit: unit.value)
PARTS = pytest.mark.parametrize("parts", [1, 2, 3])
VECTORS = {1: 6, 2: 4, 3: 8}
"""Random vectors, by the number of parts: a kernel is written for a number of them."""
SIZES = [
    (1, 1, 1), (1, 7, 127), (7, 1, 33), (16, 16, 32), (2, 31, 17), (13, 32, 5), (17, 33, 16), (32, 32, 64),
    (29, 100, 300), (64, 48, 64), (127, 129, 128), (300, 3, 513), (3, 300, 513), (130, 257, 700), (40, 40, 0),
]  # fmt: skip
SMALL = BlockingPolicy(rows_share=0, panels_share=0.2, single_work=0)
"""Several blocks of the sum and several units, already in products that are quick to emulate."""


@cache
def products(unit: BFloat16Unit, threads: int = 2, policy: BlockingPolicy = SMALL) -> GeneratedProducts:
    compiler: Any = EmulatingCompiler(Compiler(HOST))
    return HalfProducts(Runtime(Compiler(HOST), threads), unit, Results(), compiler=compiler, policy=policy).generated


def plain(parts: int = 1) -> Product:
    return Product(float32, parts=parts)


def numbers(shape: Sequence[int], seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, tuple(shape)).astype(np.float32)


def halved(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def run(
    unit: BFloat16Unit,
    a: Array,
    b: Array,
    *sides: Array,
    product: Product,
    threads: int = 2,
    policy: BlockingPolicy = SMALL,
    kept: bool = False,
) -> Array:
    made = products(unit, threads, policy)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], *[s.shape[:-2] for s in sides])
    outs = [np.full((*batch, a.shape[-2], b.shape[-1]), np.nan, dtype.numpy) for dtype in product.results]
    bound = made.bound(product, Arrays(a, b, (), sides, outs), kept=kept)
    right = made.packed(product, b) if kept else b
    bound.call(a, right, *sides, *outs, np.empty(bound.workspace, np.uint8))
    return outs[-1]


def check(got: Array, a: Array, b: Array, parts: int) -> None:
    """One part: the exact product of the rounded operands, but for the roundings of its sums, a few for each product of
    numbers up to one. One product left out is a thousand times more. Several: of the operands as they are."""
    if parts == 1:
        k = a.shape[-1]
        np.testing.assert_allclose(got, halved(a) @ halved(b), rtol=1e-6, atol=1e-7 * (k + 16))
        return
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    assert np.all(np.abs(got - wanted) <= {2: 2.0**-15, 3: 2.0**-21}[parts] * scale)
    if wanted.size > 100:
        assert np.linalg.norm(got - wanted) <= LARGEST_ERRORS[parts] * np.linalg.norm(wanted)


@UNITS
@PARTS
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_sizes_and_transposes(unit: BFloat16Unit, parts: int, turned: tuple[bool, bool]) -> None:
    for m, n, k in SIZES:
        a = numbers((k, m)).T if turned[0] else numbers((m, k))
        b = numbers((n, k), 1).T if turned[1] else numbers((k, n), 1)
        check(run(unit, a, b, product=plain(parts)), a, b, parts)


@UNITS
@PARTS
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_projections(unit: BFloat16Unit, parts: int, turned: tuple[bool, bool]) -> None:
    """The kernel gives the moments of the Gram matrix of L·C − (L·A)·B and the sum of C's squares, and the same result
    as without."""
    vectors = VECTORS[parts]
    made, product = products(unit), Product(float32, parts=parts, projections=vectors)
    for m, n, k in SIZES:
        if not k:
            continue
        a = numbers((k, m)).T if turned[0] else numbers((m, k))
        b = numbers((n, k), 1).T if turned[1] else numbers((k, n), 1)
        drawn = np.random.default_rng(2).standard_normal((m, vectors)).astype(np.float32)
        out, sums = np.full((m, n), np.nan, np.float32), np.full(3, np.nan)
        bound = made.bound(product, Arrays(a, b, (), (), (out,)))
        workspace = np.full(bound.workspace, 0xFF, np.uint8)
        bound.call(a, b, out, random_rows(drawn), sums, workspace)
        np.testing.assert_array_equal(out, run(unit, a, b, product=plain(parts)))
        left = drawn.T.astype(np.float64)
        difference = left @ out - (left @ a) @ b.astype(np.float64)
        roundings = 3e-6 * (np.linalg.norm(left @ out) + np.linalg.norm(left @ np.abs(a) @ np.abs(b)))
        gram = difference @ difference.T
        margin = roundings * (2 * np.linalg.norm(difference) + roundings)
        assert sums[0] * vectors == pytest.approx(np.trace(gram), abs=margin * sqrt(vectors))
        norm = np.linalg.norm(gram)
        assert sqrt(sums[1] * vectors) == pytest.approx(norm, abs=margin * vectors)
        assert sums[2] == pytest.approx(np.square(out, dtype=np.float64).sum(), rel=1e-5)


@UNITS
@pytest.mark.parametrize("vectors", [4, 6, 8])
@pytest.mark.parametrize("where", [(slice(5, 6), slice(None)), (slice(None), slice(70, 71)), (5, 70)], ids=str)
def test_projections_see_one_row_one_column_and_one_number(unit: BFloat16Unit, where: Any, vectors: int) -> None:
    """The left operand's last column reaches one part of the result only, where bfloat16 loses all of its digits."""
    m, n, k = 64, 96, 128
    a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    a[:, 0] = b[0] = 1
    wrong = np.zeros((m, n), np.float32)
    wrong[where] = 1
    a[:, 1:3] = np.array([1 + 2**-10, -1]) * wrong.any(1, keepdims=True)
    b[1:3] = 512 * wrong.any(0)
    drawn = random_matrix(m, vectors, is_fixed=True)
    both = HalfProducts(
        Runtime(Compiler(HOST), 2), unit, Results(), compiler=cast(Any, EmulatingCompiler(Compiler(HOST)))
    ).projected(Precision.BF16, vectors, lambda rows: drawn)(a, b)
    assert both is not None
    out, sums = both
    exact = a.astype(np.float64) @ b
    true = np.linalg.norm(out - exact) / np.linalg.norm(exact)
    assert true > 1e-3
    assert _bound(*sums.tolist(), _FIRST[vectors], 1e-2, False) >= true


@UNITS
@given(
    st.tuples(*[st.integers(1, 70)] * 3), st.tuples(*[st.sampled_from([-2, -1, 1, 3])] * 4), st.integers(1, 3),
    st.booleans(), st.integers(1, 3),
)  # fmt: skip
def test_strides_of_any_kind(
    unit: BFloat16Unit,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    parts: int,
    turned: bool,
    threads: int,
) -> None:
    m, n, k = sizes
    big = numbers((3 * m, 3 * k)), numbers((3 * k, 3 * n), 1)
    a = big[0][:: steps[0], :: steps[1]][:m, :k]
    b = big[1][:: steps[2], :: steps[3]][:k, :n]
    product = plain(parts)
    if turned:  # a.T and b.T have their sum along the same axis only if they change places
        check(run(unit, b.T, a.T, product=product, threads=threads), b.T, a.T, parts)
    else:
        check(run(unit, a, b, product=product, threads=threads), a, b, parts)


@UNITS
def test_operands_that_are_repeated(unit: BFloat16Unit) -> None:
    a, b = np.broadcast_to(numbers((1, 50)), (40, 50)), np.broadcast_to(numbers((50, 1), 1), (50, 33))
    check(run(unit, a, b, product=plain()), a, b, 1)


@UNITS
@PARTS
def test_how_the_work_is_cut_changes_nothing(unit: BFloat16Unit, parts: int) -> None:
    a, b = numbers((150, 333)), numbers((333, 170), 1)
    cuts = [SMALL, BFLOAT16, replace(SMALL, panels_share=0), replace(BFLOAT16, single_work=0, copied_rows=0)]
    for policy, threads, kept in combinations(cuts, (1, 2, 3), (False, True)):
        made = run(unit, a, b, product=plain(parts), threads=threads, policy=policy, kept=kept)
        check(made, a, b, parts)


STACKS = [((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((2, 3), (3,)), ((1,), (4, 1))]


@UNITS
@pytest.mark.parametrize("single_work", [0, 1 << 24], ids=["all threads on each", "some by each thread"])
@pytest.mark.parametrize(("left", "right"), STACKS, ids=str)
def test_stacks(unit: BFloat16Unit, single_work: int, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    policy = replace(SMALL, single_work=single_work)
    for parts, (m, n, k) in ((1, (33, 20, 70)), (2, (5, 40, 130)), (3, (20, 17, 40))):
        a, b = numbers((*left, m, k)), numbers((*right, k, n), 1)
        check(run(unit, a, b, product=plain(parts), policy=policy), a, b, parts)


@UNITS
@PARTS
def test_a_kept_operand(unit: BFloat16Unit, parts: int) -> None:
    product = plain(parts)
    for turned in (False, True):
        b = numbers((47, 100), 1).T if turned else numbers((100, 47), 1)
        for m in (1, 15, 40):
            a = numbers((m, 100))
            check(run(unit, a, b, product=product, kept=True), a, b, parts)
        a = numbers((3, 2, 9, 100))
        check(run(unit, a, b, product=product, kept=True), a, b, parts)


@UNITS
@PARTS
def test_long_sums(unit: BFloat16Unit, parts: int) -> None:
    a, b = numbers((8, 20_000)), numbers((20_000, 8), 1)
    wanted = a.astype(np.float64) @ b
    got = run(unit, a, b, product=plain(parts), policy=BFLOAT16)
    assert np.linalg.norm(got - wanted) < {1: 4e-3, 2: 1e-5, 3: 1e-6}[parts] * np.linalg.norm(wanted)


# Rounding and special values


def floats(count: int) -> Array:
    """Numbers of all kinds, by their bits: all exponents, infinities and NaN among them."""
    bits = np.random.default_rng(5).integers(0, 1 << 32, count, dtype=np.uint32)
    edges = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001,
             0x80000000, 0, 1, 0x007FFFFF, 0x00800000, 0x807FFFFF]  # fmt: skip
    return np.concatenate([bits, np.array(edges, np.uint32)]).view(np.float32)


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


@UNITS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("turned", [False, True])
def test_operands_are_rounded_as_numbers_are(unit: BFloat16Unit, side: str, turned: bool) -> None:
    """A product with ones shows an operand as it was rounded; of each row or column it has one number that is not 0."""
    x = floats(40 * 32 - 15)
    lines = np.zeros((x.size, 3), np.float32)
    lines[:, 1] = x
    lines = np.asfortranarray(lines) if turned else lines
    ones = np.ones((3, 1), np.float32)
    got = run(unit, lines, ones, product=plain()) if side == "left" else \
        run(unit, ones.T, lines.T, product=plain()).T  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = flushed(flushed(x).astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(got[:, 0], wanted)


@UNITS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("parts", "bits"), [(2, 17), (3, 24)])
def test_parts_add_up_to_the_number(unit: BFloat16Unit, side: str, parts: int, bits: int) -> None:
    x = floats(1000)
    lines = np.zeros((x.size, 3), np.float32)
    lines[:, 1] = x
    ones = np.ones((3, 1), np.float32)
    product = plain(parts)
    got = run(unit, lines, ones, product=product) if side == "left" else \
        run(unit, ones.T, lines.T, product=product).T  # fmt: skip
    got = got[:, 0]
    special = ~np.isfinite(x)
    np.testing.assert_array_equal(got[special], x[special])
    largest = float(np.array(0x7F7F, np.uint16).view(ml_dtypes.bfloat16))
    normal = (np.abs(x) > np.finfo(np.float32).tiny * 2.0**bits) & (np.abs(x) <= largest)
    np.testing.assert_allclose(got[normal], x[normal], rtol=0 if parts == 3 else 2.0**-bits)
    assert np.all(np.isinf(got[(np.abs(x) > largest * 1.002) & ~special]))  # beyond what bfloat16 has
    assert np.all(got[np.abs(x) < np.finfo(np.float32).tiny] == 0)


@UNITS
@PARTS
def test_special_values_stay_in_their_rows_and_columns(unit: BFloat16Unit, parts: int) -> None:
    a, b = np.abs(numbers((40, 50))) + 1, np.abs(numbers((50, 40), 1)) + 1
    a[3, 7], a[20, 49], a[39, 0] = np.nan, np.inf, -np.inf
    b[11, 5], b[30, 33] = np.inf, np.nan
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float64) @ b
    got = run(unit, a, b, product=plain(parts))
    special = ~np.isfinite(wanted)
    assert special.sum() == 5 * 40 - 6
    if parts > 1:  # an infinity in a part that is multiplied less
        special[20, 5] = special[39, 5] = False
        assert not np.isfinite(got[[20, 39], 5]).any()
    np.testing.assert_array_equal(got[special], wanted[special].astype(np.float32))
    usual = np.isfinite(wanted)
    np.testing.assert_allclose(got[usual], wanted[usual], rtol=1e-2 if parts == 1 else 2 * LARGEST_ERRORS[parts])


@UNITS
def test_numbers_below_the_smallest_normal_one_count_as_zero(unit: BFloat16Unit) -> None:
    tiny = np.float32(np.finfo(np.float32).tiny)
    a = np.array([[tiny / 2, tiny, 2 * tiny, 1]], np.float32)
    b = np.array([[1, 0, 0, 0], [0, 1, 0, 0.5], [0, 0, 1, -0.75], [0, 0, 0, 0]], np.float32)
    got = run(unit, a, b, product=plain())
    np.testing.assert_array_equal(got, np.array([[0, tiny, 2 * tiny, -1.5 * tiny]], np.float32))
    small = run(unit, a[:, 1:2], np.full((1, 1), 0.5, np.float32), product=plain())
    assert small[0, 0] == 0


# Functions before and after


def relu(k: LlvmBuilder, x: Value, bias: Value, rest: Value) -> list[Value]:
    made = k.add(k.add(x, bias), rest)
    return [k.select(k.lt(made, k.const(0, made)), k.const(0, made), made)]


def scaled(k: LlvmBuilder, x: Value, scale: Value) -> list[Value]:
    return [k.mul(x, scale)]


def exponential(k: LlvmBuilder, x: Value) -> list[Value]:
    return [k.exp(x)]


def reciprocal(k: LlvmBuilder, x: Value) -> list[Value]:
    return [k.div(k.const(1, x), x)]


@UNITS
@PARTS
@pytest.mark.parametrize("kept", [False, True])
def test_an_epilogue(unit: BFloat16Unit, parts: int, kept: bool) -> None:
    product = Product(float32, after=FusedStage(relu, float32, (Side(float32), Side(float32))), parts=parts)
    for m, n, k in ((1, 5, 3), (32, 32, 32), (50, 61, 200), (33, 16, 40)):
        a, b, bias, rest = numbers((m, k)), numbers((k, n), 1), numbers((1, n), 2), numbers((m, n), 3)
        got = run(unit, a, b, bias, rest, product=product, kept=kept)
        sums = run(unit, a, b, product=plain(parts), kept=kept)
        np.testing.assert_array_equal(got, np.maximum(sums + bias + rest, 0))


@UNITS
def test_an_epilogue_with_a_number_for_each_row(unit: BFloat16Unit) -> None:
    product = Product(float32, after=FusedStage(scaled, float32, (Side(float32, along=False),)), parts=1)
    a, b, scale = numbers((3, 40, 70)), numbers((70, 37), 1), numbers((3, 40, 1), 2)
    got = run(unit, a, b, scale, product=product)
    np.testing.assert_array_equal(got, run(unit, a, b, product=plain()) * scale)


@UNITS
@pytest.mark.parametrize("out", [bfloat16, float16], ids=str)
def test_results_of_another_dtype(unit: BFloat16Unit, out: Any) -> None:
    a, b = numbers((40, 70)), numbers((70, 37), 1)
    after = FusedStage(lambda k, x: [x, k.convert(x, out)], float32)
    got = run(unit, a, b, product=Product(float32, after=after, outs=(float32, out), parts=1))
    np.testing.assert_array_equal(got, run(unit, a, b, product=plain()).astype(out.numpy))


@UNITS
@pytest.mark.parametrize("function", [exponential, reciprocal], ids=["exp", "1/x"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_prologue(unit: BFloat16Unit, function: Any, turned: bool) -> None:
    """Where the sum ends inside a tile, zeros follow: not what the function makes of them."""
    a = (np.abs(numbers((45, 33))).T if turned else np.abs(numbers((33, 45)))) + np.float32(0.5)
    b = numbers((45, 20), 1)
    wide = a.astype(np.float64)
    expected = (np.exp(wide) if function is exponential else 1 / wide).astype(np.float32)
    check(run(unit, a, b, product=Product(float32, FusedStage(function, float32), parts=1)), expected, b, 1)


# The instructions


@UNITS
@PARTS
@pytest.mark.parametrize("fused", [False, True])
def test_the_real_text_has_the_real_instructions(unit: BFloat16Unit, parts: int, fused: bool) -> None:
    machine = machine_for(unit, HOST)
    target = machine.target
    around = {
        "before": FusedStage(exponential, float32),
        "after": FusedStage(relu, float32, (Side(float32), Side(float32))),
    }
    product = Product(float32, parts=parts, **(around if fused else {}))
    shape = unit_shape(parts)
    tiles = [unit_tile_source(unit, parts, r, v, target.attributes) for r in (1, 2) for v in (1, 2)]
    sources = [product_source(target, float32, shape, unit), *tiles]
    sources += [unit_lines_source(product, target), unit_panel_source(product, target)]
    source = "\n".join(sources)
    assert "emulated" not in source
    made = "\n".join(map(Compiler(machine).assembly, sources))
    assert "vcvtne2ps2bf16" in made
    words = ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease")
    if unit is BFloat16Unit.TILES:
        assert all(word in made for word in words)
        assert made.count("ldtilecfg") == made.count("tilerelease") == 1
    else:
        assert "vdpbf16ps" in made
        assert not any(word in made for word in words)
    real = ("llvm.x86.tile", "llvm.x86.avx512bf16", "llvm.x86.tdp")
    assert not any(word in emulated(s) for s in sources for word in real)


@pytest.mark.parametrize(("rows", "width"), [(16, 64), (3, 20)])
def test_the_emulation_has_tiles_of_the_configured_size(rows: int, width: int) -> None:
    """c = a @ b with pairs, against the same in NumPy; what is outside the tile is not touched."""
    shapes = np.zeros(64, np.uint8)
    shapes[0] = 1
    shapes[16:32:2] = width
    shapes[48:56] = rows
    module = ir.Module()
    code = module.function("kernel", PARAMETERS)
    given = [code.let(f"load ptr, ptr {code.pure(f'getelementptr ptr, ptr %arguments, i64 {n}')}") for n in range(1, 5)]
    code.call("void", "llvm.x86.ldtilecfg", ["ptr"], [given[0]])
    code.call("void", "llvm.x86.tilezero", ["i8"], ["0"])
    for tile, place in ((1, 1), (2, 2)):
        code.call("void", "llvm.x86.tileloadd64", ["i8", "ptr", "i64"], [str(tile), given[place], "64"])
    code.call("void", "llvm.x86.tdpbf16ps", ["i8", "i8", "i8"], ["0", "1", "2"])
    code.call("void", "llvm.x86.tilestored64", ["i8", "ptr", "i64"], ["0", given[3], "64"])
    code.call("void", "llvm.x86.tilerelease", [], [])
    code.ret()
    compiler = Compiler(HOST)
    loaded = compiler.load(emulated(module.text(HOST.attributes)), ("kernel",))
    a, b = (numbers((16, 32), seed).astype(ml_dtypes.bfloat16) for seed in (0, 1))
    c = np.full((16, 16), 7, np.float32)
    call = Runtime(compiler, 1).call(loaded, 4, (), count=1, chunk=1, fallback=lambda *arrays: None)
    call(shapes, a.view(np.uint16), b.view(np.uint16), c)
    pairs, columns = width // 4, width // 4
    left = a.astype(np.float64)[:rows, : 2 * pairs]
    right = b.astype(np.float64).reshape(16, 16, 2)[: min(pairs, rows), :columns]
    wanted = np.einsum("rkp,knp->rn", left.reshape(rows, pairs, 2)[:, : min(pairs, rows)], right)
    np.testing.assert_allclose(c[:rows, :columns], wanted, rtol=1e-5, atol=1e-6)
    outside = np.ones_like(c, bool)
    outside[:rows, :columns] = False
    assert np.all(c[outside] == 7)
