"""Built programs: in memory by their source, on disk as binaries by source, device and driver.

A binary that the driver does not take is as good as none.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from ...errors import CompileFailure, DeviceLost, OutOfMemory
from ...store import cache_folder, sealed, unsealed
from .errors import failure


class Programs:
    """The programs of one device. Counts how many were built from source and how many from a binary."""

    def __init__(self, cl: Any, context: Any, device: Any, options: tuple[str, ...]) -> None:
        self._cl = cl
        self._context = context
        self._device = device
        self._options = options
        platform = device.platform
        self._identity = "\n".join([platform.name, platform.version, device.name, device.version,
                                    device.driver_version, cl.VERSION_TEXT, *options])  # fmt: skip
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

    def _path(self, source: str) -> Path:
        name = hashlib.sha256(f"{self._identity}\n{source}".encode()).hexdigest()
        return cache_folder() / "programs" / f"{name}.bin"

    def _load(self, source: str) -> Any | None:
        binary = unsealed(self._path(source))
        if binary is None:
            return None
        try:
            program = self._cl.Program(self._context, [self._device], [binary])
            program.build(list(self._options))
        except self._cl.Error:
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
            binary = program.get_info(cl.program_info.BINARIES)[0]
            sealed(self._path(source), binary)
        return program
