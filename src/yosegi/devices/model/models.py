"""Compiled models: few at a time, each run by one thread at a time, on memory that is ours.

A model's inputs are read where they lie and its outputs written where they are wanted: nothing is copied but arrays
that are not contiguous. Each model that lives holds threads and memory, so only so many do; the one that was not used
for the longest time is put away, and compiled again if it must be. Compiled models are kept on disk too, so that the
next process does not compile them again: by the region, and all that the compiler depends on.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from ..._run.drivers import Driver
from ..._run.forks import in_forked_child
from ..._run.memory.pool import Pool
from ..._schedule.fuse import Region
from ..._schedule.portable_region import digest, region_as_plain
from ..._tensor.environment import memory_limit
from ..._tune.store import cache_folder
from ...errors import CompileFailure, DeviceFailure, DeviceLost, LaunchFailure
from .errors import failure, translated
from .ports import host_pool
from .requests import Request
from .translate import Translation, signature

LIVE: Final = 96  # each holds two idle threads and 2 MB
SOON: Final = 10.0  # seconds; a model wanted again sooner after it was put away would drive the next one out in turn
_LIMIT: Final = 1 << 26  # bytes of a region's constants, which its file would hold too


class Compiler(ABC):
    """A compiler of models."""

    folder: ClassVar[str]
    """Of the cache, for its compiled models."""
    suffix: ClassVar[str]
    """Of the names of compiled models."""
    proof: str
    """The function of child processes that compiles a region, runs it once, and leaves the compiled model in a place:
    it gets `child`, the region and the place."""
    child: tuple[str, ...] = ()

    @abstractmethod
    def identity(self, region: Region) -> str:
        """All but the region that a compiled model depends on: machine, versions, settings."""

    @abstractmethod
    def translate(self, region: Region) -> Translation[Any]:
        """The model of a region."""

    @abstractmethod
    def compile(self, region: Region, model: Any) -> Any:
        """A compiled model."""

    @abstractmethod
    def load(self, region: Region, place: Path) -> Any | None:
        """The compiled model that `save` has left; `None` if there is none, or a damaged one, or one of no use."""

    @abstractmethod
    def save(self, place: Path, compiled: Any) -> None:
        """Keep a compiled model; one that cannot be kept is only slower the next time."""

    @abstractmethod
    def request(self, compiled: Any, translation: Translation[Any], pool: Pool) -> Request[Any]:
        """A request to run a compiled model."""

    def place_of(self, region: Region) -> Path | None:
        """Where a region's compiled model is, or would be; `None` if it is too large to be kept."""
        graph = region.graph
        held = {a for n in region.nodes for a in (n, *graph.args[n]) if "array" in graph.calls[a].attrs}
        if sum(graph.calls[a].spec.nbytes for a in held) > _LIMIT:
            return None
        found = hashlib.sha256(self.identity(region).encode())
        for part in signature(region):
            found.update(b"\n")
            found.update(part if isinstance(part, bytes) else part.encode())
        return cache_folder() / self.folder / f"{found.hexdigest()}{self.suffix}"


class Models:
    """The models of one device, those alive by their regions. Counts how many were compiled, and how many loaded."""

    def __init__(self, name: str, compiler: Compiler, driver: Driver | None = None) -> None:
        self._driver = driver
        self.name = name
        self.compiler = compiler
        self.pool = host_pool(memory_limit(name))
        self.compiled = 0
        self.loaded = 0
        self.is_forked = False
        self._known: WeakValueDictionary[Any, Model] = WeakValueDictionary()
        self._lock = Lock()
        in_forked_child(self._after_fork)

    def _after_fork(self) -> None:
        """In a forked child a library's threads are not there: a call of a model would wait for ever."""
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

    def ready(self, region: Region, model: Any) -> Any:
        """The compiled model of a region: from disk if it is there, else compiled and kept there."""
        place = self.compiler.place_of(region)
        found = None if place is None else self.compiler.load(region, place)
        if found is not None:
            self.loaded += 1
            return found
        verdict = None if self._driver is None else self._driver.verdict
        self.compiled += 1
        if self._driver is not None and verdict is not None and not verdict.is_trusted:
            return self._elsewhere(self._driver, region, place)
        made = self.compiler.compile(region, model)
        if place is not None:
            self.compiler.save(place, made)
        return made

    def _elsewhere(self, driver: Driver, region: Region, kept: Path | None) -> Any:
        """A region's model, compiled in a child process, for a driver that is not trusted."""
        with TemporaryDirectory(prefix="yosegi-") as folder:
            place = kept or Path(folder) / f"model{self.compiler.suffix}"
            wanted = *self.compiler.child, region_as_plain(region), str(place)
            driver.prove(str(region), digest(region), self.compiler.proof, *wanted)
            found = self.compiler.load(region, place)
        if found is None:
            raise CompileFailure(f"[{self.name}] a model that a child process has compiled could not be loaded")
        return found

    def export(self, region: Region, place: Path) -> None:
        """Leave a region's compiled model in a place."""
        model = self.compiler.translate(region).model
        assert model is not None
        self.compiler.save(place, self.compiler.compile(region, model))


class Model:
    """One region's model."""

    def __init__(self, region: Region, models: Models) -> None:
        self._region = region
        self._models = models
        self._running = f"[{models.name}] running {region}"
        self._lock = Lock()  # a request is for one thread at a time
        self._translation: Translation[Any] | None = None
        self._request: Request[Any] | None = None
        self._put_away_at = float("-inf")
        self.last_used = time.monotonic()

    @property
    def is_live(self) -> bool:
        """True if it is compiled."""
        return self._request is not None

    @property
    def launched(self) -> str:
        """How it runs, if its compiler reports that."""
        return "" if self._request is None else self._request.launched

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

    def _prepared(self) -> Translation[Any]:
        if self._translation is None:
            if time.monotonic() - self._put_away_at < SOON:
                raise CompileFailure(f"[{self._models.name}] {LIVE} models are in use, more would take turns")
            with translated(CompileFailure, f"[{self._models.name}] compiling {self._region}"):
                translation = self._models.compiler.translate(self._region)
                if translation.model is not None:
                    self._models.make_room()
                    compiled = self._models.ready(self._region, translation.model)
                    self._request = self._models.compiler.request(compiled, translation, self._models.pool)
            self._translation = replace(translation, model=None)  # it is compiled: what it was made from can go
        return self._translation
