"""Packets: neighbouring elements that one thread reads or writes at once, and computes with one by one.

GPUs reach their memory's speed with accesses of 16 bytes, aligned to as much. Their arithmetic is on single numbers, so
that a packet is taken apart in a loop over its lanes, which the compiler writes out: the packet stays in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from ..._tensor.dtype import DType, bool_
from ..scalar.access import Dimension
from ..scalar.value import Value
from .builder import CBuilder

_BYTES: Final = 16
LANE: Final = "lane"
"""The name of the loop variable over a packet's elements."""


def lanes(dims: Sequence[Dimension], dtypes: Sequence[DType]) -> int:
    """How many elements a packet has: all that fit the widest dtype, where the innermost dimension is made of whole
    packets, so that each is aligned. A single dimension may end in a part of one."""
    count = widest(dtypes)
    return count if len(dims) == 1 or dims[-1].size % count == 0 else 1


def widest(dtypes: Sequence[DType]) -> int:
    """How many elements of the widest dtype fit a packet."""
    return max(1, _BYTES // max((d.itemsize for d in dtypes), default=_BYTES))


def _parts(dtype: DType) -> int:
    return 2 if dtype.is_complex else 1


def packet_type(k: CBuilder, dtype: DType, count: int) -> str:
    """The name of the type of so many elements, which the program declares."""
    word, n = k.dialect.stored[dtype], count * _parts(dtype)
    name = f"{word.replace(' ', '_')}_x{n}"
    align = min(_BYTES, count * dtype.itemsize)
    k.declarations[name] = k.dialect.packet.format(name=name, type=word, n=n, align=align)
    return name


def each_lane(k: CBuilder, count: int) -> AbstractContextManager[None]:
    """A loop over the elements of a packet: the body runs for each."""
    return k.each(LANE, count)


def fill(k: CBuilder, dtype: DType, count: int, packet: str, pointer: str, at: str, end: str | None) -> None:
    """Read a packet into a variable. Beyond `end`, if there is one, its elements are zeros."""
    whole = f"{packet} = {k.dialect.load_packet}"
    _moved(k, dtype, count, whole, f"{packet}.lane[{LANE}] = {{inside}} ? {{element}} : 0", pointer, at, end)


def drain(k: CBuilder, dtype: DType, count: int, packet: str, pointer: str, at: str, end: str | None) -> None:
    """Write a packet to memory, up to `end` if there is one."""
    whole = k.dialect.store_packet.replace("{value}", packet)
    _moved(k, dtype, count, whole, f"if ({{inside}}) {{element}} = {packet}.lane[{LANE}]", pointer, at, end)


def _moved(
    k: CBuilder, dtype: DType, count: int, whole: str, single: str, pointer: str, at: str, end: str | None
) -> None:
    """A packet moved as a `whole`; if it reaches beyond `end`, by a `single` statement for each element."""
    name, n = packet_type(k, dtype, count), _parts(dtype)
    place = at if n == 1 else f"2 * ({at})"
    statement = whole.format(name=name, pointer=pointer, at=place)
    if end is None:
        k.say(statement)
        return
    with k.block(f"if ({at} + {count} <= {end})"):
        k.say(statement)
    with k.block("else"), each_lane(k, count * n):
        inside = f"{place} + {LANE} < {end if n == 1 else f'2 * {end}'}"
        k.say(single.format(inside=inside, element=f"{pointer}[{place} + {LANE}]"))


def lane_of(k: CBuilder, dtype: DType, packet: str) -> Value:
    """The current lane's element, as it is computed with."""
    if dtype.is_complex:
        return _value(k, dtype, f"{packet}.lane[2 * {LANE}]", f"{packet}.lane[2 * {LANE} + 1]")
    return _value(k, dtype, f"{packet}.lane[{LANE}]")


def element_at(k: CBuilder, dtype: DType, pointer: str, at: str) -> Value:
    """One element from memory, as it is computed with."""
    if dtype.is_complex:
        return _value(k, dtype, f"{pointer}[2 * ({at})]", f"{pointer}[2 * ({at}) + 1]")
    return _value(k, dtype, f"{pointer}[{at}]")


def _value(k: CBuilder, dtype: DType, text: str, imag: str = "") -> Value:
    if dtype is bool_:
        return k.truth(f"({text} ? 1 : 0)")
    if dtype.is_half:
        return k.from_half_bits(dtype, text)
    ctype = k.ctype(dtype)
    return Value(dtype, k.let(ctype, text), k.let(ctype, imag) if imag else "")


def _stored(k: CBuilder, value: Value) -> str:
    """A real value as memory has it."""
    return k.half_bits(value) if value.dtype.is_half else value.text


def set_lane(k: CBuilder, packet: str, value: Value) -> None:
    """Put a value into the current lane."""
    if value.dtype.is_complex:
        k.say(f"{packet}.lane[2 * {LANE}] = {value.text}")
        k.say(f"{packet}.lane[2 * {LANE} + 1] = {value.imag}")
    else:
        k.say(f"{packet}.lane[{LANE}] = {_stored(k, value)}")


def put_element(k: CBuilder, value: Value, pointer: str, at: str) -> None:
    """One value to memory."""
    if value.dtype.is_complex:
        k.say(f"{pointer}[2 * ({at})] = {value.text}")
        k.say(f"{pointer}[2 * ({at}) + 1] = {value.imag}")
    else:
        k.say(f"{pointer}[{at}] = {_stored(k, value)}")
