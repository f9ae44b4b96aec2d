"""A pool of native threads, as LLVM IR.

`spread(pool, kernel, arguments, count, chunk)` calls `kernel(arguments, low, high)` for all of 0 … count, `chunk` at a
time. The caller and the workers take chunks until none is left, so that a worker that comes late takes fewer. A
worker looks for work for some microseconds, then sleeps. A second caller that finds the pool taken works alone, chunk
by chunk like any other: kernels may tell their chunks apart.

The words for one job are written before it is opened and not again before it is closed and all workers have left it:
`state` is the job's number, whether it is open, and how many workers are in it. `bell` counts jobs once more, in the 32
bits that a system can wait on. The threads are started by the first job that wants them, also in a forked child, where
the words are simply set to zero. How workers sleep, and where they wake up, is in `thread_sleep`.
"""

from __future__ import annotations

import ctypes
from typing import Final

from .ir import with_fields
from .thread_sleep import MOST_PROCESSORS, sleeping_text

SPINS: Final = 2000
"""How often a worker looks for work before it sleeps, with a pause of 20 to 50 ns between: some 40 to 100 µs. Between
two calls Python may take half of that, where a product has left nothing of it in the caches; and waking costs more."""
MOST_WORKERS: Final = 255


class ThreadPoolState(ctypes.Structure):
    """The words that the threads share. What several of them write lies in cache lines of its own."""

    _fields_ = [
        ("state", ctypes.c_int64), ("_0", ctypes.c_char * 56),
        ("bell", ctypes.c_int32), ("_1", ctypes.c_char * 60),
        ("sleepers", ctypes.c_int32), ("_2", ctypes.c_char * 60),
        ("next", ctypes.c_int64), ("_3", ctypes.c_char * 56),
        ("arrived", ctypes.c_int32), ("kept_off", ctypes.c_int32), ("workers", ctypes.c_int32 * MOST_WORKERS),
        ("allowed", ctypes.c_uint64 * (MOST_PROCESSORS // 64)),
        ("kernel", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("count", ctypes.c_int64),
        ("chunk", ctypes.c_int64), ("busy", ctypes.c_int32), ("started", ctypes.c_int32),
        ("wanted", ctypes.c_int32), ("mask_how", ctypes.c_int32),
        ("pthread_create", ctypes.c_void_p), ("pthread_detach", ctypes.c_void_p), ("sigfillset", ctypes.c_void_p),
        ("pthread_sigmask", ctypes.c_void_p), ("sched_yield", ctypes.c_void_p), ("syscall", ctypes.c_void_p),
        ("lock", ctypes.c_void_p), ("unlock", ctypes.c_void_p), ("wait", ctypes.c_void_p),
        ("broadcast", ctypes.c_void_p), ("mutex", ctypes.c_char * 128), ("condition", ctypes.c_char * 128),
        ("attributes", ctypes.c_char * 128),
    ]  # fmt: skip


SHARED: Final = ("state", "bell", "sleepers", "next", "arrived", "kept_off", "busy", "started")
"""The fields that are zero when no thread runs: before the first job, and in a forked child."""


def pool_text(architecture: str, *, futex: bool) -> str:
    """The functions `spread` and `serve`, without attributes; `futex` says whether the system has that call."""
    # ISB on ARM: its YIELD is no instruction but for processors whose cores run several threads, and takes no time.
    isb = ("call void @llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)")
    pause = {
        "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
        "aarch64": isb, "arm64": isb,
    }.get(architecture, ("fence syncscope(\"singlethread\") seq_cst", ""))  # fmt: skip
    text = (_POOL + sleeping_text(architecture, futex=futex)).replace("PAUSE", pause[0]).replace("SPINS", str(SPINS))
    return f"{with_fields(text, 'field', ThreadPoolState, '%pool')}\n{pause[1]}\n"


_POOL: Final = """
define void @take(ptr %pool) #0 {
entry:
  %p.next = field next
  %kernel = ptr field kernel
  %arguments = ptr field arguments
  %count = i64 field count
  %chunk = i64 field chunk
  br label %more
more:
  %low = atomicrmw add ptr %p.next, i64 %chunk monotonic
  %left = icmp slt i64 %low, %count
  br i1 %left, label %work, label %done
work:
  %end = add i64 %low, %chunk
  %inside = icmp slt i64 %end, %count
  %high = select i1 %inside, i64 %end, i64 %count
  call void %kernel(ptr %arguments, i64 %low, i64 %high)
  br label %more
done:
  ret void
}

define ptr @serve(ptr %pool) #0 {
entry:
  %p.state = field state
  %p.bell = field bell
  %p.sleepers = field sleepers
  call void @arrive(ptr %pool)
  br label %wait
wait:
  %last = phi i64 [ 0, %entry ], [ %job, %leave ]
  br label %look
look:
  %spins = phi i32 [ 0, %wait ], [ %more, %again ], [ %spins, %join ], [ 0, %sleep ]
  %heard = load atomic i32, ptr %p.bell seq_cst, align 4
  %state = load atomic i64, ptr %p.state seq_cst, align 8
  %job = lshr i64 %state, 32
  %new = icmp ne i64 %job, %last
  %bit = and i64 %state, 2147483648
  %open = icmp ne i64 %bit, 0
  %fresh = and i1 %new, %open
  br i1 %fresh, label %join, label %idle
join:
  %with_me = add i64 %state, 1
  %swapped = cmpxchg ptr %p.state, i64 %state, i64 %with_me acq_rel monotonic
  %in = extractvalue { i64, i1 } %swapped, 1
  br i1 %in, label %leave, label %look
leave:
  call void @take(ptr %pool)
  %before = atomicrmw sub ptr %p.state, i64 1 release
  br label %wait
idle:
  PAUSE
  %more = add i32 %spins, 1
  %patient = icmp ult i32 %more, SPINS
  br i1 %patient, label %again, label %sleep
again:
  br label %look
sleep:
  %s0 = atomicrmw add ptr %p.sleepers, i32 1 seq_cst
  call void @sleep(ptr %pool, i32 %heard)
  %s1 = atomicrmw sub ptr %p.sleepers, i32 1 seq_cst
  br label %look
}

define void @start(ptr %pool) #0 {
entry:
  %thread = alloca i64, align 16
  %all = alloca [256 x i8], align 16
  %old = alloca [256 x i8], align 16
  %p.started = field started
  %attributes = field attributes
  store i32 1, ptr %p.started
  %wanted = i32 field wanted
  %create = ptr field pthread_create
  %detach = ptr field pthread_detach
  %fill = ptr field sigfillset
  %mask = ptr field pthread_sigmask
  %how = i32 field mask_how
  ; signals belong to the threads of the program: a worker has them all blocked from its first instruction on
  %r0 = call i32 %fill(ptr %all)
  %r1 = call i32 %mask(i32 %how, ptr %all, ptr %old)
  br label %next
next:
  %n = phi i32 [ 0, %entry ], [ %n1, %made ], [ %n1, %one ]
  %enough = icmp uge i32 %n, %wanted
  br i1 %enough, label %done, label %one
one:
  %n1 = add i32 %n, 1
  %r2 = call i32 %create(ptr %thread, ptr %attributes, ptr @serve, ptr %pool)
  %ok = icmp eq i32 %r2, 0
  br i1 %ok, label %made, label %next
made:
  %id = load ptr, ptr %thread
  %r3 = call i32 %detach(ptr %id)
  br label %next
done:
  %r4 = call i32 %mask(i32 %how, ptr %old, ptr null)
  ret void
}

define void @spread(ptr %pool, ptr %kernel, ptr %arguments, i64 %count, i64 %chunk) #0 {
entry:
  %p.state = field state
  %p.bell = field bell
  %p.sleepers = field sleepers
  %p.next = field next
  %p.kernel = field kernel
  %p.arguments = field arguments
  %p.count = field count
  %p.chunk = field chunk
  %p.busy = field busy
  %several = icmp sgt i64 %count, %chunk
  %wanted = i32 field wanted
  %threads = icmp sgt i32 %wanted, 0
  %worth = and i1 %several, %threads
  br i1 %worth, label %try, label %alone
try:
  %swapped = cmpxchg ptr %p.busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %swapped, 1
  br i1 %mine, label %ready, label %alone
ready:
  %started = i32 field started
  %is.started = icmp ne i32 %started, 0
  br i1 %is.started, label %open, label %begin
begin:
  call void @start(ptr %pool)
  br label %open
open:
  store ptr %kernel, ptr %p.kernel
  store ptr %arguments, ptr %p.arguments
  store i64 %count, ptr %p.count
  store i64 %chunk, ptr %p.chunk
  store atomic i64 0, ptr %p.next monotonic, align 8
  %old = load atomic i64, ptr %p.state monotonic, align 8
  %number = lshr i64 %old, 32
  %following = add i64 %number, 1
  %shifted = shl i64 %following, 32
  %opened = or i64 %shifted, 2147483648
  store atomic i64 %opened, ptr %p.state seq_cst, align 8
  %b0 = atomicrmw add ptr %p.bell, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %p.sleepers seq_cst, align 4
  %anybody = icmp sgt i32 %sleepers, 0
  br i1 %anybody, label %ring, label %mine.too
ring:
  call void @keep_off(ptr %pool)
  call void @wake(ptr %pool)
  br label %mine.too
mine.too:
  call void @take(ptr %pool)
  %before = atomicrmw and ptr %p.state, i64 -2147483649 acq_rel
  br label %join
join:
  %spins = phi i32 [ 0, %mine.too ], [ %more, %again ], [ 0, %yield ]
  %now = load atomic i64, ptr %p.state acquire, align 8
  %inside = and i64 %now, 2147483647
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %close, label %pause
pause:
  PAUSE
  %more = add i32 %spins, 1
  %patient = icmp ult i32 %more, 4000
  br i1 %patient, label %again, label %yield
again:
  br label %join
yield:
  %give.way = ptr field sched_yield
  %r = call i32 %give.way()
  br label %join
close:
  store atomic i32 0, ptr %p.busy release, align 4
  ret void
alone:
  br label %next
next:
  %low = phi i64 [ 0, %alone ], [ %end, %part ]
  %left = icmp slt i64 %low, %count
  br i1 %left, label %part, label %finished
part:
  %end = add i64 %low, %chunk
  %fits = icmp slt i64 %end, %count
  %high = select i1 %fits, i64 %end, i64 %count
  call void %kernel(ptr %arguments, i64 %low, i64 %high)
  br label %next
finished:
  ret void
}
"""
