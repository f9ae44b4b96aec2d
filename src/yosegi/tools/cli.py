"""The command line: `yosegi devices`, `calibrate`, `bench`, `regret`, `doctor`, `report`, `launch`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .._run.api import holds_data
from .._run.device import Absent, Device, device_named, devices, discovered
from .._run.drivers import forget
from .._tune.calibration import calibrate
from ..errors import ArgumentError, YosegiError
from .bench import analysis, compare, regret, suite, tables
from .bench.document import read
from .bench.peers import PEERS
from .doctor import diagnose
from .launch import add_launch
from .report.page import report

_WIDE: Final = 240
"""Columns that hold the widest table, that of `bench`, with long names in it."""
_INTERRUPTED: Final = 130
"""The exit status of a command that Ctrl-C has ended, as shells have it."""
_SHORT: Final = 42
"""Characters of a device's description that a line of 80 has room for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is what it returns."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(_console(), options)
    except YosegiError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    return status


def _console() -> Console:
    """Where commands print: as wide as the terminal, or as COLUMNS says; in files and pipes as wide as tables are."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_WIDE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="yosegi", description="A tensor runtime that measures before it chooses.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("devices", help="what this machine has, what it lacks and why")
    listing.add_argument("--verbose", action="store_true", help="whole descriptions, dtypes and classes of operations")
    listing.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="NAME",
        help="qualify a device's driver anew; again for more",
    )
    listing.set_defaults(run=show_devices)
    measuring = commands.add_parser("calibrate", help="measure the devices, so that plans are made by their real speed")
    measuring.add_argument(
        "--device", action="append", metavar="NAME", help="a device to measure, again for more; all by default"
    )
    measuring.set_defaults(run=measure_devices)
    _add_bench(commands.add_parser("bench", help="measure, and compare measurements"))
    regretting = commands.add_parser("regret", help="how much longer plans take than the best single device")
    regretting.add_argument("runs", nargs="*", metavar="RUN.json", help="runs to write a page from; without, measure")
    regretting.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="only programs with this in their name; semicolons between several; 2/3 for the second third",
    )
    regretting.add_argument(
        "--sittings", type=int, default=regret.SITTINGS, metavar="N", help="how often each is timed"
    )
    regretting.add_argument("--json", metavar="FILE", help="also write the run to a file")
    regretting.add_argument("--output", metavar="FILE", help="write the page to a file, not to the terminal")
    regretting.set_defaults(run=show_regret)
    diagnosing = commands.add_parser("doctor", help="find out all about this machine's devices, as two files to send")
    diagnosing.add_argument("--quick", action="store_true", help="few cases, timed briefly")
    diagnosing.add_argument(
        "--output", default="yosegi-doctor", metavar="NAME", help="the files' name without .json and .html"
    )
    diagnosing.set_defaults(run=write_diagnosis)
    reporting = commands.add_parser("report", help="a run as one page of HTML, with charts")
    reporting.add_argument("run_file", metavar="RUN.json", help="what yosegi bench --json wrote")
    reporting.add_argument("--before", metavar="OTHER.json", help="an earlier run, to compare it with")
    reporting.add_argument("--output", default="report.html", metavar="FILE", help="the page (report.html)")
    reporting.set_defaults(run=write_report)
    add_launch(commands.add_parser("launch", help="the same program in several processes"))
    return parser


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.set_defaults(run=run_bench)
    bench.add_argument(
        "--filter",
        default="*",
        metavar="TEXT",
        help="only cases with this in their name, as in gelu or matmul*1024; commas for several",
    )
    bench.add_argument(
        "--device", action="append", metavar="NAME", help="a device to measure, again for more; all by default"
    )
    bench.add_argument(
        "--against",
        default="",
        metavar="PEERS",
        help=f"NumPy, always there, and any of {', '.join(PEERS)}; 'all' for those installed",
    )
    bench.add_argument("--large", action="store_true", help="the large sizes too")
    bench.add_argument("--json", metavar="FILE", help="also write the run to a file")
    bench.add_argument("--sittings", type=_positive, default=suite.SITTINGS, help="how often every case comes up")
    bench.add_argument(
        "--rounds", type=_positive, default=suite.ROUNDS, help="rounds of a sitting, in which all contenders take turns"
    )
    bench.add_argument(
        "--seconds", type=float, default=suite.SECONDS, help="how long a sitting of one case goes on, at most"
    )
    again = "seconds after which no case sits again because its ratios are still uncertain"
    bench.add_argument("--budget", type=float, default=suite.BUDGET, help=again)
    actions = bench.add_subparsers(dest="action")
    comparing = actions.add_parser("compare", help="two runs: faster, slower, or no difference")
    comparing.add_argument("before")
    comparing.add_argument("after")
    comparing.add_argument(
        "--threshold", type=float, default=compare.THRESHOLD, help="what counts as a difference (0.05 is 5%%)"
    )
    comparing.add_argument("--across-machines", action="store_true", help="compare runs of different machines")
    comparing.set_defaults(run=compare_runs)
    analysing = actions.add_parser("analyse", help="a run in words: what is fast, what is not, and what holds it back")
    analysing.add_argument("results")
    analysing.add_argument("--output", metavar="FILE", help="write Markdown to a file, not to the terminal")
    analysing.set_defaults(run=analyse_run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def show_devices(console: Console, options: argparse.Namespace) -> int:
    """The chain of this machine, then what is absent: a line for each, or with `--verbose` all that is known."""
    for name in options.forget:
        count = forget(name)
        if not count:
            raise ArgumentError(f"[devices] expected the name of a device with a verdict to forget, got {name!r}")
        print(f"{name}: forgot {count} verdict{'s' if count > 1 else ''}")
    console.print(_everything(discovered()) if options.verbose else _in_lines(discovered()))
    return 0


def _in_lines(found: Iterable[Device | Absent]) -> Table:
    """A line for each device."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("device", "state", "free memory"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for device in found:
        if isinstance(device, Absent):
            table.add_row(device.name, "absent", "", escape(" ".join(device.reason.split())))
        else:
            table.add_row(device.name, "ready", _memory(device), escape(_first_clauses(device.description)))
    return table


