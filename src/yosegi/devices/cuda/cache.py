"""Compiled programs: in memory by their source, on disk as machine code by source, architecture and versions."""

from __future__ import annotations

import os
from typing import Any, Final, final

from ..._tune.store import ProgramCache
from ...codegen.c.kernel_source import NAME
from ...errors import CompileFailure, OutOfMemory
from .errors import failure, translated

# Products are not fused with sums: a loop gives what its ops give one by one, to the bit.
_OPTIONS: Final = ("--std=c++17", "--fmad=false", "-w")
COMPILERS: Final = os.cpu_count() or 1
"""Programs that are compiled at the same time."""


@final
class Programs(ProgramCache):
    """The kernels of one device."""

    def __init__(self, cupy: Any, capability: str, number: int, name: str) -> None:
        cuda = cupy.cuda
        self._runtime = cuda.runtime
        self._number = number
        self._nvrtc = cuda.nvrtc
        self._module = cuda.function.Module
        self._name = name
        supported = cuda.nvrtc.getSupportedArchs()
        self.is_native = int(capability) in supported
        # A GPU that is newer than the compiler gets code for the newest it knows, which the driver translates.
        arch = f"sm_{capability}" if self.is_native else f"compute_{max(a for a in supported if a <= int(capability))}"
        self._options = (f"-arch={arch}", *_OPTIONS)
        versions = (cupy.__version__, *cuda.nvrtc.getVersion(), cuda.runtime.driverGetVersion())
        super().__init__("\n".join(["cuda", *map(str, versions), *self._options]), COMPILERS)

    def load(self, code: bytes) -> Any | None:
        """The kernel of what the compiler once gave."""
        try:
            return self._function(code)
        except RuntimeError as error:
            failed = failure(error, f"[{self._name}] loading a program")
            if not isinstance(failed, CompileFailure):
                raise failed from error
            return None

    def build(self, source: str) -> tuple[Any, bytes]:
        """The kernel of a source, and its machine code."""
        nvrtc = self._nvrtc
        with translated(f"[{self._name}] compiling"):
            program = nvrtc.createProgram(source, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, self._options)
            code = nvrtc.getCUBIN(program) if self.is_native else nvrtc.getPTX(program) + b"\0"
        except RuntimeError as error:
            failed = failure(error, f"[{self._name}] compiling")
            if isinstance(failed, OutOfMemory):
                raise failed from error
            raise CompileFailure(f"{error}\n{nvrtc.getProgramLog(program)}\n{source}") from error
        finally:
            nvrtc.destroyProgram(program)
        with translated(f"[{self._name}] loading a program"):
            return self._function(code), code

    def _function(self, code: bytes) -> Any:
        self._runtime.setDevice(self._number)  # which the program is loaded for: the compiler may have used another
        module = self._module()
        module.load(code)
        return module.get_function(NAME)
