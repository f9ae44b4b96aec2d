"""Elements moved inside a loop, as LLVM IR: whole arrays, runs of elements of several arrays, elements at indices.

An op that only moves elements is recognised by its reference body: for the positions of elements instead of their
values, it returns the position that each element of its result comes from.

A kernel that indexes takes arrays of three dimensions: those before the axis that is indexed, the axis, and those
behind it. With an index out of range it reads or writes nothing, and sets a flag: the loop ends, and Python finds the
error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.reference import bind
from ..._tensor.dtype import DType, bool_
from ..._tensor.node import Call
from ..._tensor.op import OpKind
from ..._tensor.role import Indexing
from ...errors import UserError
from .entry import PARAMETERS, KernelArguments
from .ir import Function, Module

MOST_ELEMENTS: Final = 1 << 14
"""Elements of a result up to which its runs are looked for."""
_SIZES: Final = ("before", "length", "behind", "count", "bytes")
"""The sizes of an indexing kernel: elements before, along and behind the axis, indices, and bytes of the result."""
_WORDS: Final = 5
"""The words of a run: its array, the places in it and in the result, the number of elements, bytes between them."""


def copy_source(attributes: str) -> str:
    """The module of a kernel that copies an array: its size is the bytes."""
    module = Module()
    code = module.function("kernel", PARAMETERS)
    given = KernelArguments(code, ("bytes",))
    source, target = given.arrays(2)
    code.call("ptr", "memcpy", ["ptr", "ptr", "i64"], [target, source, given["bytes"]])
    code.ret()
    return module.text(attributes)


def move_source(itemsize: int, attributes: str) -> str:
    """The module of a kernel that moves runs of elements of a size: its sizes are the number of the result among the
    arrays, how many runs there are, and the words of each."""
    module = Module()
    code = module.function("kernel", PARAMETERS)
    kind = f"i{8 * itemsize}"
    numbers = code.let("load ptr, ptr %arguments")

    def word(at: str) -> str:
        return code.let(f"load i64, ptr {code.let(f'getelementptr i64, ptr {numbers}, i64 {at}')}")

    def array(at: str) -> str:
        return code.let(f"load ptr, ptr {code.let(f'getelementptr ptr, ptr %arguments, i64 {at}')}")

    target, count = array(word("0")), word("1")
    with code.loop(0, count) as run:
        first = code.let(f"add i64 {code.let(f'mul i64 {run.index}, {_WORDS}')}, 2")
        source, start, end, length, apart = (
            word(code.let(f"add i64 {first}, {n}") if n else first) for n in range(_WORDS)
        )
        begin = code.let(f"getelementptr i8, ptr {array(source)}, i64 {start}")
        place = code.let(f"getelementptr i8, ptr {target}, i64 {end}")
        with code.loop(0, length) as each:
            at = code.let(f"getelementptr i8, ptr {begin}, i64 {code.let(f'mul i64 {each.index}, {apart}')}")
            element = code.let(f"load {kind}, ptr {at}, align 1")
            to = code.let(f"getelementptr {kind}, ptr {place}, i64 {each.index}")
            code.do(f"store {kind} {element}, ptr {to}, align 1")
    code.ret()
    return module.text(attributes)


def runs_of(call: Call) -> list[int] | None:
    """The sizes of the kernel that does what a call does, if the call only moves elements; `None` if it does more.

    The arrays are the call's inputs, then an array that begins with a zero, then the result.
    """
    spec = call.spec
    fits = call.op.kind is OpKind.MOVEMENT and len(call.outputs) == 1 and bool(call.inputs)
    if not fits or not 0 < spec.size <= MOST_ELEMENTS or any(s.dtype is not spec.dtype for s in call.inputs):
        return None
    places = _places(call, lambda numbers: numbers)
    again = _places(call, lambda numbers: numbers[::-1].copy())
    if places is None or again is None:
        return None
    total = sum(s.size for s in call.inputs)
    if not np.array_equal(np.where(places > 0, total + 1 - places, 0), again):
        return None  # it looks at the elements
    starts = np.cumsum([1, *[s.size for s in call.inputs]])
    arrays = np.where(places > 0, np.searchsorted(starts, places, side="right"), len(call.inputs) + 1)
    offsets = np.where(places > 0, places - starts[np.minimum(arrays, len(starts)) - 1], 0)
    words: list[int] = []
    count = begin = 0
    size = spec.dtype.itemsize
    while begin < spec.size:
        end, apart = begin + 1, 0
        while end < spec.size and arrays[end] == arrays[begin]:
            step = int(offsets[end] - offsets[end - 1])
            if end > begin + 1 and step != apart:
                break
            apart, end = step, end + 1
        words += [int(arrays[begin]), int(offsets[begin]) * size, begin * size, end - begin, apart * size]
        count, begin = count + 1, end
    return [len(call.inputs) + 2, count, *words]


def _places(call: Call, arranged: Callable[[Any], Any]) -> Any | None:
    """For each element of a call's result the number of the element that it is, from 1 on; 0 for a zero."""
    numbers = arranged(np.arange(1, 1 + sum(s.size for s in call.inputs), dtype=np.int64))
    given: Sequence[Any] = np.split(numbers, np.cumsum([s.size for s in call.inputs])[:-1])
    try:
        made = np.asarray(bind(call)(*[g.reshape(s.shape) for g, s in zip(given, call.inputs, strict=True)]))
    except (UserError, ValueError, TypeError, IndexError):  # positions are no valid values for it
        return None
    if made.shape != call.spec.shape or made.dtype != np.int64:
        return None
    return made.ravel() if made.min() >= 0 and made.max() <= len(numbers) else None


