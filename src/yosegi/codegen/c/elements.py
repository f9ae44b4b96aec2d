"""Ops whose every element is a function of its place, as kernels of one thread for each: triangles and diagonals,
sources, random words, searches in a sorted array and in a short list."""

from __future__ import annotations

from math import prod
from typing import Final

from ..._tensor.dtype import int64, uint8, uint32, uint64
from ..._tensor.node import Call
from ..._tensor.role import Triangle
from ..scalar.value import Value
from .copies import BITS
from .packets import element_at, put_element
from .stages import KernelProgram, KernelWriter, Setting, Stage
from .words import random_block

_MOST_LISTED: Final = 256
"""Elements that one thread compares with, one after the other."""


def isin_refusal(call: Call) -> str | None:
    """Why there is no kernel for a call of `isin`, or `None`."""
    if call.inputs[1].size > _MOST_LISTED:
        return f"isin with a list of {call.inputs[1].size} elements"
    return None


def _single(w: KernelWriter, call: Call, items: int) -> KernelProgram:
    """A kernel that reads all inputs and writes the result."""
    inputs = len(call.inputs)
    return KernelProgram((Stage(w.kernel(items), tuple(range(inputs)), (inputs,)),))


# Matrices


def _matrix(w: KernelWriter, item: str, call: Call) -> tuple[str, str, str]:
    """The matrix of an element of the result, its row and its column."""
    rows, columns = (w.sizes(n) for n in call.spec.shape[-2:])
    line = w.let(f"{item} / {columns}")
    matrix = w.let(f"{line} / {rows}")
    return matrix, w.let(f"{line} - {matrix} * {rows}"), w.let(f"{item} - {line} * {columns}")


def _within(offset: int, call: Call) -> int:
    """A diagonal, or one just as far outside of the matrix that sizes hold it."""
    rows, columns = call.spec.shape[-2:]
    return max(-rows - 1, min(offset, columns + 1))


def triangle(call: Call, setting: Setting) -> KernelProgram:
    """Matrices with zeros on one side of a diagonal."""
    size, bits = call.spec.size, BITS[call.spec.dtype.itemsize]
    w = KernelWriter(setting, size, (bits,), (bits,))
    item = w.item(size)
    _, row, column = _matrix(w, item, call)
    sign = "<=" if call.op.role == Triangle(is_lower=True) else ">="
    with w.k.block(f"if ({column} - {row} {sign} {w.sizes(_within(call.attrs['k'], call))})"):
        put_element(w.k, element_at(w.k, bits, "a0", item), "b0", item)
    with w.k.block("else"):
        put_element(w.k, w.k.literal(0, bits), "b0", item)
    return _single(w, call, size)


def on_diagonal(call: Call, setting: Setting) -> KernelProgram:
    """Matrices of zeros with elements on a diagonal."""
    size, bits = call.spec.size, BITS[call.spec.dtype.itemsize]
    offset, length = _within(call.attrs["offset"], call), call.inputs[0].shape[-1]
    w = KernelWriter(setting, size, (bits,), (bits,))
    item = w.item(size)
    matrix, row, column = _matrix(w, item, call)
    along = w.let(f"{row} - {w.sizes(max(-offset, 0))}")
    with w.k.block(f"if ({column} - {row} == {w.sizes(offset)})"):
        put_element(w.k, element_at(w.k, bits, "a0", w.let(f"{matrix} * {w.sizes(length)} + {along}")), "b0", item)
    with w.k.block("else"):
        put_element(w.k, w.k.literal(0, bits), "b0", item)
    return _single(w, call, size)


# Sources


def diagonal_ones(call: Call, setting: Setting) -> KernelProgram:
    """A matrix with ones on a diagonal."""
    dtype, size = call.spec.dtype, call.spec.size
    w = KernelWriter(setting, size, (), (dtype,))
    item = w.item(size)
    _, row, column = _matrix(w, item, call)
    on = w.k.truth(f"({column} - {row} == {w.sizes(_within(call.attrs['k'], call))})")
    put_element(w.k, w.k.rounded(w.k.convert(on, dtype)), "b0", item)
    return _single(w, call, size)


