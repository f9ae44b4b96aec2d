"""Loops and branches over kernels, as LLVM IR.

`repeat` and `choose` are kernels themselves: they take the arrays of a loop, or of a branch, and call the kernels of
its body. So loops may stand in loops. A program is data: for each kernel its `Launch`, and the place of each array that
it takes. Places depend on the number of the iteration: rows lie behind each other, and a carry has two places, of which
one is read and the other is written in turn.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .ir import with_fields

ABSOLUTE: Final = 0
"""The base of a slot whose offset is an address."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an array is: one of the program's arrays, counted from 1, and bytes from its beginning."""

    base: int
    offset: int = 0
    stride: int = 0
    """Bytes from one iteration to the next."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array is in iterations of even and of odd numbers."""

    even: Slot
    odd: Slot

    @property
    def is_fixed(self) -> bool:
        """True if the array is the same in all iterations."""
        return self.even == self.odd and self.even.stride == 0

    @classmethod
    def always(cls, base: int, offset: int = 0, stride: int = 0) -> Place:
        """A place that is the same in even and odd iterations."""
        slot = Slot(base, offset, stride)
        return cls(slot, slot)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A kernel with its arrays."""

    launch: bytes
    """A `Launch` and the sizes behind it."""
    arrays: tuple[Place, ...]


class Repeat(ctypes.Structure):
    """The words of a loop. `wrong` is the number of an array: the loop ends when its first byte is not 0."""

    _fields_ = [
        ("launcher", ctypes.c_void_p), ("most", ctypes.c_int64), ("wrong", ctypes.c_int64), ("count", ctypes.c_int64),
        ("flag_base", ctypes.c_int64), ("flag_offset", ctypes.c_int64),
        ("before", ctypes.c_int64 * 2), ("test", ctypes.c_int64 * 2), ("body", ctypes.c_int64 * 2),
        ("after", ctypes.c_int64 * 2),
    ]  # fmt: skip


class Choose(ctypes.Structure):
    """The words of a branch."""

    _fields_ = [
        ("launcher", ctypes.c_void_p), ("most", ctypes.c_int64),
        ("flag_base", ctypes.c_int64), ("flag_offset", ctypes.c_int64),
        ("true", ctypes.c_int64 * 2), ("false", ctypes.c_int64 * 2),
    ]  # fmt: skip


class Lists:
    """Instructions in memory, for as long as this lives."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self.most = 0
        """The most arrays that a kernel takes."""

    def keep(self, data: Any) -> int:
        """The address of an array, or of bytes, that stays where it is."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
        self._kept.append(array)
        return int(array.ctypes.data)

    def put(self, instructions: Sequence[Instruction]) -> tuple[int, int]:
        """How many instructions there are, and their address."""
        words = []
        for each in instructions:
            slots = [w for p in each.arrays for s in (p.even, p.odd) for w in (s.base, s.offset, s.stride)]
            words += [self.keep(each.launch), len(each.arrays), self.keep(np.array(slots or [0], np.int64))]
            self.most = max(self.most, len(each.arrays))
        return len(instructions), self.keep(np.array(words or [0], np.int64))


def words_of(structure: ctypes.Structure) -> list[int]:
    """A program's words as the sizes of a kernel."""
    return [int(w) for w in np.frombuffer(bytes(structure), np.int64)]


def control_text(attributes: str) -> str:
    """The module of `repeat` and `choose`."""
    text = with_fields(_CONTROL, "repeat", Repeat, "%program")
    text = with_fields(text, "choose", Choose, "%program")
    return f"{text}\nattributes #0 = {{ {attributes} }}\n"


