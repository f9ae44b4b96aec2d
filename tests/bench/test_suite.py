"""The suite itself: every case is right on the yardstick, and what is wrong is not timed."""

import numpy as np
import pytest

from fakes import FakeDevice, installed
from yosegi._run.device import device_named, devices
from yosegi._tensor.op import OpKind
from yosegi.tools.bench.analysis import performance
from yosegi.tools.bench.cases import PATTERNS, cases
from yosegi.tools.bench.machine import bound
from yosegi.tools.bench.peers import PEERS
from yosegi.tools.bench.suite import Settings, matches, run
from yosegi.tools.cli import main

QUICK = {"sittings": 1, "rounds": 2, "seconds": 0.01, "budget": 0.0}


class WrongDevice(FakeDevice):
    """Adds a little to everything that it computes."""

    def allocated(self, array):
        return super().allocated(array + array.dtype.type(1e-3))


def test_a_kernel_that_returns_a_wrong_value_is_reported_wrong():
    wrong = WrongDevice()
    with installed(wrong):
        document = run(Settings((wrong, device_named("cpu")), pattern="gelu/float32/1000", **QUICK))
        assert main(["bench", "--filter", "gelu/float32/1000", "--device", wrong.name, "--sittings", "1"]) == 1
    by_device = {r.device: r for r in document.results}
    assert by_device[wrong.name].status == "wrong"
    assert by_device[wrong.name].sittings == ()
    assert "of the largest value" in by_device[wrong.name].reason
    assert by_device["cpu"].status == "ok"
    assert f"{wrong.name}, jit, wrong" in performance(document)


class SlowDevice(FakeDevice):
    """Has no products."""

    def supports(self, region):
        return "it cannot multiply" if any(c.op.name == "matmul" for c in region.calls) else super().supports(region)


def test_a_case_that_another_device_would_run_is_not_timed_as_this_ones():
    device = SlowDevice()
    with installed(device):
        document = run(Settings((device,), pattern="matmul/float32/64", **QUICK))
    (own,) = [r for r in document.results if r.device]
    assert (own.status, own.reason) == ("elsewhere", "matmul goes to cpu: it cannot multiply")


def test_a_device_that_fails_is_reported():
    class Lost(FakeDevice):
        def from_host(self, array):
            from yosegi.errors import DeviceLost

            raise DeviceLost("gone")

    device = Lost()
    with installed(device):
        document = run(Settings((device,), pattern="upload/float32/1000", **QUICK))
    assert {r.status for r in document.results if r.device} == {"failed"}


def test_the_suites_of_the_acceptance_table_are_all_there():
    ids = [c.id for c in cases(large=True)]
    assert len(ids) == len(set(ids))
    squares = [c.size for c in cases(large=True) if (c.suite, c.name) == ("matmul", "matmul")]
    assert squares == [64, 128, 256, 512, 1024, 2048, 4096]
    assert {c.name for c in cases() if c.suite == "matmul"} == {"matmul", "x@w.T", "stack of 16"}
    for name in ("add", "multiply", "relu", "gelu", "sum", "upload", "download"):
        sizes = [
            c.size for c in cases(large=True) if c.name == name and c.suite in ("elementwise", "reduction", "transfer")
        ]
        assert sizes == [10**n for n in range(3, 9)]
    assert len(PATTERNS) == 7
    for name in PATTERNS:
        assert [c.size for c in cases() if c.name == name] == [128, 256, 512, 1024]
    assert {c.suite for c in cases()} >= {"conversion", "precision", "overhead", "memory"}
    layers = [(c.name, c.size) for c in cases() if c.suite == "convolution"]
    assert layers == [
        ("conv2d 3x3", 64 * 56 * 56), ("conv2d 3x3", 8 * 64 * 56 * 56), ("conv2d 3x3 depthwise", 64 * 56 * 56),
        ("conv2d 7x7 stride 2", 3 * 224 * 224),
    ]  # fmt: skip


def test_every_small_case_is_right_on_the_host_and_the_yardstick():
    small = ",".join(c.id for c in cases() if c.size <= 256)
    document = run(Settings((device_named("cpu"),), pattern=small, **QUICK))
    assert {r.status for r in document.results} == {"ok"}
    assert all(r.of_limit is None or r.of_limit > 0 for r in document.results)


@pytest.mark.filterwarnings("default")  # the peers' own
def test_convolutions_are_right_on_every_device_and_every_peer():
    """Each computes the same thing, with the weights as a part of its program."""
    chosen = ",".join(c.id for c in cases() if c.suite == "convolution" and c.size < 300_000)
    able = tuple(d for d in devices() if OpKind.CONVOLUTION in d.limits.kinds)
    others = tuple(name for name in PEERS if name != "torch.compile")  # the same, by a compiler that may be missing
    document = run(Settings(able, against=others, pattern=chosen, **QUICK))
    assert [(r.contender, r.status, r.reason) for r in document.results if r.status != "ok"] == []
    assert len(document.results) == 3 * (1 + len(able) + len(others) - len(document.skipped))


def test_weights_are_the_same_in_every_call_and_not_inputs():
    for case in cases():
        if case.suite == "convolution":
            (w,), (again,) = case.weights(), case.weights()
            assert np.array_equal(w, again)
            assert len(case.inputs(np.random.default_rng(0))) == 1
        else:
            assert case.weights() == ()


def test_inputs_are_random_and_new_in_every_sitting():
    for case in cases():
        first, second = (case.inputs(np.random.default_rng(seed)) for seed in (1, 2))
        assert not any(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert all(a.std() > 0 for a in first)
        if case.size > 10_000:
            break


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("*", True), ("matmul", True), ("float32/64", True), ("matmul*64", True), ("sum", False), ("sum,matmul", True)],
)
def test_a_filter_is_a_part_of_a_name_or_a_pattern(pattern, expected):
    case = next(iter(cases()))
    assert case.id == "matmul/matmul/float32/64"
    assert matches(case, pattern) is expected


def test_a_case_is_held_by_whatever_takes_longer():
    limits = {
        "copy": {"one thread": {str(n): 10.0 for n in (4_000, 40_000, 400_000, 4_000_000, 40_000_000)}},
        "device_copy": {"far": {"400000": 100.0}},
        "products": {"float32": {"gflops": 100.0, "by": "numpy"}},
    }
    assert bound(limits, "near", "float32", 1e9, 1_000) == (0.01, "arithmetic")
    assert bound(limits, "near", "float32", 1e3, 10_000_000) == (1e-3, "memory")
    assert bound(limits, "far", "float32", 1e9, 1_000_000) == (1e-5, "memory")


def test_a_device_that_fails_after_a_while_is_out_of_the_race():
    class Tiring(FakeDevice):
        def before_run(self, region):
            from yosegi.errors import LaunchFailure

            if self.runs >= 5:
                raise LaunchFailure("tired")

    device = Tiring()
    with installed(device):
        document = run(Settings((device, device_named("cpu")), pattern="gelu/float32/1000", **{**QUICK, "sittings": 3}))
    by_device = {r.device: r for r in document.results}
    assert (by_device[device.name].status, by_device[device.name].sittings) == ("failed", ())
    assert "tired" in by_device[device.name].reason
    assert len(by_device["cpu"].sittings) >= 3