def count(call: Call, setting: Setting) -> KernelProgram:
    """Whole numbers, evenly spaced: modulo 2**64, which holds every integer dtype."""
    dtype, size = call.spec.dtype, call.spec.size
    w = KernelWriter(setting, size, (), (dtype,))
    item = w.item(size)
    k = w.k
    number = Value(uint64, k.let(k.ctype(uint64), f"({k.ctype(uint64)}){item}"))
    start, step = (k.literal(int(call.attrs[name]) % 2**64, uint64) for name in ("start", "step"))
    put_element(k, k.converted(k.add(start, k.mul(step, number)), dtype), "b0", item)
    return _single(w, call, size)


# Random words


def _state(w: KernelWriter) -> tuple[Value, Value, Value, Value]:
    a, b, c, d = (element_at(w.k, uint32, "a0", str(n)) for n in range(4))
    return a, b, c, d


def _number(w: KernelWriter, item: str) -> Value:
    word = w.k.ctype(uint64)
    return Value(uint64, w.k.let(word, f"({word}){item}"))


def random_words(call: Call, setting: Setting) -> KernelProgram:
    """A random word for each element: a thread makes a block of four."""
    size = call.spec.size
    items = -(-size // 4)
    w = KernelWriter(setting, size + 4, (uint32,), (uint32,))
    item = w.item(items)
    first, end = w.let(f"{item} * 4"), w.sizes(size)
    for n, word in enumerate(random_block(w.k, _number(w, item), _state(w))):
        w.k.say(f"if ({first} + {n} < {end}) b0[{first} + {n}] = {word.text}")
    return _single(w, call, items)


def philox(call: Call, setting: Setting) -> KernelProgram:
    """Random words in planes: a thread makes those of an element."""
    words, items = call.attrs["words"], prod(call.attrs["shape"])
    w = KernelWriter(setting, words * items, (uint32,), (uint32,))
    item = w.item(items)
    for n, word in enumerate(random_block(w.k, _number(w, item), _state(w))[:words]):
        w.k.say(f"b0[{item} + {n} * {w.sizes(items)}] = {word.text}")
    return _single(w, call, items)


# Searches


def searchsorted(call: Call, setting: Setting) -> KernelProgram:
    """The place of each element in an ascending array, by halves. NaN comes last."""
    (given, _), size = call.inputs, call.spec.size
    dtype = given.dtype
    w = KernelWriter(setting, max(size, given.size), (dtype, dtype), (int64,))
    k, item = w.k, w.item(size)
    value = element_at(k, dtype, "a1", item)
    w.k.say(f"{w.ctype} low = 0, high = {w.sizes(given.size)}")
    with k.block("while (low < high)"):
        middle = w.let("low + (high - low) / 2")
        here = element_at(k, dtype, "a0", middle)
        left = call.attrs["side"] == "left"
        goes_on = _below(w, here, value) if left else f"!({_below(w, value, here)})"
        w.k.say(f"if ({goes_on}) low = {middle} + 1; else high = {middle}")
    w.k.say(f"b0[{item}] = low")
    return _single(w, call, size)


def _below(w: KernelWriter, a: Value, b: Value) -> str:
    less = f"{a.text} < {b.text}"
    return f"({less} || ({b.text} != {b.text} && {a.text} == {a.text}))" if a.dtype.is_float else f"({less})"


def isin(call: Call, setting: Setting) -> KernelProgram:
    """True if each element is in a short list."""
    (given, listed), size = call.inputs, call.spec.size
    w = KernelWriter(setting, max(size, listed.size), (given.dtype, given.dtype), (uint8,))
    k, item = w.k, w.item(size)
    value = element_at(k, given.dtype, "a0", item)
    w.k.say("int found = 0")
    with k.block(f"for ({w.ctype} at = 0; at < {w.sizes(listed.size)}; at++)"):
        w.k.say(f"found |= {k.eq(value, element_at(k, given.dtype, 'a1', 'at')).text}")
    w.k.say(f"b0[{item}] = {'!' if call.attrs['invert'] else ''}found")
    return _single(w, call, size)
