"""Scans of independent elements as kernels with a loop inside each work item: in each language, and on OpenCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from opencl_regions import DEVICE, run
from program_code import TARGETS, Emulated
from yosegi._graph.reference import bind
from yosegi._run.device import Absent
from yosegi._tensor.op import pick
from yosegi.codegen.c.op_programs import refusal

RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return ys.asarray(RNG.normal(size=shape).astype(dtype))


X, ROWS, COLUMN = normal(40, 50), normal(7, 50), normal(40, 1)

CASES: dict[str, Any] = {
    "a carry and rows": lambda: ys.scan(lambda c, r: (ys.tanh(c * COLUMN + r), c * 2.5), X, ROWS),
    "from the end": lambda: ys.scan(lambda c, r: (c * 0.5 + r, c), X, ROWS, reverse=True),
    "a carry alone": lambda: (ys.scan(lambda c, r: (c + r, None), X, ROWS)[0],),
    "exchanged carries": lambda: ys.scan(lambda c, r: ((c[1], ys.sin(c[0]) + r), c[0] > 0), (X, X * 2), ROWS),
    "a counter": lambda: ys.scan(lambda c, _: ((c[0] + 1, c[1] * 0.9 + c[0].astype(ys.float32)), c[0]),
                                 (ys.asarray(0, dtype=ys.int32), X), length=5),
    "numbers and inputs as rows": lambda: ys.scan(
        lambda c, r: (c, (ys.asarray(1.0, dtype=ys.float32), COLUMN * r + c, c)), X, ROWS
    ),
    "float64": lambda: ys.scan(lambda c, r: (ys.exp(-c * c) + r, c), normal(2000, dtype="float64"),
                               normal(3, 2000, dtype="float64")),
    "complex64": lambda: ys.scan(lambda c, r: (c * 0.5j + r, c), X.astype(ys.complex64), ROWS),
    "float16": lambda: ys.scan(lambda c, r: (c * 0.5 + r, c), X.astype(ys.float16), ROWS.astype(ys.float16)),
    "bool": lambda: ys.scan(lambda c, r: (ys.logical_xor(c, r), c), X > 0, ROWS > 0),
    "int8": lambda: ys.scan(lambda c, r: (c * 3 + r, c), ys.asarray(RNG.integers(-9, 9, (2000,)).astype(np.int8)),
                            ys.asarray(RNG.integers(-9, 9, (4, 2000)).astype(np.int8))),
}  # fmt: skip


def close(got: Any, wanted: Any) -> None:
    """Equal up to roundings, which the iterations carry on."""
    tolerance = {2: 1e-2, 4: 1e-5}.get(wanted.dtype.itemsize, 1e-5 if wanted.dtype.kind == "c" else 1e-12)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance)


def call_of(made: Any) -> tuple[Any, list[Any]]:
    """The call of a scan, and its inputs' arrays."""
    node = ys.tree_leaves(made)[0]._node
    while node.call.op is pick:
        (node,) = node.inputs
    ys.eval([ys.Tensor(i) for i in node.inputs])
    return node.call, [i.buffer.data for i in node.inputs]


@pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize("language", ["cuda", "msl"])
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_reference_gives(name: str, language: str, tmp_path: Path) -> None:
    if language == "msl" and name == "float64":
        pytest.skip("the language has no float64")
    call, arrays = call_of(CASES[name]())
    assert refusal(call) is None
    wanted = bind(call)(*arrays)
    got = Emulated(language, TARGETS["small"], tmp_path).outputs(call, arrays)
    for g, w in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        close(g, w)


@pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))
@pytest.mark.parametrize("name", CASES)
def test_a_device_gives_what_the_reference_gives(name: str) -> None:
    made = ys.tree_leaves(CASES[name]())
    call, arrays = call_of(made)
    wanted = bind(call)(*arrays)
    for g, w in zip(run(*made), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        close(g, w)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: ys.scan(lambda c, r: (c + ys.sum(c), None), X, ROWS), "a loop with sum, whose elements are not indep"),
        (lambda: ys.scan(lambda c, r: (c + r, None), X[0], ROWS), "a loop over 50 elements"),
        (lambda: ys.scan(lambda c, r: ((c[0] + r, c[1] * 2), None), (X, X[0]), ROWS), "a loop over values of shapes"),
        (lambda: ys.scan(lambda c, r: (c + 1, None), X, length=0), "a loop over nothing"),
    ],
)
def test_other_scans_are_refused(made: Any, text: str) -> None:
    assert (refusal(call_of(made())[0]) or "").startswith(text)