_CONTROL: Final = """
define internal void @execute(ptr %p.list, ptr %arguments, i64 %step, ptr %launcher, ptr %scratch) #0 {
entry:
  %n = load i64, ptr %p.list
  %p.begin = getelementptr i8, ptr %p.list, i64 8
  %list = load ptr, ptr %p.begin
  %odd = and i64 %step, 1
  %which = mul i64 %odd, 24
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %call ]
  %left = icmp slt i64 %i, %n
  br i1 %left, label %begin, label %done
begin:
  %at = mul i64 %i, 24
  %p.launch = getelementptr i8, ptr %list, i64 %at
  %p.count = getelementptr i8, ptr %p.launch, i64 8
  %p.slots = getelementptr i8, ptr %p.launch, i64 16
  %launch = load ptr, ptr %p.launch
  %count = load i64, ptr %p.count
  %slots = load ptr, ptr %p.slots
  br label %slot
slot:
  %s = phi i64 [ 0, %begin ], [ %s1, %put ]
  %more = icmp slt i64 %s, %count
  br i1 %more, label %put, label %call
put:
  %both = mul i64 %s, 48
  %here = add i64 %both, %which
  %p.base = getelementptr i8, ptr %slots, i64 %here
  %p.offset = getelementptr i8, ptr %p.base, i64 8
  %p.stride = getelementptr i8, ptr %p.base, i64 16
  %base = load i64, ptr %p.base
  %offset = load i64, ptr %p.offset
  %stride = load i64, ptr %p.stride
  %p.array = getelementptr ptr, ptr %arguments, i64 %base
  %array = load ptr, ptr %p.array
  %absolute = icmp eq i64 %base, 0
  %from = select i1 %absolute, ptr null, ptr %array
  %rows = mul i64 %step, %stride
  %bytes = add i64 %rows, %offset
  %address = getelementptr i8, ptr %from, i64 %bytes
  %s1 = add i64 %s, 1
  %p.argument = getelementptr ptr, ptr %scratch, i64 %s1
  store ptr %address, ptr %p.argument
  br label %slot
call:
  call void %launcher(ptr %launch, ptr %scratch)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}

define void @repeat(ptr %arguments, i64 %low, i64 %high) #0 {
entry:
  %program = load ptr, ptr %arguments
  %p.before = repeat.before
  %p.test = repeat.test
  %p.body = repeat.body
  %p.after = repeat.after
  %launcher = ptr repeat.launcher
  %most = i64 repeat.most
  %count = i64 repeat.count
  %wrong = i64 repeat.wrong
  %p.bytes = getelementptr ptr, ptr %arguments, i64 %wrong
  %p.byte = load ptr, ptr %p.bytes
  %base = i64 repeat.flag_base
  %offset = i64 repeat.flag_offset
  %p.array = getelementptr ptr, ptr %arguments, i64 %base
  %array = load ptr, ptr %p.array
  %p.flag = getelementptr i8, ptr %array, i64 %offset
  %counts = icmp eq i64 %base, 0
  %slots = add i64 %most, 1
  %scratch = alloca ptr, i64 %slots, align 16
  call void @execute(ptr %p.before, ptr %arguments, i64 0, ptr %launcher, ptr %scratch)
  br label %next
next:
  %step = phi i64 [ 0, %entry ], [ %step1, %body ]
  br i1 %counts, label %count.on, label %test
count.on:
  %left = icmp slt i64 %step, %count
  br i1 %left, label %body, label %done
test:
  call void @execute(ptr %p.test, ptr %arguments, i64 %step, ptr %launcher, ptr %scratch)
  %flag = load i8, ptr %p.flag
  %goes.on = icmp ne i8 %flag, 0
  br i1 %goes.on, label %body, label %done
body:
  call void @execute(ptr %p.body, ptr %arguments, i64 %step, ptr %launcher, ptr %scratch)
  %step1 = add i64 %step, 1
  %byte = load i8, ptr %p.byte
  %fine = icmp eq i8 %byte, 0
  br i1 %fine, label %next, label %out
done:
  call void @execute(ptr %p.after, ptr %arguments, i64 %step, ptr %launcher, ptr %scratch)
  br label %out
out:
  ret void
}

define void @choose(ptr %arguments, i64 %low, i64 %high) #0 {
entry:
  %program = load ptr, ptr %arguments
  %p.true = choose.true
  %p.false = choose.false
  %launcher = ptr choose.launcher
  %most = i64 choose.most
  %base = i64 choose.flag_base
  %offset = i64 choose.flag_offset
  %p.array = getelementptr ptr, ptr %arguments, i64 %base
  %array = load ptr, ptr %p.array
  %p.flag = getelementptr i8, ptr %array, i64 %offset
  %flag = load i8, ptr %p.flag
  %is.true = icmp ne i8 %flag, 0
  %list = select i1 %is.true, ptr %p.true, ptr %p.false
  %slots = add i64 %most, 1
  %scratch = alloca ptr, i64 %slots, align 16
  call void @execute(ptr %list, ptr %arguments, i64 0, ptr %launcher, ptr %scratch)
  ret void
}
"""
