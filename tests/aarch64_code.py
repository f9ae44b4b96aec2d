"""Generated code for AArch64 processors, run by qemu: what the tests need on a machine of another architecture.

A small program waits under `qemu-aarch64` for objects to load, memory to fill and functions to call. A compiler and a
runtime hand it the kernels that this process generates, so that all that makes kernels of programs stays the same.
Kernels are linked without the compiler's own library: on a machine of that architecture they find only what a Python
process has loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
import pytest

from values import Array
from yosegi._tensor.dtype import float32, float64
from yosegi.codegen.llvm.entry import NativeLaunch
from yosegi.codegen.llvm.thread_pool import ThreadPoolState
from yosegi.devices.cpu import threads as system
from yosegi.devices.cpu.blas import Blas, Guard
from yosegi.devices.cpu.blas_calls import Library
from yosegi.devices.cpu.callables import IN_ORDER, Call, Runtime, not_aligned
from yosegi.devices.cpu.compiler import Code, Compiler, HostMachine
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.product_calls import Objects
from yosegi.devices.cpu.variants import Variants

TRIPLE: Final = "aarch64-unknown-linux-gnu"
EMULATOR: Final = "qemu-aarch64"
CROSS: Final = "aarch64-linux-gnu-gcc"
PROCESSORS: Final = {
    "generic": ("+fp-armv8,+neon", "cortex-a72"),
    "apple-m1": ("", "max,sve=off,sme=off"),
    "a64fx": ("+crc,+fp-armv8,+fullfp16,+lse,+neon,+perfmon,+rdm,+sha2,+sve", "a64fx"),
}
"""LLVM's processors: the least that the architecture has, Apple's first, and one with SVE. Each with the features that
LLVM lists there, which are none on macOS, and with qemu's name of a processor that has no more."""
_OF_MACOS: Final = {"sin", "cos", "tan", "fmod", "fmodf", "memcpy", "memset", "bzero"}
"""The functions that kernels may call: those of the system's library, which every process has."""
_MARGIN: Final = 256
"""Bytes before and behind every array that no kernel may write to."""
_FILL: Final = 0xA5
_LINE: Final = 64


def _missing() -> str | None:
    """Why this machine cannot run code for AArch64, or `None`."""
    for name, package in ((EMULATOR, "qemu-user"), (CROSS, "gcc-aarch64-linux-gnu")):
        if shutil.which(name) is None:
            return f"{name} is not installed (Debian's package {package})"
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        llvm.Target.from_triple(TRIPLE)
    except RuntimeError as error:
        return f"this LLVM generates no code for AArch64: {error}"
    return None


REASON: Final = _missing()
needs_aarch64 = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def machine(processor: str, triple: str = TRIPLE) -> HostMachine:
    """A processor of that architecture, as `HostMachine.host` would describe it there."""
    version = ".".join(map(str, llvm.llvm_version_info))
    return HostMachine(triple, processor, PROCESSORS[processor][0], version)


@cache
def natives(processor: str = "apple-m1", threads: int = 2, *, futex: bool = True) -> Natives:
    """What makes native calls for such a machine, and runs them under qemu."""
    made = machine(processor)
    return Natives(made, GuestRuntime(GuestCompiler(made, guest(processor)), threads, futex=futex))


@cache
def guest(processor: str) -> Guest:
    """The program under qemu, for one processor."""
    return Guest(processor)


def library(by: Variants) -> Library:
    """Products by a library of the program under qemu: what NumPy's BLAS is on a machine of that architecture."""
    runtime = by.natives.runtime
    assert isinstance(runtime, GuestRuntime)
    there = runtime.guest
    guard = there.new(ctypes.sizeof(Guard))
    there.write(guard, bytes(Guard()))
    multiply, apply = ({d: there.find(f"cblas_{letter}{name}") for d, letter in ((float32, "s"), (float64, "d"))}
                       for name in ("gemm", "gemv"))  # fmt: skip
    counts = there.find("get_threads"), there.find("set_threads")
    return Library(Objects(runtime), Blas(multiply, apply, *counts, guard, True, "a test's"))


# The program under qemu


