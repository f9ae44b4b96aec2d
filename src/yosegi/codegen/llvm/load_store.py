"""Loads and stores of vectors of elements.

Elements have NumPy's format: truth values are bytes of which any but zero is true, complex numbers have their parts
side by side. Pointers are aligned to one element. Under a mask, lanes that are left out are neither read nor written;
their value is zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..._tensor.dtype import DType, bfloat16, bool_, float16, float32, int64, real_of, uint8, uint16, uint32
from ..scalar.value import Value, like, texts
from .builder import LlvmBuilder

_LINE: Final = 64  # bytes of a cache line


def lanes_below(k: LlvmBuilder, count: str) -> str:
    """The mask of the lanes whose number is below an i64."""
    kind = k.vector("i1")
    name = f"llvm.get.active.lane.mask.v{k.width}i1.i64"
    return k.code.pure_call(kind, name, ["i64", "i64"], ["0", count])


def stored(dtype: DType) -> str:
    """The type of an element in memory (of each part, if complex)."""
    if dtype is float16:
        return "half"
    if (dtype.is_float and dtype is not bfloat16) or dtype.is_complex:
        return "double" if real_of(dtype).bits == 64 else "float"
    return f"i{dtype.bits}"


def load(k: LlvmBuilder, dtype: DType, pointer: str, mask: str | None = None) -> Value:
    """Neighbouring elements, as many as there are lanes."""
    if not dtype.is_complex:
        return _computed(k, dtype, _load(k, stored(dtype), k.width, pointer, mask))
    if mask is not None:
        mask = _twice(k, mask)
    return _apart(k, dtype, _load(k, stored(dtype), 2 * k.width, pointer, mask))


def repeated(k: LlvmBuilder, dtype: DType, pointer: str) -> Value:
    """A vector with the same element in every lane."""
    single = load(k.at_width(1), dtype, pointer)
    return like([single], [k.splat(real_of(dtype), t).text for t in texts([single])])[0]


def strided(k: LlvmBuilder, dtype: DType, pointer: str, stride: str | int, mask: str | None = None) -> Value:
    """Elements from places that are a number of elements apart.

    Without a mask, one by one: processors that must not leak through their gather instructions have slow ones.
    """
    if k.width == 1:
        return load(k, dtype, pointer)
    if mask is not None:
        return gather(k, dtype, pointer, _places(k, str(stride)), mask)
    element = stored(dtype)
    step = k.code.pure(f"mul i64 {stride}, {dtype.itemsize}")
    steps = [k.code.pure(f"mul i64 {step}, {n}") for n in range(1, 5)]
    parts = []
    for part in range(2 if dtype.is_complex else 1):
        at = pointer if part == 0 else k.code.pure(f"getelementptr {element}, ptr {pointer}, i64 1")
        made = "poison"
        for lane in range(k.width):
            if lane and lane % 4 == 0:
                at = k.code.pure(f"getelementptr i8, ptr {at}, i64 {steps[3]}")
            place = k.code.pure(f"getelementptr i8, ptr {at}, i64 {steps[lane % 4 - 1]}") if lane % 4 else at
            single = k.code.let(f"load {element}, ptr {place}, align {_bytes(element)}")
            made = k.code.pure(f"insertelement {k.vector(element)} {made}, {element} {single}, i64 {lane}")
        parts.append(made)
    return Value(dtype, parts[0], parts[1]) if dtype.is_complex else _computed(k, dtype, parts[0])


def gather(k: LlvmBuilder, dtype: DType, pointer: str, places: str, mask: str | None = None) -> Value:
    """Elements from places that are given as i64, one per lane."""
    element = stored(dtype)
    kind = k.vector("i64")
    step = f"[2 x {element}]" if dtype.is_complex else element
    at = k.code.pure(f"getelementptr {step}, ptr {pointer}, {kind} {places}")
    if not dtype.is_complex:
        return _computed(k, dtype, _gather(k, element, at, mask))
    real = _gather(k, element, at, mask)
    beside = k.code.pure(f"getelementptr {element}, {k.vector('ptr')} {at}, i64 1")
    return Value(dtype, real, _gather(k, element, beside, mask))


def store(k: LlvmBuilder, value: Value, pointer: str, mask: str | None = None, *, nontemporal: bool = False) -> None:
    """Neighbouring elements to memory, as many as there are lanes.

    With `nontemporal`, past the caches: the pointer must be aligned to all the bytes that are written.
    """
    element, lanes = stored(value.dtype), k.width
    text = _kept(k, value)
    if value.dtype.is_complex:
        lanes *= 2
        mask = None if mask is None else _twice(k, mask)
    kind = element if lanes == 1 else f"<{lanes} x {element}>"
    size = _bytes(element)
    if mask is not None:
        name = f"llvm.masked.store.v{lanes}{_suffix(element)}.p0"
        types = [kind, "ptr", "i32 immarg", f"<{lanes} x i1>"]
        _masked(k, "void", name, types, [text, pointer, str(size), mask])
        return
    if nontemporal:
        hint = k.code.module.metadata("!{i32 1}")
        k.code.do(f"store {kind} {text}, ptr {pointer}, align {size * lanes}, !nontemporal {hint}")
        return
    k.code.do(f"store {kind} {text}, ptr {pointer}, align {size}")


def spaced(k: LlvmBuilder, value: Value, pointer: str, stride: str | int) -> None:
    """Elements to places that are a number of elements apart."""
    if k.width == 1:
        store(k, value, pointer)
        return
    element = stored(value.dtype)
    places = _places(k, str(stride))
    step = f"[2 x {element}]" if value.dtype.is_complex else element
    at = k.code.pure(f"getelementptr {step}, ptr {pointer}, {k.vector('i64')} {places}")
    if not value.dtype.is_complex:
        _scatter(k, element, _kept(k, value), at)
        return
    _scatter(k, element, value.text, at)
    _scatter(k, element, value.imag, k.code.pure(f"getelementptr {element}, {k.vector('ptr')} {at}, i64 1"))


# As in memory, as computed with


def _computed(k: LlvmBuilder, dtype: DType, raw: str) -> Value:
    """Elements as they are computed with."""
    if dtype is bool_:
        return k.convert(Value(uint8, raw), bool_)
    if dtype is bfloat16:
        high = k.arithmetic("<<", k.converted(Value(uint16, raw), uint32), k.literal(16, uint32))
        return replace(k.reinterpreted(high, float32), dtype=bfloat16)
    if dtype is not float16:
        return Value(dtype, raw)
    if k.code.module.converts_halves:
        return k.value(dtype, f"fpext {k.vector('half')} {raw} to {k.type(float32)}")
    bits = Value(uint16, k.code.pure(f"bitcast {k.vector('half')} {raw} to {k.vector('i16')}"))
    return replace(_float_of_half(k, k.converted(bits, uint32)), dtype=float16)


def _kept(k: LlvmBuilder, value: Value) -> str:
    """Elements as they are in memory."""
    dtype, text = value.dtype, value.text
    if dtype is bool_:
        return k.code.pure(f"zext {k.type(bool_)} {text} to {k.vector('i8')}")
    if dtype is bfloat16:
        bits = k.reinterpreted(replace(value, dtype=float32), uint32)
        return k.converted(k.bitwise(">>", bits, k.literal(16, uint32)), uint16).text
    if dtype is float16:
        if k.code.module.converts_halves:
            return k.code.pure(f"fptrunc {k.type(float32)} {text} to {k.vector('half')}")
        bits = k.converted(_half_of_float(k, replace(value, dtype=float32)), uint16)
        return k.code.pure(f"bitcast {k.vector('i16')} {bits.text} to {k.vector('half')}")
    if not dtype.is_complex:
        return text
    kind = k.type(dtype)
    if k.width == 1:
        first = k.code.pure(f"insertelement <2 x {kind}> poison, {kind} {text}, i64 0")
        return k.code.pure(f"insertelement <2 x {kind}> {first}, {kind} {value.imag}, i64 1")
    order = ", ".join(f"i32 {n}, i32 {n + k.width}" for n in range(k.width))
    return k.code.pure(f"shufflevector {kind} {text}, {kind} {value.imag}, <{2 * k.width} x i32> <{order}>")


def _apart(k: LlvmBuilder, dtype: DType, both: str) -> Value:
    """Complex values from their parts side by side."""
    element, n = stored(dtype), k.width
    kind = f"<{2 * n} x {element}>"
    if n == 1:
        parts = [k.code.pure(f"extractelement {kind} {both}, i64 {part}") for part in (0, 1)]
        return Value(dtype, parts[0], parts[1])
    parts = []
    for first in (0, 1):
        order = ", ".join(f"i32 {2 * lane + first}" for lane in range(n))
        parts.append(k.code.pure(f"shufflevector {kind} {both}, {kind} poison, <{n} x i32> <{order}>"))
    return Value(dtype, parts[0], parts[1])


def _float_of_half(k: LlvmBuilder, bits: Value) -> Value:
    """float16 as float, on the bits: the exponent is moved by a product, which also takes care of subnormal numbers."""
    low = k.bitwise("&", bits, k.literal(0x7FFF, uint32))
    moved = k.reinterpreted(k.arithmetic("<<", low, k.literal(13, uint32)), float32)
    size = k.mul(moved, k.literal(2.0**112, float32))
    unbounded = k.reinterpreted(k.bitwise("|", k.reinterpreted(moved, uint32), k.literal(0x7F800000, uint32)), float32)
    size = k.select(k.lt(low, k.literal(0x7C00, uint32)), size, unbounded)
    sign = k.arithmetic("<<", k.bitwise("&", bits, k.literal(0x8000, uint32)), k.literal(16, uint32))
    return k.reinterpreted(k.bitwise("|", k.reinterpreted(size, uint32), sign), float32)


def _half_of_float(k: LlvmBuilder, x: Value) -> Value:
    """A float that is a float16 number, as float16, on the bits: the inverse of `_float_of_half`."""
    size = k.abs(x)
    moved = k.reinterpreted(k.mul(size, k.literal(2.0**-112, float32)), uint32)
    finite = k.bitwise(">>", moved, k.literal(13, uint32))
    unbounded = k.select(k.isinf(x), k.literal(0x7C00, uint32), k.literal(0x7E00, uint32))
    low = k.select(k.lt(size, k.literal(float("inf"), float32)), finite, unbounded)
    sign = k.bitwise(">>", k.reinterpreted(x, uint32), k.literal(16, uint32))
    return k.bitwise("|", low, k.bitwise("&", sign, k.literal(0x8000, uint32)))


def _places(k: LlvmBuilder, stride: str) -> str:
    """0, stride, 2 stride, …, one per lane."""
    lanes = ", ".join(f"i64 {n}" for n in range(k.width))
    return k.code.pure(f"mul {k.vector('i64')} {k.splat(int64, stride).text}, <{lanes}>")


def prefetch(k: LlvmBuilder, dtype: DType, pointer: str, ahead: int) -> None:
    """Ask for the cache lines so many bytes behind those that a vector's elements are in. There need be nothing."""
    for line in range(0, k.width * dtype.itemsize, _LINE):
        at = k.code.pure(f"getelementptr i8, ptr {pointer}, i64 {ahead + line}")
        k.code.call("void", "llvm.prefetch.p0", ["ptr", "i32", "i32", "i32"], [at, "0", "3", "1"])


