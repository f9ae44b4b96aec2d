"""How the CPU chooses the way to compute what is around a product in reduced precision: what is measured and kept,
candidates that fail or are wrong, and threads. The unit is emulated."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import yosegi as ys
from forks import holds_in_a_fork
from half_code import check, compiled, emulating, numbers, reduced_by, with_constants
from native_code import NATIVES, RESULTS, needs_llvm, region_of
from values import Array
from yosegi._run.trace import trace
from yosegi._schedule.fuse import Region
from yosegi._tensor.dtype import bfloat16
from yosegi._tensor.precision import Precision
from yosegi.devices.cpu import product_calls
from yosegi.devices.cpu import variants as ways_module
from yosegi.devices.cpu.compiler import HostMachine
from yosegi.devices.cpu.half_calls import PARTS
from yosegi.devices.cpu.sampling import rounded
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import IN_ONE, Variants
from yosegi.errors import CompileFailure

pytestmark = [
    needs_llvm,
    pytest.mark.skipif(HostMachine.host().vector_bytes < 64, reason="the emulation is written in 512-bit vectors"),
]
X, W, B = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, seed=2)


@contextmanager
def fresh(monkeypatch: pytest.MonkeyPatch, folder: Any) -> Iterator[Variants]:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(folder))
    trace.clear()
    yield Variants(NATIVES, RESULTS, reduced_by(emulating()))
    trace.clear()


def layer() -> tuple[Region, list[Array]]:
    return region_of(ys.nn.relu(ys.asarray(X) @ ys.asarray(W) + ys.asarray(B)))


def check_layer(got: Array) -> None:
    check(got, lambda p: np.maximum(p + B, 0), X, W, 1)


def test_the_choice_is_measured_once_for_each_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    region, arrays = layer()
    with fresh(monkeypatch, tmp_path) as first:
        for number, precision in enumerate(PARTS):
            own = replace(region, precision=precision)
            native_function(own, first)(*arrays)
            with monkeypatch.context() as patch:
                patch.setattr(ways_module, "samples", lambda *a: pytest.fail("measured again"))
                native_function(own, Variants(NATIVES, RESULTS, reduced_by(emulating())))(*arrays)
            assert len(list((tmp_path / "choices").iterdir())) == number + 1
        assert not trace.records


def test_a_second_process_writes_and_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    region, arrays = layer()
    own = replace(region, precision=Precision.BF16)
    with fresh(monkeypatch, tmp_path) as first:
        expected = native_function(own, first)(*arrays)[0]
    for name in ("product_source", "unit_tile_source", "unit_lines_source", "unit_panel_source"):
        monkeypatch.setattr(product_calls, name, lambda *what: pytest.fail("written again"))
    with fresh(monkeypatch, tmp_path) as second:
        np.testing.assert_array_equal(native_function(own, second)(*arrays)[0], expected)


def test_functions_that_differ_have_objects_of_their_own() -> None:
    """Whatever the words leave out would be taken from another's object."""
    x, w, s = numbers(64, 96), numbers(96, 80, seed=1), numbers(64, 80, seed=2)
    row, column = np.ascontiguousarray(s[:1]), np.ascontiguousarray(s[:, :1])
    a, b = ys.asarray(x), ys.asarray(w)
    for program, wanted in (
        (a @ b + 1, lambda p: p + 1),
        (a @ b + 2, lambda p: p + 2),
        (a @ b - ys.asarray(s), lambda p: p - s),
        (a @ b - ys.asarray(row), lambda p: p - row),
        (a @ b - ys.asarray(column), lambda p: p - column),
        (ys.asarray(s) - a @ b, lambda p: s - p),
    ):
        kernel, arrays = compiled(Precision.BF16, program, way=IN_ONE)
        check(kernel(*arrays)[0], wanted, x, w, 1)


def body_of(variants: Variants) -> Any:
    """What computes a product that nothing else does."""
    assert variants._reduced is not None
    return variants._reduced.body


