"""Half precision on the CPU: how its units are found, and how products get to them. The units are emulated here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import yosegi as ys
from half_code import emulating, halved, host_with
from matrix_emulation import EmulatingCompiler
from native_code import needs_llvm, region_of
from values import Array
from yosegi._run.device import host_device
from yosegi._run.trace import trace
from yosegi._schedule.fuse import Region
from yosegi._tensor.precision import Precision
from yosegi.codegen.llvm.bfloat16_units import BFloat16Unit
from yosegi.devices.cpu import bfloat16_support
from yosegi.devices.cpu.bfloat16_support import Found, find
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine, Part
from yosegi.devices.cpu.device import Cpu
from yosegi.devices.cpu.half_calls import HalfProducts, is_worth
from yosegi.devices.cpu.product_calls import GeneratedProducts
from yosegi.devices.cpu.results import Results
from yosegi.errors import ArgumentError, CompileFailure

HOST = HostMachine.host()
pytestmark = [
    needs_llvm,
    pytest.mark.skipif(HOST.vector_bytes < 64, reason="the emulation is written in 512-bit vectors"),
]


@pytest.fixture
def halves() -> Iterator[HalfProducts]:
    """The host's device, with a unit."""
    products = emulating()
    with host_with(products):
        yield products


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def is_reduced(got: Array, a: Array, b: Array) -> bool:
    """Whether a product has bfloat16's precision, and no less."""
    np.testing.assert_allclose(got, halved(a) @ halved(b), rtol=1e-5, atol=1e-5)
    return float(np.abs(got - a.astype(np.float64) @ b).max()) > 1e-4


# The switch


