"""Products as users write them, under `jit`, by whatever way is measured to be fastest: every size and layout against
double precision, stacks, several threads, forks, and a compiler that fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from math import erf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

import yosegi as ys
from forks import holds_in_a_fork
from native_code import RESULTS, needs_llvm, region_of
from product_code import check, exact, numbers
from values import Array
from yosegi._run.trace import trace
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.tiered import compile_region
from yosegi.devices.cpu.variants import Variants
from yosegi.errors import CompileFailure

pytestmark = needs_llvm

LENGTHS = st.sampled_from((0, 1, 7, 64, 127, 129))
LAYOUTS: dict[str, tuple[Callable[[Any], Any], Callable[..., tuple[int, ...]]]] = {
    "plain": (lambda x: x, lambda *s: s),
    "transposed": (lambda x: x.mT, lambda *s: (*s[:-2], s[-1], s[-2])),
    "backwards": (lambda x: x[..., ::-1, ::-1], lambda *s: s),
    "every other": (lambda x: x[..., ::-2, ::3], lambda *s: (*s[:-2], 2 * s[-2], 3 * s[-1])),
}  # fmt: skip
"""A view, and the shape of the array of which it is one of a given shape."""
_erf = np.vectorize(erf, otypes=[np.float64])

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "x@w": (lambda x, w, b, r: x @ w, lambda x, w, b, r: exact(x, w)),
    "relu(x@w+b+r)": (lambda x, w, b, r: ys.nn.relu(x @ w + b + r),
                      lambda x, w, b, r: np.maximum(exact(x, w) + b + r, 0)),
    "gelu(x)@w+b": (lambda x, w, b, r: ys.nn.gelu(x) @ w + b,
                    lambda x, w, b, r: exact(0.5 * x * (1 + _erf(x / np.sqrt(2))), w) + b),
}  # fmt: skip


@st.composite
def stacks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the left and of the right operand; they broadcast."""
    outer = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=0, max_size=2))
    own = [tuple(1 if draw(st.booleans()) else n for n in outer) for _ in range(2)]
    return own[0], own[1][draw(st.integers(0, len(outer))) :]


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(PROGRAMS)), LENGTHS, LENGTHS, LENGTHS, stacks(), st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from(sorted(LAYOUTS)), st.booleans(),
)  # fmt: skip
def test_every_size_and_layout(
    name: str, m: int, n: int, k: int, outer: tuple[Any, Any], left: str, right: str, is_given: bool
) -> None:
    """Views that are part of the program, and arrays that come so."""
    (seen_x, shape_x), (seen_w, shape_w) = LAYOUTS[left], LAYOUTS[right]
    x, w = numbers(shape_x(*outer[0], m, k)), numbers(shape_w(*outer[1], k, n), seed=1)
    b = numbers((n,), seed=2)
    r = numbers((*np.broadcast_shapes(*outer), m, n), seed=3)
    program, reference = PROGRAMS[name]
    expected = reference(*[a.astype(np.float64) for a in (seen_x(x), seen_w(w), b, r)])
    function = ys.jit(program if is_given else lambda x, w, b, r: program(seen_x(x), seen_w(w), b, r))
    operands = (seen_x(x), seen_w(w), b, r) if is_given else (x, w, b, r)
    with ys.options(device="cpu"):
        for _ in range(2):
            check(function(*map(ys.asarray, operands)).numpy(), expected, k)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [128, 256, 512])
def test_the_sizes_that_are_measured(name: str, size: int) -> None:
    x, w, b, r = (numbers(s, seed=n) for n, s in enumerate([(size, size), (size, size), (size,), (size, size)]))
    program, reference = PROGRAMS[name]
    with ys.options(device="cpu"):
        got = ys.jit(program)(*map(ys.asarray, (x, w, b, r))).numpy()
    check(got, reference(*[a.astype(np.float64) for a in (x, w, b, r)]), size)


def test_the_first_call_comes_from_several_threads() -> None:
    x, w, b, r = (numbers(s, seed=n) for n, s in enumerate([(90, 80), (80, 70), (70,), (90, 70)]))
    program, reference = PROGRAMS["relu(x@w+b+r)"]
    expected = reference(*[a.astype(np.float64) for a in (x, w, b, r)])
    function = ys.jit(program)
    wrong: list[Exception] = []

    def work() -> None:
        try:
            with ys.options(device="cpu"):
                for _ in range(10):
                    check(function(*map(ys.asarray, (x, w, b, r))).numpy(), expected, 80)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forked_child_calls_what_its_parent_has_jitted(name: str) -> None:
    x, w, b, r = (numbers(s, seed=n) for n, s in enumerate([(150, 160), (160, 170), (170,), (150, 170)]))
    function = ys.jit(PROGRAMS[name][0])
    with ys.options(device="cpu"):
        operands = [ys.asarray(a) for a in (x, w, b, r)]
        expected = function(*operands).numpy()
        assert holds_in_a_fork(lambda: np.array_equal(function(*operands).numpy(), expected))


@pytest.mark.parametrize("failing", ["@tile", "@finish", "@hold", ""], ids=["tiles", "ends", "library", "everything"])
def test_llvm_fails_on_a_part_and_the_rest_serves(failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The candidates that need it are dropped, and the trace says so."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    machine = HostMachine.host()
    natives = Natives(machine, Runtime(Compiler(machine), 2))
    assert natives.runtime is not None
    natives.runtime.prepare()
    emit = Compiler.emit

    def broken(self: Compiler, *sources: str) -> bytes:
        if any(failing in source for source in sources):
            raise CompileFailure("LLVM: out of luck")
        return emit(self, *sources)

    monkeypatch.setattr(Compiler, "emit", broken)
    x, w, b, r = (numbers(s, seed=n) for n, s in enumerate([(90, 80), (80, 70), (70,), (90, 70)]))
    program, reference = PROGRAMS["relu(x@w+b+r)"]
    region, arrays = region_of(program(*map(ys.asarray, (x, w, b, r))))
    trace.clear()
    kernel = compile_region(replace(region, repeats=True), Variants(natives, RESULTS))
    check(kernel(*arrays)[0], reference(*[a.astype(np.float64) for a in (x, w, b, r)]), 80)
    assert any("out of luck" in f.message for record in trace.records for f in record.failures)
    trace.clear()