def _memory(device: Device) -> str:
    if not holds_data(device):
        return "the host's"
    free, total = device.memory()
    return f"{free / 2**30:.1f} / {total / 2**30:.1f} GiB"


def _first_clauses(description: str) -> str:
    """The beginning of a description: as many of the clauses of its first sentence as fit a line."""
    clauses = re.split(r";| \(", description)[0].split(", ")
    count = len(clauses)
    while count > 1 and len(", ".join(clauses[:count])) > _SHORT:
        count -= 1
    return ", ".join(clauses[:count])


def _everything(found: Iterable[Device | Absent]) -> Table:
    """The whole descriptions, and what each device has kernels for."""
    table = Table(title="Devices, in the order in which they are asked")
    for heading in ("device", "what it is", "memory", "dtypes", "operations"):
        table.add_column(heading)
    for device in found:
        if isinstance(device, Absent):
            table.add_row(device.name, escape(f"absent: {device.reason}"))
        else:
            free, total = device.memory()
            dtypes = ", ".join(sorted(d.name for d in device.limits.dtypes))
            kinds = ", ".join(sorted(kind.value for kind in device.limits.kinds))
            memory = f"{free >> 20} of {total >> 20} MiB free"
            table.add_row(device.name, escape(device.description), memory, dtypes, kinds)
    return table


def measure_devices(console: Console, options: argparse.Namespace) -> int:
    """Measure devices, with a line for each. The exit status is 1 when one could not be measured."""
    chosen: tuple[Device, ...] = tuple(map(device_named, options.device)) if options.device else devices()
    missing = 0
    for device in chosen:
        print(f"{device.name}:", end="", flush=True)
        found = calibrate([device], tell=lambda _, what: print(f" {what}", end="", flush=True))
        speed = found.get(device.name)
        print("\n  could not be measured" if speed is None else f"\n  {speed}")
        missing += speed is None
    return int(missing > 0)


def run_bench(console: Console, options: argparse.Namespace) -> int:
    """Measure, show, and write if asked to; after Ctrl-C, the results so far. The exit status is 1 when a result was
    wrong, 130 after Ctrl-C."""
    chosen: tuple[Device, ...] = tuple(map(device_named, options.device)) if options.device else devices()
    settings = suite.Settings(
        devices=chosen, against=_peers(options.against), pattern=options.filter, large=options.large,
        sittings=options.sittings, rounds=options.rounds, seconds=options.seconds, budget=options.budget,
    )  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        document = suite.run(
            settings, lambda text, done, total: bar.update(task, description=text, completed=done, total=total)
        )
    is_interrupted = document.settings["is_interrupted"]
    timed = len({r.case for r in document.results if r.status == "ok"})
    if is_interrupted and not timed:
        print("[bench] interrupted: no case timed", file=sys.stderr)
        return _INTERRUPTED
    if not document.results:
        raise ArgumentError(
            f"[bench] expected a filter that some case matches, got {options.filter!r}; try --filter matmul"
        )
    tables.show(console, document)
    if options.json:
        document.write(options.json)
    if is_interrupted:
        written = f", written to {options.json}" if options.json else ""
        cases = document.settings["cases"]
        print(f"[bench] interrupted: {timed} of {cases} cases timed{written}", file=sys.stderr)
        return _INTERRUPTED
    return int(any(r.status == "wrong" and r.device is not None for r in document.results))


def write_diagnosis(console: Console, options: argparse.Namespace) -> int:
    """Find out all about the devices, show it and write it to two files. The exit status is 1 when a device computed
    something wrong."""
    found = diagnose(quick=options.quick, tell=lambda line: print(line, file=sys.stderr, flush=True))
    found.show(console)
    for path in found.write(Path(options.output)):
        print(path)
    return int(not found.is_well)


def show_regret(console: Console, options: argparse.Namespace) -> int:
    """Measure the regret of placement on this machine, or show that of earlier runs. The exit status is 1 when a run is
    not within the bar."""
    runs = regret.joined(map(regret.read, options.runs))
    if not runs:
        runs = [regret.measure(options.filter, lambda text: print(text, file=sys.stderr, flush=True), options.sittings)]
        if options.json:
            runs[0].write(options.json)
    text = regret.page(runs)
    if options.output is None:
        print(text)
    else:
        Path(options.output).write_text(text, encoding="utf-8")
    return int(not all(run.is_good for run in runs))


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(PEERS) if text == "all" else tuple(n.strip() for n in text.split(",") if n.strip())
    for name in names:
        if name != "numpy" and name not in PEERS:
            raise ArgumentError(f"[bench] expected peers among numpy, {', '.join(PEERS)}, got {name!r}")
    return names


def compare_runs(console: Console, options: argparse.Namespace) -> int:
    """Two runs. The exit status is 1 when something became slower, wrong or went missing."""
    before, after = read(options.before), read(options.after)
    comparison = compare.compare(before, after, threshold=options.threshold, across=options.across_machines)
    tables.show_comparison(console, comparison)
    return int(bool(comparison.regressions or comparison.gone))


def analyse_run(console: Console, options: argparse.Namespace) -> int:
    """A run in words."""
    text = analysis.performance(read(options.results))
    if options.output is None:
        print(text)
    else:
        Path(options.output).write_text(text, encoding="utf-8")
    return 0


def write_report(console: Console, options: argparse.Namespace) -> int:
    """A run as a page."""
    before = None if options.before is None else read(options.before)
    text = report(read(options.run_file), before)
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"[report] expected a file that can be written, got {options.output}: {error.strerror}"
        ) from None
    console.print(f"{options.output}: {len(text) / 1e6:.1f} MB, opens in any browser", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
