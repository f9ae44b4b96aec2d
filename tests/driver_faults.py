"""Random programs over an OpenCL driver that crashes, hangs, exhausts memory or computes wrong numbers.

    python tests/driver_faults.py [--programs 500] [--only SCENARIO]

The driver is the one of `stub_driver`, which fails on demand. A scenario runs its programs in a process of its own, in
which all results must be right; the process must live, and no program may pass a deadline twice. Faults begin after the
driver has qualified, so that programs meet them, or before, so that the qualification does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import stub_driver

_LIMIT = 1800  # seconds that a scenario may take
_DEADLINE = 4.0  # seconds after which a program that is compiled in a child process counts as hanging


@dataclass(frozen=True)
class Scenario:
    """What fails, from when on, and how many crashes the driver may have."""

    faults: tuple[str, ...]
    is_qualified: bool = True
    crashes: int = 1_000_000
    share: float = 1.0
    """Of the programs that are asked for, those that run in this scenario."""


SCENARIOS = {
    "every third build crashes, from the beginning": Scenario(("build segfault every 3",), False, 3, 0.1),
    "every run is wrong, from the beginning": Scenario(("run wrong every 1",), False, 3, 0.05),
    "a fifth of all programs fails to build": Scenario(
        ("build segfault hash 11", "build abort hash 13", "build memory hash 37", "build exit hash 17",
         "build error hash 19", "build hang hash 101"), share=0.4),
    "a fifth of all programs fails to run": Scenario(
        ("run segfault hash 11", "run abort hash 13", "run exit hash 17", "run wrong hash 7", "run error hash 19",
         "run hang hash 101"), share=0.4),
    "programs crash until the driver is withdrawn": Scenario(("build abort hash 5",), True, 3, 0.05),
}  # fmt: skip


def run_programs(count: int, crashes: int) -> None:
    """In a process of its own: programs on the driver, compared with the host. Prints what happened as JSON."""
    import chaos
    import yosegi as ys
    from yosegi._run import drivers
    from yosegi._run.device import Absent, discovered
    from yosegi._run.trace import trace

    drivers._FEW, drivers._PROOF = crashes, _DEADLINE  # type: ignore[misc]
    devices = {d.name: d for d in discovered()}
    name = "cpu" if isinstance(devices["opencl:0"], Absent) else "opencl:0"
    failures, ran, late = Counter[str](), Counter[str](), 0.0
    for seed in range(count):
        with ys.options(device="cpu"):
            expected = [t.numpy() for t in chaos.build(seed)]
        trace.clear()
        start = time.monotonic()
        with ys.options(device=name):
            results = [t.numpy() for t in chaos.build(seed)]
        late = max(late, time.monotonic() - start)
        failures.update(f.kind for r in trace.records for f in r.failures if f.kind != "quarantined")
        ran.update(r.device for r in trace.records)
        for result, reference in zip(results, expected, strict=True):
            rtol = 3e-2 if reference.dtype == np.float16 else 2e-4
            with np.errstate(all="ignore"):
                scale = np.max(np.abs(reference[np.isfinite(reference)]), initial=0)
            np.testing.assert_allclose(result, reference, rtol=rtol, atol=rtol * scale, err_msg=f"seed {seed}")
    driver = getattr(devices["opencl:0"], "_driver", None)
    verdict = driver.verdict if driver is not None else None
    hung = [] if verdict is None else [p for p in verdict.programs.values() if "did not return" in p]
    timeouts = [] if verdict is None else [c for c in verdict.crashes if "did not return" in c]
    assert len(hung) == len(timeouts), "a program passed a deadline twice"
    print(json.dumps({
        "programs": count, "steps": dict(ran), "failures": dict(failures), "slowest": round(late, 1),
        "crashes": 0 if verdict is None else len(verdict.crashes), "hung": len(hung),
        "state": getattr(devices["opencl:0"], "reason", None) or (driver.absence if driver else None) or "ready",
    }))  # fmt: skip


def check(name: str, scenario: Scenario, programs: int, library: Path) -> bool:
    """A scenario. Whether its process lived and all results were right."""
    count = max(10, round(programs * scenario.share))
    with tempfile.TemporaryDirectory(prefix="yosegi-faults-") as folder:
        given = stub_driver.environment(Path(folder), library)
        control = Path(given["STUB_ICD_FAULTS"])
        environment = {**os.environ, **given, "YOSEGI_CALIBRATE": "0", "YOSEGI_BACKGROUND": "0", "YOSEGI_CHECK": "1"}
        if scenario.is_qualified:
            environment["YOSEGI_ISOLATE"] = "1"
            subprocess.run([sys.executable, "-c", "import yosegi; yosegi.devices()"], env=environment, check=True)
        stub_driver.set_faults(control, list(scenario.faults))
        start = time.monotonic()
        command = [sys.executable, "-W", "ignore", __file__, "--worker", str(count), "--crashes", str(scenario.crashes)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False)
    taken = time.monotonic() - start
    told = done.stdout.strip().splitlines()[-1:] or [f"status {done.returncode}: {done.stderr[-2000:]}"]
    print(f"{'right' if done.returncode == 0 else 'FAILED'}  {name}: {taken:.0f} s, {told[0]}", flush=True)
    if done.returncode:
        print(done.stderr[-4000:])
    return done.returncode == 0


def main() -> int:
    """Run the scenarios; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--only", default="")
    parser.add_argument("--worker", type=int)
    parser.add_argument("--crashes", type=int, default=3)
    options = parser.parse_args()
    if options.worker is not None:
        run_programs(options.worker, options.crashes)
        return 0
    if stub_driver.COMPILER is None:
        print("there is no C++ compiler to build the driver with")
        return 2
    with tempfile.TemporaryDirectory(prefix="yosegi-driver-") as folder:
        library = stub_driver.build(Path(folder))
        chosen = {name: s for name, s in SCENARIOS.items() if options.only in name}
        outcomes = [check(name, scenario, options.programs, library) for name, scenario in chosen.items()]
        return int(not all(outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
