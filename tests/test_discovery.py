"""Devices are looked for in the background: the host answers, and the others join when they are ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest

import yosegi as ys
import yosegi._run.device as registry
from fakes import FakeDevice
from yosegi._run.background import Job
from yosegi._run.device import Absent, Pending
from yosegi._run.progress import announced
from yosegi._run.run import transfers
from yosegi.errors import ArgumentError, FallbackWarning

X = np.linspace(-1, 1, 300_000, dtype=np.float32)  # enough for the prior to prefer a device to the host


@contextmanager
def new_driver(found: Any, until: Event) -> Iterator[Pending]:
    """A machine with the host and a device whose driver is being qualified until then."""

    def qualified() -> Any:
        assert until.wait(10)
        return found

    pending = Pending(found.name, "a driver", True, Job(qualified))
    with pytest.MonkeyPatch.context() as patch:
        made = registry._Registry()
        folder = registry._Folder(found.name.partition(":")[0])
        folder.found = (pending,)
        made.folders = {folder.name: folder, made.host: registry._registry.folders[made.host]}
        patch.setattr(registry, "_registry", made)
        patch.setattr(registry, "_DELAY", 0.0)
        registry.refresh()
        transfers.method.cache_clear()
        try:
            yield pending
        finally:
            until.set()
            for thread in made._threads.values():
                thread.join()
    registry.refresh()
    transfers.method.cache_clear()


def joined(deadline: float = 10.0) -> None:
    """Wait until the search is over."""
    end = time.monotonic() + deadline
    while not registry._registry.is_done:
        assert time.monotonic() < end
        time.sleep(0.01)


def device_of(made: ys.Tensor) -> str:
    """Where a tensor was computed."""
    ys.eval(made)
    return str(made.device.name)


@pytest.mark.parametrize("is_jitted", [False, True])
def test_the_host_answers_until_the_device_is_ready(is_jitted: bool) -> None:
    device, until = FakeDevice(), Event()
    f: Any = (lambda x: x * 2 + 1) if not is_jitted else ys.jit(lambda x: x * 2 + 1)
    with new_driver(device, until), ys.options(device="auto", background=True):
        x = ys.asarray(X)
        start = time.monotonic()
        np.testing.assert_array_equal(f(x).numpy(), X * 2 + 1)
        assert time.monotonic() - start < 1
        assert device.runs == 0
        until.set()
        joined()
        np.testing.assert_array_equal(f(x).numpy(), X * 2 + 1)
        assert device.runs > 0


def test_a_device_that_is_named_takes_over_when_it_is_ready() -> None:
    device, until = FakeDevice(), Event()
    with new_driver(device, until) as pending, ys.options(device=device.name, background=True):
        x = ys.asarray(X[:10])
        assert device_of(x + 1) == "cpu"
        with ys.options(on_fallback="warn"), pytest.warns(FallbackWarning, match="its driver is being qualified"):
            assert device_of(x + 2) == "cpu"
        until.set()
        pending.resolved()
        while registry.not_ready(device.name):
            time.sleep(0.01)
        assert device_of(x + 3) == device.name


@pytest.mark.parametrize("how", [{"background": False}, {"on_fallback": "error"}, {"deterministic": True}])
def test_whoever_may_have_no_other_waits(how: dict[str, Any]) -> None:
    device, until = FakeDevice(), Event()
    with new_driver(device, until), ys.options(**{"background": True, **how}, device=device.name):
        until.set()
        assert device_of(ys.asarray(X[:10]) + 1) == device.name


def test_to_device_waits_for_the_driver() -> None:
    device, until = FakeDevice(), Event()
    with new_driver(device, until), ys.options(background=True):
        until.set()
        assert ys.asarray(X[:10]).to_device(device.name).device is device


def test_a_driver_that_does_not_qualify_costs_nothing() -> None:
    until = Event()
    absent = Absent("some:0", "its driver is withdrawn: it crashed")
    with new_driver(absent, until) as pending:
        with ys.options(device="some:0", background=True):
            x = ys.asarray(X[:10])
            assert device_of(x + 1) == "cpu"
            until.set()
            pending.resolved()
            while not isinstance(registry._named("some:0"), Absent):
                time.sleep(0.01)
            assert device_of(x + 2) == "cpu"
            with ys.options(on_fallback="warn"), pytest.warns(FallbackWarning, match="its driver is withdrawn"):
                assert device_of(x + 3) == "cpu"
        refused = pytest.raises(ArgumentError, match="got 'some:0': its driver is withdrawn: it crashed")
        with refused, ys.options(device="some:0", background=True):
            pass


def test_a_qualification_that_raises_makes_the_device_absent() -> None:
    until = Event()
    until.set()
    with new_driver(FakeDevice(), until) as pending:
        pending.job._make = lambda: 1 / 0
        with pytest.raises(ArgumentError, match="qualifying its driver failed: ZeroDivisionError"):
            registry.device_named(pending.name)


def test_a_name_that_nobody_has_is_refused_at_once() -> None:
    until = Event()
    with new_driver(FakeDevice(), until) as pending:
        refused = pytest.raises(ArgumentError, match=f"expected one of {pending.name}")
        with refused, ys.options(device=f"{pending.name}7"):
            pass
        until.set()


# In processes of their own

ONLY_HOST = """
import sys, threading
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "os.fork") else None)
import numpy as np, yosegi as ys
x = ys.asarray(np.ones((64, 64), np.float32))
f = ys.jit(lambda x: ys.nn.relu(x @ x + 1))
for _ in range(3):
    f(x).numpy()
with ys.options(precision="adaptive", tol=1e-2):
    f(x).numpy()
loaded = sorted({"pyopencl", "openvino", "cupy"} & set(sys.modules))
print(started, loaded, [t.name for t in threading.enumerate() if "discovery" in t.name])
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "YOSEGI_BACKGROUND": "1", "YOSEGI_CHECK": "0", **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)


def test_the_host_by_name_starts_no_process_and_loads_no_driver() -> None:
    assert run(ONLY_HOST, YOSEGI_DEVICE="cpu").stdout.strip() == "[] [] []"


def test_a_short_program_looks_for_nothing() -> None:
    code = "import yosegi as ys, sys; (ys.asarray([1.0]) + 1).numpy(); print('pyopencl' in sys.modules)"
    start = time.monotonic()
    assert run(code).stdout.strip() == "False"
    assert time.monotonic() - start < 10


HANGS = """
import time, yosegi as ys
from yosegi._run import device
from yosegi._run.background import Job
from yosegi._run.child import attempt
folder = device._Folder("slow")
folder.found = (device.Pending("slow:0", "a driver", False, Job(lambda: attempt("time:sleep", 60))),)
device._registry.folders = {"slow": folder, "cpu": device._registry.folders["cpu"]}
device._DELAY = 0.0
(ys.asarray([1.0]) + 1).numpy()
time.sleep(1.5)
print("done", flush=True)
"""


def test_a_process_ends_while_a_driver_hangs() -> None:
    start = time.monotonic()
    done = run(HANGS)
    assert (done.returncode, done.stdout.strip()) == (0, "done")
    assert time.monotonic() - start < 15
    assert done.stderr == "yosegi: qualifying the driver of slow:0 (a driver), once …\n"


def test_what_takes_long_is_announced_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yosegi._run.progress._LONG", 0.05)
    monkeypatch.setattr("yosegi._run.progress._shown", set())
    for _ in range(2):
        with announced("something slow"):
            time.sleep(0.2)
        with announced("something fast"):
            pass
    assert capfd.readouterr().err == "yosegi: something slow …\n"
