"""Does the benchmark tell noise from change? The suite is run twice, the second time with one case made slower.

    make bench-twice

Everything but that case should show no difference (95% of it is the bar), and that case should be slower.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from rich.console import Console

import yosegi.tools.bench.runners as runners
from yosegi._run.device import devices
from yosegi.tools.bench import suite
from yosegi.tools.bench.compare import SAME, SLOWER, THRESHOLD, Comparison, compare
from yosegi.tools.bench.document import read
from yosegi.tools.bench.tables import show_comparison

SLOWED = "elementwise/gelu/float32/100000"


def slowed(by: float) -> Any:
    """`runners.of_device`, but the last device takes longer for one case, by this share of its time."""
    plain = runners.of_device

    def of_device(device: Any, mode: str) -> runners.Runner:
        runner = plain(device, mode)
        if device is not devices()[-1] or mode != runners.JIT:
            return runner

        def prepare(case: Any) -> Any:
            call = runner.compile(case)
            if case.id != SLOWED:
                return call

            def slow(*inputs: Any) -> Any:
                start = perf_counter()
                result = call(*inputs)
                end = perf_counter()
                end += by * (end - start)
                while perf_counter() < end:
                    pass
                return result

            return slow

        return runners.Runner(runner.name, mode, True, runner.adopt, prepare, runner.fetch, runner.turn)

    return of_device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowdown", type=float, default=0.15)
    parser.add_argument("--filter", default="*")
    parser.add_argument("--keep", metavar="FOLDER", help="where to leave the two runs, before.json and after.json")
    parser.add_argument("--only", metavar="FILE", help="one run, in this process, with the slowdown")
    options = parser.parse_args()
    if options.only:
        suite.of_device = slowed(options.slowdown)
        suite.run(suite.Settings(devices(), pattern=options.filter, sittings=8)).write(options.only)
        return 0
    with TemporaryDirectory() as folder:
        runs = []
        for name, slowdown in {"before": 0.0, "after": options.slowdown}.items():
            path = str(Path(options.keep or folder) / f"{name}.json")
            one = [sys.executable, __file__, "--only", path, "--slowdown", str(slowdown), "--filter", options.filter]
            subprocess.run(one, check=True)
            runs.append(read(path))
        return judged(compare(*runs), options.slowdown)


def judged(comparison: Comparison, slowdown: float) -> int:
    """Show the comparison; 0 if it tells noise from change."""
    console = Console()
    show_comparison(console, comparison)
    seen = sum(c.ratio.low / c.ratio.median * (1 + slowdown) > 1 + THRESHOLD for c in comparison.changes)
    console.print(f"{seen} of {len(comparison.changes)} cases were measured well enough to show such a slowdown")
    found = {(c.case, c.contender): c.verdict for c in comparison.changes}
    slow = found.pop((SLOWED, f"{devices()[-1].name}, {runners.JIT}"), None)
    same = sum(v == SAME for v in found.values())
    console.print(f"no difference in {same} of {len(found)} cases ({same / len(found):.1%}); the slowed one: {slow}")
    return int(same < 0.95 * len(found) or slow != SLOWER)


if __name__ == "__main__":
    raise SystemExit(main())
