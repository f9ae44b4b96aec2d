"""Compiled models: few at a time, each run by one thread at a time, on memory that is ours.

OpenVINO reads a model's inputs where they lie and writes its outputs where they are wanted: nothing is copied but
arrays that are not contiguous. Each model that lives holds threads and memory, so only so many do; the one that was not
used for the longest time is put away, and compiled again if it must be.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final
from weakref import WeakValueDictionary

from ..._place.work import digest
from ..._run.drivers import Driver
from ..._run.forks import in_forked_child
from ..._run.memory.pool import memory_limit
from ..._schedule.fuse import Region
from ..._schedule.portable_region import region_as_plain
from ...errors import CompileFailure, DeviceFailure, DeviceLost, LaunchFailure
from . import blobs
from .errors import failure, translated
from .library import core, settings
from .ports import host_pool
from .requests import Request
from .translate import Translation, translate

_PROBE: Final = "yosegi.devices.openvino.probe"
LIVE: Final = 96  # each holds two idle threads and 2 MB
SOON: Final = 10.0  # seconds; a model wanted again sooner after it was put away would drive the next one out in turn


class Models:
    """The models of one plugin, those alive by their regions. Counts how many were compiled, and how many loaded."""

    def __init__(self, name: str, plugin: str, driver: Driver | None = None) -> None:
        self._driver = driver
        self.name = name
        self.plugin = plugin
        self.pool = host_pool(memory_limit(name))
        self.compiled = 0
        self.loaded = 0
        self.is_forked = False
        self._known: WeakValueDictionary[Any, Model] = WeakValueDictionary()
        self._lock = Lock()
        in_forked_child(self._after_fork)

    def _after_fork(self) -> None:
        """In a forked child OpenVINO's threads are not there: a call of a model would wait for ever."""
        self.is_forked = True

    def get(self, region: Region) -> Model:
        """The model of a region, ready to run. Regions that are the same work share one."""
        key = region.key()
        with self._lock:
            model = self._known.get(key)
            if model is None:
                model = self._known[key] = Model(region, self)
        model.prepare()
        return model

    def live(self) -> list[Model]:
        """Those that are compiled now, the one that was not used for the longest time first."""
        with self._lock:
            return sorted((m for m in self._known.values() if m.is_live), key=lambda m: m.last_used)

    def make_room(self) -> None:
        """Remove the oldest models, so that one more fits."""
        live = self.live()
        for model in live[: max(0, len(live) - LIVE + 1)]:
            model.put_away()

    def request_for(self, region: Region, model: Any) -> Any:
        """A request to run a region: of a compiled model from disk if it is there, else compiled and kept there."""
        chosen = settings(self.plugin, region.precision)
        place = blobs.place_of(region, self.plugin, chosen)
        found = None if place is None else blobs.load(place, self.plugin, chosen)
        if found is not None:
            self.loaded += 1
            return found.create_infer_request()
        verdict = None if self._driver is None else self._driver.verdict
        if self._driver is not None and verdict is not None and not verdict.is_trusted:
            made = self._elsewhere(self._driver, region, chosen)
        else:
            made = core().compile_model(model, self.plugin, chosen)
        self.compiled += 1
        if place is not None:
            blobs.save(place, made)
        return made.create_infer_request()

    def _elsewhere(self, driver: Driver, region: Region, chosen: dict[str, Any]) -> Any:
        """A region's model, compiled in a child process, for a plugin that is not trusted."""
        with TemporaryDirectory(prefix="yosegi-") as folder:
            place = Path(folder) / "model.blob"
            wanted = self.plugin, region_as_plain(region), str(place)
            driver.prove(str(region), digest(region), f"{_PROBE}:prove", *wanted)
            found = blobs.load(place, self.plugin, chosen)
        if found is None:
            raise CompileFailure(f"[{self.name}] a model that a child process has compiled could not be loaded")
        return found

    def export(self, region: Region, place: Path) -> None:
        """Leave a region's compiled model in a file."""
        model = translate(region).model
        assert model is not None
        blobs.save(place, core().compile_model(model, self.plugin, settings(self.plugin, region.precision)))


class Model:
    """One region's model."""

    def __init__(self, region: Region, models: Models) -> None:
        self._region = region
        self._models = models
        self._running = f"[{models.name}] running {region}"
        self._lock = Lock()  # a request is for one thread at a time
        self._translation: Translation | None = None
        self._request: Request | None = None
        self._put_away_at = float("-inf")
        self.last_used = time.monotonic()

    @property
    def is_live(self) -> bool:
        """Whether it is compiled."""
        return self._request is not None

    def prepare(self) -> None:
        """Compile it, if it is not."""
        with self._lock:
            self._prepared()

    def put_away(self) -> None:
        """Give back its threads and its memory."""
        with self._lock:
            self._translation = self._request = None
            self._put_away_at = time.monotonic()

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        """Run it on host arrays. Its results are new arrays, or inputs as they are."""
        if self._models.is_forked:
            raise DeviceLost(f"[{self._models.name}] its driver was loaded before this process was forked")
        with self._lock:
            translation = self._translation or self._prepared()
            self.last_used = time.monotonic()
            try:
                if self._request is not None:
                    return self._request(data)
            except DeviceFailure:
                raise
            except Exception as error:
                raise failure(LaunchFailure, error, self._running) from error
            return tuple([data[n] for n, _ in translation.outputs])  # every output is an input

    def _prepared(self) -> Translation:
        if self._translation is None:
            if time.monotonic() - self._put_away_at < SOON:
                raise CompileFailure(f"[{self._models.name}] {LIVE} models are in use, more would take turns")
            with translated(CompileFailure, f"[{self._models.name}] compiling {self._region}"):
                translation = translate(self._region)
                if translation.model is not None:
                    self._models.make_room()
                    request = self._models.request_for(self._region, translation.model)
                    self._request = Request(request, translation, self._models.pool)
            self._translation = replace(translation, model=None)  # it is compiled: what it was made from can go
        return self._translation
