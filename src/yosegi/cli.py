"""The command line: `yosegi devices`, `yosegi bench overhead`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .bench import overhead
from .device import Absent, discovered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is what it returns."""
    parser = argparse.ArgumentParser(prog="yosegi", description="A tensor runtime that measures before it chooses.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("devices", help="what this machine has, what it lacks and why")
    bench = commands.add_parser("bench", help="measure")
    bench.add_argument("suite", choices=["overhead"], help="overhead: ten elementwise ops on 16 elements")
    bench.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    bench.add_argument("--rounds", type=int, default=40, help="rounds in which all contenders take turns")
    options = parser.parse_args(arguments)
    if options.command == "devices":
        show_devices(Console())
    else:
        show_overhead(Console(), options.rounds, options.json)
    return 0


def show_devices(console: Console) -> None:
    """The chain of this machine, then what is absent."""
    table = Table(title="Devices, in the order in which they are asked")
    for heading in ("device", "what it is", "memory", "dtypes"):
        table.add_column(heading)
    for device in discovered():
        if isinstance(device, Absent):
            table.add_row(device.name, f"absent: {device.reason}", "", "")
        else:
            free, total = device.memory()
            dtypes = ", ".join(sorted(d.name for d in device.limits.dtypes))
            table.add_row(device.name, device.description, f"{free >> 20} of {total >> 20} MiB free", dtypes)
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


if __name__ == "__main__":
    raise SystemExit(main())
