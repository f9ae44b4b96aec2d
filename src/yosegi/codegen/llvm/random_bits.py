"""Philox 4x32-10 as LLVM IR: the words of neighbouring blocks in vectors of 64-bit lanes.

A lane holds a word of 32 bits. Its upper half is anything, and is cleared where a word is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..._tensor.dtype import uint32, uint64
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, mul, shifted, sub
from .ir import Module
from .load_store import lanes_below, load, store
from .nest import VectorTarget

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = 0xFFFFFFFF
SIZES: Final = ("count", "size")
"""The blocks, and the elements of a plane of the result, or of the whole result where blocks stand side by side."""


def lanes_of(target: VectorTarget) -> int:
    """The blocks that are computed together: a unit of the kernel's work."""
    return target.vector_bytes // uint64.itemsize


def random_source(planes: int, target: VectorTarget) -> str:
    """The module of a kernel of the state and the result: with `planes`, so many words of each block, each in a plane
    of its own; with 0, all four words of a block side by side."""
    module = Module()
    code = module.function("kernel", PARAMETERS)
    k = LlvmBuilder(code, lanes_of(target))
    given = KernelArguments(code, SIZES)
    state, out = given.arrays(2)
    count, size = given["count"], given["size"]
    single = k.at_width(1)
    words = [load(single, uint32, shifted(code, state, str(4 * n))).text for n in range(4)]
    key = [code.let(f"zext i32 {word} to i64") for word in words[:2]]
    draw = [k.splat(uint64, code.let(f"zext i32 {word} to i64")).text for word in words[2:]]
    keys = [_splats(k, [code.let(f"add i64 {key[n]}, {_WEYL[n] * turn}") for turn in range(_ROUNDS)]) for n in (0, 1)]
    with code.loop("%low", "%high") as unit:
        first = mul(code, unit.index, k.width)
        made = _blocks(k, first, draw, keys)
        if planes:
            mask = lanes_below(k, sub(code, count, first))
            for n in range(planes):
                word = code.let(f"trunc {k.vector('i64')} {made[n]} to {k.vector('i32')}")
                at = shifted(code, out, mul(code, add(code, mul(code, size, n), first), 4))
                store(k, Value(uint32, word), at, mask)
        else:
            wide = k.at_width(4 * k.width)
            begin = mul(code, first, 4)
            mask = lanes_below(wide, sub(code, size, begin))
            store(wide, Value(uint32, _side_by_side(k, made)), shifted(code, out, mul(code, begin, 4)), mask)
    code.ret()
    return module.text(target.attributes)


def _splats(k: LlvmBuilder, values: Sequence[str]) -> list[str]:
    return [k.splat(uint64, value).text for value in values]


def _constant(k: LlvmBuilder, value: int) -> str:
    return f"<{', '.join([f'i64 {value}'] * k.width)}>"


def _blocks(k: LlvmBuilder, first: str, draw: Sequence[str], keys: Sequence[Sequence[str]]) -> list[str]:
    """The four words of the blocks from number `first` on."""
    code, kind = k.code, k.vector("i64")
    numbers = f"<{', '.join(f'i64 {n}' for n in range(k.width))}>"
    a = code.let(f"add {kind} {k.splat(uint64, first).text}, {numbers}")
    b = code.let(f"lshr {kind} {a}, {_constant(k, 32)}")
    c, d = draw

    def product(word: str, by: int) -> str:
        low = code.let(f"and {kind} {word}, {_constant(k, _LOW)}")
        return code.let(f"mul {kind} {low}, {_constant(k, by)}")

    def mixed(upper: str, word: str, key: str) -> str:
        high = code.let(f"lshr {kind} {upper}, {_constant(k, 32)}")
        return code.let(f"xor {kind} {code.let(f'xor {kind} {high}, {word}')}, {key}")

    for turn in range(_ROUNDS):
        left, right = product(a, _MULTIPLIERS[0]), product(c, _MULTIPLIERS[1])
        a, b, c, d = mixed(right, b, keys[0][turn]), right, mixed(left, d, keys[1][turn]), left
    return [a, b, c, d]


def _side_by_side(k: LlvmBuilder, made: Sequence[str]) -> str:
    """The words of all blocks in order, in a vector of 32-bit lanes."""
    code, kind = k.code, k.vector("i64")
    pairs = []
    for low, high in (made[:2], made[2:]):
        cleared = code.let(f"and {kind} {low}, {_constant(k, _LOW)}")
        pairs.append(code.let(f"or {kind} {cleared}, {code.let(f'shl {kind} {high}, {_constant(k, 32)}')}"))
    order = ", ".join(f"i32 {n}, i32 {n + k.width}" for n in range(k.width))
    both = code.let(f"shufflevector {kind} {pairs[0]}, {kind} {pairs[1]}, <{2 * k.width} x i32> <{order}>")
    return code.let(f"bitcast <{2 * k.width} x i64> {both} to <{4 * k.width} x i32>")
