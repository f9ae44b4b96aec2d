"""Kernels as Python callables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from ...codegen.llvm.entry import BEFORE_ARRAYS, NativeLaunch, ObjectLayout, entry_text
from ...codegen.llvm.thread_pool import pool_text
from .compiler import Code, Compiler
from .threads import has_futex, new_pool, thread_count

_FASTCALL: Final = 0x80  # METH_FASTCALL of Python's C interface
_ONE: Final = 0x8  # METH_O
ALIGNED: Final = 0x100  # NPY_ARRAY_ALIGNED of NumPy's
IN_ORDER: Final = 0x101  # and NPY_ARRAY_C_CONTIGUOUS

RELEASING_PRODUCTS: Final = 1 << 17
"""Products of elements from which other Python threads may run meanwhile."""

Call = Callable[..., None]
"""Takes the arrays that a kernel reads, then those that it writes."""


def not_aligned(*arrays: Any) -> None:
    """The fallback of calls whose arrays are aligned to their elements."""
    raise ValueError("expected arrays that are aligned to their elements")


class _Method(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]  # fmt: skip


def _layout() -> ObjectLayout | None:
    """Where an array object has its data, if that is where all known versions have it."""
    head = object.__basicsize__
    layout = ObjectLayout(bytes.__basicsize__ - 1, head - 8, head, head + 48)
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    for a in (array, array.T, array[::2, ::-1], np.zeros(())):
        where = id(a)
        found = (
            ctypes.c_void_p.from_address(where + layout.kind).value,
            ctypes.c_void_p.from_address(where + layout.data).value,
            ctypes.c_int.from_address(where + layout.flags).value,
        )
        if found != (id(np.ndarray), a.ctypes.data, a.flags.num):
            return None
    text = b"abc"
    return layout if ctypes.string_at(id(text) + layout.bytes_data, 3) == text else None


class Runtime:
    """The objects that all kernels of this process share: the compiler, the threads, and the entry from Python."""

    def __init__(self, compiler: Compiler, threads: int | None = None, *, futex: bool | None = None) -> None:
        self.compiler = compiler
        self.threads = thread_count() if threads is None else threads
        self._architecture = compiler.machine.triple.partition("-")[0]
        self._futex = has_futex(self._architecture) if futex is None else futex
        self._layout = _layout()

    def prepare(self) -> None:
        """Make all that is made once."""
        assert self.pool
        assert self._method

    @cached_property
    def pool(self) -> int:
        """The address of the threads' words."""
        return new_pool(self.threads, futex=self._futex)

    @cached_property
    def code(self) -> Code:
        """The pool's functions and the entry. Workers are in there until the process ends."""
        machine = self.compiler.machine
        layout = self._layout or ObjectLayout(0, 0, 0, 0)
        text = pool_text(self._architecture, futex=self._futex) + entry_text(layout)
        names = ("spread", "serve", "enter", "launch", "skip")
        return self.compiler.load(f"{text}\nattributes #0 = {{ {machine.attributes} }}\n", names).forever()

    @cached_property
    def _method(self) -> Any:
        return _Method(b"kernel", self.code["enter"], _FASTCALL, None)

    @cached_property
    def skip(self) -> Callable[[Any], int] | None:
        """Tells how many bytes an array has before its first whole cache line; there is none where the layout of array
        objects is not known."""
        if self._layout is None:
            return None
        method = _Method(b"skip", self.code["skip"], _ONE, None)
        packed = ctypes.c_void_p(address_of(ctypes.pythonapi.PyLong_FromLong))
        made: Callable[[Any], int] = _new_function(method, bytes(packed), (self, method))
        return made

    def call(
        self,
        code: Code,
        arrays: int,
        sizes: Sequence[int],
        *,
        count: int,
        chunk: int,
        finishes: bool = False,
        lets_go: bool = True,
        needs: int = IN_ORDER,
        fallback: Callable[..., Any] = not_aligned,
    ) -> Call:
        """A callable for a kernel and its sizes.

        `count` units of work are done `chunk` at a time. `lets_go` says whether other Python threads may run meanwhile.
        If one of the arguments is not an array with the flags that it `needs`, all are given to `fallback`.
        """
        packed = self.packed(
            code, arrays, sizes, count=count, chunk=chunk, finishes=finishes, lets_go=lets_go, needs=needs,
            fallback=fallback,
        )  # fmt: skip
        if self._layout is None:
            return self._plain(packed, arrays, needs, code, fallback)
        made: Call = _new_function(self._method, packed, (self, code, fallback))
        return made

    def packed(
        self,
        code: Code,
        arrays: int,
        sizes: Sequence[int],
        *,
        count: int,
        chunk: int,
        finishes: bool = False,
        lets_go: bool = False,
        needs: int = IN_ORDER,
        fallback: Callable[..., Any] | None = None,
    ) -> bytes:
        """A kernel with its sizes as a `NativeLaunch`, for a callable or for a loop over kernels."""
        api = ctypes.pythonapi
        launch = NativeLaunch(
            kernel=code["kernel"], finish=code["finish"] if finishes else None,
            pool=self.pool if count > chunk else None, count=count, chunk=chunk, arrays=arrays,
            save=address_of(api.PyEval_SaveThread) if lets_go else None, restore=address_of(api.PyEval_RestoreThread),
            fallback=id(fallback), vectorcall=address_of(api.PyObject_Vectorcall),
            none=id(None), hold=address_of(api.Py_IncRef), array_type=id(np.ndarray), needs=needs,
        )  # fmt: skip
        words: bytes = np.asarray(sizes, np.int64).tobytes()
        return bytes(launch) + words

    def _plain(self, packed: bytes, arrays: int, needs: int, code: Code, fallback: Callable[..., Any]) -> Call:
        """A callable by ctypes, for interpreters whose layout of array objects is not known."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)(self.code["launch"])
        slots = ctypes.c_void_p * (BEFORE_ARRAYS + arrays)

        def call(*given: Any, kept: Code = code) -> None:
            if all(type(a) is np.ndarray and a.flags.num & needs == needs for a in given):
                function(packed, slots(None, *[a.ctypes.data for a in given]))
            else:
                fallback(*given)

        return call


def _new_function(method: _Method, packed: bytes, needed: tuple[Any, ...]) -> Any:
    """A Python function; what is `needed` lives as long as it does, in the place of its module."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return new(ctypes.addressof(method), packed, needed)


def address_of(function: Any) -> int:
    """The address of a function of ctypes."""
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found
