"""A pool of native threads, as LLVM IR.

`spread(pool, kernel, arguments, count, chunk)` calls `kernel(arguments, low, high)` for all of 0 … count, `chunk` at a
time. The caller and the workers take chunks until none is left, so that a worker that comes late takes fewer. A
worker looks for work for some microseconds, then sleeps. A second caller that finds the pool taken works alone, chunk
by chunk like any other: kernels may tell their chunks apart.

The words for one job are written before it is opened and not again before it is closed and all workers have left it:
`state` is the job's number, whether it is open, and how many workers are in it. `bell` counts jobs once more, in the 32
bits that a system can wait on. The threads are started by the first job that wants them, also in a forked child, where
the words are simply set to zero.

A worker that sleeps is woken where the caller is not: some systems put it on the caller's processor though others are
idle, and there it waits until the caller has done half of the work alone. So before the bell rings, workers are told to
keep off that processor, if there are enough others, whenever it is another than the last time.
"""

from __future__ import annotations

import ctypes
import re
from typing import Final

SPINS: Final = 600
"""How often a worker looks for work before it sleeps, with a pause of some 50 ns between: a few tens of µs."""
MOST_WORKERS: Final = 255
MOST_PROCESSORS: Final = 1024
"""Those that a worker can be told to keep to: it runs on none with a higher number."""
_CALLS: Final = {
    "x86_64": {"FUTEX": 202, "GETTID": 186, "GETCPU": 309, "AFFINITY": 203},
    "aarch64": {"FUTEX": 98, "GETTID": 178, "GETCPU": 168, "AFFINITY": 122},
}
"""The numbers of system calls, by architecture."""


class Pool(ctypes.Structure):
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
"""What is zero when no thread runs: before the first job, and in a forked child."""


def pool_text(architecture: str, *, futex: bool) -> str:
    """The functions `spread` and `serve`, without attributes; `futex` says whether the system has that call."""
    numbers = _CALLS.get(architecture, {}) if futex else {}
    sleeping = _FUTEX if numbers else _CONDITION
    pause = {
        "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
        "aarch64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
    }.get(architecture, ("fence syncscope(\"singlethread\") seq_cst", ""))  # fmt: skip
    text = (_POOL + sleeping).replace("PAUSE", pause[0]).replace("SPINS", str(SPINS))
    masks = {"MASK": MOST_PROCESSORS // 8, "WORDS": MOST_PROCESSORS // 64, "PROCESSORS": MOST_PROCESSORS}
    for name, number in (numbers | masks).items():
        text = text.replace(name, str(number))
    # `%x = field name` is the address of a word of the pool.
    text = re.sub(r"field (\w+)", lambda m: f"getelementptr i8, ptr %pool, i64 {getattr(Pool, m[1]).offset}", text)
    return f"{text}\n{pause[1]}\n"


_POOL: Final = """
define void @take(ptr %pool) #0 {
entry:
  %p.next = field next
  %p.kernel = field kernel
  %p.arguments = field arguments
  %p.count = field count
  %p.chunk = field chunk
  %kernel = load ptr, ptr %p.kernel
  %arguments = load ptr, ptr %p.arguments
  %count = load i64, ptr %p.count
  %chunk = load i64, ptr %p.chunk
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
  %p.wanted = field wanted
  %p.create = field pthread_create
  %p.detach = field pthread_detach
  %p.fill = field sigfillset
  %p.mask = field pthread_sigmask
  %p.how = field mask_how
  %attributes = field attributes
  store i32 1, ptr %p.started
  %wanted = load i32, ptr %p.wanted
  %create = load ptr, ptr %p.create
  %detach = load ptr, ptr %p.detach
  %fill = load ptr, ptr %p.fill
  %mask = load ptr, ptr %p.mask
  %how = load i32, ptr %p.how
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
  %p.started = field started
  %p.wanted = field wanted
  %p.yield = field sched_yield
  %several = icmp sgt i64 %count, %chunk
  %wanted = load i32, ptr %p.wanted
  %threads = icmp sgt i32 %wanted, 0
  %worth = and i1 %several, %threads
  br i1 %worth, label %try, label %alone
try:
  %swapped = cmpxchg ptr %p.busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %swapped, 1
  br i1 %mine, label %ready, label %alone
ready:
  %started = load i32, ptr %p.started
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
  %give.way = load ptr, ptr %p.yield
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

_FUTEX: Final = """
define void @arrive(ptr %pool) #0 {
  %p.call = field syscall
  %p.arrived = field arrived
  %p.workers = field workers
  %call = load ptr, ptr %p.call
  %thread = call i64 (i64, ...) %call(i64 GETTID)
  %short = trunc i64 %thread to i32
  %number = atomicrmw add ptr %p.arrived, i32 1 monotonic
  %place = zext i32 %number to i64
  %at = getelementptr i32, ptr %p.workers, i64 %place
  store atomic i32 %short, ptr %at release, align 4
  ret void
}
define void @keep_off(ptr %pool) #0 {
entry:
  %p.call = field syscall
  %p.arrived = field arrived
  %p.kept_off = field kept_off
  %p.workers = field workers
  %p.allowed = field allowed
  %processor = alloca i32, align 4
  %mask = alloca [MASK x i8], align 8
  %call = load ptr, ptr %p.call
  %r0 = call i64 (i64, ...) %call(i64 GETCPU, ptr %processor, ptr null, ptr null)
  %told = icmp eq i64 %r0, 0
  %here = load i32, ptr %processor
  %known = icmp ult i32 %here, PROCESSORS
  %arrived = load atomic i32, ptr %p.arrived monotonic, align 4
  %high = shl i32 %arrived, 16
  %one = add i32 %here, 1
  %now = or i32 %high, %one
  %before = load i32, ptr %p.kept_off
  %changed = icmp ne i32 %now, %before
  %sure = and i1 %told, %known
  %go = and i1 %sure, %changed
  br i1 %go, label %copy, label %done
