"""Composites around products of cuBLAS: how they are cut, and what the library is asked for. It is NumPy here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from kernel_code import Emulated
from values import Array
from yosegi._graph.graph import capture, graph_of
from yosegi._run.device import host_device
from yosegi._schedule.fuse import Region, RegionKind, fuse, is_composite, join
from yosegi._tensor.dtype import float32
from yosegi._tensor.op import convert
from yosegi._tensor.precision import Precision
from yosegi._tune.autotune import TuningResult
from yosegi._tune.records import TuningRecords, noting
from yosegi.codegen.c.contractions import FusedContraction
from yosegi.codegen.c.fused_kernels import LibraryProduct
from yosegi.devices.kernel.fused import Fused
from yosegi.devices.kernel.half_operands import HALVES, reads_halves, with_half_operands
from yosegi.devices.kernel.matrices import Matrices, Matrix, matrices_of
from yosegi.devices.kernel.regions import sequence
from yosegi.errors import CompileFailure

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(12)


class WithLibrary(Emulated):
    """A machine whose library does what cuBLAS does, on what it is told; loops are the host's."""

    def __init__(self, folder: Path) -> None:
        super().__init__("cuda", folder)
        self.algorithms = 3
        self.asked: list[Matrices] = []
        self.precisions: list[Precision] = []
        self.failing: set[int] = set()

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        return matrices_of(product, HALVES.get(precision)) is not None

    def multiplier(self, wanted: LibraryProduct) -> Any:
        matrices = matrices_of(wanted.product, HALVES.get(wanted.precision))
        assert matrices is not None
        self.asked.append(matrices)
        self.precisions.append(wanted.precision)
        if wanted.rank in self.failing:
            raise CompileFailure("no such algorithm any more")
        return matrices.reads, _multiplied(matrices)

    def refusal(self, region: Region) -> str | None:
        return host_device().supports(region)

    def compile(self, region: Region) -> Any:
        kernel = host_device().compile(region)
        return lambda *data: tuple(map(self.from_host, kernel(*data)))  # whose views are no arrays of a device


def _multiplied(wanted: Matrices) -> Callable[[Sequence[Array], Sequence[Array]], None]:
    def matrix(data: Array, at: Matrix, rows: int, columns: int) -> Array:
        numbers = data.reshape(-1)
        steps = (at.stride, *((1, at.pitch) if at.is_turned else (at.pitch, 1)))
        shape = (wanted.count, rows, columns)
        view = np.lib.stride_tricks.as_strided(numbers, shape, [s * numbers.itemsize for s in steps])
        return view.astype(np.float64)

    def launch(given: Sequence[Array], made: Sequence[Array]) -> None:
        left, right, *around = given
        result = wanted.scale * (
            matrix(left, wanted.left, wanted.m, wanted.k) @ matrix(right, wanted.right, wanted.k, wanted.n)
        )
        if wanted.bias is not None:
            result = result + around[0].astype(np.float64)
        if wanted.residual is not None:
            result = result + around[-1].reshape(result.shape)
        made[0][...] = result.reshape(made[0].shape)

    return launch


def computed(tensor: ys.Tensor, folder: Path) -> tuple[Array, list[Matrices], int]:
    """A composite in the library's way: its value, what the library was asked for, and launches of other kernels."""
    key, leaves, _ = capture([tensor._node])
    (region,) = fuse(graph_of(key))
    machine = WithLibrary(folder)
    kernel = Fused(machine, "a machine").variants(region)["library"]()
    arrays = [machine.from_host(node.buffer.data) for node in leaves if node.buffer is not None]
    return kernel(*arrays)[0], machine.asked, machine.launches


def normal(*shape: int) -> tuple[ys.Tensor, Array]:
    array = RNG.normal(size=shape).astype(np.float16)
    return ys.asarray(array), array.astype(np.float64)


def close(got: Array, expected: Array) -> None:
    assert got.dtype == np.float16
    assert np.max(np.abs(got.astype(np.float64) - expected)) <= 8 * 2**-11 * np.max(np.abs(expected))


