"""Products that take what is around them: which neighbours, and what comes out, on a device that is emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from kernel_code import Emulated
from values import Array
from yosegi._graph.expand import expand
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._run.device import host_device
from yosegi._schedule.fuse import Region, RegionKind, fuse, join
from yosegi._schedule.kernels import kernels_of
from yosegi._tensor.precision import Precision
from yosegi.devices.kernel import measured as module
from yosegi.devices.kernel.fused import PATTERNS, Fused

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(14)


def normal(*shape: int, dtype: Any = np.float32) -> ys.Tensor:
    return ys.asarray(RNG.normal(size=shape).astype(dtype))


X, W, V, B, R = normal(20, 30), normal(30, 10), normal(10, 30), normal(10), normal(20, 10)
S, STACK, Q, EMPTY = normal(12, 12), normal(3, 5, 30), normal(2, 17, 16), normal(0, 30)
C = ys.asarray(np.eye(4) * 1j)
COLUMN, SQUARE = normal(30, 1), normal(10, 10)
IMAGE, KERNEL, BIAS = normal(2, 3, 9, 8), normal(4, 3, 3, 3), normal(4, 1, 1)


class WithPatterns(Emulated):
    """A machine, and the device that has it, which takes composites whole; loops and parts are the host's."""

    space = "emulated"

    def __init__(self, folder: Path) -> None:
        super().__init__("cuda", folder)
        self.limits = replace(host_device().limits, natives=PATTERNS)

    def supports(self, region: Region) -> str | None:
        return None

    def refusal(self, region: Region) -> str | None:
        return host_device().supports(region)

    def compile(self, region: Region) -> Any:
        return host_device().compile(region)


class Program:
    """Tensors as the regions that a device would run."""

    def __init__(self, tensors: Any, folder: Path, *, precision: Precision = Precision.FULL) -> None:
        self.machine = WithPatterns(folder)
        self.tensors: list[ys.Tensor] = tensors if isinstance(tensors, list) else [tensors]
        key, leaves, _ = capture([t._node for t in self.tensors])
        self.graph = simplify(expand(graph_of(key), [self.machine]))  # type: ignore[list-item]
        self.given = {e: n.buffer.data for e, n in zip(self.graph.inputs, leaves, strict=True) if n.buffer is not None}
        self.fused = Fused(self.machine, "a machine")
        unit = replace(join(fuse(self.graph), self.graph.outputs), precision=precision)
        self.regions = kernels_of(unit, self.fused.fusion)

    @property
    def names(self) -> list[str]:
        """The regions, clusters in brackets."""
        return [f"[{r}]" if r.kind is RegionKind.SEQUENCE else str(r) for r in self.regions]

    def run(self, way: str = "") -> list[Array]:
        """The values, clusters in one way."""
        values: dict[int, Any] = dict(self.given)
        for region in self.regions:
            data = [values[e] for e in region.inputs]
            if region.kind is RegionKind.SEQUENCE:
                made = self.fused.variants(region)[way]() if way else self.fused.compiled(replace(region, repeats=True))
                made = [np.asarray(m) for m in made(*[self.machine.from_host(d) for d in data])]
            else:
                made = host_device().compile(region)(*data)
            values.update(zip(region.outputs, made, strict=True))
        return [values[o] for o in self.graph.outputs]


def also(h: ys.Tensor, *others: Any) -> list[ys.Tensor]:
    """A function of a product, and others of the same product."""
    return [ys.nn.relu(h + B), *[other(h) for other in others]]


def normalised(x: ys.Tensor) -> ys.Tensor:
    """Rows with mean 0 and variance 1, in plain ops."""
    centred = x - ys.mean(x, axis=-1, keepdims=True)
    return centred / ys.sqrt(ys.mean(ys.square(centred), axis=-1, keepdims=True))


CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a bias and a function": (lambda: ys.nn.relu(X @ W + B), ["[matmul+add+relu]"]),
    "a transpose": (lambda: ys.nn.relu(X @ V.T + B + R), ["[permute_dims+matmul+add+add+relu]"]),
    "the gradient by what was transposed": (lambda: ys.grad(lambda v: ys.sum(ys.nn.relu(X @ v.T) * R))(V),
                                            ["[permute_dims+matmul+greater+where]", "[permute_dims+matmul]"]),
    "both transposed": (lambda: W.T @ X.T, ["[permute_dims+permute_dims+matmul]"]),
    "a layer and a function": (lambda: ys.nn.relu(ys.nn.linear(X, V, B)) * 2, ["[linear+relu+multiply]"]),
    "a function before": (lambda: ys.nn.relu(X) @ W, ["[relu+matmul]"]),
    "two layers": (lambda: ys.nn.relu(ys.nn.relu(X @ W + B) @ V), ["[matmul+add+relu]", "[matmul+relu]"]),
    "the product itself too": (lambda: also(X @ W, lambda h: h), ["[matmul+add+relu]"]),
    "others read it": (lambda: also(X @ W, lambda h: ys.sum(ys.exp(h))), ["[matmul+add+relu]", "exp+sum"]),
    "others are first": (lambda: also(X @ W, lambda h: ys.nn.relu(h / ys.sum(h)) @ V),
                         ["[matmul+add+relu]", "sum", "[divide+relu+matmul]"]),
    "it needs others": (lambda: (lambda h: ys.exp(h) / ys.sum(h))(X @ W), ["matmul", "sum", "exp+divide"]),
    "two products in one loop": (lambda: X @ W + X @ (W * 2), ["matmul", "[multiply+matmul+add]"]),
    "a function of a view before": (lambda: ys.exp(S.T) @ S.T, ["[permute_dims+exp+matmul]"]),
    "a view that others read": (lambda: [X @ V.T, ys.exp(V.T)], ["permute_dims", "exp", "[permute_dims+matmul]"]),
    "a view of a view": (lambda: ys.broadcast_to(COLUMN.T, (20, 30)) @ W, ["[permute_dims+broadcast_to+matmul]"]),
    "a view, and a view of it": (lambda: (lambda v: ys.einsum("ij,kij->ik", v, ys.expand_dims(v, axis=0)))(V.T),
                                 ["[permute_dims+reshape+einsum]"]),
    "a truth": (lambda: X @ W + B > 0, ["[matmul+add+greater]"]),
    "rows": (lambda: ys.nn.softmax(R) * 2, ["[softmax+multiply]"]),
    "rows of a loop": (lambda: ys.nn.softmax(ys.exp(R)), ["exp", "softmax"]),
    "rows and loops between them": (lambda: normalised(R), ["[mean+subtract+square+mean+sqrt+divide]"]),
    "sums of columns beside rows": (lambda: [normalised(R), ys.sum(R - ys.mean(R, axis=-1, keepdims=True), axis=0)],
                                    ["mean", "subtract+sum", "[square+mean+sqrt+divide]"]),
    "rows behind a product of rows": (lambda: (lambda n: normalised(n @ SQUARE + n))(normalised(R)),
                                      ["[mean+subtract+square+mean+sqrt+divide]", "matmul",
                                       "[add+mean+subtract+square+mean+sqrt+divide]"]),
    "a convolution": (lambda: ys.nn.relu(ys.nn.conv2d(IMAGE, KERNEL, padding=1) + BIAS), ["[conv+add+relu]"]),
    "windows of a repeated row": (lambda: ys.nn.conv2d(ys.broadcast_to(V[0, :8], (1, 3, 9, 8)), KERNEL, padding=1),
                                  ["broadcast_to", "conv"]),
    "windows of repeated places": (lambda: ys.nn.conv2d(ys.broadcast_to(BIAS[:3], (2, 3, 9, 8)), KERNEL, padding=1),
                                   ["[broadcast_to+conv]"]),
    "stacks": (lambda: ys.tanh(STACK @ W + B), ["[matmul+add+tanh]"]),
    "labels": (lambda: ys.einsum("ij,kj->ik", X, V) + B, ["[einsum+add]"]),
    "nothing around": (lambda: X @ W, ["matmul"]),
    "nothing in it": (lambda: ys.nn.relu(EMPTY @ W), ["matmul", "relu"]),
    "complex": (lambda: ys.exp(C @ C), ["matmul", "exp"]),
    "attention as a whole": (lambda: ys.nn.scaled_dot_product_attention(Q, Q, Q) * 2,
                             ["scaled_dot_product_attention", "multiply"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_product_takes(name: str, tmp_path: Path) -> None:
    tensors, expected = CASES[name]
    assert Program(tensors(), tmp_path).names == expected


def test_nothing_at_another_precision(tmp_path: Path) -> None:
    """Generated kernels are of full precision."""
    assert Program(ys.nn.relu(X @ W), tmp_path, precision=Precision.TF32).names == ["matmul", "relu"]


def test_no_more_arrays_than_a_kernel_takes(tmp_path: Path) -> None:
    """Two of these loops have more than it takes, so that the product takes one of them."""

    def many(*shape: int) -> ys.Tensor:
        return reduce(add, [normal(*shape) for _ in range(50)])

    program = Program(many(20, 30) @ many(30, 10) + many(20, 10), tmp_path)
    assert [len(region.inputs) for region in program.regions] == [50, 51, 51]


def right(program: Program, way: str = "") -> None:
    for got, tensor in zip(program.run(way), program.tensors, strict=True):
        with ys.options(device="cpu"):
            expected = tensor.numpy()
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", [name for name, (_, expected) in CASES.items() if any("[" in e for e in expected)])
def test_every_way_is_right(name: str, tmp_path: Path) -> None:
    program = Program(CASES[name][0](), tmp_path)
    variants = [set(program.fused.variants(r)) for r in program.regions if r.kind is RegionKind.SEQUENCE]
    common = set.intersection(*variants)
    assert "separate" in common
    for way in sorted(common):
        right(program, way)


def test_they_are_measured_against_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_POLICY", replace(module._POLICY, measured_work=0))
    right(Program(CASES["others read it"][0](), tmp_path))


def test_what_is_known_of_one_program_is_not_taken_for_another(tmp_path: Path) -> None:
    """The same ops on the same sizes, in other orders or with other attributes."""
    x, w, image, each = normal(16, 16), normal(16, 16), normal(1, 4, 16, 16), normal(4, 1, 3, 3)

    def kind(tensor: ys.Tensor) -> str:
        program = Program(tensor, tmp_path)
        (region,) = program.regions
        made: Any = program.fused.compiled(region)
        return str(made.kind)

    same = kind(w @ x.T)
    kinds = [kind(x @ w.T), kind(x.T @ w), kind((x @ w) * x + w), kind((x @ w + x) * w)]
    kinds += [kind(ys.nn.conv2d(image, each, groups=4, padding=p)) for p in (0, 1)]
    assert kinds[0] == same
    assert len(set(kinds)) == len(kinds)


def test_a_step_of_training(tmp_path: Path) -> None:
    """Neither direction copies a matrix to transpose it."""

    def loss(w: ys.Tensor, b: ys.Tensor) -> ys.Tensor:
        return ys.mean((ys.nn.relu(ys.nn.relu(X @ w + b) @ V) - X) ** 2)

    program = Program(list(ys.grad(loss, argnums=(0, 1))(W, B)), tmp_path)
    assert not {"permute_dims", "matmul"} & set(program.names)
    right(program, "16")
