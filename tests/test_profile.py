"""`ys.profile`: the trace is well formed, holds every step, and costs nothing when it is off."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, installed
from yosegi._run.trace import trace

REQUIRED = {"X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "ph", "pid", "tid", "args"}}
"""The fields of complete events and of metadata in the Trace Event Format."""


@pytest.fixture(autouse=True)
def _on_the_host():
    with ys.options(device="cpu"):
        yield


def complete(document):
    return [e for e in document["traceEvents"] if e["ph"] == "X"]


def test_a_file_in_the_trace_event_format(tmp_path):
    x = ys.asarray(np.ones((50, 50)))
    path = tmp_path / "trace.json"
    start = perf_counter()
    with ys.profile(path) as profile:
        ys.eval(ys.sort(x @ x) + 1)
        ys.eval(ys.tanh(x))
    wall = (perf_counter() - start) * 1e6
    document = json.loads(path.read_text("utf-8"))
    assert document["displayTimeUnit"] == "ms"
    for event in document["traceEvents"]:
        assert set(event) == REQUIRED[event["ph"]]
        assert event["pid"] == os.getpid()
    rows = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    steps = complete(document)
    assert [s["name"] for s in steps] == ["matmul+sort+add", "tanh"]
    assert {rows[s["tid"]] for s in steps} == {"cpu (MainThread)"}
    assert all(s["dur"] > 0 and s["ts"] >= 0 and s["ts"] + s["dur"] <= wall for s in steps)
    assert steps[0]["ts"] + steps[0]["dur"] <= steps[1]["ts"]
    assert profile.seconds * 1e6 <= wall
    assert "2 steps in" in str(profile)
    assert "1 × on cpu: tanh" in str(profile)


def test_replays_of_jit_are_recorded_and_only_in_the_block():
    f = ys.jit(lambda x: ys.tanh(x) * 2)
    x = ys.asarray(np.ones(10))
    f(x)
    with ys.profile() as outer:
        f(x)
        with ys.profile() as inner:
            f(x)
            f(x)
    f(x)
    ys.eval(ys.exp(x))
    assert [r.ops for r in inner.records] == ["tanh+multiply"] * 2
    assert len(outer.records) == 3
    assert trace.profiles == ()


def test_an_error_ends_the_profile_and_the_file_is_written(tmp_path):
    def fails():
        with ys.profile(tmp_path / "trace.json"):
            ys.eval(ys.exp(ys.asarray([1.0])))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(complete(json.loads((tmp_path / "trace.json").read_text("utf-8")))) == 1
    assert trace.profiles == ()


def test_each_thread_has_a_row():
    def work(n):
        with ys.options(device="cpu"):
            ys.eval(ys.exp(ys.asarray(np.ones(n))))

    with ys.profile() as profile, ThreadPoolExecutor(1, "worker") as pool:
        pool.submit(work, 3).result()
        work(4)
    steps = complete(profile.to_json())
    assert len({s["tid"] for s in steps}) == 2


def test_a_step_waits_for_its_device():
    class Counting(FakeDevice):
        waits = 0

        def synchronize(self):
            self.waits += 1

    fake = Counting()
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(np.ones(10))
        ys.eval(ys.exp(x))
        before = fake.waits
        with ys.profile() as profile:
            ys.eval(ys.exp(x) + 1)
        assert fake.waits == before + 1
        assert [r.device for r in profile.records] == [fake.name]
