"""The cost model of a device: launch + bytes / bandwidth + operations / throughput.

A device that was measured has a line of its own. Before, priors decide, which are lines too: under 1 MB the host, above
it the first device of the chain. They say nothing about how fast anything is, only what to begin with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, Final

from .._graph import decode
from .._tensor.dtype import ALL, as_dtype
from .._tensor.precision import Precision
from .work import Task, Work

Rates = Mapping[tuple[Task, str], float]
"""Operations a second, by class and by numbers: a dtype's name, or that of a precision below the inputs' own. Infinite
for a class that takes no longer than its bytes."""

_MEASURED_IN: Final = "float32"


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Moving bytes from one memory to another: seconds before the first, and bytes a second."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def seconds(self, nbytes: int) -> float:
        """The seconds that a transfer of this many bytes takes."""
        return self.latency + nbytes / self.bandwidth

    def __str__(self) -> str:
        rate = f" + {self.bandwidth / 1e9:.1f} GB/s" if isfinite(self.bandwidth) else ""
        return f"{self.latency * 1e6:.0f} µs{rate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The cost model of a device, in seconds and per second."""

    launch: float
    """One call among many that follow each other."""
    bandwidth: float
    """Bytes that a kernel reads and writes."""
    part: float = 0.0
    """Each region of a call that is made of several, beside the time for its bytes and operations."""
    rates: Rates = field(default_factory=dict)
    upload: TransferCost = TransferCost()
    """From the host's memory to its own."""
    download: TransferCost = TransferCost()
    """Back, with the wait until the work is done."""
    conversion: float = float("inf")
    """Bytes of operands that it brings to another precision."""
    wait: float = 0.0
    """The additional time of a call when the caller waits for its end."""
    compiling: float = 0.0
    """Code for one region."""
    is_measured: bool = False
    _known: dict[tuple[Task, str], float] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Rates that were looked for, which is done for every region of every plan."""

    def region(self, work: Work, precision: Precision = Precision.FULL, *, coalesces: bool) -> float:
        """The line of a region: with a launch, or as a part of a call where a device takes several regions in one."""
        numbers = work.dtype if precision is Precision.FULL else precision.value
        rate = self._known.get((work.task, numbers))
        if rate is None:
            rate = self._known[work.task, numbers] = self._rate(work.task, numbers, work.dtype)
        own = self.part if coalesces else self.launch
        return work.seconds + work.nbytes / self.bandwidth + work.operations / rate + own

    def converting(self, work: Work, precision: Precision) -> float:
        """The seconds that converting a product's operands to a precision takes."""
        return 0.0 if precision is Precision.FULL else work.operands / self.conversion

    def _rate(self, task: Task, numbers: str, dtype: str) -> float:
        """Operations a second: as measured, else of the nearest class, else by the width of the numbers."""
        found = self.rates.get((task, numbers)) or self.rates.get((_NEAREST.get(task, task), numbers))
        if found is not None:
            return found
        known = self.rates.get((task, _MEASURED_IN)) or self.rates.get((Task.LOOPS, _MEASURED_IN), float("inf"))
        return known * _width(_MEASURED_IN) / _width(dtype)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        rates: dict[str, dict[str, float | None]] = {}
        for (task, numbers), rate in self.rates.items():
            rates.setdefault(task.value, {})[numbers] = _finite(rate)
        return {
            "launch": self.launch, "part": self.part, "wait": self.wait, "compiling": self.compiling,
            "bandwidth": self.bandwidth, "conversion": _finite(self.conversion),
            "upload": [self.upload.latency, _finite(self.upload.bandwidth)],
            "download": [self.download.latency, _finite(self.download.bandwidth)], "rates": rates,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any, place: str) -> Speed:
        """From such data. Raises `Malformed` when it is something else."""
        launch, part, wait, compiling, bandwidth, conversion, upload, download, rates = decode.record(
            data, place, *_FIELDS
        )
        return cls(
            launch=decode.seconds(launch, f"{place}.launch"), part=_seconds(part, f"{place}.part"),
            wait=_seconds(wait, f"{place}.wait"), compiling=_seconds(compiling, f"{place}.compiling"),
            bandwidth=_rate(bandwidth, f"{place}.bandwidth"), conversion=_unbounded(conversion, f"{place}.conversion"),
            upload=_way(upload, f"{place}.upload"), download=_way(download, f"{place}.download"),
            rates=_rates(rates, f"{place}.rates"), is_measured=True,
        )  # fmt: skip

    def __str__(self) -> str:
        parts = [f"launch {self.launch * 1e6:.1f} µs", f"{self.bandwidth / 1e9:.1f} GB/s"]
        counted = {key: rate for key, rate in self.rates.items() if isfinite(rate)}
        parts += [f"{task.value} {_per_second(rate)} in {numbers}" for (task, numbers), rate in counted.items()]
        moved = dict.fromkeys(task.value for task, numbers in self.rates if (task, numbers) not in counted)
        if moved:
            parts.append(f"{' and '.join(moved)} by their bytes alone")
        if self.upload != TransferCost():
            parts += [f"to it {self.upload}", f"back {self.download}"]
        return ", ".join(parts)


