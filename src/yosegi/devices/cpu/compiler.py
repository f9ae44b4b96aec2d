"""LLVM IR text → code of this process, through llvmlite.

Nothing is optimised: the text is vector code already. Objects are kept on disk, so that a second process compiles
nothing. llvmlite is loaded when the first kernel is wanted, not before.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any, Final
from weakref import WeakValueDictionary

from ..._run.background import check_ready
from ..._run.forks import in_forked_child
from ..._tensor.environment import setting
from ..._tune.store import Programs
from ...codegen.llvm.nest import VectorTarget
from ...errors import CompileFailure

_PART: Final = b"part of "
"""How a file begins that is no object but says which one it is a part of."""
_AVX512: Final = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
"""The features without which 512-bit vectors cannot do all that kernels ask of them."""


_ENDS_THE_PROCESS: Final = frozenset({"oryon-1", "ampere1b"})
"""Processors whose instructions LLVM 22 cannot schedule: an assertion ends the process."""


@dataclass(frozen=True, slots=True)
class HostMachine:
    """The processor for which code is made."""

    triple: str
    model: str
    """LLVM's name of the processor."""
    features: str
    version: str
    """Of LLVM."""

    @classmethod
    def host(cls) -> HostMachine:
        """This machine; YOSEGI_CPU names another processor that it can stand for, such as x86-64-v3."""
        llvm = _llvm()
        version = ".".join(map(str, llvm.llvm_version_info))
        triple = llvm.get_process_triple()
        chosen = setting("YOSEGI_CPU")
        if chosen:
            return cls(triple, chosen, "", version)
        name = llvm.get_host_cpu_name()
        model = "generic" if name in _ENDS_THE_PROCESS else name
        return cls(triple, model, llvm.get_host_cpu_features().flatten(), version)

    @property
    def fields(self) -> list[str]:
        """The properties that identify it."""
        return [self.triple, self.model, self.features, self.version]

    @property
    def identity(self) -> str:
        """A key for stored code."""
        return "\n".join(self.fields)

    def having(self, features: Sequence[str]) -> HostMachine:
        """The machine with further features, by LLVM's names, whether it reports them or not."""
        return replace(self, features=",".join(filter(None, [self.features, *[f"+{f}" for f in features]])))

    def has(self, feature: str) -> bool:
        """Whether it says that it has a feature."""
        return feature in self._has

    @property
    def vector_bytes(self) -> int:
        """The width of its vectors."""
        if not self._is_x86:
            return 16
        if all(f in self._has for f in _AVX512):
            return 64
        return 32 if "avx2" in self._has else 16

    @property
    def converts_halves(self) -> bool:
        """Whether it has instructions between float16 and float; LLVM calls functions that are not there otherwise."""
        return "f16c" in self._has if self._is_x86 else self.triple.startswith(("aarch64", "arm64"))

    @property
    def _is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i686"))

    @property
    def _has(self) -> frozenset[str]:
        return _listed(self.features) if self.features else _implied(self.model)

    @property
    def attributes(self) -> str:
        """The attributes of every function that is made for it."""
        return f'nounwind "prefer-vector-width"="{8 * self.vector_bytes}" "no-trapping-math"="true"'

    @property
    def target(self) -> VectorTarget:
        """The properties of the processor that code generation needs."""
        registers = 32 if self.vector_bytes == 64 or not self._is_x86 else 16
        return VectorTarget(self.vector_bytes, self.attributes, self.converts_halves, registers)

    def __str__(self) -> str:
        return f"{self.model}, LLVM {self.version}, {8 * self.vector_bytes}-bit vectors"


@cache
def _listed(features: str) -> frozenset[str]:
    """The features that are there, of a list in LLVM's words; it is long, and asked for often."""
    return frozenset(f[1:] for f in features.split(",") if f.startswith("+"))


def _implied(model: str) -> frozenset[str]:
    """The vector features that a processor's bare name promises."""
    features = frozenset({"avx2", "f16c"} if model.endswith(("-v3", "-v4")) else ())
    return features.union(_AVX512) if model.endswith("-v4") else features


@cache
def _llvm() -> Any:
    """llvmlite, ready to use. Raises whatever a broken installation raises."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


class Code:
    """A compiled object in memory, for as long as this lives."""

    __slots__ = ("__weakref__", "_addresses", "_kept")

    def __init__(self, addresses: dict[str, int], kept: Any) -> None:
        self._addresses = addresses
        self._kept = kept

    def __getitem__(self, name: str) -> int:
        """The address of a function."""
        return self._addresses[name]

    def forever(self) -> Code:
        """Load code that is never unloaded, because threads run it until the process ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        return self


@dataclass(frozen=True, slots=True)
class Part:
    """A module, of several that are wanted together."""

    words: str
    """A key that identifies it."""
    write: Callable[[], str]
    functions: tuple[str, ...]
    """Those that are wanted of it; all its functions have names of their own among the parts."""