class Guest:
    """A process of another architecture: loads objects, holds memory, calls functions."""

    def __init__(self, processor: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="yosegi-aarch64-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._libraries = [_answer(CROSS, f"-print-file-name={name}") for name in ("libm.so.6", "libc.so.6")]
        self._linker = _answer(CROSS, "-print-prog-name=ld")
        system_root = Path(_answer(CROSS, "-print-file-name=ld-linux-aarch64.so.1")).resolve().parent.parent
        source, program = self.folder / "guest.c", self.folder / "guest"
        source.write_text(_PROGRAM)
        _done(CROSS, "-O1", "-o", str(program), str(source), "-rdynamic", "-Wl,--no-as-needed", "-lm")
        self._process = subprocess.Popen(
            [EMULATOR, "-cpu", PROCESSORS[processor][1], "-L", str(system_root), str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._end)
        self._lock = Lock()
        self._loaded = 0

    def _end(self) -> None:
        """Let the program end; its threads and its memory go with it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._process.wait()

    def _ask(self, *words: int | bytes, answer: int = 8) -> bytes:
        """Send a command, numbers and bytes with their length, and wait for so many bytes."""
        with self._lock:
            to, back = self._process.stdin, self._process.stdout
            assert to is not None
            assert back is not None
            try:
                for word in words:
                    to.write(struct.pack("<q", word if isinstance(word, int) else len(word)))
                    if not isinstance(word, int):
                        to.write(word)
                to.flush()
                got = back.read(answer)
            except BrokenPipeError:
                got = b""
            if len(got) != answer:
                raise RuntimeError(f"the program under {EMULATOR} ended with status {self._process.wait()}")
            return got

    def _number(self, *words: int | bytes) -> int:
        found: int = struct.unpack("<q", self._ask(*words))[0]
        return found

    def load(self, made: bytes) -> int:
        """Load an object that needs nothing but the system's libraries of C and of mathematics."""
        self._loaded += 1
        there = self.folder / f"{self._loaded}.o"
        library = there.with_suffix(".so")
        there.write_bytes(made)
        _done(self._linker, "-shared", "-Bsymbolic", "-z", "defs", "-o", str(library), str(there), *self._libraries)
        handle = self._number(0, str(library).encode() + b"\0")
        assert handle, f"{library} could not be loaded"
        return handle

    def find(self, name: str, handle: int = 0) -> int:
        """The address of a function of an object, or of the system's libraries."""
        address = self._number(1, handle, name.encode() + b"\0")
        assert address, f"there is no {name}"
        return address

    def new(self, size: int) -> int:
        """The address of so many bytes of memory, from a cache line on."""
        return self._number(2, size)

    def write(self, address: int, data: bytes) -> None:
        """Fill memory."""
        self._ask(3, address, data, answer=0)

    def keep(self, data: Any) -> int:
        """The address of a copy of bytes, or of an array, that stays there."""
        content = bytes(data) if isinstance(data, bytes) else np.asarray(data).tobytes()
        address = self.new(len(content))
        self.write(address, content)
        return address

    def read(self, address: int, size: int) -> bytes:
        """What is in memory."""
        return self._ask(4, address, size, answer=size)

    def call(self, function: int, *arguments: int) -> int:
        """Call a function of up to four integers or addresses."""
        return self._number(5, function, *[*arguments, 0, 0, 0, 0][:4])


def _answer(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _done(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


_PROGRAM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void get(void *to, size_t size) { if (size && fread(to, size, 1, stdin) != 1) exit(0); }
static int64_t number(void) { int64_t n; get(&n, 8); return n; }
static void *address(void) { return (void *)number(); }
static void put(const void *from, size_t size) { fwrite(from, size, 1, stdout); fflush(stdout); }
static void give(int64_t n) { put(&n, 8); }

/* A library of products, of matrices that lie row by row, or transposed (112). */
#define AT(x, transposed, row, i, j) x[(transposed) == 112 ? (j) * (row) + (i) : (i) * (row) + (j)]
#define PRODUCTS(T, multiply, apply) \
    void multiply(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, T alpha, const T *a, int64_t row_a, \
                  const T *b, int64_t row_b, T beta, T *c, int64_t row_c) { \
        for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) { \
            double sum = 0; \
            for (int64_t l = 0; l < k; l++) sum += (double)AT(a, ta, row_a, i, l) * AT(b, tb, row_b, l, j); \
            c[i * row_c + j] = alpha * (T)sum + (beta == 0 ? 0 : beta * c[i * row_c + j]); \
        } \
    } \
    void apply(int order, int ta, int64_t rows, int64_t columns, T alpha, const T *a, int64_t row_a, \
               const T *x, int64_t step_x, T beta, T *y, int64_t step_y) { \
        int64_t m = ta == 112 ? columns : rows, k = ta == 112 ? rows : columns; \
        for (int64_t i = 0; i < m; i++) { \
            double sum = 0; \
            for (int64_t l = 0; l < k; l++) sum += (double)AT(a, ta, row_a, i, l) * x[l * step_x]; \
            y[i * step_y] = alpha * (T)sum + (beta == 0 ? 0 : beta * y[i * step_y]); \
        } \
    }
PRODUCTS(float, cblas_sgemm, cblas_sgemv)
PRODUCTS(double, cblas_dgemm, cblas_dgemv)
static int threads = 4;
int get_threads(void) { return threads; }
void set_threads(int count) { threads = count; }

int main(void) {
    static char text[4096];
    for (;;) switch (number()) {
        case 0: { get(text, number()); give((int64_t)dlopen(text, RTLD_NOW | RTLD_LOCAL)); break; }
        case 1: {
            void *in = address();
            get(text, number());
            give((int64_t)dlsym(in ? in : RTLD_DEFAULT, text));
            break;
        }
        case 2: { give((int64_t)aligned_alloc(64, (number() + 63) & ~63)); break; }
        case 3: { void *to = address(); get(to, number()); break; }
        case 4: { void *from = address(); put(from, number()); break; }
        case 5: {
            int64_t (*call)(void *, void *, void *, void *) = (int64_t (*)(void *, void *, void *, void *))address();
            void *a = address(), *b = address(), *c = address(), *d = address();
            give(call(a, b, c, d));
            break;
        }
        default: return 2;
    }
}
"""


# Code for macOS, which only compiles


@cache
def macos() -> Compiler:
    """A compiler for Apple's computers."""
    return Compiler(machine("apple-m1", "arm64-apple-darwin24.0.0"))


def called_on_macos(source: str) -> set[str]:
    """The functions outside a module that its code calls there."""
    text = macos().assembly(source)
    called = set(re.findall(r"\tbl?\t_(\w+)|_(\w+)@GOTPAGE\b", text))
    return {a or b for a, b in called} - set(re.findall(r"^_(\w+):", text, re.MULTILINE))


# A compiler and a runtime whose code is there


class GuestCompiler(Compiler):
    """Compiles here, loads there."""

    def __init__(self, machine: HostMachine, guest: Guest) -> None:
        super().__init__(machine)
        self.guest = guest

    def emit(self, *sources: str) -> bytes:
        """The object of some modules, which may not name another architecture's instructions: LLVM would end the
        process."""
        for source in sources:
            assert "llvm.x86" not in source, source
        if self.machine.model == "apple-m1":
            for source in sources:
                missing = called_on_macos(source) - _OF_MACOS
                assert not missing, f"{missing}\n{source}"
        return super().emit(*sources)

    def _linked(self, made: bytes, functions: Sequence[str]) -> Code:
        handle = self.guest.load(made)
        return Code({name: self.guest.find(name, handle) for name in functions}, handle)


class GuestRuntime(Runtime):
    """The threads and the calls are there. Arrays go there and come back with every call."""

    def __init__(self, compiler: GuestCompiler, threads: int, *, futex: bool = True) -> None:
        super().__init__(compiler, threads, futex=futex)
        self.guest = compiler.guest
        self.calls = 0
        """Kernels that ran."""
        self._memory = 0
        self._size = 0

    @cached_property
    def pool(self) -> int:
        """The address of the threads' words there, filled as `devices.cpu.threads` fills them."""
        names = {"pthread_create": "pthread_create", "pthread_detach": "pthread_detach", "sigfillset": "sigfillset",
                 "pthread_sigmask": "pthread_sigmask", "sched_yield": "sched_yield", "syscall": "syscall",
                 "lock": "pthread_mutex_lock", "unlock": "pthread_mutex_unlock", "wait": "pthread_cond_wait",
                 "broadcast": "pthread_cond_broadcast"}  # fmt: skip
        words = ThreadPoolState()
        for field, name in names.items():
            setattr(words, field, self.guest.find(name))
        words.mask_how = 2  # SIG_SETMASK
        words.wanted = self.threads - 1
        system._allow(words)
        address = self.guest.new(ctypes.sizeof(ThreadPoolState))
        self.guest.write(address, bytes(words))
        for field, name in (("attributes", "attr"), ("mutex", "mutex"), ("condition", "cond")):
            self.guest.call(
                self.guest.find(f"pthread_{name}_init"), address + getattr(ThreadPoolState, field).offset, 0
            )
        return address

    def call(
        self, code: Code, arrays: int, sizes: Sequence[int], *, needs: int = IN_ORDER,
        fallback: Callable[..., Any] = not_aligned, **more: Any,
    ) -> Call:  # fmt: skip
        """A callable for a kernel and its sizes: see `Runtime.call`."""
        packed = self.packed(code, arrays, sizes, **more)

        def call(*given: Any) -> None:
            if all(type(a) is np.ndarray and a.flags.num & needs == needs for a in given):
                assert len(given) == arrays
                self._launch(packed, given)
            else:
                fallback(*given)

        return call

    def packed(
        self, code: Code, arrays: int, sizes: Sequence[int], *, count: int, chunk: int, finishes: bool = False,
        **more: Any,
    ) -> bytes:  # fmt: skip
        """A kernel with its sizes: see `Runtime.packed`."""
        launch = NativeLaunch(
            kernel=code["kernel"], finish=code["finish"] if finishes else None,
            pool=self.pool if count > chunk else None, count=count, chunk=chunk, arrays=arrays,
        )  # fmt: skip
        return bytes(launch) + np.asarray(sizes, np.int64).tobytes()

    def _launch(self, packed: bytes, arrays: Sequence[Array]) -> None:
        """Take the arrays there, run the kernel, and take back what it changed."""
        self.calls += 1
        blocks = _blocks(arrays)
        slots = _lines(len(packed))
        end = slots + 8 * (1 + len(arrays))
        starts = []
        for low, high in blocks:  # each begins as far into a cache line as it does here
            starts.append(_lines(end) + _MARGIN + low % _LINE)
            end = starts[-1] + high - low + _MARGIN
        base = self._room(end)
        pointers = [0]
        for address in (a.ctypes.data for a in arrays):
            n = max(n for n, (low, _) in enumerate(blocks) if low <= address)
            pointers.append(base + starts[n] + address - blocks[n][0])
        spans = [slice(start, start + high - low) for start, (low, high) in zip(starts, blocks, strict=True)]
        sent = np.full(end, _FILL, np.uint8)
        sent[: len(packed)] = np.frombuffer(packed, np.uint8)
        sent[slots : slots + 8 * len(pointers)] = np.array(pointers, np.int64).view(np.uint8)
        for span, (low, high) in zip(spans, blocks, strict=True):
            sent[span] = np.frombuffer(ctypes.string_at(low, high - low), np.uint8)
        self.guest.write(base, sent.tobytes())
        self.guest.call(self.code["launch"], base, base + slots)
        back = np.frombuffer(self.guest.read(base, end), np.uint8)
        changed = back != sent
        changed[slots : slots + 8] = False  # there `launch` puts the address of the sizes
        for span, (low, high) in zip(spans, blocks, strict=True):
            if changed[span].any():
                is_result = any(a.flags.writeable and low <= a.ctypes.data < high for a in arrays)
                assert is_result, "a kernel wrote to an array that nobody may write to"
                ctypes.memmove(low, back[span].tobytes(), high - low)
            changed[span] = False
        assert not changed.any(), "a kernel wrote outside its arrays"

    def _room(self, size: int) -> int:
        """The address of at least so many bytes there. What is too small is forgotten: it stays until the end."""
        if size > self._size:
            self._size = 2 * size
            self._memory = self.guest.new(self._size)
        return self._memory


def _blocks(arrays: Sequence[Array]) -> list[tuple[int, int]]:
    """The memory of arrays, from each first byte to behind the last; arrays that overlap are in one block."""
    made: list[tuple[int, int]] = []
    for low, high in sorted(np.lib.array_utils.byte_bounds(a) if a.size else (a.ctypes.data,) * 2 for a in arrays):
        if made and low < made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], high)
        else:
            made.append((low, high))
    return made


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE
