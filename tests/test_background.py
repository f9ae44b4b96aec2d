"""Slow compilers work in the background while another device serves."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, SlowCompiler, installed
from forks import holds_in_a_fork
from yosegi._graph.graph import capture, graph_of
from yosegi._place.plan import _run_once
from yosegi._run.background import Background, Job, background
from yosegi._run.trace import trace
from yosegi._schedule.fuse import fuse
from yosegi._tensor.op import pick
from yosegi._tensor.options import current
from yosegi.errors import CompileFailure, FallbackWarning, NotReady

SLACK = 2.5  # seconds, for a machine that is busy
X = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)


@pytest.fixture(autouse=True)
def _in_the_background():
    with ys.options(background=True):
        yield
    background.wait()


def served():
    """The device that ran the last step, and what the trace says about the first candidate."""
    record = trace.records[-1]
    return record.device, [f.message for f in record.failures]


def test_another_device_serves_until_it_is_compiled():
    fake = SlowCompiler()
    with installed(fake) as name, ys.options(device=name):
        f = ys.jit(lambda x: ys.exp(x) * 2)
        x = ys.asarray(X)
        f(x)
        assert served() == ("cpu", ["compiled in the background once it runs again"])
        assert not fake.begun.is_set()
        for _ in range(3):
            np.testing.assert_allclose(f(x).numpy(), np.exp(X) * 2, rtol=1e-6)
            assert served() == ("cpu", ["compiling in the background"])
        assert fake.begun.wait(30)
        fake.go_on.set()
        background.wait()
        np.testing.assert_allclose(f(x).numpy(), np.exp(X) * 2, rtol=1e-6)
        assert served() == (fake.name, [])
    assert len(fake.compiled) == 1


def test_explain_says_that_it_is_under_way():
    fake = SlowCompiler()
    with installed(fake) as name, ys.options(device=name):
        y = ys.exp(ys.asarray(X))
        plan = ys.plan(y)
        ys.eval(y)
        text = str(plan.explain())
        assert f"not yet on {fake.name}: compiled in the background once it runs again" in text
        assert "ran on cpu" in text
        fake.go_on.set()


def test_waiting_is_no_failure():
    fake = SlowCompiler()
    with installed(fake) as name, ys.options(device=name):
        for _ in range(3):
            ys.eval(ys.exp(ys.asarray(X)))
        fake.go_on.set()
        background.wait()
        ys.eval(ys.exp(ys.asarray(X)))  # nothing is quarantined
        assert served() == (fake.name, [])


def test_what_fails_in_the_background_is_quarantined():
    fake = SlowCompiler(fails=True)
    fake.go_on.set()
    with installed(fake) as name, ys.options(device=name):
        f = ys.jit(lambda x: ys.exp(x) + 1)
        x = ys.asarray(X)
        f(x)
        f(x)
        background.wait()
        np.testing.assert_allclose(f(x).numpy(), np.exp(X) + 1, rtol=1e-6)
        assert served() == ("cpu", ["it took long, and came to nothing"])
        f(x)
        assert trace.records[-1].failures[0].kind == "quarantined"


@pytest.mark.parametrize("how", [{"background": False}, {"on_fallback": "error"}])
def test_who_insists_waits(how):
    fake = SlowCompiler()
    fake.go_on.set()
    with installed(fake) as name, ys.options(device=name, **how):
        ys.eval(ys.exp(ys.asarray(X)))
        assert served() == (fake.name, [])


def test_who_insists_does_not_wait_in_line():
    busy, fake = SlowCompiler(), SlowCompiler()
    fake.go_on.set()
    with installed(busy, fake):
        with ys.options(device=busy.name):
            for _ in range(2):
                ys.eval(ys.sin(ys.asarray(X)))  # holds the thread
        with ys.options(device=fake.name):
            f = ys.jit(lambda x: ys.cos(x))
            f(ys.asarray(X))
        with ys.options(device=fake.name, background=False):
            f(ys.asarray(X))
            assert served() == (fake.name, [])
        busy.go_on.set()


def test_a_failure_is_the_users_only_when_asked_for():
    fake = SlowCompiler(fails=True)
    fake.go_on.set()
    with installed(fake) as name, ys.options(device=name, on_fallback="error"), pytest.raises(CompileFailure):
        ys.eval(ys.exp(ys.asarray(X)))


def test_who_wants_to_know_is_told():
    fake = SlowCompiler()
    with installed(fake) as name, ys.options(device=name, on_fallback="warn"):
        with pytest.warns(FallbackWarning, match="NotReady: compiled in the background"):
            ys.eval(ys.exp(ys.asarray(X)))
        fake.go_on.set()


def test_many_threads_compile_once():
    fake = SlowCompiler()
    with installed(fake) as name:
        f = ys.jit(lambda x: ys.tanh(x) * 3)

        def work(_):
            with ys.options(device=name, background=True):
                return f(ys.asarray(X)).numpy()

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(40)))
            fake.go_on.set()
            background.wait()
            results += pool.map(work, range(40))
    for result in results:
        np.testing.assert_allclose(result, np.tanh(X) * 3, rtol=1e-6)
    assert len(fake.compiled) == 1
    assert fake.runs > 0


# The line of jobs ---------------------------------------------------------------------------------------------------


def asked_for(job):
    with pytest.raises(NotReady) as told:
        job.result_if_ready()
    return str(told.value)


def test_a_job_is_begun_the_second_time_it_is_asked_for():
    job = Job(lambda: 7)
    assert asked_for(job) == "compiled in the background once it runs again"
    assert not job.is_done
    assert asked_for(job) == "compiling in the background"
    background.wait()
    assert job.result_if_ready() == 7


def test_the_line_has_an_end():
    go_on = Event()
    jobs = [Job(lambda: go_on.wait(30)) for _ in range(40)]
    for job in jobs:
        asked_for(job)
    told = [asked_for(job) for job in jobs]
    assert told.count("many wait to be compiled before it") >= 40 - 17
    go_on.set()
    background.wait()
    assert [job.is_done for job in jobs].count(True) == told.count("compiling in the background")


def test_close_finishes_the_job_at_hand_and_drops_the_rest():
    own = Background()
    begun, go_on = Event(), Event()
    first, second = Job(lambda: (begun.set(), go_on.wait(30))), Job(lambda: 1)
    own.add(first)
    assert begun.wait(30)
    own.add(second)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(own.close)
        time.sleep(0.05)
        assert not closing.done()
        go_on.set()
        closing.result(30)
    assert (first.is_done, second.is_done) == (True, False)
    assert own.add(Job(lambda: 2)) is False


ENDING = """
import sys, time
import numpy as np, yosegi as ys
from yosegi._run.background import Job
def slow():
    time.sleep(0.5); print("finished", flush=True)
