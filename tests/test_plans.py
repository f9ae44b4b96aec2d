"""Plans on disk: the same bits from another process, or a refusal that names what has changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, installed
from native_code import needs_llvm
from yosegi._place.planfile import digest_of_plan
from yosegi._run.device import host_device
from yosegi.errors import ArgumentError, PlanRefused, TraceError

RNG = np.random.default_rng(3)
X, W, B = RNG.standard_normal((65, 127), np.float32), RNG.standard_normal((127, 33), np.float32), np.float32([0.5])
PICTURE, KERNEL = RNG.standard_normal((2, 8, 30, 30), np.float32), RNG.standard_normal((8, 8, 3, 3), np.float32)


def program(x: Any, w: Any, b: Any) -> Any:
    y = ys.nn.softmax(ys.nn.gelu(x @ w + b), axis=-1)
    return y, ys.sum(y * x[:, :33], axis=0)


AGAIN = """
import sys, numpy as np, yosegi as ys
given = np.load(sys.argv[1])
made = ys.load_plan(sys.argv[2])(*[given[n] for n in given.files])
np.savez(sys.argv[3], *[m.numpy() for m in made])
"""


def elsewhere(tmp_path: Path, arrays: list[Any], plan: Path) -> list[Any]:
    """What another process makes of a plan."""
    np.savez(tmp_path / "in.npz", *arrays)
    files = [str(tmp_path / "in.npz"), str(plan), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", AGAIN, *files], check=True, env=dict(os.environ), timeout=120)
    made = np.load(tmp_path / "out.npz")
    return [made[n] for n in made.files]


@pytest.mark.parametrize("case", ["program", "convolution"])
def test_another_process_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    function = program if case == "program" else lambda x, w: (ys.nn.conv2d(x, w),)
    arrays = [X, W, B] if case == "program" else [PICTURE, KERNEL]
    f = ys.jit(function)
    own = [y.numpy() for y in f(*map(ys.asarray, arrays))]
    f.plans[0].save(tmp_path / "plan.json")
    for mine, theirs in zip(own, elsewhere(tmp_path, arrays, tmp_path / "plan.json"), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@needs_llvm
def test_a_deterministic_plan_names_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yosegi._tune.records._fixed", {})
    f, arrays = ys.jit(program), list(map(ys.asarray, (X, W, B)))
    with ys.options(device="cpu"):
        [y.numpy() for y in f(*arrays)]  # what was measured for the same work is not the plan's
    with ys.options(device="cpu"), ys.deterministic():
        own = [y.numpy() for y in f(*arrays)]
        (plan,) = [p for p in f.plans if all(step.policy.is_fixed for step in p.steps)]
        plan.save(tmp_path / "plan.json")
    assert list(json.loads((tmp_path / "plan.json").read_text())["kernels"].values()) == ["generated"]
    for mine, theirs in zip(own, elsewhere(tmp_path, [X, W, B], tmp_path / "plan.json"), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_plan_that_was_not_jitted(tmp_path: Path) -> None:
    def made() -> Any:
        return ys.tanh(ys.asarray(X) @ ys.asarray(W) + ys.asarray(B))

    ys.plan(made()).save(tmp_path / "plan.json")
    loaded = ys.load_plan(tmp_path / "plan.json")
    assert [s.shape for s in loaded.inputs] == [B.shape, X.shape, W.shape]
    (again,) = loaded(B, X, W)
    np.testing.assert_array_equal(made().numpy(), again.numpy())


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    ys.plan(ys.asarray(X) @ ys.asarray(W)).save(path)
    return path


def edit(path: Path, change: Any) -> None:
    """Edit a plan's file, and its digest with it: what the digest finds is not what these tests are about."""
    data = change(json.loads(path.read_text()))
    if isinstance(data, dict):
        data["digest"] = digest_of_plan(data)
    path.write_text(json.dumps(data))


def test_a_device_that_has_changed_is_a_reason(tmp_path: Path) -> None:
    path = saved(tmp_path)
    edit(path, lambda d: d | {"devices": {"cpu": d["devices"]["cpu"].replace("NumPy ", "NumPy 0.")}})
    with pytest.raises(PlanRefused, match=r"cpu is not what the plan was made for: NumPy 0\.\S+ before, NumPy \S+ now"):
        ys.load_plan(path)


def test_a_device_that_is_gone_is_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with installed(FakeDevice()) as name, ys.options(device=name):
        ys.plan(ys.asarray(X) * 2).save(path)
    with pytest.raises(PlanRefused, match=rf"the plan needs {name}, which is not there"):
        ys.load_plan(path)


