"""Elements moved inside a loop, as LLVM IR: whole arrays, and runs of elements of several arrays.

An op that only moves elements is recognised by its reference body: for the positions of elements instead of their
values, it returns the position that each element of its result comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..._graph.reference import bind
from ..._tensor.node import Call
from ..._tensor.op import OpKind
from ...errors import UserError
from .entry import PARAMETERS, KernelArguments
from .ir import Module

MOST_ELEMENTS: Final = 1 << 14
"""Elements of a result up to which its runs are looked for."""
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
