"""How the workers of a pool sleep, and where they wake up, as LLVM IR.

They sleep on a word of the pool where the system can wait on one, and on a condition elsewhere.

A worker is woken where the caller is not: some systems put it on the caller's processor though others are idle, and
there it waits until the caller has done half of the work alone. So before the bell rings, workers are asked to keep off
that processor, if there are enough others, whenever it is another than the last time.
"""

from __future__ import annotations

from typing import Final

MOST_PROCESSORS: Final = 1024
"""The processors that a worker can be restricted to: it runs on none with a higher number."""
_CALLS: Final = {
    "x86_64": {"FUTEX": 202, "GETTID": 186, "GETCPU": 309, "AFFINITY": 203},
    "aarch64": {"FUTEX": 98, "GETTID": 178, "GETCPU": 168, "AFFINITY": 122},
}
"""The numbers of system calls, by architecture."""


def waits_on_words(architecture: str) -> bool:
    """True if the numbers of Linux's system calls are known for an architecture."""
    return architecture in _CALLS


def sleeping_text(architecture: str, *, futex: bool) -> str:
    """The functions `arrive`, `keep_off`, `sleep` and `wake`, in the words of the pool's text; `futex` says whether the
    system has that call."""
    numbers = _CALLS.get(architecture, {}) if futex else {}
    if not numbers:
        return _CONDITION
    text = _FUTEX
    masks = {"MASK": MOST_PROCESSORS // 8, "WORDS": MOST_PROCESSORS // 64, "PROCESSORS": MOST_PROCESSORS}
    for name, number in (numbers | masks).items():
        text = text.replace(name, str(number))
    return text


_FUTEX: Final = """
define void @arrive(ptr %pool) #0 {
  %p.arrived = field arrived
  %p.workers = field workers
  %call = ptr field syscall
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
  %p.arrived = field arrived
  %p.kept_off = field kept_off
  %p.workers = field workers
  %p.allowed = field allowed
  %processor = alloca i32, align 4
  %mask = alloca [MASK x i8], align 8
  %call = ptr field syscall
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
  %call = ptr field syscall
  %r = call i64 (i64, ...) %call(i64 FUTEX, ptr %p.bell, i64 128, i32 %heard, ptr null, ptr null, i32 0)
  ret void
}
define void @wake(ptr %pool) #0 {
  %p.bell = field bell
  %call = ptr field syscall
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
  %mutex = field mutex
  %condition = field condition
  %lock = ptr field lock
  %unlock = ptr field unlock
  %wait = ptr field wait
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
  %mutex = field mutex
  %condition = field condition
  %lock = ptr field lock
  %unlock = ptr field unlock
  %broadcast = ptr field broadcast
  %r0 = call i32 %lock(ptr %mutex)
  %r1 = call i32 %broadcast(ptr %condition)
  %r2 = call i32 %unlock(ptr %mutex)
  ret void
}
"""