for job in [Job(slow), Job(lambda: print("never"))]:
    for _ in range(2):
        try: job.result_if_ready()
        except ys.errors.NotReady: pass
time.sleep(0.2)
print("ending", flush=True)
"""


def test_a_process_ends_when_its_job_is_done():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.stdout.split() == ["ending", "finished"]
    assert done.stderr == ""


HANGING = """
import sys, time
import numpy as np, yosegi as ys
from fakes import FakeDevice, SlowCompiler, installed
class Hangs(SlowCompiler):
    def compile(self, region):
        self.begun.set()
        time.sleep(60)
fake = Hangs()
with installed(fake) as name, ys.options(device=name, background=True):
    f, x = ys.jit(lambda x: ys.exp(x) * 2), ys.asarray(np.ones((40, 30), np.float32))
    for _ in range(2):
        f(x)
    assert fake.begun.wait(30)
{more}
print("ending", flush=True)
sys.exit({status})
"""
SEARCHING = """
from yosegi._run import device
from yosegi._run.background import Job
from yosegi._run.drivers import Driver
folder = device._Folder("slow")
found = lambda: Driver("slow:0", "one that hangs").tried("time:sleep", [], [60, 60])
folder.found = (device.Pending("slow:0", "a driver", False, Job(found, float("inf"))),)
device._registry.folders = {"slow": folder, "cpu": device._registry.folders["cpu"]}
device._registry.settle(folder.found[0])
time.sleep(1)
"""


@pytest.mark.parametrize("more", ["", SEARCHING], ids=["compiler", "compiler and driver"])
@pytest.mark.parametrize("status", [0, 3])
def test_a_process_ends_though_a_compiler_hangs(status, more):
    code = HANGING.replace("{more}", more).replace("{status}", str(status))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "YOSEGI_CHECK": "0"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment)  # fmt: skip
    assert process.stdout.readline() == "ending\n"
    start = time.monotonic()
    _, told = process.communicate(timeout=60)
    assert process.returncode == status
    assert [line for line in told.splitlines() if not line.startswith("yosegi: qualifying")] == []
    assert time.monotonic() - start < 1.5 + SLACK


# Deadlines ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _in_a_hurry(monkeypatch):
    monkeypatch.setattr("yosegi._run.background.LIMIT", 0.2)


@pytest.mark.usefixtures("_in_a_hurry")
def test_a_compiler_that_hangs_in_the_background_is_quarantined():
    fake = SlowCompiler()
    with installed(fake) as name, ys.options(device=name):
        f, x = ys.jit(lambda x: ys.exp(x) + 4), ys.asarray(X)
        f(x)
        f(x)
        assert fake.begun.wait(30)
        time.sleep(0.3)
        np.testing.assert_allclose(f(x).numpy(), np.exp(X) + 4, rtol=1e-6)
        record = trace.records[-1]
        assert served() == ("cpu", ["it did not return within 0.2 s"])
        assert record.failures[0].kind == "CompileFailure"
        f(x)
        assert trace.records[-1].failures[0].kind == "quarantined"
    fake.go_on.set()


@pytest.mark.usefixtures("_in_a_hurry")
@pytest.mark.parametrize("how", [{"background": False}, {"deterministic": True}])
def test_who_insists_does_not_wait_for_ever(how):
    fake = SlowCompiler()
    with installed(fake) as name, ys.options(device=name, **how):
        start = time.monotonic()
        np.testing.assert_allclose(ys.exp(ys.asarray(X)).numpy(), np.exp(X), rtol=1e-6)
        assert time.monotonic() - start < 5
        assert served() == ("cpu", ["it did not return within 0.2 s"])
    fake.go_on.set()


@pytest.mark.usefixtures("_in_a_hurry")
def test_a_compiler_that_hangs_is_the_users_error_on_request():
    fake = SlowCompiler()
    insisting = ys.options(device=fake.name, on_fallback="error")
    with installed(fake), insisting, pytest.raises(CompileFailure, match=r"it did not return within 0\.2 s"):
        ys.eval(ys.exp(ys.asarray(X)))
    fake.go_on.set()


@pytest.mark.usefixtures("_in_a_hurry")
def test_those_in_line_do_not_wait_for_one_that_hangs():
    go_on = Event()
    hangs, other = Job(lambda: go_on.wait(30)), Job(lambda: 7)
    for job in (hangs, other):
        asked_for(job)
    for job in (hangs, other):
        asked_for(job)
    background.wait()
    assert (hangs.is_done, other.result_if_ready()) == (False, 7)
    with pytest.raises(CompileFailure):
        hangs.result_if_ready()
    go_on.set()
    while not hangs.is_done:
        time.sleep(0.01)
    assert hangs.result() is True  # it came late, and is there all the same


def test_a_job_that_is_waited_for_sees_the_callers_options():
    with ys.options(device="cpu", tol=0.25):
        assert Job(lambda: current().tol).result() == 0.25


class _Recorder(FakeDevice):
    """A device that keeps the data that its kernels are given."""

    def compile(self, region):
        self.given = []
        return lambda *data: self.given.extend(data)

    def from_host(self, array):
        return array


def test_a_trial_compiles_a_part_that_reads_an_op_of_several_outputs():
    outputs = ys.linalg.qr(ys.ones((5, 3)))
    regions = fuse(graph_of(capture([t._node for t in outputs])[0]))
    part = next(region for region in regions if region.calls[-1].op is pick)
    device = _Recorder()
    _run_once(device, part)
    ((q, r),) = device.given
    assert (q.shape, r.shape) == ((5, 3), (3, 3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_has_a_line_of_its_own():
    go_on = Event()
    job = Job(lambda: go_on.wait(30))
    asked_for(job)
    asked_for(job)  # the thread is at work

    def works():
        mine = Job(lambda: 5)
        for _ in range(2):
            with suppress(NotReady):
                mine.result_if_ready()
        background.wait()
        return mine.result_if_ready() == 5

    assert holds_in_a_fork(works)
    go_on.set()
