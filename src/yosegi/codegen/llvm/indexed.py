"""Elements at places that are data, inside a loop, as LLVM IR: read, replaced, or added to.

A kernel takes arrays of three dimensions: those before the axis that is indexed, the axis, and those behind it. With
an index out of range it reads or writes nothing, and raises a flag: the loop ends, and Python finds out what was wrong.
"""

from __future__ import annotations

from math import prod
from typing import Final

from ..._tensor.dtype import DType, bool_
from ..._tensor.node import Call
from ..._tensor.role import Access, Indexing
from .entry import PARAMETERS, KernelArguments
from .ir import Function, Module

_SIZES: Final = ("before", "length", "behind", "count", "bytes")


def index_sizes(call: Call) -> list[int] | None:
    """The sizes of the kernel of an indexing call: the elements before the axis, along it, behind it, the indices, and
    the bytes of the result; `None` if there is no kernel for it."""
    role = call.op.role
    if not isinstance(role, Indexing) or call.attrs["axes"] != (call.attrs["at"],):
        return None
    x, at = call.inputs[0], call.attrs["at"]
    indices = call.inputs[-1]
    before, length, behind = prod(x.shape[:at]), x.shape[at], prod(x.shape[at + 1 :])
    if role.access is not Access.READ:
        region = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])
        dtype = call.spec.dtype
        adds = role.access is Access.ADD
        if call.inputs[1].shape != region or (adds and (dtype.is_half or dtype.is_complex or dtype is bool_)):
            return None
    return [before, length, behind, indices.size, call.spec.nbytes]


def index_source(does: Access, dtype: DType, index: DType, attributes: str) -> str:
    """The module of a kernel: of the array that is read, the values if there are any, the indices, the flag and the
    result."""
    module = Module()
    code = module.function("kernel", PARAMETERS)
    given = KernelArguments(code, _SIZES)
    before, length, behind, count, nbytes = given.all_sizes()
    arrays = given.arrays(4 if does is Access.READ else 5)
    x, places, flag, out = arrays[0], *arrays[-3:]
    if does is not Access.READ:
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
            if does is Access.READ:
                _copied(code, dtype, (x, of_whole), (out, of_part), behind)
            elif does is Access.WRITE:
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