def test_another_version_is_a_reason(tmp_path: Path) -> None:
    path = saved(tmp_path)
    edit(path, lambda d: d | {"sources": "others"})
    with pytest.raises(PlanRefused, match="was written by another version"):
        ys.load_plan(path)


def test_other_kernels_are_a_reason(tmp_path: Path, monkeypatch: Any) -> None:
    path = saved(tmp_path)
    edit(path, lambda d: d | {"kernels": {"this work": "generated"}})
    monkeypatch.setattr("yosegi._tune.records._decided", {"this work": "another"})
    with pytest.raises(PlanRefused, match="the kernel 'generated', where this process has chosen 'another'"):
        ys.load_plan(path)


@needs_llvm
def test_kernels_that_cannot_be_had_are_a_reason(tmp_path: Path, monkeypatch: Any) -> None:
    path, decided, adopted = tmp_path / "plan.json", dict[str, str](), dict[str, Any]()
    f = ys.jit(program)
    with ys.options(device="cpu"):
        f(*map(ys.asarray, (X, W, B)))
        f.plans[0].save(path)
    monkeypatch.setattr("yosegi._tune.records._adopted", adopted)
    monkeypatch.setattr("yosegi._tune.records._decided", decided)
    ys.load_plan(path)(X, W, B)
    assert decided
    edit(path, lambda d: d | {"kernels": dict.fromkeys(decided, "one of another machine")})
    with pytest.raises(PlanRefused, match=r"'one of another machine', where .*; load it before"):
        ys.load_plan(path)
    decided.clear()
    with pytest.raises(PlanRefused, match=r"'one of another machine', where .*; load it before"):
        ys.load_plan(path)  # the plan before it wanted another
    adopted.clear()
    loaded = ys.load_plan(path)  # the kernel is made when it runs
    with pytest.raises(PlanRefused, match=r"'one of another machine', where .*; the plan's own cannot be had"):
        loaded(X, W, B)
    adopted.clear()
    decided.clear()
    with ys.deterministic(), pytest.raises(PlanRefused, match="the plan's own cannot be had"):
        ys.load_plan(path)(X, W, B)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: [], "the top"),
        (lambda d: {}, "format"),
        (lambda d: d | {"format": "other"}, "format"),
        (lambda d: d | {"more": 1}, "the top"),
        (lambda d: d | {"graph": {"calls": 3}}, "graph"),
        (lambda d: d | {"steps": [{**d["steps"][0], "nodes": [99]}]}, r"steps\[0\].nodes\[0\]"),
        (lambda d: d | {"steps": [{**d["steps"][0], "frees": [True]}]}, r"steps\[0\].frees\[0\]"),
        (lambda d: d | {"steps": [{**d["steps"][0], "frees": d["graph"]["outputs"]}]}, "graph.outputs"),
        (lambda d: d | {"steps": d["steps"] * 2}, r"steps\[1\].inputs"),
        (lambda d: d | {"steps": []}, "graph.outputs"),
        (lambda d: d | {"steps": [{**d["steps"][0], "kind": "loop"}]}, r"steps\[0\].kind"),
        (lambda d: d | {"steps": [{**d["steps"][0], "precision": "f8"}]}, r"steps\[0\].precision"),
        (lambda d: d | {"steps": [{**d["steps"][0], "device": "gpu"}]}, r"steps\[0\].device"),
        (lambda d: d | {"devices": {"cpu": 3}}, "devices.cpu"),
        (lambda d: d | {"kernels": ["generated"]}, "kernels"),
        (lambda d: d | {"version": [[[0]]]}, None),
    ],
)
def test_files_that_are_no_plans(change: Any, place: str | None, tmp_path: Path) -> None:
    path = saved(tmp_path)
    edit(path, change)
    expected = "another version" if place is None else rf"\[load_plan\] expected .*, got .* at {place} of .*; save"
    with pytest.raises(PlanRefused, match=expected):
        ys.load_plan(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"format": 1, "format": 1}', "NaN", "9" * 5000, "\ud800", '{"format": "\0"}']
)
def test_texts_that_are_no_plans(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(PlanRefused, match=r"\[load_plan\] expected "):
        ys.load_plan(tmp_path / "plan.json")


SQUARE = RNG.standard_normal((64, 64), np.float32)


def varied(x: Any) -> Any:
    return ys.tanh(x[1:33:2, ::-1] * 2 + 1), ys.sum(x, axis=0), ys.linalg.svd(x[:4, :4])[1], ys.fft.fft(x[0])


def call(data: Any, op: str) -> Any:
    """The last call of an op in a file."""
    return [c for c in data["graph"]["calls"] if c["op"] == op][-1]


def window(data: Any) -> Any:
    return call(data, "slice_view")["attrs"]["key"]


DEFECTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a window behind the end": (lambda d: window(d)[0].__setitem__(0, 50), r"graph.calls\[\d+\]"),
    "a window before the start": (lambda d: window(d)[1].__setitem__(0, 3), r"graph.calls\[\d+\]"),
    "a window with a long step": (lambda d: window(d)[0].__setitem__(2, 2000), r"graph.calls\[\d+\]"),
    "a window that is a text": (lambda d: window(d).__setitem__(0, "x"), r"attrs.key\[0\]"),
    "a window of bools": (lambda d: window(d)[0].__setitem__(2, True), r"attrs.key\[0\]\[2\]"),
    "no window": (lambda d: call(d, "slice_view")["attrs"].pop("key"), r"graph.calls\[\d+\]"),
    "a value freed twice": (lambda d: d["steps"][0].update(frees=[0, 0]), r"steps\[0\].frees"),
    "a constant freed": (lambda d: d["steps"][0].update(frees=[8]), r"steps\[0\].frees"),
    "a step without inputs": (lambda d: d["steps"][0].update(inputs=[]), r"steps\[0\].nodes\[\d+\]"),
    "a step without outputs": (lambda d: d["steps"][0].update(outputs=[]), r"graph.outputs"),
    "a step of another kind": (lambda d: d["steps"][0].update(kind="loop"), r"steps\[0\].kind"),
    "an output that is an input's index": (lambda d: d["graph"]["outputs"].__setitem__(0, 0), r"graph.outputs"),
    "an output that is a float": (lambda d: d["graph"]["outputs"].__setitem__(0, 1.0), r"graph.outputs\[0\]"),
    "an output of a decomposition too many": (lambda d: call(d, "pick")["attrs"].update(index=7), r"calls\[6\]"),
    "a negative index of an output": (lambda d: call(d, "pick")["attrs"].update(index=-1), r"graph.calls\[\d+\]"),
    "an index that is a text": (lambda d: call(d, "pick")["attrs"].update(index="x"), r"attrs.index"),
    "a number that fits no dtype": (lambda d: call(d, "constant")["attrs"].update(value=2**70), r"attrs.value"),
    "no number": (lambda d: call(d, "constant")["attrs"].update(value=None), r"attrs.value"),
    "a float that overflows": (lambda d: call(d, "constant")["attrs"].update(value={"float": "0x1p99999"}), "value"),
    "an unknown norm": (lambda d: call(d, "complex_transform")["attrs"].update(norm="x"), r"graph.calls\[\d+\]"),
    "an axis that is not there": (lambda d: call(d, "complex_transform")["attrs"].update(axes=[9]), r"calls\[3\]"),
    "a dtype of NumPy's": (lambda d: call(d, "convert")["attrs"].update(dtype={"dtype": "<c8"}), "attrs.dtype.dtype"),
    "a dtype NumPy evaluates": (lambda d: call(d, "convert")["attrs"].update(dtype={"dtype": "(1,f4"}), "attrs.dtype"),
    "too many arguments": (lambda d: call(d, "add").update(args=[11, 8, 8]), r"graph.calls\[\d+\].args"),
    "arguments that are bools": (lambda d: call(d, "tanh").update(args=[True]), r"args\[0\]"),
    "a shape no memory holds": (lambda d: call(d, "leaf")["outputs"][0].__setitem__(0, [2**40, 2**40]), "outputs"),
    "a device without an identity": (lambda d: d.update(devices={}), r"steps\[0\].device"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_edits_that_ran_or_raised_something_else(name: str, tmp_path: Path) -> None:
    """These gave numbers from outside the arrays, other results, or a KeyError, TypeError, IndexError, ValueError or
    OverflowError when the plan was loaded or run; a few were refused without their place in the file."""
    path = tmp_path / "plan.json"
    with ys.options(device="cpu"):
        function = ys.jit(varied)
        function(ys.asarray(SQUARE))
        function.plans[0].save(path)
        change, place = DEFECTS[name]

        def changed(data: Any) -> Any:
            change(data)
            return data

        edit(path, changed)
        with pytest.raises(PlanRefused, match=rf"\[load_plan\] expected .*, got .* at .*{place}.* of .*; save"):
            ys.load_plan(path)


def test_an_edit_that_leaves_a_program_is_refused_by_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ys.plan(ys.asarray(X) + ys.asarray(X)).save(path)
    path.write_text(path.read_text().replace('"add"', '"multiply"'))
    with pytest.raises(PlanRefused, match="expected the digest of an unchanged file"):
        ys.load_plan(path)


def test_a_plan_of_other_text_with_the_same_content_runs(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True, indent=4))
    ys.load_plan(path)(X, W)


def test_values_that_no_memory_here_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    monkeypatch.setattr(type(host_device()), "memory", lambda self: (0, 4 * X.size - 1))
    with pytest.raises(PlanRefused, match=r"expected values of at most .* bytes.* at graph.calls\[0\].outputs"):
        ys.load_plan(path)


@pytest.mark.parametrize("dilation", [1 << 33, 1 << 39])
def test_windows_over_padding_that_no_memory_holds_are_refused(dilation: int, tmp_path: Path) -> None:
    """The values of such a graph are small: it is the padded input that is not."""
    path = tmp_path / "plan.json"
    with ys.options(device="cpu"):
        ys.plan(ys.nn.max_pool1d(ys.asarray(PICTURE[0, :, :2]), 2, stride=1)).save(path)

    def change(data: Any) -> Any:
        sides = [[dilation // 2, dilation // 2 - 1]]
        call(data, "max_pool")["attrs"].update(dilation=[dilation], padding=sides)
        return data

    edit(path, change)
    with pytest.raises(PlanRefused, match=r"expected values of at most .* bytes"):
        ys.load_plan(path)


def test_a_refused_plan_leaves_no_kernels_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, adopted = saved(tmp_path), dict[str, Any]()
    monkeypatch.setattr("yosegi._tune.records._adopted", adopted)
    monkeypatch.setattr("yosegi._tune.records._decided", {})
    edit(path, lambda d: d | {"kernels": {"this work": "generated"}})
    with monkeypatch.context() as broken:
        broken.setattr(sys.modules["yosegi._place.plan"], "confirm", raises(PlanRefused("no such kernel")))
        with pytest.raises(PlanRefused, match="no such kernel"):
            ys.load_plan(path)
    assert not adopted
    ys.load_plan(path)
    assert list(adopted) == ["this work"]


def raises(error: Exception) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        raise error

    return call


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs pages that can be protected")
def test_random_edits_are_refused_or_right() -> None:
    command = [sys.executable, str(Path(__file__).with_name("plan_edits.py")), "--edits", "300", "--seed", "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "300 edits of 19 plans" in run.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs pages that can be protected")
@pytest.mark.parametrize("at", [-1, 12])
def test_the_guards_of_the_edits_hold(at: int) -> None:
    """A byte beside an array is out of reach, or not a number that could go unnoticed."""
    code = (
        "import ctypes, plan_edits, numpy as np\n"
        "for _ in range(2):\n"
        f"    print(ctypes.string_at(plan_edits.guarded(3, np.float32).ctypes.data + {at}, 1), flush=True)"
    )
    found = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=found, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == -signal.SIGSEGV
    assert run.stdout in ("", r"b'\xff'" + "\n")


def test_files_that_are_not_there_or_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\[load_plan\] expected a plan, got"):
        ys.load_plan(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"\[save\] expected a file that can be written"):
        ys.plan(ys.asarray(X) + 1).save(tmp_path / "file" / "plan.json")


def test_other_inputs_are_a_mistake(tmp_path: Path) -> None:
    loaded = ys.load_plan(saved(tmp_path))
    for wrong in [(X,), (X, W.T), (X.astype(float), W)]:
        with pytest.raises(ArgumentError, match=r"\[plan\] expected inputs"):
            loaded(*wrong)


def test_a_plan_has_no_gradient(tmp_path: Path) -> None:
    """The gradient through it was silently zero."""
    double = ys.jit(lambda x: x * 2)
    double(ys.asarray(X))
    double.plans[0].save(tmp_path / "plan.json")
    again, x = ys.load_plan(tmp_path / "plan.json"), ys.asarray(X)
    for take in (
        lambda: ys.grad(lambda x: ys.sum(again(x + 1)[0] * x))(x),
        lambda: ys.grad(lambda x: ys.sum(ys.grad(lambda y: ys.sum(again(x)[0] * y))(x)))(x),
        lambda: ys.jvp(lambda x: again(x)[0], (x,), (x,)),
    ):
        with pytest.raises(TraceError, match=r"^\[plan\] expected inputs that no gradient is taken by"):
            take()
    slope = ys.grad(lambda y: ys.sum(again(x)[0] * y))(x)
    np.testing.assert_array_equal(slope.numpy(), 2 * X)
