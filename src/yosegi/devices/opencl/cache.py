"""Built programs: in memory by their source, on disk as binaries by source, device and driver.

Several processes may use one folder: a file is written under a name of its own and then moved into place. A file that
is damaged, or that the driver does not take, is as good as none.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

from ...errors import CompileFailure, DeviceLost, OutOfMemory
from .errors import failure

_MAGIC: Final = b"yosegi1\n"
_DIGEST: Final = 32


def cache_folder() -> Path:
    """Where binaries are kept: YOSEGI_CACHE_DIR, or a folder in the user's cache."""
    chosen = os.environ.get("YOSEGI_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "yosegi"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "yosegi" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "yosegi"


def written(path: Path, content: bytes) -> None:
    """Put a file in place as a whole, or not at all: a cache that cannot be written is only slower."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


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
        try:
            stored = self._path(source).read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + _DIGEST
        digest, binary = stored[len(_MAGIC) : head], stored[head:]
        if not stored.startswith(_MAGIC) or hashlib.sha256(binary).digest() != digest:
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
            written(self._path(source), _MAGIC + hashlib.sha256(binary).digest() + binary)
        return program