_NEAREST: Final = {Task.WEIGHTED: Task.PRODUCTS, Task.CONVOLUTIONS: Task.PRODUCTS}
"""The class whose rate replaces that of an unmeasured class."""


def _per_second(rate: float) -> str:
    """A rate in the largest unit of which it has at least one."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.1f} {unit}/s"
    return f"{rate:.1f} /s"


def _width(name: str) -> int:
    return as_dtype(name).itemsize


def _finite(value: float) -> float | None:
    """For JSON, which has no infinity."""
    return value if isfinite(value) else None


_FIELDS: Final = (
    "launch", "part", "wait", "compiling", "bandwidth", "conversion", "upload", "download", "rates",
)  # fmt: skip
_TASKS: Final = tuple(task.value for task in Task)
_NUMBERS: Final = (*[dtype.name for dtype in ALL], *[precision.value for precision in Precision])


def _seconds(value: Any, place: str) -> float:
    return decode.number(value, place, 0, decode.LONGEST_TIME)


def _rate(value: Any, place: str) -> float:
    return decode.number(value, place, 1 / decode.HIGHEST_RATE, decode.HIGHEST_RATE)


def _unbounded(value: Any, place: str) -> float:
    return float("inf") if value is None else _rate(value, place)


def _rates(value: Any, place: str) -> Rates:
    found = decode.table(value, place, partial(decode.table, read=_unbounded, keys=_NUMBERS), _TASKS)
    return {(Task(task), numbers): rate for task, table in found.items() for numbers, rate in table.items()}


def _way(value: Any, place: str) -> TransferCost:
    latency, bandwidth = decode.items(value, place, 2, least=2)
    return TransferCost(_seconds(latency, f"{place}[0]"), _unbounded(bandwidth, f"{place}[1]"))


# Priors: until a device is measured. The first byte past 1 MB (in and out of a region, on the host) is where a launch
# and the way back have paid; what a product's operations cost is the same everywhere, for nothing is known of it.

_PRODUCT: Final = 5e10
_PRIOR_RATES: Final = {(task, _MEASURED_IN): 2.5e7 if task is Task.OTHER else _PRODUCT for task in Task}

HOST_PRIOR: Final = Speed(launch=2e-6, bandwidth=1e10, part=1e-6, rates=_PRIOR_RATES)
DEVICE_PRIOR: Final = Speed(
    launch=4e-5, bandwidth=1e11, rates=_PRIOR_RATES, download=TransferCost(latency=5.5e-5), wait=5e-5, compiling=0.05
)


def compiler_prior(launch: float, weighted: float) -> Speed:
    """The prior of a device that compiles subgraphs in the host's memory: a call costs `launch`, convolutions and
    products by constants are `weighted` times as fast as on the host, other products half as fast, and nothing else
    gains or loses."""
    rates = _PRIOR_RATES | {
        (Task.WEIGHTED, _MEASURED_IN): weighted * _PRODUCT,
        (Task.CONVOLUTIONS, _MEASURED_IN): weighted * _PRODUCT,
        (Task.PRODUCTS, _MEASURED_IN): _PRODUCT / 2,
    }
    return replace(HOST_PRIOR, launch=launch, rates=rates, compiling=0.1)
