"""Elements from memory and to it, and where they lie.

Data is contiguous unless strides are given. A loop's input is as large as the loop, or is repeated along some of its
dimensions; neighbouring dimensions along which every input behaves alike are walked as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..._tensor.dtype import DType, bfloat16, bool_, float16, real_of, uint32
from ..._tensor.node import Shape
from ..c.builder import CBuilder
from .value import Value


@dataclass(frozen=True, slots=True)
class Dimension:
    """Neighbouring dimensions of a loop, as one."""

    size: int
    strides: tuple[int, ...]
    """Per input: elements from one index to the next, 0 where the input is repeated."""
    whole: int
    """Elements from one index to the next in values of the loop's own shape."""
    reduced: bool = False


def dimensions(
    shape: Shape,
    inputs: Sequence[Shape],
    reduced: frozenset[int] = frozenset(),
    given: Sequence[tuple[int, ...] | None] | None = None,
) -> list[Dimension]:
    """A loop's dimensions, as few as possible, outermost first.

    `reduced` are the axes that a reduction takes away; `given` are the strides, in elements, of the inputs that are not
    contiguous, one for each of the loop's dimensions.
    """
    padded = [(1,) * (len(shape) - len(s)) + s for s in inputs]
    steps = [known or _strides(s) for s, known in zip(padded, given or [None] * len(padded), strict=True)]
    own = _strides(shape)
    made: list[Dimension] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        strides = tuple(step[axis] if s[axis] > 1 else 0 for s, step in zip(padded, steps, strict=True))
        here = Dimension(size, strides, own[axis], axis in reduced)
        if made and _continues(made[-1], here):
            made[-1] = Dimension(made[-1].size * size, strides, own[axis], here.reduced)
        else:
            made.append(here)
    return made


def _continues(outer: Dimension, inner: Dimension) -> bool:
    if outer.reduced != inner.reduced:
        return False
    pairs = zip((*outer.strides, outer.whole), (*inner.strides, inner.whole), strict=True)
    return all(a == b * inner.size for a, b in pairs)


def _strides(shape: Shape) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


# Elements


def parameter(k: CBuilder, ctype: str, name: str, *, const: bool) -> str:
    """A kernel's parameter that points to elements of this type."""
    return k.dialect.global_pointer.format(const="const " if const else "", type=ctype, name=name)


def _element(k: CBuilder, dtype: DType, pointer: str, at: str, true: str) -> tuple[str, str]:
    """The text of one element as it is computed with, and of its imaginary part."""
    if dtype is bool_:
        return (f"({pointer}[{at}] ? {true} : 0)", "")
    if dtype is float16:
        return (k.dialect.load_half.format(pointer=pointer, at=at), "")
    if dtype is bfloat16:
        return (k.dialect.reinterpret.format(type="float", x=f"(({k.dialect.types[uint32]}){pointer}[{at}] << 16)"), "")
    if dtype.is_complex:
        return (f"{pointer}[2 * ({at})]", f"{pointer}[2 * ({at}) + 1]")
    return (f"{pointer}[{at}]", "")


def gather(k: CBuilder, dtype: DType, pointer: str, places: Sequence[str]) -> Value:
    """Elements from given places, one per lane; a single place is that of every lane."""
    true = "1" if k.width == 1 else "-1"
    parts = [_element(k, dtype, pointer, at, true) for at in places]
    ctype = k.mask_type(32) if dtype is bool_ else k.ctype(dtype)

    def value(texts: list[str]) -> str:
        made = texts[0] if k.width == 1 else k.dialect.splat.format(type=ctype, items=", ".join(texts))
        return k.let(ctype, made)

    real = value([p[0] for p in parts])
    imag = value([p[1] for p in parts]) if dtype.is_complex else ""
    return Value(dtype, real, imag, bits=32 if dtype is bool_ else 0)


def load(k: CBuilder, dtype: DType, pointer: str, at: str) -> Value:
    """Neighbouring elements, as many as there are lanes."""
    if k.width == 1:
        return gather(k, dtype, pointer, [at])
    d, n = k.dialect, k.width
    if dtype is float16:
        return k.number(dtype, d.load_halves.format(n=n, pointer=pointer, at=at))
    if dtype.is_complex:
        part = d.types[dtype]
        both = k.let(d.vector_type(part, 2 * n), d.load.format(n=2 * n, pointer=pointer, at=f"2 * ({at})"))
        parts = [k.number(real_of(dtype), form.format(x=both)) for form in (d.even, d.odd)]
        return k.paired(dtype, *parts)
    stored = d.vector_type(d.stored[dtype], n)
    text = d.load.format(n=n, pointer=pointer, at=at)
    if dtype is bool_:
        raw = k.let(stored, text)
        return k.truth(f"({raw} != {d.splat.format(type=stored, items='0')})", 8)
    if dtype is bfloat16:
        wide = d.convert.format(type=d.vector_type(d.types[uint32], n), x=k.let(stored, text))
        return k.number(dtype, d.reinterpret.format(type=k.ctype(dtype), x=f"({wide} << 16)"))
    return k.number(dtype, text)


def store(k: CBuilder, value: Value, pointer: str, at: str) -> None:
    """Neighbouring elements to memory, as many as there are lanes."""
    d, n, dtype, text = k.dialect, k.width, value.dtype, value.text
    if dtype.is_complex:
        if n == 1:
            k.lines.append(f"{pointer}[2 * ({at})] = {text};")
            k.lines.append(f"{pointer}[2 * ({at}) + 1] = {value.imag};")
            return
        both = f"w{len(k.lines)}"
        k.lines.append(f"{d.vector_type(d.types[dtype], 2 * n)} {both};")
        k.lines.append(f"{d.even.format(x=both)} = {text}; {d.odd.format(x=both)} = {value.imag};")
        k.lines.append(d.store.format(n=2 * n, pointer=pointer, at=f"2 * ({at})", value=both) + ";")
        return
    if dtype is float16:
        form = d.store_half if n == 1 else d.store_halves
        k.lines.append(form.format(n=n, pointer=pointer, at=at, value=text) + ";")
        return
    stored = d.vector_type(d.stored[dtype], n)
    if dtype is bfloat16:
        bits = d.reinterpret.format(type=d.vector_type(d.types[uint32], n), x=text)
        text = d.convert.format(type=stored, x=f"({bits} >> 16)")
    elif dtype is bool_ and n > 1:
        text = f"{d.convert.format(type=stored, x=text)} & {d.splat.format(type=stored, items='1')}"
    k.lines.append((f"{pointer}[{at}] = {text}" if n == 1 else
                    d.store.format(n=n, pointer=pointer, at=at, value=text)) + ";")  # fmt: skip