class Compiler:
    """Makes code for one machine. Counts what it compiled and what it found on disk."""

    def __init__(self, machine: HostMachine) -> None:
        self.machine = machine
        llvm = _llvm()
        target = llvm.Target.from_triple(machine.triple)
        self._emitter = target.create_target_machine(
            cpu=machine.model, features=machine.features, opt=3, reloc="pic", codemodel="default"
        )
        # JITLink puts the sections of an object side by side. The older linker lets them lie anywhere, and ends the
        # process if they are more than 2 GB apart, as happens in large ones. For Windows' objects it is not made.
        self._linker = llvm.create_lljit_compiler(use_jit_link="windows" not in machine.triple)
        # Code may be unloaded until the very end of the process: what unloads it must be there then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._linker))
        self._stored = Programs("objects", machine.identity)
        self._loaded: WeakValueDictionary[str, Code] = WeakValueDictionary()
        self._numbers = count()
        self._lock = Lock()
        self.compiled = 0
        self.found = 0
        self.seconds = 0.0
        """Spent on that."""
        in_forked_child(self._after_fork)
        self._broken: str | None = None

    def name(self, source: str) -> str:
        """The name of a module's object file."""
        return self._stored.name(source)

    def load(self, source: str, functions: Sequence[str]) -> Code:
        """The code of a module, with the addresses of some of its functions. Raises `CompileFailure`."""
        return self.load_all([Part(source, lambda: source, tuple(functions))])[0]

    def load_all(self, parts: Sequence[Part]) -> list[Code]:
        """The code of modules by their keys. Unknown modules are written and compiled as one, which is faster to
        compile and to load later."""
        names = [self.name(part.words) for part in parts]
        codes = [self.known(name, part.functions) for name, part in zip(names, parts, strict=True)]
        unknown = [n for n, code in enumerate(codes) if code is None]
        if unknown:
            check_ready("compiling")
            sources = [parts[n].write() for n in unknown]
            functions = [f for n in unknown for f in parts[n].functions]
            with self._lock:
                start = perf_counter()
                made = self.emit(*sources)
                code = self._linked(made, functions)
                self.compiled += 1
                self._keep([names[n] for n in unknown], made, code, functions)
                self.seconds += perf_counter() - start
            codes = [code if found is None else found for found in codes]
        return [code for code in codes if code is not None]

    def _keep(self, names: Sequence[str], made: bytes, code: Code, functions: Sequence[str]) -> None:
        """Here and on disk; of parts that are one object, each has a file that says which one."""
        for name in names:
            self._loaded[name] = code
        if len(names) == 1:
            self._stored.put(names[0], made)
            return
        whole = self.name("\n".join(names))
        self._loaded[whole] = code
        self._stored.put(whole, made)
        for name in names:
            self._stored.put(name, _PART + json.dumps([whole, functions]).encode())

    def known(self, name: str, functions: Sequence[str]) -> Code | None:
        """The code of an object that was compiled before, by this process or another."""
        if self._broken is not None:
            raise CompileFailure(self._broken)
        with self._lock:
            code = self._loaded.get(name)
            if code is not None:
                return code
            start = perf_counter()
            code = self._found(name, functions)
            if code is not None:
                self._loaded[name] = code
                self.seconds += perf_counter() - start
            return code

    def _found(self, name: str, functions: Sequence[str]) -> Code | None:
        """The code of an object on disk, or of the one that it is a part of. Objects that do not load are set
        aside."""
        stored = self._stored.get(name)
        if stored is None:
            return None
        if stored.startswith(_PART):
            whole, names = json.loads(stored.removeprefix(_PART))
            code = self._loaded.get(whole) or self._found(whole, names)
            if code is None:
                self._stored.reject(name)
            else:
                self._loaded[whole] = code
            return code
        try:
            code = self._linked(stored, functions)
        except CompileFailure:
            self._stored.reject(name)
            return None
        self.found += 1
        return code

    def emit(self, *sources: str) -> bytes:
        """The object of some modules. Raises `CompileFailure` with what LLVM says."""
        try:
            module, *others = map(_llvm().parse_assembly, sources)
            module.verify()
            for other in others:
                other.verify()
                module.link_in(other)
            return bytes(self._emitter.emit_object(module))
        except RuntimeError as error:
            raise CompileFailure(f"LLVM: {error}") from error

    def linked(self, source: str, functions: Sequence[str]) -> Code:
        """The code of a module that holds for this process alone, and is not kept. Raises `CompileFailure`."""
        with self._lock:
            return self._linked(self.emit(source), functions)

    def assembly(self, source: str) -> str:
        """A module as the processor's instructions, for people to read."""
        return str(self._emitter.emit_assembly(_llvm().parse_assembly(source)))

    def _linked(self, made: bytes, functions: Sequence[str]) -> Code:
        builder = _llvm().JITLibraryBuilder().add_object_img(made).add_current_process()
        for name in functions:
            builder.export_symbol(name)
        try:
            library = builder.link(self._linker, f"kernel{next(self._numbers)}")
        except RuntimeError as error:
            raise CompileFailure(f"LLVM: {error}") from error
        return Code({name: library[name] for name in functions}, library)

    def _after_fork(self) -> None:
        """In a forked child: if another thread was inside LLVM, its locks stay closed for good."""
        if self._lock.locked():
            self._broken = "this process was forked while a kernel was being compiled"
        self._lock = Lock()