def test_products_are_reduced_for_those_who_ask(halves: HalfProducts) -> None:
    a, b = numbers(64, 96), numbers(96, 80, seed=1)
    x, y = ys.asarray(a), ys.asarray(b)
    full = ys.matmul(x, y).numpy()
    np.testing.assert_allclose(full, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    with ys.options(precision="f16", device="cpu"):
        shown = ys.explain(x @ y)
        assert shown.to_json()["steps"][0]["precision"] == "bf16"
        assert "step 0 on cpu in bf16: matmul" in str(shown)
        assert "bf16" in shown._repr_html_()
        assert is_reduced((x @ y).numpy(), a, b)
    np.testing.assert_allclose((x @ y).numpy(), full, rtol=1e-6)
    assert "bf16" not in str(ys.explain(x @ y + 1))


def test_the_rest_of_a_program_is_as_ever(halves: HalfProducts) -> None:
    a, b = numbers(64, 96), numbers(96, 80, seed=1)

    def program(x: ys.Tensor, y: ys.Tensor) -> ys.Tensor:
        return ys.nn.relu(x @ y + 1.0) * 2.0

    with ys.options(precision="f16", device="cpu"):
        lazy = program(ys.asarray(a), ys.asarray(b)).numpy()
        jitted = ys.jit(program)(ys.asarray(a), ys.asarray(b)).numpy()
    wanted = np.maximum(halved(a) @ halved(b) + 1, 0) * 2
    np.testing.assert_allclose(lazy, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jitted, wanted, rtol=1e-5, atol=1e-5)


def test_tensordot_comes_down_to_a_product(halves: HalfProducts) -> None:
    a, b = numbers(4, 16, 96), numbers(96, 80, seed=1)
    with ys.options(precision="f16", device="cpu"):
        got = ys.tensordot(ys.asarray(a), ys.asarray(b), axes=1).numpy()
    assert is_reduced(got, a, b)


def test_other_dtypes_and_little_work_keep_all_bits(halves: HalfProducts) -> None:
    with ys.options(precision="f16", device="cpu"):
        for a, b in (
            (numbers(64, 96).astype(np.float64), numbers(96, 80).astype(np.float64)),
            (numbers(4, 4), numbers(4, 4, seed=1)),
            (numbers(300, 300), numbers(300, seed=1)),
            (numbers(2, 300), numbers(300, 300, seed=1)),
        ):
            product = ys.asarray(a) @ ys.asarray(b)
            assert ys.explain(product).to_json()["steps"][0]["precision"] == "full"
            np.testing.assert_allclose(product.numpy(), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_stacks_and_vectors(halves: HalfProducts) -> None:
    with ys.options(precision="f16", device="cpu"):
        for left, right in (((3, 40, 50), (3, 50, 60)), ((3, 40, 50), (50, 60)), ((2, 1, 40, 50), (3, 50, 60))):
            a, b = numbers(*left), numbers(*right, seed=1)
            got = (ys.asarray(a) @ ys.asarray(b)).numpy()
            assert got.shape == (a @ b).shape
            assert is_reduced(got, a, b)
    a, b = numbers(3, 80, 50)[:, ::2], numbers(50, 60, seed=1)  # rows that are not evenly apart
    assert is_reduced(halves.product(Precision.BF16, np.matmul)(a, b), a, b)


def test_worth() -> None:
    assert is_worth((64, 64), (64, 64), kept=False)
    assert not is_worth((1, 1024), (1024, 1024), kept=False)
    assert is_worth((1, 1024), (1024, 1024), kept=True)
    assert is_worth((128, 1, 1024), (1024, 1024), kept=False)
    assert not is_worth((1024,), (1024, 1024), kept=False)
    assert not is_worth((1024, 1024), (1024,), kept=True)
    assert not is_worth((8, 8), (8, 8), kept=False)
    assert is_worth((100, 8, 8), (100, 8, 8), kept=False)
    assert not is_worth((64, 0), (0, 64), kept=False)


def test_arrays_in_any_order(halves: HalfProducts) -> None:
    a, b = numbers(96, 64).T, numbers(160, 192, seed=1)[::-2, 10:106:1].T
    multiply = halves.product(Precision.BF16, np.matmul)
    assert is_reduced(multiply(a, b), a, b)
    record = np.zeros(64 * 64, np.dtype([("tag", "u1"), ("x", "f4")]))
    record["x"] = numbers(64 * 64)
    odd = record["x"].reshape(64, 64)
    assert not odd.flags.aligned
    np.testing.assert_array_equal(multiply(odd, odd), np.matmul(odd, odd))


def test_a_constant_is_packed_once(halves: HalfProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    plain = GeneratedProducts.packed
    monkeypatch.setattr(GeneratedProducts, "packed", lambda self, *what: packed.append(what) or plain(self, *what))
    a, b = numbers(40, 96), numbers(96, 80, seed=1)
    w = ys.asarray(b)
    with ys.options(precision="f16", device="cpu"):
        layer = ys.jit(lambda x: x @ w)
        for seed in range(3):
            a = numbers(40, 96, seed=seed)
            assert is_reduced(layer(ys.asarray(a)).numpy(), a, b)
        a = numbers(5, 96)
        assert is_reduced(layer(ys.asarray(a)).numpy(), a, b)
    assert len(packed) == 2  # for each trace


def test_all_precisions_of_a_region(halves: HalfProducts) -> None:
    a, b = numbers(64, 300), numbers(300, 80, seed=1)
    region, arrays = region_of(ys.asarray(a) @ ys.asarray(b))
    device = host_device()
    wanted = a.astype(np.float64) @ b
    errors = {}
    for precision in (Precision.FULL, Precision.BF16, Precision.BF16X2, Precision.BF16X3, Precision.F16):
        own: Region = replace(region, precision=precision)
        assert (device.supports(own) is None) == (precision is not Precision.F16)
        (got,) = device.compile(own)(*arrays)
        errors[precision] = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert 1e-3 < errors[Precision.BF16] < 4e-3
    assert 1e-6 < errors[Precision.BF16X2] < 1e-5
    assert errors[Precision.BF16X3] < 1e-6
    assert errors[Precision.F16] == errors[Precision.FULL] < 1e-6  # what it does not have it computes in full
    assert replace(region, precision=Precision.BF16).key() != region.key()


def test_if_llvm_fails_the_reference_serves(halves: HalfProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*what: Any) -> Any:
        raise CompileFailure("LLVM: no")

    monkeypatch.setattr(EmulatingCompiler, "load_all", fail)
    a = numbers(64, 64)
    got = emulating().product(Precision.BF16, np.matmul)(a, a)
    np.testing.assert_array_equal(got, a @ a)
    assert "LLVM: no" in str(trace.records[-1])


def test_what_can_be_asked_for() -> None:
    expected = "expected precision among f32, f16, adaptive, got 'f8'"
    with pytest.raises(ArgumentError, match=expected), ys.options(precision="f8"):
        pass
    with ys.options(precision="f16"), ys.options(device="cpu") as inner:
        assert inner.precision == "f16"


@pytest.mark.parametrize(("said", "answer"), [("f16", "f16"), ("", "f32"), ("f8", "ArgumentError")])
def test_the_environment(said: str, answer: str) -> None:
    code = "from yosegi._tensor.options import current; print(current().precision)"
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    settings.pop("YOSEGI_PRECISION", None)
    if said:
        settings["YOSEGI_PRECISION"] = said
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)
    assert answer in done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="it is for Linux")
def test_the_script_for_other_machines(tmp_path: Path) -> None:
    target = tmp_path / "matrix.json"
    script = Path(__file__).parents[1] / "matrix_units.py"
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(target), "--emulated", "--sizes", "48"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "AMX: 77 of 77 checks are right" in done.stdout
    results = json.loads(target.read_text())["results"]
    assert {"numpy f32", "bf16", "bf16, w kept", "bf16x2", "bf16x3"} <= {r["contender"] for r in results}
    assert all(r["gflops"] > 0 for r in results)


# Which units there are


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The trials that would be made, on a processor of which the system says nothing."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    made: list[Any] = []
    monkeypatch.setattr(bfloat16_support, "probe", lambda machine, unit: made.append(unit.name))
    monkeypatch.setattr(bfloat16_support, "permission", lambda: None)
    monkeypatch.setattr(bfloat16_support, "flags", lambda: frozenset())
    return made


BARE = HostMachine("x86_64-unknown-linux-gnu", "some-model", "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2", "22.1.0")
WITH_ALL = BARE.having(("amx-tile", "amx-bf16", "avx512bf16"))


def test_a_unit_that_is_hidden_is_found(trials: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(machine: HostMachine, unit: BFloat16Unit) -> str | None:
        trials.append(unit.name)
        return None if unit is BFloat16Unit.DOTS else "SIGILL"

    monkeypatch.setattr(bfloat16_support, "probe", probe)
    for _ in range(2):
        assert str(find(BARE)) == (
            "bf16 products on AVX512-BF16 (AMX: not reported, and SIGILL; "
            "the processor does not report it, but it works)"
        )
    assert trials == ["TILES", "DOTS"]  # the verdicts are kept


def test_a_unit_that_is_hidden_and_not_there(trials: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16_support, "probe", lambda *what: "SIGILL")
    failed = "not reported, and SIGILL"
    assert str(find(BARE)) == f"no bf16 products (AMX: {failed}; AVX512-BF16: {failed})"


def test_a_unit_that_survives_its_trial_is_used(trials: list[Any]) -> None:
    for _ in range(2):
        assert str(find(WITH_ALL)) == "bf16 products on AMX"
    assert trials == ["TILES"]  # the verdict is kept


def test_a_unit_that_only_the_system_reports_is_tried(trials: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16_support, "flags", lambda: frozenset({"amx_tile", "amx_bf16", "avx512_bf16"}))
    assert str(find(BARE)) == "bf16 products on AMX"


def test_a_unit_that_dies_in_its_trial_is_not_used(trials: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(machine: HostMachine, unit: BFloat16Unit) -> str | None:
        trials.append(unit.name)
        return "its instructions are missing" if unit is BFloat16Unit.TILES else None

    monkeypatch.setattr(bfloat16_support, "probe", probe)
    for _ in range(2):
        found = find(WITH_ALL)
        assert found.unit is BFloat16Unit.DOTS
        assert str(found) == "bf16 products on AVX512-BF16 (AMX: its instructions are missing)"
    assert trials == ["TILES", "DOTS"]


def test_a_system_that_refuses_is_heard(trials: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16_support, "permission", lambda: "the system does not give out its registers: no")
    found = find(WITH_ALL)
    assert found.unit is BFloat16Unit.DOTS
    assert "AMX: the system does not give out its registers: no" in str(found)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (
            HostMachine("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon", "22.1.0"),
            "no kernels for this architecture",
        ),
        (HostMachine(BARE.triple, "x86-64-v3", "", "22.1.0"), "not with x86-64-v3's vectors"),
        (HostMachine(BARE.triple, "x86-64-v4", "", "22.1.0"), "not with x86-64-v4's vectors"),
    ],
)
def test_processors_without_one(trials: list[Any], machine: HostMachine, reason: str) -> None:
    assert reason in str(find(machine))
    assert trials == []


def test_wrong_results_fail_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    bfloat16_support.check(emulating(BFloat16Unit.TILES))
    bfloat16_support.check(emulating(BFloat16Unit.DOTS))
    plain = EmulatingCompiler.load_all

    def wrongly(part: Part) -> str:
        return part.write().replace("tdpbf16ps(i8 3, i8 5, i8 7)", "tdpbf16ps(i8 3, i8 5, i8 6)")

    def wrong(self: Any, parts: Any) -> Any:
        return plain(self, [replace(p, words=f"wrong\n{p.words}", write=partial(wrongly, p)) for p in parts])

    monkeypatch.setattr(EmulatingCompiler, "load_all", wrong)
    with pytest.raises(AssertionError, match="the results are wrong"):
        bfloat16_support.check(emulating())


@pytest.mark.skipif(find(HOST).unit is not None, reason="here they work")
def test_the_trial_of_this_machine_without_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for a unit that is not there does not end the process."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    assert bfloat16_support.verdict(HOST, BFloat16Unit.DOTS) == "this processor does not have its instructions (SIGILL)"


@pytest.mark.skipif(find(HOST).unit is None, reason=str(find(HOST)))
def test_the_units_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = find(HOST).unit
    assert unit is not None
    bfloat16_support.check(HalfProducts(Runtime(Compiler(HOST), 2), unit, Results()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux wants to be asked")
def test_asking_for_registers() -> None:
    """In a process of its own: what is given is never taken back."""
    code = "from yosegi.devices.cpu.bfloat16_support import permission; print(permission())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith(("None", "the system does not give out its registers: "))


def test_flags_of_the_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\nflags\t\t: other\n")
    assert bfloat16_support.flags(str(path)) == {"fpu", "amx_bf16", "amx_tile"}
    assert bfloat16_support.flags(str(tmp_path / "nowhere")) == frozenset()


def test_the_device_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Cpu()
    assert "bf16 products" in device.description
    reduced = device.reduced
    assert reduced.precisions == set(device.limits.precisions & set(Precision))
    monkeypatch.setattr(reduced, "_found", Found(BFloat16Unit.TILES, ""))
    monkeypatch.setattr(reduced, "_products", emulating())
    assert "bf16 products on AMX" in device.description
    assert reduced.precisions == {Precision.BF16, Precision.BF16X2, Precision.BF16X3}
    assert len(device.limits.precisions) == 3


def test_looking_for_units_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("yosegi.devices.cpu.reduced"), "find", lambda machine: 1 / 0)
    device = Cpu()
    assert "no bf16 products (looking for a unit failed: ZeroDivisionError" in device.description
    assert not device.limits.precisions


def test_nobody_looks_for_units_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(machine: HostMachine) -> Found:
        raise AssertionError("somebody looked")

    monkeypatch.setattr(import_module("yosegi.devices.cpu.reduced"), "find", fail)
    device = Cpu()
    region, arrays = region_of(ys.asarray(numbers(64, 64)) @ ys.asarray(numbers(64, 64)))
    device.compile(region)(*arrays)
    assert device.supports(region) is None
    assert device.limits.natives == frozenset()