def test_bias_and_residual_are_the_librarys_and_a_relu_is_not(tmp_path: Path) -> None:
    """What it makes of a NaN nobody says: ours stays one."""
    (x, X), (w, W), (_, R), (b, B) = normal(37, 24), normal(19, 24), normal(37, 19), normal(19)
    R[3, 4] = np.nan
    got, asked, _ = computed(ys.nn.linear_residual_relu(x, w, ys.asarray(R.astype(np.float16)), b), tmp_path)
    assert np.argwhere(np.isnan(got)).tolist() == [[3, 4]]
    close(np.nan_to_num(got), np.nan_to_num(np.maximum(X @ W.T + B + R, 0)))
    (asked_for,) = asked
    assert (asked_for.bias is None, asked_for.residual is None) == (False, False)
    assert (asked_for.left.is_turned, asked_for.right.is_turned) == (False, True)


def test_a_linear_map_of_a_stack_is_one_product(tmp_path: Path) -> None:
    (x, X), (w, W), (b, B) = normal(3, 5, 24), normal(19, 24), normal(19)
    got, asked, _ = computed(ys.nn.linear(x, w, b), tmp_path)
    close(got, X @ W.T + B)
    assert [(a.m, a.n, a.k, a.count) for a in asked] == [(15, 19, 24, 1)]


def test_what_comes_before_a_product_is_a_kernel_of_its_own(tmp_path: Path) -> None:
    (x, X), (w, W), (b, B), (d, D) = normal(33, 40), normal(19, 40), normal(19), normal(40)
    spread = np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    got, asked, others = computed(ys.nn.layer_norm_linear(x, w, b, d, d), tmp_path)
    close(got, ((X - X.mean(-1, keepdims=True)) / spread * D + D) @ W.T + B)
    assert (others, asked[0].bias is not None) == (1, True)
    kept = ys.nn.dropout(ys.ones((33, 40)), 0.5, rng=3).numpy()
    got, _, others = computed(ys.nn.dropout_linear(x, w, b, rate=0.5, rng=3), tmp_path)
    close(got, (X * kept) @ W.T + B)
    assert others == 1


def test_what_the_library_does_not_have_is_a_kernel_behind(tmp_path: Path) -> None:
    (x, X), (w, W), (c, C), (m, M) = normal(33, 40), normal(19, 40), normal(19), normal(19)
    v = np.abs(RNG.normal(size=19)).astype(np.float16) + np.float16(0.5)
    got, asked, _ = computed(ys.nn.linear_batch_norm_relu(x, w, m, ys.asarray(v), None, c, m), tmp_path)
    close(got, np.maximum((X @ W.T - M) / np.sqrt(v.astype(np.float64) + 1e-5) * C + M, 0))
    assert (asked[0].bias, asked[0].residual) == (None, None)


def test_a_factor_is_the_librarys_and_a_softmax_is_not(tmp_path: Path) -> None:
    (q, Q), (k, K) = normal(2, 33, 16), normal(2, 20, 16)
    scores = Q @ K.swapaxes(-1, -2) / 4
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    got, asked, others = computed(ys.nn.attention_scores(q, k), tmp_path)
    close(got, powers / powers.sum(-1, keepdims=True))
    assert [(a.scale, a.count) for a in asked] == [(0.25, 2)]
    assert others == 1


def test_a_factor_of_zero_is_not_the_librarys(tmp_path: Path) -> None:
    """It would not look at the operands, and hide what is not a number in them."""
    (q, _), (k, _) = normal(33, 16), normal(20, 16)
    (region,) = fuse(graph_of(capture([ys.nn.attention_scores(q, k, scale=0.0)._node])[0]))
    assert "library" not in Fused(WithLibrary(tmp_path), "a machine").variants(region)


def test_a_product_of_rounded_operands_is_the_librarys_alone(tmp_path: Path) -> None:
    x, w = (ys.asarray(RNG.normal(size=s).astype(np.float32)) for s in ((33, 40), (40, 19)))
    (region,) = fuse(graph_of(capture([(x @ w)._node])[0]))
    machine = WithLibrary(tmp_path)
    variants = Fused(machine, "a machine").variants(replace(region, precision=Precision.TF32))
    assert list(variants) == ["library", "library, algorithm 2", "library, algorithm 3"]
    (made,) = variants["library, algorithm 2"]()(x.numpy(), w.numpy())
    np.testing.assert_allclose(made, x.numpy() @ w.numpy(), rtol=1e-5, atol=1e-5)
    assert machine.precisions == [Precision.TF32]