copy:
  store i32 %now, ptr %p.kept_off
  %wide = zext i32 %here to i64
  %mine = lshr i64 %wide, 6
  %place = and i64 %wide, 63
  %bit = shl i64 1, %place
  %others = xor i64 %bit, -1
  br label %word
word:
  %i = phi i64 [ 0, %copy ], [ %i1, %word ]
  %any = phi i64 [ 0, %copy ], [ %more, %word ]
  %from = getelementptr i64, ptr %p.allowed, i64 %i
  %bits = load i64, ptr %from
  %is.mine = icmp eq i64 %i, %mine
  %keep = select i1 %is.mine, i64 %others, i64 -1
  %left = and i64 %bits, %keep
  %to = getelementptr i64, ptr %mask, i64 %i
  store i64 %left, ptr %to
  %more = or i64 %any, %left
  %i1 = add i64 %i, 1
  %last = icmp eq i64 %i1, WORDS
  br i1 %last, label %copied, label %word
copied:
  %some = icmp ne i64 %more, 0
  br i1 %some, label %tell, label %done
tell:
  %n = phi i32 [ 0, %copied ], [ %n1, %one.more ], [ %n1, %later ]
  %enough = icmp uge i32 %n, %arrived
  br i1 %enough, label %done, label %look
look:
  %n1 = add i32 %n, 1
  %at = getelementptr i32, ptr %p.workers, i32 %n
  %short = load atomic i32, ptr %at acquire, align 4
  %is.there = icmp ne i32 %short, 0
  br i1 %is.there, label %one.more, label %later
later:
  ; it has not said yet who it is, and nobody would be told: that is for the next time
  store i32 0, ptr %p.kept_off
  br label %tell
one.more:
  %thread = sext i32 %short to i64
  %r1 = call i64 (i64, ...) %call(i64 AFFINITY, i64 %thread, i64 MASK, ptr %mask)
  br label %tell
done:
  ret void
}
define void @sleep(ptr %pool, i32 %heard) #0 {
  %p.bell = field bell
  %p.call = field syscall
  %call = load ptr, ptr %p.call
  %r = call i64 (i64, ...) %call(i64 FUTEX, ptr %p.bell, i64 128, i32 %heard, ptr null, ptr null, i32 0)
  ret void
}
define void @wake(ptr %pool) #0 {
  %p.bell = field bell
  %p.call = field syscall
  %call = load ptr, ptr %p.call
  %r = call i64 (i64, ...) %call(i64 FUTEX, ptr %p.bell, i64 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}
"""

_CONDITION: Final = """
define void @arrive(ptr %pool) #0 {
  ret void
}
define void @keep_off(ptr %pool) #0 {
  ret void
}
define void @sleep(ptr %pool, i32 %heard) #0 {
entry:
  %p.bell = field bell
  %p.lock = field lock
  %p.unlock = field unlock
  %p.wait = field wait
  %mutex = field mutex
  %condition = field condition
  %lock = load ptr, ptr %p.lock
  %unlock = load ptr, ptr %p.unlock
  %wait = load ptr, ptr %p.wait
  %r0 = call i32 %lock(ptr %mutex)
  br label %look
look:
  %bell = load atomic i32, ptr %p.bell seq_cst, align 4
  %same = icmp eq i32 %bell, %heard
  br i1 %same, label %rest, label %up
rest:
  %r1 = call i32 %wait(ptr %condition, ptr %mutex)
  br label %look
up:
  %r2 = call i32 %unlock(ptr %mutex)
  ret void
}
define void @wake(ptr %pool) #0 {
  %p.lock = field lock
  %p.unlock = field unlock
  %p.broadcast = field broadcast
  %mutex = field mutex
  %condition = field condition
  %lock = load ptr, ptr %p.lock
  %unlock = load ptr, ptr %p.unlock
  %broadcast = load ptr, ptr %p.broadcast
  %r0 = call i32 %lock(ptr %mutex)
  %r1 = call i32 %broadcast(ptr %condition)
  %r2 = call i32 %unlock(ptr %mutex)
  ret void
}
"""