def refusals() -> list[str]:
    return [f.message for r in trace.records for f in r.failures]


def test_a_kernel_that_is_wrong_is_never_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """One that leaves its output as it is."""
    made = ways_module.fused

    def idle(*what: Any) -> Any:
        return replace(made(*what), call=lambda *arrays: None)

    region, arrays = layer()
    with fresh(monkeypatch, tmp_path) as found:
        monkeypatch.setattr(ways_module, "fused", idle)
        (got,) = native_function(replace(region, precision=Precision.BF16), found, body_of(found))(*arrays)
        assert len([m for m in refusals() if "wrong" in m]) == 2
    check_layer(got)


@pytest.mark.parametrize(("asked", "given"), [(2, 1), (3, 1), (3, 2), (1, 2), (1, 3)])
def test_another_precision_than_was_asked_for_is_wrong(
    asked: int, given: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """One part for several, or several for one, is found out, where a weight has more digits than bfloat16. Two and
    three differ by no more than the roundings of sums, which nobody can tell from the results."""
    weights, bias = ys.asarray(numbers(96, 80, seed=1)), ys.asarray(numbers(80, seed=2))
    x = numbers(64, 96)
    region = with_constants(lambda x: ys.nn.relu(x @ weights + bias), x, monkeypatch)
    precision = next(p for p, parts in PARTS.items() if parts == asked)
    generated = Variants._generated
    with fresh(monkeypatch, tmp_path) as found:
        monkeypatch.setattr(
            Variants, "_generated", lambda self, operands, products, parts: generated(self, operands, products, given)
        )
        native_function(replace(region, precision=precision), found)
        assert len([m for m in refusals() if "wrong" in m]) == (0 if {asked, given} == {2, 3} else 2)


def test_a_compiler_that_fails_is_told_and_the_body_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def fails(*what: Any, **more: Any) -> Any:
        raise CompileFailure("LLVM: out of luck")

    region, arrays = layer()
    with fresh(monkeypatch, tmp_path) as made:
        monkeypatch.setattr(Variants, "_generated", fails)
        (got,) = native_function(replace(region, precision=Precision.BF16), made, body_of(made))(*arrays)
        assert "out of luck" in refusals()[0]
    check_layer(got)


def test_operands_as_the_kernels_round_them() -> None:
    x = np.concatenate([numbers(1000), [np.nan, np.inf, -np.inf, 3.4e38, 0, -0.0]]).astype(np.float32)
    with np.errstate(all="ignore"):
        one, two, three = (rounded(x, parts) for parts in (1, 2, 3))
    np.testing.assert_array_equal(one, x.astype(bfloat16.numpy).astype(np.float32))
    np.testing.assert_array_equal(three, np.where(x == np.float32(3.4e38), np.inf, x))
    np.testing.assert_allclose(two[:1000], x[:1000], rtol=2.0**-16, atol=0)
    assert not np.array_equal(two[:1000], x[:1000])
    np.testing.assert_array_equal(np.isfinite(two), np.isfinite(three))


# Threads and forks


def test_several_python_threads_at_once() -> None:
    x, w, b = numbers(150, 160), numbers(160, 170, seed=1), numbers(170, seed=2)
    kernel, arrays = compiled(Precision.BF16, ys.nn.relu(ys.asarray(x) @ ys.asarray(w) + ys.asarray(b)), way=IN_ONE)
    expected = kernel(*arrays)[0]
    wrong: list[int] = []

    def work() -> None:
        for number in range(10):
            if not np.array_equal(kernel(*arrays)[0], expected):
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_multiplies() -> None:
    x, w = numbers(300, 260), numbers(260, 270, seed=1)  # enough for several threads
    kernel, arrays = compiled(Precision.BF16, ys.nn.relu(ys.asarray(x) @ ys.asarray(w)), way=IN_ONE)
    expected = kernel(*arrays)[0]
    assert holds_in_a_fork(lambda: np.array_equal(kernel(*arrays)[0], expected))