def test_who_was_known_but_cannot_be_had_is_not_who_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (ys.asarray(RNG.normal(size=s).astype(np.float32)) for s in ((33, 40), (40, 19)))
    (region,) = fuse(graph_of(capture([(x @ w)._node])[0]))
    monkeypatch.setattr(TuningRecords, "known", lambda self, kind: TuningResult("library, algorithm 3", {}))
    for failing, chosen in ((set[int](), "library, algorithm 3"), ({2}, "library")):
        machine = WithLibrary(tmp_path)
        machine.failing = failing
        with noting() as names:
            Fused(machine, "a machine").compiled(replace(region, precision=Precision.TF32))
        assert list(names.values()) == [chosen]


def test_a_composite_is_computed_in_full(tmp_path: Path) -> None:
    x, w, b = (ys.asarray(RNG.normal(size=s).astype(np.float32)) for s in ((33, 40), (19, 40), (19,)))
    (region,) = fuse(graph_of(capture([ys.nn.linear_residual_relu(x, w, x @ w.mT + 0, b)._node])[0]))[-1:]
    machine = WithLibrary(tmp_path)
    Fused(machine, "a machine").variants(replace(region, precision=Precision.TF32))["library, algorithm 2"]()
    assert machine.precisions == [Precision.FULL]


def test_only_float32_has_operands_that_are_rounded(tmp_path: Path) -> None:
    x, w = (ys.asarray(RNG.normal(size=s).astype(np.float16)) for s in ((33, 40), (40, 19)))
    (region,) = fuse(graph_of(capture([(x @ w)._node])[0]))
    variants = Fused(WithLibrary(tmp_path), "a machine").variants(replace(region, precision=Precision.TF32))
    assert "16" in variants


def single(shape: tuple[int, ...]) -> ys.Tensor:
    return ys.asarray(RNG.normal(size=shape).astype(np.float32))


def halved(precision: Precision, *roots: ys.Tensor) -> tuple[Region, list[Array]]:
    """A unit in a precision, with 16-bit operands, and its inputs."""
    key, leaves, _ = capture([root._node for root in roots])
    graph = graph_of(key)
    unit = replace(join(fuse(graph), ()), inputs=graph.inputs, outputs=graph.outputs, precision=precision)
    return unit, [node.buffer.data for node in leaves if node.buffer is not None]


@pytest.mark.parametrize("precision", [Precision.F16, Precision.BF16])
def test_products_of_a_unit_share_operands_in_16_bits(precision: Precision, tmp_path: Path) -> None:
    """The loop that computes an operand stores it rounded, once for the product and for the gradient of the weights."""
    x, w, v, g = map(single, ((6, 24, 40), (48, 40), (32, 48), (6, 24, 32)))
    hidden = ys.tanh(x @ w.T)
    out = ys.exp(hidden @ v.T)
    weight_gradient = ys.reshape(g, (144, 32)).T @ ys.reshape(hidden, (144, 48))
    unit, arrays = halved(precision, out, weight_gradient, hidden)
    machine = WithLibrary(tmp_path)
    fused = Fused(machine, "a machine")
    made = with_half_operands(unit, fused.takes_halves)
    half = HALVES[precision]
    products = [part for part in made.parts if part.kind is RegionKind.CONTRACTION]
    assert [made.graph.calls[e].spec.dtype for part in products for e in part.inputs] == [half] * 6
    rounding = [c for c in made.calls if c.op is convert and c.spec.dtype is half]
    assert len(rounding) == 5  # x, w, v, g and hidden, which two products read
    kernel = sequence(made, fused, lambda p: fused.compiled(p) if reads_halves(p) else machine.compile(p))
    got = kernel(*[machine.from_host(a) for a in arrays])
    assert [(a.operand, a.dtype) for a in machine.asked] == [(half, float32)] * 3

    def cut(a: Array) -> Array:
        return a.astype(half.numpy).astype(np.float64)

    X, W, V, G = (cut(a.numpy()) for a in (x, w, v, g))
    tanh = np.tanh(X @ W.T).astype(np.float32)
    expected = np.exp(cut(tanh) @ V.T), G.reshape(144, 32).T @ cut(tanh).reshape(144, 48), tanh
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())
    full = [a.numpy() for a in (out, weight_gradient, hidden)]
    assert all(np.abs(ours - theirs).max() > 0 for ours, theirs in zip(got, full, strict=True))  # they were rounded