def index_sizes(call: Call) -> list[int] | None:
    """The sizes of the kernel of an indexing call: the elements before the axis, along it, behind it, the indices, and
    the bytes of the result; `None` if there is no kernel for it."""
    role = call.op.role
    if not isinstance(role, Indexing) or call.attrs["axes"] != (call.attrs["at"],):
        return None
    x, at = call.inputs[0], call.attrs["at"]
    indices = call.inputs[-1]
    before, length, behind = prod(x.shape[:at]), x.shape[at], prod(x.shape[at + 1 :])
    if role is not Indexing.READ:
        region = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])
        dtype = call.spec.dtype
        adds = role is Indexing.ADD
        if call.inputs[1].shape != region or (adds and (dtype.is_half or dtype.is_complex or dtype is bool_)):
            return None
    return [before, length, behind, indices.size, call.spec.nbytes]


def index_source(does: Indexing, dtype: DType, index: DType, attributes: str) -> str:
    """The module of a kernel: of the array that is read, the values if there are any, the indices, the flag and the
    result."""
    module = Module()
    code = module.function("kernel", PARAMETERS)
    given = KernelArguments(code, _SIZES)
    before, length, behind, count, nbytes = given.all_sizes()
    arrays = given.arrays(4 if does is Indexing.READ else 5)
    x, places, flag, out = arrays[0], *arrays[-3:]
    if does is not Indexing.READ:
        code.call("ptr", "memcpy", ["ptr", "ptr", "i64"], [out, x, nbytes])
    with code.loop(0, count) as each:
        place = _place(code, places, index, each.index, length)
        inside = code.let(f"icmp ult i64 {place}, {length}")
        with code.when(code.let(f"xor i1 {inside}, true")):
            code.do(f"store i8 1, ptr {flag}")
        with code.when(inside), code.loop(0, before) as row:
            whole = code.let(f"add i64 {code.let(f'mul i64 {row.index}, {length}')}, {place}")
            part = code.let(f"add i64 {code.let(f'mul i64 {row.index}, {count}')}, {each.index}")
            of_whole, of_part = (code.let(f"mul i64 {n}, {behind}") for n in (whole, part))
            if does is Indexing.READ:
                _copied(code, dtype, (x, of_whole), (out, of_part), behind)
            elif does is Indexing.WRITE:
                _copied(code, dtype, (arrays[1], of_part), (out, of_whole), behind)
            else:
                _added(code, dtype, (arrays[1], of_part), (out, of_whole), behind)
    code.ret()
    return module.text(attributes)


def _place(code: Function, places: str, index: DType, number: str, length: str) -> str:
    """An index, counted from the end if it is negative."""
    at = code.let(f"getelementptr i{index.bits}, ptr {places}, i64 {number}")
    given = code.let(f"load i{index.bits}, ptr {at}")
    signed = index.kind == "signed integer"
    if index.bits < 64:
        given = code.let(f"{'sext' if signed else 'zext'} i{index.bits} {given} to i64")
    if not signed:
        return given
    negative = code.let(f"icmp slt i64 {given}, 0")
    return code.let(f"select i1 {negative}, i64 {code.let(f'add i64 {given}, {length}')}, i64 {given}")


def _copied(code: Function, dtype: DType, source: tuple[str, str], target: tuple[str, str], count: str) -> None:
    size = dtype.itemsize
    begin, end = (
        code.let(f"getelementptr i8, ptr {base}, i64 {code.let(f'mul i64 {offset}, {size}')}")
        for base, offset in (source, target)
    )
    code.call("ptr", "memcpy", ["ptr", "ptr", "i64"], [end, begin, code.let(f"mul i64 {count}, {size}")])


def _added(code: Function, dtype: DType, source: tuple[str, str], target: tuple[str, str], count: str) -> None:
    kind = {4: "float", 8: "double"}[dtype.itemsize] if dtype.is_float else f"i{dtype.bits}"
    begin, end = (code.let(f"getelementptr {kind}, ptr {base}, i64 {offset}") for base, offset in (source, target))
    with code.loop(0, count) as element:
        at, to = (code.let(f"getelementptr {kind}, ptr {base}, i64 {element.index}") for base in (begin, end))
        given, known = code.let(f"load {kind}, ptr {at}"), code.let(f"load {kind}, ptr {to}")
        total = code.let(f"{'fadd' if dtype.is_float else 'add'} {kind} {known}, {given}")
        code.do(f"store {kind} {total}, ptr {to}")
