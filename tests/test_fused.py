"""The choice among ways to compute a product or a composite, on a device that is emulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from kernel_code import Emulated
from values import Array
from yosegi._graph.expand import in_parts
from yosegi._graph.graph import capture, graph_of
from yosegi._run.device import host_device
from yosegi._run.trace import trace
from yosegi._schedule.fuse import Region, fuse
from yosegi._tune.autotune import TuningResult
from yosegi.codegen.c.kernel_source import Kernel
from yosegi.devices.kernel import fused, measured
from yosegi.devices.kernel.fused import Fused
from yosegi.errors import CompileFailure, NoSuchVariant

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(8)
A, B = (RNG.normal(size=s).astype(np.float32) for s in ((20, 30), (30, 10)))


@pytest.fixture(autouse=True)
def measures_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "_POLICY", replace(measured._POLICY, measured_work=0))


def product(*, repeats: bool) -> Region:
    (region,) = fuse(graph_of(capture([(ys.asarray(A) @ ys.asarray(B))._node])[0]))
    return replace(region, repeats=repeats)


class Choosy(Emulated):
    """A machine on which some kernels do not compile, and some are wrong."""

    def __init__(self, folder: Path, broken: str = "", wrong: str = "") -> None:
        super().__init__("cuda", folder)
        self.broken, self.wrong = broken, wrong
        self.sources: list[str] = []

    def launcher(self, kernel: Kernel, inputs: int, outputs: int) -> Callable[[Sequence[Array], Sequence[Array]], None]:
        if self.broken and self.broken in kernel.source:
            raise CompileFailure("it does not compile")
        launch = super().launcher(kernel, inputs, outputs)

        def run(given: Sequence[Array], made: Sequence[Array]) -> None:
            self.sources.append(kernel.source)
            launch(given, made)
            if self.wrong and self.wrong in kernel.source:
                made[0][0] += 1

        return run


def multiplied(machine: Any, *, repeats: bool) -> Array:
    kernel = Fused(machine, "a machine").compiled(product(repeats=repeats))
    made: Array = kernel(machine.from_host(A), machine.from_host(B))[0]
    return made


def test_it_begins_with_the_prior(tmp_path: Path) -> None:
    machine = Choosy(tmp_path)
    np.testing.assert_allclose(multiplied(machine, repeats=False), A @ B, rtol=1e-5, atol=1e-5)
    assert ["left_tile" in s for s in machine.sources] == [False]


def test_what_repeats_is_measured_once_and_remembered(tmp_path: Path) -> None:
    first, second = Choosy(tmp_path), Choosy(tmp_path)
    np.testing.assert_allclose(multiplied(first, repeats=True), A @ B, rtol=1e-5, atol=1e-5)
    assert len(set(first.sources)) > 1
    np.testing.assert_allclose(multiplied(second, repeats=True), A @ B, rtol=1e-5, atol=1e-5)
    assert second.sources == first.sources[-1:]


def test_a_way_that_is_wrong_is_not_taken(tmp_path: Path) -> None:
    machine = Choosy(tmp_path, wrong="left_tile")
    np.testing.assert_allclose(multiplied(machine, repeats=True), A @ B, rtol=1e-5, atol=1e-5)
    assert "left_tile" not in machine.sources[-1]


def test_a_way_that_does_not_compile_is_dropped_and_told(tmp_path: Path) -> None:
    machine = Choosy(tmp_path, broken="left_tile")
    trace.clear()
    np.testing.assert_allclose(multiplied(machine, repeats=True), A @ B, rtol=1e-5, atol=1e-5)
    assert any("it does not compile" in f.message for record in trace.records for f in record.failures)


class Counted(Emulated):
    """A machine whose library has so many ways, which it knows when they are made."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__("cuda", folder)
        self.count = count

    def by_library(self, region: Region) -> dict[str, Any]:
        def way(number: int) -> Any:
            if number >= self.count:
                raise NoSuchVariant(f"there are {self.count}")
            return lambda a, b: (a @ b,)

        return {name: partial(way, number) for number, name in enumerate(("library", "library, second"))}

    def seconds(self, kernel: Any, data: Sequence[Array], calls: int) -> float:
        return 1e-6 if getattr(kernel, "__name__", "") == "<lambda>" else 1.0


def test_a_way_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    trace.clear()
    np.testing.assert_allclose(multiplied(Counted(tmp_path, 1), repeats=True), A @ B, rtol=1e-5, atol=1e-5)
    assert [f.message for record in trace.records for f in record.failures] == []


def test_a_winner_that_is_not_there_any_more_leaves_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured.TuningRecords, "known", lambda self, kind: TuningResult("library, second", {}))
    monkeypatch.setattr(fused, "_POLICY", replace(fused._POLICY, large_work=1))
    machine = Counted(tmp_path, 1)
    trace.clear()
    np.testing.assert_allclose(multiplied(machine, repeats=True), A @ B, rtol=1e-5, atol=1e-5)
    assert [f.message for record in trace.records for f in record.failures] == []
    assert machine.launches == 0  # the library's first


def test_the_host_takes_apart_what_was_left_whole_for_another_device() -> None:
    (region,) = fuse(graph_of(capture([ys.nn.softmax(ys.asarray(A))._node])[0]))
    powers = np.exp(A.astype(np.float64))
    for repeats in (False, True):
        (got,) = host_device().compile(replace(region, repeats=repeats))(A)
        np.testing.assert_allclose(got, powers / powers.sum(-1, keepdims=True), rtol=1e-5)


def test_a_composite_is_taken_apart_into_a_graph_of_its_own() -> None:
    x = ys.asarray(A)
    (region,) = fuse(graph_of(capture([ys.nn.softmax(x)._node])[0]))
    parts = in_parts(region)
    assert [c.op.name for c in parts.calls] == ["max", "subtract", "exp", "sum", "divide"]
    assert (len(parts.inputs), len(parts.outputs)) == (1, 1)
