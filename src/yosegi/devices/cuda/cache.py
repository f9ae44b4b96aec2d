"""Compiled programs: in memory by their source, on disk as machine code by source, architecture and versions."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

from ... import store
from ...codegen.kernels import NAME
from ...errors import CompileFailure, OutOfMemory
from .errors import failure, translated

# Products are not fused with sums: a loop gives what its ops give one by one, to the bit.
_OPTIONS: Final = ("--std=c++17", "--fmad=false", "-w")


class Programs:
    """The programs of one device. Counts how many were compiled and how many came from disk."""

    def __init__(self, cupy: Any, capability: str, name: str) -> None:
        cuda = cupy.cuda
        self._nvrtc = cuda.nvrtc
        self._module = cuda.function.Module
        self._name = name
        supported = cuda.nvrtc.getSupportedArchs()
        self.is_native = int(capability) in supported
        # A GPU that is newer than the compiler gets code for the newest it knows, which the driver translates.
        arch = f"sm_{capability}" if self.is_native else f"compute_{max(a for a in supported if a <= int(capability))}"
        self._options = (f"-arch={arch}", *_OPTIONS)
        versions = (cupy.__version__, *cuda.nvrtc.getVersion(), cuda.runtime.driverGetVersion())
        self._stored = store.Programs("programs", "\n".join(["cuda", *map(str, versions), *self._options]))
        self._programs: dict[str, Any] = {}
        self._lock = Lock()
        self.built = 0
        self.loaded = 0

    def get(self, source: str) -> Any:
        """The kernel of a source. Raises `CompileFailure` with the compiler's log."""
        with self._lock:
            function = self._programs.get(source)
            if function is None:
                function = self._programs[source] = self._load(source) or self._build(source)
            return function

    def _load(self, source: str) -> Any | None:
        name = self._stored.name(source)
        code = self._stored.get(name)
        if code is None:
            return None
        try:
            function = self._function(code)
        except RuntimeError as error:
            failed = failure(error, f"[{self._name}] loading a program")
            if not isinstance(failed, CompileFailure):
                raise failed from error
            self._stored.reject(name)  # the driver does not take what the compiler once gave
            return None
        self.loaded += 1
        return function

    def _build(self, source: str) -> Any:
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
            function = self._function(code)
        self.built += 1
        self._stored.put(self._stored.name(source), code)
        return function

    def _function(self, code: bytes) -> Any:
        module = self._module()
        module.load(code)
        return module.get_function(NAME)
