"""Values as texts: carried through loops, and converted from one vector width to another."""

from __future__ import annotations

from collections.abc import Sequence

from ..._tensor.dtype import DType, bool_, int32, int64, real_of
from ..scalar.value import Value, like, texts
from .builder import LlvmBuilder


def spread(k: LlvmBuilder, single: Value) -> Value:
    """A scalar in every lane."""
    if k.width == 1:
        return single
    part = single.dtype if single.dtype is bool_ else real_of(single.dtype)
    return like([single], [k.splat(part, t).text for t in texts([single])])[0]


def shuffled(k: LlvmBuilder, value: Value, order: Sequence[int], other: Value | None = None) -> Value:
    """Lanes in another order; numbers from the width on are those of a second value."""
    kind = k.type(value.dtype)
    lanes = f"<{len(order)} x i32> <{', '.join(f'i32 {n}' for n in order)}>"
    beside = ["poison"] * 2 if other is None else texts([other])
    made = [k.code.pure(f"shufflevector {kind} {a}, {kind} {b}, {lanes}")
            for a, b in zip(texts([value]), beside, strict=False)]  # fmt: skip
    return like([value], made)[0]


def halved(k: LlvmBuilder, value: Value) -> tuple[Value, Value]:
    """The lower and the upper lanes."""
    half = k.width // 2
    if half == 1:
        return k.lane(value, 0), k.lane(value, 1)
    return shuffled(k, value, range(half)), shuffled(k, value, range(half, k.width))


def brought_apart(k: LlvmBuilder, parts: Sequence[Value]) -> list[Value]:
    """Vectors of every n-th element, from the first on, from the second on, …, of n vectors that lie one behind the
    other. n is a power of two."""
    if len(parts) == 1:
        return list(parts)
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    even, odd = (brought_apart(k, [shuffled(k, a, range(n, 2 * k.width, 2), b) for a, b in pairs]) for n in range(2))
    return [value for pair in zip(even, odd, strict=True) for value in pair]


def brought_together(k: LlvmBuilder, values: Sequence[Value]) -> list[Value]:
    """The vectors that `brought_apart` was given, from its result."""
    if len(values) == 1:
        return list(values)
    pairs = zip(brought_together(k, values[::2]), brought_together(k, values[1::2]), strict=True)
    orders = [[lane // 2 + lane % 2 * k.width for lane in range(n * k.width, (n + 1) * k.width)] for n in range(2)]
    return [shuffled(k, even, order, odd) for even, odd in pairs for order in orders]


def reversed_lanes(k: LlvmBuilder, value: Value) -> Value:
    """The last lane first."""
    return value if k.width == 1 else shuffled(k, value, range(k.width - 1, -1, -1))


def sum_of_lanes(k: LlvmBuilder, value: Value) -> Value:
    """The sum of all lanes of a float, in any order, as a scalar."""
    kind, element = k.type(value.dtype), k.element(value.dtype)
    name = f"llvm.vector.reduce.fadd.v{k.width}{'f32' if element == 'float' else 'f64'}"
    return Value(value.dtype, k.code.call(element, name, [element, kind], ["0.0", value.text], "reassoc"))


def lanes_under(k: LlvmBuilder, count: str) -> Value:
    """Whether a lane is one of the first so many."""
    if k.width == 1:
        return k.literal(False, bool_)
    numbers = ", ".join(f"i64 {n}" for n in range(k.width))
    return Value(bool_, k.code.pure(f"icmp slt {k.vector('i64')} <{numbers}>, {k.splat(int64, count).text}"))


def counted(k: LlvmBuilder, first: str, step: int, dtype: DType) -> Value:
    """first, first + step, first + 2 step, …, from an i64."""
    if dtype is int32:
        first = k.code.pure(f"trunc i64 {first} to i32")
    if k.width == 1:
        return Value(dtype, first)
    element = k.element(dtype)
    numbers = ", ".join(f"{element} {n * step}" for n in range(k.width))
    return k.value(dtype, f"add {k.vector(element)} {k.splat(dtype, first).text}, <{numbers}>")


def transposed(k: LlvmBuilder, rows: list[Value]) -> list[Value]:
    """A square of vectors with rows and columns exchanged, half of each at a time."""
    n, distance = k.width, k.width // 2
    while distance:
        # Of two rows that are `distance` apart, the off-diagonal blocks of that size change places.
        low = [lane if not lane & distance else n + (lane ^ distance) for lane in range(n)]
        high = [lane ^ distance if not lane & distance else n + lane for lane in range(n)]
        made = list(rows)
        for i in range(n):
            if not i & distance:
                a, b = rows[i], rows[i | distance]
                made[i], made[i | distance] = shuffled(k, a, low, b), shuffled(k, a, high, b)
        rows, distance = made, distance // 2
    return rows
