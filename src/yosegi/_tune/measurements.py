"""The measurements of devices on disk: a JSON file for each device and driver version.

A file belongs to the hardware, the driver and the libraries that it was measured with, Yosegi among them: after any of
these has changed it is not found. Several processes may write: each keeps what the others found out meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from .._graph import decode
from .._graph.decode import Malformed
from .._place.cost_model import Speed, Task
from .._run.device import Device
from .._run.trace import log
from .._tensor.precision import Precision
from .store import cache_folder, package_digest, set_aside, written

FORMAT: Final = "yosegi-costs"
VERSION: Final = 2
SAMPLES: Final = 5
"""Times of a region that are kept: the newest."""
_PRECISIONS: Final = tuple(p.value for p in Precision)
_TASKS: Final = tuple(t.value for t in Task)
_MOST: Final = 4096  # regions of a device that are kept

Times = dict[str, dict[str, list[float]]]
"""Seconds of a region's last runs, by its digest and by precision; the region seen last stands last."""


@dataclass(slots=True)
class Page:
    """The measurements of a device."""

    speed: Speed | None = None
    times: Times = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    """Measured over modelled time of the regions measured last, by class of work, by digest and precision."""

    def copy(self) -> Page:
        """A copy for a thread that writes it while others observe."""
        return Page(self.speed, dict(self.times), {task: dict(ratios) for task, ratios in self.ratios.items()})


def path_of(device: Device) -> Path:
    """The file of a device as it is now."""
    of = hashlib.sha256(f"{device.identity}\n{package_digest()}".encode()).hexdigest()[:16]
    return cache_folder() / "costs" / f"{device.name.replace(':', '-')}-{of}.json"


def read(device: Device) -> Page:
    """The measurements on disk. A malformed file is set aside with a warning."""
    path = path_of(device)
    try:
        text = path.read_bytes()
    except OSError:
        return Page()
    try:
        return _page(decode.loads(text), device)
    except Malformed as error:
        set_aside(path)
        log.warning("%s is not what was measured of %s (%s): it was set aside", path, device.name, error)
        return Page()


def _page(data: Any, device: Device) -> Page:
    """The page in a file. Raises `Malformed`."""
    form, version, _, identity, speed, times, ratios = decode.record(
        data, "", "format", "version", "device", "identity", "speed", "times", "ratios"
    )
    decode.one_of(form, "format", (FORMAT,))
    decode.integer(version, "version", VERSION, VERSION)
    decode.one_of(identity, "identity", (device.identity,))
    return Page(
        None if speed is None else Speed.from_json(speed, "speed"),
        decode.table(times, "times", partial(decode.table, read=_newest, keys=_PRECISIONS)),
        decode.table(ratios, "ratios", partial(decode.table, read=decode.seconds), _TASKS),
    )


def _newest(data: Any, place: str) -> list[float]:
    return decode.each(data, place, decode.seconds, least=1)[-SAMPLES:]


def write(device: Device, page: Page) -> None:
    """Put a page in its place, with what other processes found out meanwhile."""
    theirs = read(device)
    times = {d: t for d, t in theirs.times.items() if d not in page.times} | page.times
    for oldest in list(times)[: max(0, len(times) - _MOST)]:
        del times[oldest]
    speed = page.speed or theirs.speed
    content = {
        "format": FORMAT, "version": VERSION, "device": device.name, "identity": device.identity,
        "speed": None if speed is None else speed.to_json(), "times": times, "ratios": theirs.ratios | page.ratios,
    }  # fmt: skip
    written(path_of(device), json.dumps(content, indent=1).encode())
