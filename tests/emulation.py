"""GPU kernels on the host: rendered text, built by a C++ compiler, with the items of a group as fibers.

The items of a group take turns: at a barrier each hands over to the next, so that what all of them wrote before is
there for all of them behind it. A kernel in which some items of a group wait and others have returned fails. So does
one in which some items of a team, 32 neighbours, make a call that is for all of them together (see `warp_code`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from values import Array
from yosegi.codegen.c.kernel_source import Kernel

COMPILER = shutil.which("g++")

FIBERS = """
#include <math.h>
// Another stack, without the system call of swapcontext: registers that a function keeps go onto the one that is left.
asm(R"(
switch_stack:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret
)");
extern "C" __attribute__((visibility("hidden"))) void switch_stack(void** left, void* next);
#define PLAIN __attribute__((no_sanitize("thread")))
template <class T> static T min(T a, T b) { return b < a ? b : a; }
namespace fibers {
static const unsigned STACK = 1 << 16, MOST = 256, TEAM = 32;
enum State : char { READY, AT_BARRIER, IN_TEAM, DONE };
static unsigned item, group, size, phase, launches;  // phase: barriers so far, over all groups and launches
alignas(16) static char stacks[MOST][STACK];
static void *places[MOST], *outside;  // where on its stack an item, or who runs them, goes on
static State states[MOST];
static const char* fault;  // what a kernel did that no GPU would take
static void (*body)();
static const long long* values;
static unsigned steps[MOST];  // barriers of an item's team so far
PLAIN static void begun() {
    body();
    states[item] = DONE;
    switch_stack(&places[item], outside);
}
PLAIN static void wait(State state = AT_BARRIER) {
    states[item] = state;
    switch_stack(&places[item], outside);
}
PLAIN static unsigned count(unsigned from, unsigned to, State state) {
    unsigned found = 0;
    for (unsigned n = from; n < to; n++) found += states[n] == state;
    return found;
}
PLAIN static void run_team(unsigned from, unsigned to) {
    do {
        for (unsigned n = from; n < to; n++) {
            item = n;
            states[n] = READY;
            switch_stack(&outside, places[n]);
        }
    } while (count(from, to, IN_TEAM) == to - from);
    if (count(from, to, IN_TEAM)) fault = "items of a team left at a common call";
}
PLAIN static const char* run(long long groups, unsigned items) {
    size = items;
    launches++;
    fault = items > MOST ? "too many items in a group" : nullptr;
    for (long long at = 0; at < groups && !fault; at++) {
        group = (unsigned)at;
        for (unsigned n = 0; n < items; n++) {
            void** top = (void**)(stacks[n] + STACK) - 2;  // a function finds its stack 8 bytes behind a multiple of 16
            *top = (void*)begun;
            places[n] = top - 6;
        }
        do {
            phase++;
            for (unsigned n = 0; n < items && !fault; n += TEAM) run_team(n, min(n + TEAM, items));
        } while (!fault && count(0, items, AT_BARRIER) == items);
        if (!fault && count(0, items, DONE) != items) fault = "items of a group left at a barrier";
    }
    return fault;
}
}
"""
"""What both languages' headers begin with."""

_RACES = """
namespace races {
struct Byte { unsigned long at; unsigned phase, writer, reader, written, read, launch, owner; };
static const unsigned long SIZE = 1 << 22;
static Byte table[SIZE];  // the last accesses to bytes, by their addresses; items and groups count from 1
extern "C" __attribute__((visibility("hidden"))) char __bss_start, _end;
PLAIN static bool clash(unsigned other, unsigned step) {  // no barrier, of the group or their team, is between the two
    const unsigned item = fibers::item;
    if (!other || other == item + 1) return false;
    return (other - 1) / fibers::TEAM != item / fibers::TEAM || step == fibers::steps[item];
}
PLAIN static void accessed(void* place, unsigned long nbytes, bool writes) {
    const unsigned long at = (unsigned long)place, stacks = (unsigned long)fibers::stacks;
    if (at >= stacks && at < stacks + sizeof fibers::stacks) return;
    const bool is_local = at >= (unsigned long)&__bss_start && at < (unsigned long)&_end;
    const unsigned item = fibers::item + 1, group = fibers::group + 1;
    for (unsigned long byte = at; byte < at + nbytes; byte++) {
        unsigned long slot = byte * 0x9E3779B97F4A7C15ul >> 42;
        while (table[slot].at && table[slot].at != byte) slot = (slot + 1) % SIZE;
        Byte& known = table[slot];
        known.at = byte;
        if (known.phase != fibers::phase) known.writer = known.reader = 0;
        if (known.launch != fibers::launches) known.owner = 0;
        if (clash(known.writer, known.written))
            fibers::fault = writes ? "two items wrote one address between barriers"
                                   : "an item read what another wrote since the last barrier";
        if (writes && clash(known.reader, known.read))
            fibers::fault = "an item wrote what another read since the last barrier";
        if (writes && !is_local && known.owner && known.owner != group)
            fibers::fault = "two groups wrote one address";
        known.phase = fibers::phase;
        known.launch = fibers::launches;
        (writes ? known.writer : known.reader) = item;
        (writes ? known.written : known.read) = fibers::steps[fibers::item];
        if (writes) known.owner = group;
    }
}
}
extern "C" {
PLAIN void __tsan_init() {}
PLAIN void __tsan_func_entry(void*) {}
PLAIN void __tsan_func_exit() {}
#define ACCESSES(n) \\
    PLAIN void __tsan_read##n(void* at) { races::accessed(at, n, false); } \\
    PLAIN void __tsan_write##n(void* at) { races::accessed(at, n, true); } \\
    PLAIN void __tsan_unaligned_read##n(void* at) { races::accessed(at, n, false); } \\
    PLAIN void __tsan_unaligned_write##n(void* at) { races::accessed(at, n, true); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
PLAIN void __tsan_read_range(void* at, unsigned long n) { races::accessed(at, n, false); }
PLAIN void __tsan_write_range(void* at, unsigned long n) { races::accessed(at, n, true); }
}
"""
"""What compilers call for each access when they instrument code for finding races: here, our own detector."""

