"""The command line: `yosegi devices`, `yosegi bench overhead`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .bench import loops, overhead
from .device import Absent, devices, discovered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is what it returns."""
    parser = argparse.ArgumentParser(prog="yosegi", description="A tensor runtime that measures before it chooses.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("devices", help="what this machine has, what it lacks and why")
    bench = commands.add_parser("bench", help="measure")
    suites = "overhead: ten elementwise ops on 16 elements; loops: gelu(x*w+b) on ten million"
    bench.add_argument("suite", choices=["overhead", "loops"], help=suites)
    bench.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    bench.add_argument("--rounds", type=int, help="rounds in which all contenders take turns")
    options = parser.parse_args(arguments)
    if options.command == "devices":
        show_devices(Console())
    elif options.suite == "overhead":
        show_overhead(Console(), options.rounds or 40, options.json)
    else:
        show_loops(Console(), options.rounds or 7, options.json)
    return 0


def show_devices(console: Console) -> None:
    """The chain of this machine, then what is absent."""
    table = Table(title="Devices, in the order in which they are asked")
    for heading in ("device", "what it is", "memory", "dtypes", "operations"):
        table.add_column(heading)
    for device in discovered():
        if isinstance(device, Absent):
            table.add_row(device.name, f"absent: {device.reason}")
        else:
            free, total = device.memory()
            dtypes = ", ".join(sorted(d.name for d in device.limits.dtypes))
            kinds = ", ".join(sorted(kind.value for kind in device.limits.kinds))
            memory = f"{free >> 20} of {total >> 20} MiB free"
            table.add_row(device.name, device.description, memory, dtypes, kinds)
    console.print(table)


def show_overhead(console: Console, rounds: int, path: str | None) -> None:
    """The overhead benchmark as a table."""
    with console.status("measuring"):
        result = overhead.measure(rounds=rounds)
    figures = result.to_json()
    table = Table(title=f"{overhead.OPS} elementwise ops on {overhead.ELEMENTS} float32 elements")
    table.add_column("contender")
    for heading in ("µs per chain", "µs per op", "times NumPy", "quartiles"):
        table.add_column(heading, justify="right")
    for name, row in figures["results"].items():
        ratio, low, high = row["times_numpy"]
        per_op = row["microseconds"] / overhead.OPS
        table.add_row(name, f"{row['microseconds']:.2f}", f"{per_op:.2f}", f"{ratio:.2f}", f"{low:.2f} – {high:.2f}")
    console.print(table)
    for name, reason in result.skipped.items():
        console.print(f"{name}: skipped, {reason}")
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


def show_loops(console: Console, rounds: int, path: str | None) -> None:
    """The loops benchmark as a table, on every device of this machine."""
    with console.status("measuring"):
        rows = loops.measure([d.name for d in devices()], rounds=rounds).rows()
    table = Table(title=f"gelu(x*w+b) on {loops.ELEMENTS:,} float32")
    table.add_column("contender")
    for heading in ("ms", "GB/s", "times the copy limit", "times NumPy's speed", "error / largest"):
        table.add_column(heading, justify="right")
    for row in rows:
        error = row["error_over_largest"]
        table.add_row(
            row["contender"],
            f"{row['milliseconds']:.1f}",
            f"{row['gigabytes_per_second']:.1f}",
            _spread(row["times_copy_limit"]),
            _spread(row["times_numpy_speed"]),
            "" if error is None else f"{error:.1e}",
        )
    console.print(table)
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)


def _spread(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} – {ratio[2]:.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
