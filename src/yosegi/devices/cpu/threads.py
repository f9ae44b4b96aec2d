"""How many threads work, and the memory that they share."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any, Final

from ..._run.forks import in_forked_child
from ..._tensor.environment import setting
from ...codegen.llvm.thread_pool import MOST_WORKERS, SHARED, ThreadPoolState
from ...codegen.llvm.thread_sleep import MOST_PROCESSORS, waits_on_words

_MOST: Final = MOST_WORKERS + 1
_STACK: Final = 1 << 22
"""Bytes of a worker's stack: some systems give threads little, and kernels keep rows there."""


def thread_count() -> int:
    """The threads to work with: YOSEGI_THREADS, or one for each processor that this process may run on."""
    chosen: int | None = setting("YOSEGI_THREADS")
    if chosen is not None:
        return min(_MOST, chosen)
    if hasattr(os, "sched_getaffinity"):
        return min(_MOST, len(os.sched_getaffinity(0)))
    return min(_MOST, os.cpu_count() or 1)


def has_futex(architecture: str) -> bool:
    """True if threads of this system can sleep on a word of memory, by code for an architecture."""
    return sys.platform.startswith("linux") and waits_on_words(architecture)


def new_pool(threads: int, *, futex: bool) -> int:
    """The address of a pool's words, for so many threads with the caller among them. It is never freed: workers read it
    until the process ends."""
    raw = ctypes.pythonapi.PyMem_RawCalloc
    raw.restype, raw.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
    memory = raw(1, ctypes.sizeof(ThreadPoolState) + 64)
    if not memory:
        raise MemoryError("no memory for a pool of threads")
    pool = ThreadPoolState.from_address((memory + 63) & ~63)
    if threads > 1 and _fill(pool, futex=futex):
        pool.wanted = threads - 1
        _allow(pool)
    in_forked_child(lambda: _forget(pool, futex=futex))
    return ctypes.addressof(pool)


def _allow(pool: Any) -> None:
    """The processors that workers may run on, if there is one for each thread; else they are left to the system."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(processors) > pool.wanted:
        for number in processors:
            if number < MOST_PROCESSORS:
                pool.allowed[number // 64] |= 1 << number % 64


def _fill(pool: Any, *, futex: bool) -> bool:
    """The addresses of the system's functions. Where one is missing there are no threads."""
    if os.name != "posix":
        return False
    names = {"pthread_create": "pthread_create", "pthread_detach": "pthread_detach", "sigfillset": "sigfillset",
             "pthread_sigmask": "pthread_sigmask", "sched_yield": "sched_yield"}  # fmt: skip
    if futex:
        names |= {"syscall": "syscall"}
    else:
        names |= {"lock": "pthread_mutex_lock", "unlock": "pthread_mutex_unlock", "wait": "pthread_cond_wait",
                  "broadcast": "pthread_cond_broadcast"}  # fmt: skip
    library = ctypes.CDLL(None)
    with suppress(AttributeError, OSError):
        for field, name in names.items():
            setattr(pool, field, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        pool.mask_how = 2 if sys.platform.startswith("linux") else 3  # SIG_SETMASK
        attributes = ctypes.c_void_p(ctypes.addressof(pool) + ThreadPoolState.attributes.offset)
        library.pthread_attr_init(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK))
        if not futex:
            _new_condition(pool, library)
        return True
    return False


def _new_condition(pool: Any, library: Any) -> None:
    here = ctypes.addressof(pool)
    ctypes.memset(here + ThreadPoolState.mutex.offset, 0, ThreadPoolState.mutex.size + ThreadPoolState.condition.size)
    library.pthread_mutex_init(ctypes.c_void_p(here + ThreadPoolState.mutex.offset), None)
    library.pthread_cond_init(ctypes.c_void_p(here + ThreadPoolState.condition.offset), None)


def _forget(pool: Any, *, futex: bool) -> None:
    """In a forked child there are no workers yet, and nobody is at work."""
    for field in SHARED:
        setattr(pool, field, 0)
    ctypes.memset(ctypes.addressof(pool) + ThreadPoolState.workers.offset, 0, ThreadPoolState.workers.size)
    if not futex and pool.wanted:
        _new_condition(pool, ctypes.CDLL(None))
