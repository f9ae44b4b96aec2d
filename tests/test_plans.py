"""Plans on disk: the same bits from another process, or a refusal that names what has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, installed
from native_code import needs_llvm
from yosegi.errors import ArgumentError, PlanRefused
from yosegi.planfile import digest_of_plan

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
    monkeypatch.setattr("yosegi.choice._fixed", {})
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
    monkeypatch.setattr("yosegi.choice._decided", {"this work": "another"})
    with pytest.raises(PlanRefused, match="the kernel 'generated', where this process has chosen 'another'"):
        ys.load_plan(path)


@needs_llvm
def test_kernels_that_cannot_be_had_are_a_reason(tmp_path: Path, monkeypatch: Any) -> None:
    path, decided, adopted = tmp_path / "plan.json", dict[str, str](), dict[str, Any]()
    f = ys.jit(program)
    with ys.options(device="cpu"):
        f(*map(ys.asarray, (X, W, B)))
        f.plans[0].save(path)
    monkeypatch.setattr("yosegi.choice._adopted", adopted)
    monkeypatch.setattr("yosegi.choice._decided", decided)
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