# Instructions


def _load(k: LlvmBuilder, element: str, lanes: int, pointer: str, mask: str | None) -> str:
    kind = element if lanes == 1 else f"<{lanes} x {element}>"
    size = _bytes(element)
    if mask is None:
        return k.code.let(f"load {kind}, ptr {pointer}, align {size}")
    name = f"llvm.masked.load.v{lanes}{_suffix(element)}.p0"
    types = ["ptr", "i32 immarg", f"<{lanes} x i1>", kind]
    return _masked(k, kind, name, types, [pointer, str(size), mask, "zeroinitializer"])


def _gather(k: LlvmBuilder, element: str, pointers: str, mask: str | None) -> str:
    if k.width == 1:
        return _load(k, element, 1, pointers, None)
    kind, truth = k.vector(element), k.vector("i1")
    name = f"llvm.masked.gather.v{k.width}{_suffix(element)}.v{k.width}p0"
    types = [k.vector("ptr"), "i32 immarg", truth, kind]
    values = [pointers, str(_bytes(element)), mask or "splat (i1 true)", "zeroinitializer"]
    return _masked(k, kind, name, types, values)


def _scatter(k: LlvmBuilder, element: str, text: str, pointers: str) -> None:
    name = f"llvm.masked.scatter.v{k.width}{_suffix(element)}.v{k.width}p0"
    types = [k.vector(element), k.vector("ptr"), "i32 immarg", k.vector("i1")]
    _masked(k, "void", name, types, [text, pointers, str(_bytes(element)), "splat (i1 true)"])


def _masked(k: LlvmBuilder, returns: str, name: str, types: list[str], values: list[str]) -> str:
    """Call one of LLVM's masked functions: the alignment among their parameters is not part of the argument's type."""
    k.code.module.declarations.add(f"declare {returns} @{name}({', '.join(types)})")
    given = ", ".join(f"{t.removesuffix(' immarg')} {v}" for t, v in zip(types, values, strict=True))
    text = f"call {returns} @{name}({given})"
    if returns == "void":
        k.code.do(text)
        return ""
    return k.code.let(text)


def _twice(k: LlvmBuilder, mask: str) -> str:
    """A mask with each lane twice."""
    kind = k.vector("i1")
    order = ", ".join(f"i32 {n}, i32 {n}" for n in range(k.width))
    return k.code.pure(f"shufflevector {kind} {mask}, {kind} poison, <{2 * k.width} x i32> <{order}>")


def _bytes(element: str) -> int:
    return {"half": 2, "float": 4, "double": 8}.get(element) or int(element[1:]) // 8


def _suffix(element: str) -> str:
    return {"half": "f16", "float": "f32", "double": "f64"}.get(element, element)
