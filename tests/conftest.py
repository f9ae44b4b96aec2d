"""Settings for all tests: every graph is checked at every stage, no warning goes unseen, and nothing that an earlier
run left in a cache, ours or a driver's, can hide a fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

_FOLDER = "YOSEGI_TEST_FOLDER"
_REPORT = "YOSEGI_TEST_OPENCL"

if _FOLDER not in os.environ:  # the first process: the others, which pytest starts, inherit what it sets
    os.environ[_FOLDER] = folder = tempfile.mkdtemp(prefix="yosegi-tests-")
    for name in ("YOSEGI_CACHE_DIR", "XDG_CACHE_HOME", "POCL_CACHE_DIR", "CUDA_CACHE_PATH"):
        os.environ[name] = str(Path(folder) / name.lower())

os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")  # a thousand programs in half of the time
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # several processes would each take most of a GPU's memory
os.environ["YOSEGI_CHECK"] = "1"  # read when yosegi is imported
os.environ["YOSEGI_CALIBRATE"] = "0"  # plans follow the priors, and stay as they are, unless a test measures
os.environ["YOSEGI_BACKGROUND"] = "0"  # what a device is asked for, it computes, however long it compiles

collect_ignore = ["peers", "fakes/apple"]  # modules that change other libraries, or have their names
NEEDS = {
    "transforms_vs_jax.py": "jax",
    "bench_training.py": "torch",
    "bench_inference.py": "torch",
    "bench_programs.py": "torch",
    "beside": "torch",
    "notebooks.py": "nbformat",
}
"""Scripts that are imported for their doctests, and the packages that they import."""
collect_ignore += [script for script, package in NEEDS.items() if not find_spec(package)]

from hypothesis import HealthCheck, settings  # noqa: E402

import stub_driver  # noqa: E402

settings.register_profile(
    "yosegi", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("yosegi")

_DEVICES = """
from yosegi._run.device import Absent, discovered
for d in discovered():
    if d.name.startswith("opencl"):
        print(f"{d.name}: {d.reason if isinstance(d, Absent) else 'qualified, ' + d.description}")
"""


def _opencl() -> list[str]:
    """The OpenCL devices of this machine, each with its verdict."""
    run = subprocess.run([sys.executable, "-c", _DEVICES], capture_output=True, text=True, check=False)
    return run.stdout.splitlines() or run.stderr.splitlines()[-1:]


def pytest_configure(config: pytest.Config) -> None:
    """Qualify the OpenCL drivers of this machine, once for all processes; where none qualifies, take the test driver,
    which emulates OpenCL C by the C++ compiler."""
    if _REPORT in os.environ or hasattr(config, "workerinput"):
        return
    found = _opencl()
    if not any("qualified, " in line for line in found) and stub_driver.COMPILER is not None:
        os.environ.update(stub_driver.environment(Path(os.environ[_FOLDER]) / "stub"))
        found += ["so OpenCL is tested on the test driver:", *_opencl()]
    os.environ[_REPORT] = "\n".join(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What OpenCL was tested on, and why."""
    terminalreporter.section("OpenCL")
    terminalreporter.write_line(os.environ.get(_REPORT, ""))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)
