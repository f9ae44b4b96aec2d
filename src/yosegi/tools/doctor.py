"""`yosegi doctor`: all that can be found out about the devices of a machine, in one command and two files.

The devices are discovered and qualified, run the qualification's programs once more in this process, are calibrated,
and run the benchmark. The files are for sending: a page to read, and the same as JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._run.device import Absent, Device, Kernel, discovered
from .._schedule.fuse import Region
from .._tune.calibration import calibrate
from .._tune.timing import seconds_of
from ..devices.kernel.device import KernelDevice
from ..devices.kernel.qualification import Specimen, difference, families, region_of
from ..errors import ArgumentError, DeviceFailure
from ..ops.products import matmul
from .bench import suite, tables
from .bench.document import Document

_WIDE: Final = 200
_CASES: Final = (
    "matmul/matmul/*,elementwise/add/*,elementwise/multiply/*,elementwise/relu/*,elementwise/gelu/*,"
    "reduction/sum/*,transfer/*,patterns/*"
)
_QUICK_CASES: Final = (
    "matmul/matmul/*/128,elementwise/add/*/10000,elementwise/gelu/*/10000,reduction/sum/*/10000,transfer/*/10000,"
    "patterns/gelu+linear/*/128"
)
_SQUARES: Final = (64, 256, 1024)
"""Matrix products that are timed in every variant of a device's kernels."""
_ROUNDS: Final = 5
_BRIEF: Final = 0.2  # seconds of a quick calibration

Tell = Callable[[str], None]
"""Called with a line about the work that begins."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """The results of one device."""

    name: str
    description: str
    absent: str | None = None
    """The reason why it is absent, if it is."""
    families: dict[str, str | None] = field(default_factory=dict)
    """Families of programs, each with the mistake of the device, or `None`."""
    speed: dict[str, Any] | None = None
    """The cost model of the device, if it could be measured."""
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds of matrix products by size, in each variant."""

    @property
    def mistakes(self) -> dict[str, str]:
        """The families that it gets wrong, and how."""
        return {family: wrong for family, wrong in self.families.items() if wrong is not None}


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of a machine."""

    findings: tuple[Finding, ...]
    bench: Document

    @property
    def is_well(self) -> bool:
        """True if no device computed anything wrong."""
        is_wrong = any(r.status == "wrong" and r.device is not None for r in self.bench.results)
        return not is_wrong and not any(finding.mistakes for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain data."""
        return {"devices": [asdict(finding) for finding in self.findings], "bench": self.bench.to_json()}

    def show(self, console: Console) -> None:
        """Print the diagnosis as tables."""
        console.print(_devices(self.findings))
        for finding in self.findings:
            for family, wrong in finding.mistakes.items():
                console.print(f"{finding.name}, {family}: {wrong}", markup=False)
        for finding in self.findings:
            if finding.kernels:
                console.print(_kernels(finding))
        tables.show(console, self.bench)

    def write(self, path: Path) -> tuple[Path, Path]:
        """Write the JSON file and the page, and return their paths."""
        data, page = path.with_suffix(".json"), path.with_suffix(".html")
        console = Console(record=True, width=_WIDE, file=io.StringIO())
        self.show(console)
        try:
            data.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
            page.write_text(console.export_html(), encoding="utf-8")
        except OSError as error:
            raise ArgumentError(
                f"[doctor] expected a place that can be written, got {path}: {error.strerror}; name one with --output"
            ) from None
        return data, page


def diagnose(found: Iterable[Device | Absent] | None = None, *, quick: bool = False, tell: Tell = print) -> Diagnosis:
    """Find out all about the devices of this machine, or about others; with `quick`, with fewer sizes."""
    tell("looking for devices, and qualifying new drivers")
    everyone = discovered() if found is None else tuple(found)
    findings = [_finding(device, quick, tell) for device in everyone]
    present = tuple(device for device in everyone if not isinstance(device, Absent))
    settings = suite.Settings(present, pattern=_CASES)
    if quick:
        settings = suite.Settings(present, pattern=_QUICK_CASES, sittings=1, rounds=2, seconds=0.02, budget=0)
    tell("running the benchmark")
    return Diagnosis(tuple(findings), suite.run(settings))


def _finding(device: Device | Absent, quick: bool, tell: Tell) -> Finding:
    if isinstance(device, Absent):
        return Finding(device.name, "", device.reason)
    tell(f"{device.name}: programs of every family, compared with the reference")
    tried = {f: difference(device, f, partial(_programs, device)) for f in families(device.limits.dtypes)}
    tell(f"{device.name}: calibration")
    speed = (calibrate([device], seconds=_BRIEF) if quick else calibrate([device])).get(device.name)
    kernels: dict[str, dict[str, float]] = {}
    if isinstance(device, KernelDevice):
        tell(f"{device.name}: every variant of its products")
        kernels = {str(n): _variants(device, n) for n in _SQUARES[: 1 if quick else None]}
    return Finding(device.name, device.description, None, tried, None if speed is None else speed.to_json(), kernels)


def _programs(device: Device, region: Region) -> Mapping[str, Callable[[], Kernel]]:
    """The programs of a device for a region of one part."""
    return (
        device.variants(region.parts[0]) if isinstance(device, KernelDevice) else {"": partial(device.compile, region)}
    )


def _variants(device: KernelDevice, n: int) -> dict[str, float]:
    """The seconds of a square product in each variant that can be compiled."""
    ones = np.ones((n, n), np.float32)
    region, arrays = region_of(Specimen("", matmul, (ones, ones)), device)
    data = [device.from_host(array) for array in arrays]
    times: dict[str, float] = {}
    for name, make in device.variants(region.parts[0]).items():
        with suppress(DeviceFailure):  # a variant that is not for this size
            kernel = make()
            times[name] = min(seconds_of(kernel, *data, wait=device.synchronize) for _ in range(_ROUNDS))
    return times


def _devices(findings: Iterable[Finding]) -> Table:
    table = Table(title="devices")
    for heading in ("device", "state", "families right", "launch", "what it is"):
        table.add_column(heading)
    for f in findings:
        if f.absent is not None:
            table.add_row(f.name, "absent", "", "", escape(f.absent))
            continue
        right = f"{len(f.families) - len(f.mistakes)} of {len(f.families)}"
        launch = "not measured" if f.speed is None else f"{f.speed['launch'] * 1e6:.1f} µs"
        table.add_row(f.name, "ready" if not f.mistakes else "[red]wrong[/]", right, launch, escape(f.description))
    return table


def _kernels(finding: Finding) -> Table:
    table = Table(title=f"matrix products on {finding.name}, by variant")
    for heading in ("size", "variant"):
        table.add_column(heading)
    table.add_column("time", justify="right")
    for size, times in finding.kernels.items():
        for name, seconds in sorted(times.items(), key=lambda pair: pair[1]):
            table.add_row(size, escape(name), tables.milliseconds(seconds))
    return table