_LAUNCH = """
template <unsigned... N> struct Numbers {};
template <class... P, unsigned... I>
static void called(void (*function)(P...), Numbers<I...>) { function((P)fibers::values[I]...); }
template <class... P> static void call(void (*function)(P...)) {
    called(function, Numbers<__integer_pack(sizeof...(P))...>());
}
static void whole() { CALL; }
extern "C" const char* launch(long long groups, unsigned group, const long long* values) {
    fibers::values = values;
    fibers::body = whole;
    return fibers::run(groups, group);
}
"""
# Without the headers of C++, which take longer than the kernels.
_OPTIONS = ["-std=c++20", "-nostdinc++", "-O1", "-w", "-ffp-contract=off", "-fwrapv", "-mfma", "-shared", "-fPIC"]


@cache
def built(source: str, folder: Path, call: str, *options: str, races: bool = False) -> Any:
    """What launches the kernel of a source that a C++ compiler takes. `call` calls it for an item. With `races`, a
    launch fails in which two items use one address between barriers, and one of them writes."""
    assert COMPILER is not None
    whole, command = source + _LAUNCH.replace("CALL", call), [COMPILER, *_OPTIONS, *options]
    stem = folder / hashlib.sha256("\n".join([whole, *command, str(races)]).encode()).hexdigest()[:16]
    library = stem.with_suffix(".so")
    if not library.exists():
        text, part, made = (stem.with_suffix(f".{os.getpid()}.{ending}") for ending in ("cpp", "o", "so"))
        text.write_text(whole + (_RACES if races else ""), encoding="utf-8")
        if races:
            _compiled([*command, "-fsanitize=thread", "-c", str(text), "-o", str(part)])
        _compiled([*command, str(part if races else text), "-o", str(made)])
        made.replace(library)  # processes may share the folder
    entry: Any = ctypes.CDLL(str(library)).launch
    entry.restype = ctypes.c_char_p
    return entry


def _compiled(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr[:4000])


class CompileError(Exception):
    """What the compiler says about a source."""


def launched(entry: Any, groups: int, group: int, values: Sequence[int]) -> None:
    """Launch what `built` gave, on numbers and addresses."""
    slots = (ctypes.c_longlong * (len(values) + 1))(*values)
    fault = entry(ctypes.c_longlong(groups), ctypes.c_uint(group), slots)
    assert fault is None, fault.decode()


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path, call: str) -> None:
    """Run a kernel, rendered with a header that a C++ compiler takes, on arrays. `call` calls it for an item."""
    values = [a.ctypes.data for a in (*inputs, *outputs)] + list(kernel.sizes)
    launched(built(kernel.source, folder, call), -(-kernel.items // kernel.group), kernel.group, values)


def padded(array: Array) -> Array:
    """A copy at an address that packets are aligned to, with the bits of NaN around it."""
    raw = np.full(array.nbytes + 256, 0xFF, np.uint8)
    skip = 64 + -raw.ctypes.data % 64
    made = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def is_intact(array: Array) -> bool:
    """Whether nobody has written around an array that `padded` made."""
    raw: Any = array.base
    start = array.ctypes.data - raw.ctypes.data
    return bool((raw[:start] == 0xFF).all() and (raw[start + array.nbytes :] == 0xFF).all())
