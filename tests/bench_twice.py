"""Does the benchmark tell noise from change? The suite is run twice, the second time with one case made slower.

    make bench-twice

Everything but that case should show no difference (95% of it is the bar), and that case should be slower.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

from rich.console import Console

import yosegi.bench.runners as runners
from yosegi.bench import suite
from yosegi.bench.compare import SAME, SLOWER, compare
from yosegi.bench.tables import show_comparison
from yosegi.device import devices

SLOWED = "patterns/gelu+linear/float32/512"


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
    options = parser.parse_args()
    console = Console()
    settings = suite.Settings(devices(), pattern=options.filter)
    before = suite.run(settings)
    suite.of_device = slowed(options.slowdown)
    after = suite.run(settings)
    comparison = compare(before, after)
    show_comparison(console, comparison)
    found = {(c.case, c.contender): c.verdict for c in comparison.changes}
    slow = found.pop((SLOWED, f"{devices()[-1].name}, {runners.JIT}"), None)
    same = sum(v == SAME for v in found.values())
    console.print(f"no difference in {same} of {len(found)} cases ({same / len(found):.1%}); the slowed one: {slow}")
    return int(same < 0.95 * len(found) or slow != SLOWER)


if __name__ == "__main__":
    raise SystemExit(main())