@pytest.mark.parametrize("precision", [Precision.F16, Precision.BF16])
def test_convolutions_multiply_operands_in_16_bits(precision: Precision, tmp_path: Path) -> None:
    """cuDNN is given float32 operands; the matrix unit reads those in 16 bits, under windows that reach beyond them."""
    x, w = single((2, 16, 12, 12)), single((24, 16, 3, 3))
    unit, arrays = halved(precision, ys.exp(ys.nn.conv2d(ys.nn.relu(x), w, padding=1) / 8))
    machine = WithLibrary(tmp_path)
    fused = Fused(machine, "a machine")
    made = with_half_operands(unit, fused.takes_halves)
    (product,) = [part for part in made.parts if reads_halves(part)]
    assert {"unit 32", "unit 64"} < fused.variants(product).keys()
    kernel = sequence(made, fused, lambda p: fused.compiled(p) if reads_halves(p) else machine.compile(p))
    (got,) = kernel(*[machine.from_host(a) for a in arrays])
    half = HALVES[precision].numpy
    image, weights = (ys.asarray(a.astype(half).astype(np.float64)) for a in (np.maximum(x.numpy(), 0), w.numpy()))
    exact = ys.nn.conv2d(image, weights, padding=1)
    np.testing.assert_allclose(got, np.exp(exact.numpy() / 8), rtol=2e-5)


def test_a_product_that_the_library_lacks_keeps_its_operands(tmp_path: Path) -> None:
    x, w = map(single, ((2, 3, 4, 5), (3, 5, 4)))
    unit, _ = halved(Precision.F16, ys.tanh(ys.einsum("abcd,bdc->ab", x * 2, w)), ys.exp(x))
    assert with_half_operands(unit, Fused(WithLibrary(tmp_path), "a machine").takes_halves) is unit


@pytest.mark.parametrize("precision", [Precision.F16, Precision.BF16])
def test_attention_of_a_unit_has_operands_in_16_bits(precision: Precision, tmp_path: Path) -> None:
    """Attention and its gradient are kernels on a matrix unit, whose operands are cut from one packed array in 16 bits;
    the product behind reads what attention stores."""
    packed, w = single((2, 20, 3, 2, 16)), single((2, 2, 16, 16))

    def loss(packed: ys.Tensor) -> ys.Tensor:
        q, k, v = (ys.permute_dims(packed, (2, 0, 3, 1, 4))[n] for n in range(3))
        seen = ys.nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (ys.tanh(seen @ w) ** 2).sum()

    value, slope = ys.value_and_grad(loss)(packed)
    unit, arrays = halved(precision, value, slope)
    machine = WithLibrary(tmp_path)
    fused, half = Fused(machine, "a machine"), HALVES[precision]
    made = with_half_operands(unit, fused.takes_halves)
    whole = [part for part in made.parts if is_composite(part)]
    assert [part.calls[0].op.name for part in whole] == ["scaled_dot_product_attention", "attention_gradient"]
    assert {part.precision for part in whole} == {Precision.FULL}
    read = {made.graph.calls[e].spec.dtype for part in whole for e in (*part.inputs, *part.outputs)}
    assert read == {half}
    rounding = [c.spec.shape for c in made.calls if c.op is convert and c.spec.dtype is half]
    assert rounding.count(packed.shape) == 1  # for three slices
    kernel = sequence(
        made, fused, lambda p: fused.compiled(p) if reads_halves(p) or is_composite(p) else machine.compile(p)
    )
    got = dict(zip(made.outputs, kernel(*[machine.from_host(a) for a in arrays]), strict=True))
    for ours, theirs in zip(got.values(), [value.numpy(), slope.numpy()], strict=True):
        error = 12 * float(ys.finfo(half).eps)
        np.testing.assert_allclose(ours, theirs, rtol=error, atol=error * np.abs(theirs).max())
        assert np.abs(ours - theirs).max() > 0
