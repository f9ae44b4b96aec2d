"""Random words as code: Philox 4x32-10, the bits of `ops.philox.random_words`."""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import uint32, uint64
from ..scalar.primitives import Primitives
from ..scalar.value import Value

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)


def random_word(k: Primitives, number: Value, state: tuple[Value, Value, Value, Value]) -> Value:
    """The word of the element of this number (uint64), under a state of four words (uint32)."""
    words = random_block(k, k.bitwise(">>", number, k.literal(2, uint64)), state)
    which = k.convert(k.and_(number, k.literal(3, uint64)), uint32)
    word = words[3]
    for n in (2, 1, 0):
        word = k.select(k.eq(which, k.literal(n, uint32)), words[n], word)
    return word


def random_block(k: Primitives, number: Value, state: tuple[Value, Value, Value, Value]) -> list[Value]:
    """The words of four elements that follow each other: those of the block of this number."""
    low, high = _halves(k, number)
    seed_low, seed_high, draw_low, draw_high = state

    def one_round(a: Value, b: Value, c: Value, d: Value, key: Value, other: Value) -> list[Value]:
        first, second = (_halves(k, _wide_product(k, x, m)) for x, m in zip((a, c), _MULTIPLIERS, strict=True))
        turned = [k.xor(k.xor(second[1], b), key), second[0], k.xor(k.xor(first[1], d), other), first[0]]
        return [*turned, *[k.add(x, k.literal(w, uint32)) for x, w in zip((key, other), _WEYL, strict=True)]]

    return k.repeat(_ROUNDS, [low, high, draw_low, draw_high, seed_low, seed_high], one_round)[:4]


def _wide_product(k: Primitives, x: Value, by: int) -> Value:
    return k.mul(k.convert(x, uint64), k.literal(by, uint64))


def _halves(k: Primitives, x: Value) -> tuple[Value, Value]:
    """The low and the high word of 64 bits."""
    low = k.and_(x, k.literal(0xFFFFFFFF, uint64))
    high = k.bitwise(">>", x, k.literal(32, uint64))
    return k.convert(low, uint32), k.convert(high, uint32)
