"""The call from Python into a kernel, as LLVM IR: a C function that the interpreter calls directly.

It is the C function of a Python callable that takes arrays. A callable's `self` is a bytes object that holds a
`NativeLaunch`: the kernel and its sizes. The arrays' addresses are read out of the array objects. If an argument is not
an array, or its memory layout is not the kernel's, all arguments go to a Python function that handles the general case.

A second callable, `skip`, returns the number of bytes of an array before its first whole cache line.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .integers import word
from .ir import Function, with_fields

PARAMETERS: Final = (("ptr", "arguments"), ("i64", "low"), ("i64", "high"))
"""A kernel: some of its units of work. `arguments` are the addresses of its sizes and of the arrays' data."""
BEFORE_ARRAYS: Final = 1


class KernelArguments:
    """The sizes, by their names, and the arrays of a kernel."""

    def __init__(self, code: Function, sizes: Sequence[str] = ()) -> None:
        self.code = code
        self._names = sizes
        self._sizes = code.let("load ptr, ptr %arguments")

    def __getitem__(self, name: str) -> str:
        return word(self.code, self._sizes, self._names.index(name))

    def all_sizes(self) -> list[str]:
        """The sizes in their order."""
        return [self[name] for name in self._names]

    def array(self, number: int) -> str:
        """The address of an array."""
        return word(self.code, "%arguments", BEFORE_ARRAYS + number, "ptr")

    def arrays(self, count: int) -> list[str]:
        """The addresses of the first so many arrays."""
        return [self.array(n) for n in range(count)]


class NativeLaunch(ctypes.Structure):
    """A kernel, followed by its sizes in memory."""

    _fields_ = [
        ("kernel", ctypes.c_void_p), ("finish", ctypes.c_void_p), ("pool", ctypes.c_void_p),
        ("count", ctypes.c_int64), ("chunk", ctypes.c_int64), ("arrays", ctypes.c_int64),
        ("save", ctypes.c_void_p), ("restore", ctypes.c_void_p),
        ("fallback", ctypes.c_void_p), ("vectorcall", ctypes.c_void_p),
        ("none", ctypes.c_void_p), ("hold", ctypes.c_void_p), ("array_type", ctypes.c_void_p),
        ("needs", ctypes.c_int64),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Where things lie in objects, in bytes. Interpreters and versions of NumPy may differ."""

    bytes_data: int
    kind: int
    data: int
    flags: int


def entry_text(layout: ObjectLayout) -> str:
    """The function `enter`, `launch` for callers that have the addresses already, and `skip`."""
    text = re.sub(r"LAYOUT\.(\w+)", lambda m: str(getattr(layout, m[1])), _ENTRY)
    text = with_fields(text, "field", NativeLaunch, "%launch")
    return text.replace("SIZES", str(ctypes.sizeof(NativeLaunch))).replace("BEFORE", str(BEFORE_ARRAYS))


_ENTRY: Final = """
define ptr @enter(ptr %self, ptr %given, i64 %n) #0 {
entry:
  %launch = getelementptr i8, ptr %self, i64 LAYOUT.bytes_data
  %arrays = i64 field arrays
  %type = ptr field array_type
  %needs = i32 field needs
  %slots = add i64 %arrays, BEFORE
  %arguments = alloca ptr, i64 %slots, align 16
  %all = icmp eq i64 %n, %arrays
  br i1 %all, label %next, label %elsewhere
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %left = icmp slt i64 %i, %arrays
  br i1 %left, label %look, label %go
look:
  %p.object = getelementptr ptr, ptr %given, i64 %i
  %object = load ptr, ptr %p.object
  %p.kind = getelementptr i8, ptr %object, i64 LAYOUT.kind
  %kind = load ptr, ptr %p.kind
  %is.array = icmp eq ptr %kind, %type
  br i1 %is.array, label %see, label %elsewhere
see:
  %p.flags = getelementptr i8, ptr %object, i64 LAYOUT.flags
  %flags = load i32, ptr %p.flags
  %both = and i32 %flags, %needs
  %fits = icmp eq i32 %both, %needs
  br i1 %fits, label %put, label %elsewhere
put:
  %p.data = getelementptr i8, ptr %object, i64 LAYOUT.data
  %data = load ptr, ptr %p.data
  %place = add i64 %i, BEFORE
  %p.slot = getelementptr ptr, ptr %arguments, i64 %place
  store ptr %data, ptr %p.slot
  %i1 = add i64 %i, 1
  br label %next
go:
  %save = ptr field save
  %keeps = icmp eq ptr %save, null
  br i1 %keeps, label %at.once, label %let.go
at.once:
  call void @launch(ptr %launch, ptr %arguments)
  br label %done
let.go:
  %thread = call ptr %save()
  call void @launch(ptr %launch, ptr %arguments)
  %restore = ptr field restore
  call void %restore(ptr %thread)
  br label %done
done:
  %none = ptr field none
  %hold = ptr field hold
  call void %hold(ptr %none)
  ret ptr %none
elsewhere:
  %fallback = ptr field fallback
  %call = ptr field vectorcall
  %result = call ptr %call(ptr %fallback, ptr %given, i64 %n, ptr null)
  ret ptr %result
}

define ptr @skip(ptr %self, ptr %array) #0 {
  %p.function = getelementptr i8, ptr %self, i64 LAYOUT.bytes_data
  %function = load ptr, ptr %p.function
  %p.data = getelementptr i8, ptr %array, i64 LAYOUT.data
  %address = load i64, ptr %p.data
  %back = sub i64 0, %address
  %bytes = and i64 %back, 63
  %number = call ptr %function(i64 %bytes)
  ret ptr %number
}

define void @launch(ptr %launch, ptr %arguments) #0 {
entry:
  %sizes = getelementptr i8, ptr %launch, i64 SIZES
  store ptr %sizes, ptr %arguments
  %kernel = ptr field kernel
  %finish = ptr field finish
  %pool = ptr field pool
  %count = i64 field count
  %chunk = i64 field chunk
  %single = icmp eq ptr %pool, null
  br i1 %single, label %alone, label %together
alone:
  call void %kernel(ptr %arguments, i64 0, i64 %count)
  br label %worked
together:
  call void @spread(ptr %pool, ptr %kernel, ptr %arguments, i64 %count, i64 %chunk)
  br label %worked
worked:
  %ends = icmp eq ptr %finish, null
  br i1 %ends, label %out, label %last
last:
  call void %finish(ptr %arguments, i64 0, i64 1)
  br label %out
out:
  ret void
}
"""
