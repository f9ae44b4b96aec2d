"""Built programs: in memory by their source, on disk as binaries by source, device and driver."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Any

from ... import store
from ...errors import CompileFailure, DeviceLost, OutOfMemory
from .errors import failure


class Programs:
    """The programs of one device. Counts how many were built from source and how many from a binary."""

    def __init__(self, cl: Any, context: Any, device: Any, options: tuple[str, ...]) -> None:
        self._cl = cl
        self._context = context
        self._device = device
        self._options = options
        platform = device.platform
        self.identity = "\n".join([
            platform.name, platform.version, device.name, device.version, device.driver_version, cl.VERSION_TEXT,
            *options])  # fmt: skip
        """What its binaries belong to: the platform, the device, the driver."""
        self._stored = store.Programs("programs", self.identity)
        self._programs: dict[str, Any] = {}
        self._lock = Lock()
        self.built = 0
        self.loaded = 0

    def get(self, source: str) -> Any:
        """The built program of a source. Raises `CompileFailure` with the compiler's log."""
        with self._lock:
            program = self._programs.get(source)
            if program is None:
                program = self._programs[source] = self._load(source) or self._build(source)
            return program

    def _load(self, source: str) -> Any | None:
        name = self._stored.name(source)
        binary = self._stored.get(name)
        if binary is None:
            return None
        try:
            program = self._cl.Program(self._context, [self._device], [binary])
            program.build(list(self._options))
        except self._cl.Error:  # the driver does not take what it once gave
            self._stored.reject(name)
            return None
        self.loaded += 1
        return program

    def _build(self, source: str) -> Any:
        cl = self._cl
        try:
            program = cl.Program(self._context, source).build(list(self._options), [self._device])
        except cl.Error as error:
            failed = failure(error, "building a program")
            if isinstance(failed, (OutOfMemory, DeviceLost)):
                raise failed from error
            raise CompileFailure(f"{error}\n{source}") from error  # the error's text has the compiler's log
        self.built += 1
        with suppress(cl.Error, IndexError):
            self._stored.put(self._stored.name(source), program.get_info(cl.program_info.BINARIES)[0])
        return program
