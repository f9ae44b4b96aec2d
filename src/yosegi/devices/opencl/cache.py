"""Built programs: in memory by their source, on disk as binaries by source, device and driver."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, final

from ..._tune.store import ProgramCache
from ...errors import CompileFailure, DeviceLost, OutOfMemory
from .errors import failure, translated
from .library import identity_of


@final
class Programs(ProgramCache):
    """The programs of one device."""

    def __init__(
        self, cl: Any, context: Any, device: Any, options: tuple[str, ...], *, is_trusted: bool = True
    ) -> None:
        """Without trust nothing is built here: programs are what child processes have built."""
        self._is_trusted = is_trusted
        self._cl = cl
        self._context = context
        self._device = device
        self._options = options
        self.identity = "\n".join([identity_of(cl, device), *options])
        """The identity of its binaries: the platform, the device, the driver."""
        super().__init__(self.identity)

    def load(self, code: bytes) -> Any | None:
        """The program of a binary."""
        try:
            return self._cl.Program(self._context, [self._device], [code]).build(list(self._options))
        except self._cl.Error:
            return None

    def build(self, source: str) -> tuple[Any, bytes | None]:
        """The program of a source, and its binary, if the driver gives it out."""
        cl = self._cl
        if not self._is_trusted:
            raise CompileFailure("its driver is not trusted, and no child process has built this program")
        try:
            program = cl.Program(self._context, source).build(list(self._options), [self._device])
        except cl.Error as error:
            failed = failure(error, "building a program")
            if isinstance(failed, (OutOfMemory, DeviceLost)):
                raise failed from error
            raise CompileFailure(f"{error}\n{source}") from error  # the error's text has the compiler's log
        with suppress(cl.Error, IndexError):
            return program, _binary(cl, program)
        return program, None

    def binary(self, source: str) -> bytes:
        """The binary of a program that is in memory, with all that its driver has compiled of it until now."""
        with translated(self._cl, "taking a program's binary"):
            return _binary(self._cl, self.get(source))


def _binary(cl: Any, program: Any) -> bytes:
    found: bytes = program.get_info(cl.program_info.BINARIES)[0]
    return found
