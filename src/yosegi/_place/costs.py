"""The cost of work on a device: the measured time of the region, else the device's cost model."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from threading import Lock
from time import monotonic
from typing import Final

from .._run.device import Device, host_device, owner_of
from .._run.memory import HOST
from .._schedule.fuse import Region
from .._schedule.portable_region import digest
from .._tensor.precision import Precision
from .._tune.measurements import SAMPLES, Page, read, write
from .candidates import Candidate
from .cost_model import DEVICE_PRIOR, HOST_PRIOR, Speed, Task, TransferCost, Work

_SAVED_EVERY: Final = 30.0  # seconds
_RATIOS: Final = 9  # regions of a class of work whose ratio of measured to modelled time is kept
_ENOUGH: Final = 3  # regions from which the ratios count


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a region, and the part of them for conversion to another precision."""

    compute: float
    conversion: float = 0.0
    is_measured: bool = False
    """True if this region was timed; otherwise the cost model predicted it."""

    @property
    def total(self) -> float:
        """All seconds."""
        return self.compute + self.conversion


class Costs:
    """The measurements of this process: speeds of devices, and times of regions."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}
        self._speeds: dict[str, Speed] = {}
        self._factors: dict[str, dict[Task, float]] = {}
        self._loaded: set[str] = set()
        self._devices: dict[str, Device] = {}
        self._lock = Lock()
        self._unsaved: set[str] = set()
        self._observed: set[tuple[str, str, str]] = set()
        """The device, region and precision of every measurement of this process."""
        self._saved_at = monotonic()
        self.epoch = 0
        """The number of measurements of devices. Plans made under an earlier number may be made again."""
        atexit.register(self.save)

    def speed(self, device: Device) -> Speed:
        """The measured cost model of a device, or its prior."""
        speed = self._speeds.get(device.name)
        if speed is None:
            speed = device.limits.prior or (HOST_PRIOR if device is host_device() else DEVICE_PRIOR)
            self._speeds[device.name] = speed
        return speed

    def predict(self, region: Region, works: Sequence[Work], candidate: Candidate) -> Cost:
        """The cost of a region with these amounts of work on a candidate, its launch included."""
        measured = self.measured(region, candidate)
        return self.modelled(works, candidate) if measured is None else Cost(measured, is_measured=True)

    def modelled(self, works: Sequence[Work], candidate: Candidate) -> Cost:
        """The cost of these amounts of work by the cost model of the device."""
        speed, precision = self.speed(candidate.device), candidate.precision
        compute = speed.launch if candidate.device.coalesces else 0.0
        for work in works:
            compute += self.region(work, candidate)
        conversion = sum(speed.converting(w, precision) for w in works) if precision is not Precision.FULL else 0.0
        return Cost(compute, conversion)

    def region(self, work: Work, candidate: Candidate) -> float:
        """Seconds of a region by the cost model, corrected by the ratio of measured to modelled times of such work. The
        launch is left out if several regions share one."""
        device = candidate.device
        seconds = self.speed(device).region(work, candidate.precision, coalesces=device.coalesces)
        factors = self._factors.get(device.name)
        return seconds if factors is None else seconds * factors.get(work.task, 1.0)

    def measured(self, region: Region, candidate: Candidate) -> float | None:
        """The shortest time of this region on a candidate in its last runs, in seconds."""
        page = self._pages.get(candidate.device.name)
        if page is None or not page.times:
            return None
        seconds = page.times.get(digest(region), {}).get(candidate.precision.value)
        return None if seconds is None else min(seconds)

    def transfer(self, source: str, target: str) -> TransferCost:
        """Seconds to copy values from one memory to another through the host. For devices with a direct copy this is an
        upper bound: pairs are not measured."""
        down = TransferCost() if source in (HOST, target) else self._speed_of_space(source).download
        up = TransferCost() if target in (HOST, source) else self._speed_of_space(target).upload
        per_byte = 1 / down.bandwidth + 1 / up.bandwidth
        return TransferCost(down.latency + up.latency, 1 / per_byte if per_byte else float("inf"))

    def _speed_of_space(self, space: str) -> Speed:
        owner = owner_of(space)
        return DEVICE_PRIOR if owner is None else self.speed(owner)

    def observe(
        self, region: Region, works: Sequence[Work], candidate: Candidate, seconds: float, *, afresh: bool = False
    ) -> None:
        """Note how long a region took, and with it how right the cost model was about such work. What earlier processes
        measured of this region does not count any more; with `afresh`, neither does what this one did."""
        device, precision = candidate.device, candidate.precision
        name, key, speed = device.name, digest(region), self.speed(device)
        shares = [(speed.region(w, precision, coalesces=device.coalesces), w.task.value) for w in works]
        modelled = sum(share for share, _ in shares) + (speed.launch if device.coalesces else 0.0)
        with self._lock:
            page = self._pages.setdefault(name, Page())
            known = page.times.pop(key, {})
            entry = name, key, precision.value
            earlier = [] if afresh or entry not in self._observed else known.get(precision.value, [])
            self._observed.add(entry)
            known[precision.value] = [*earlier, seconds][-SAMPLES:]
            page.times[key] = known  # the newest last
            ratios = page.ratios.setdefault(max(shares)[1], {})
            ratios.pop(f"{key} {precision.value}", None)
            ratios[f"{key} {precision.value}"] = min(known[precision.value]) / modelled
            for oldest in list(ratios)[:-_RATIOS]:
                del ratios[oldest]
            self._factors[name] = _factors(page)
            self._devices[name] = device
            self._unsaved.add(name)
        if monotonic() - self._saved_at > _SAVED_EVERY:
            self.save()

    def set_speed(self, device: Device, speed: Speed) -> None:
        """Store the measured speed of a device."""
        with self._lock:
            page = self._pages.setdefault(device.name, Page())
            page.speed = self._speeds[device.name] = speed
            page.ratios.clear()  # these ratios belong to another cost model
            self._factors.pop(device.name, None)
            self._devices[device.name] = device
            self._unsaved.add(device.name)
            self.epoch += 1
        self.save()

    def load(self, device: Device) -> Speed | None:
        """The measurements of earlier processes on a device, read once."""
        with self._lock:
            if device.name not in self._loaded:
                self._loaded.add(device.name)
                found, own = read(device) if device.identity else Page(), self._pages.get(device.name, Page())
                page = Page(own.speed or found.speed, found.times | own.times, found.ratios | own.ratios)
                self._pages[device.name] = page
                if page.speed is not None:
                    self._speeds[device.name] = page.speed
                    self._factors[device.name] = _factors(page)
            return self._pages[device.name].speed

    def save(self) -> None:
        """Store new measurements on disk, for devices with an identity."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, set()
            self._saved_at = monotonic()
            pages = [(self._devices[n], self._pages[n].copy()) for n in unsaved]
        for device, page in pages:
            if device.identity:
                write(device, page)

    def reset(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = Lock()

    def clear(self) -> None:
        """Forget everything that is not on disk."""
        with self._lock:
            for table in (self._pages, self._speeds, self._factors, self._loaded, self._devices):
                table.clear()
            self._unsaved.clear()
            self._observed.clear()
            self.epoch += 1


def _factors(page: Page) -> dict[Task, float]:
    """The ratio of measured to modelled time of each class of work with enough measured regions."""
    return {Task(task): median(ratios.values()) for task, ratios in page.ratios.items() if len(ratios) >= _ENOUGH}


costs: Final = Costs()
