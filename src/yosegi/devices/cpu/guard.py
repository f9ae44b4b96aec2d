"""Machine code that may be more than this processor can do, tried in this process.

Processors say what they can do, and sometimes it is not so: a hypervisor may promise instructions that it does not
have. Such an instruction raises the signal SIGILL, which ends the process unless somebody handles it. While `survives`
runs a function, a handler of ours jumps out of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from threading import Lock
from typing import Final

from .compiler import Code, Compiler

_ARGUMENTS: Final = 8
_lock: Final = Lock()  # there is one handler, and one place to jump back to

_TEXT: Final = """
@place = internal global [1024 x i8] zeroinitializer, align 16
define void @handler(i32 %number) {
  %jump = inttoptr i64 LONGJMP to ptr
  call void %jump(ptr @place, i32 1)
  unreachable
}
define i32 @guarded(ptr %function, PARAMETERS) {
  %mark = inttoptr i64 SETJMP to ptr
  %came = call i32 %mark(ptr @place, i32 1) returns_twice
  %is.first = icmp eq i32 %came, 0
  br i1 %is.first, label %run, label %failed
run:
  call void %function(PARAMETERS)
  ret i32 0
failed:
  ret i32 1
}
"""


def survives(compiler: Compiler, code: Code, function: str, *arguments: int) -> bool:
    """Run a function of integers and pointers; True if this processor has all its instructions.

    Where the system has no signals the function is simply run.
    """
    given = [*arguments, *[0] * (_ARGUMENTS - len(arguments))]
    integers = [ctypes.c_int64] * _ARGUMENTS
    if os.name != "posix":
        ctypes.CFUNCTYPE(None, *integers)(code[function])(*given)
        return True
    library = ctypes.CDLL(None)
    mark = getattr(library, "__sigsetjmp", None) or library.sigsetjmp
    text = _TEXT.replace("PARAMETERS", ", ".join(f"i64 %a{n}" for n in range(_ARGUMENTS)))
    for name, found in (("SETJMP", mark), ("LONGJMP", library.siglongjmp)):
        text = text.replace(name, str(ctypes.cast(found, ctypes.c_void_p).value))
    guard = compiler.linked(text, ("guarded", "handler"))
    guarded = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *integers)(guard["guarded"])
    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    with _lock:
        before = library.signal(signal.SIGILL, guard["handler"])
        try:
            return bool(guarded(code[function], *given) == 0)
        finally:
            library.signal(signal.SIGILL, before)
