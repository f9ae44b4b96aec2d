"""Philox 4x32-10: random bits as a function of a key and a counter (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", 2011).

The bits of element i of draw d under a seed are Philox(seed, (i, d)) and nothing else: they depend neither on the
device, nor on how the work is divided, nor on the order of evaluation.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from .._tensor.batch import Flags
from .._tensor.dtype import uint32, uint64
from .._tensor.node import Shape, Spec, spec
from .._tensor.op import Arr, Normal, Op, OpKind, op
from .._tensor.tensor import Array, Tensor
from ..errors import ShapeError
from . import rules
from .creation import arange
from .shape import expand_dims, reshape, stack

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD: Final = 0xFFFFFFFF
_LOW: Final = np.uint64(_LOW_WORD)
_HALF: Final = np.uint64(32)
_CHUNK: Final = 1 << 14  # elements whose six 64-bit words stay in a core's second-level cache


def philox4x32(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, ...]:
    """The block cipher: four words of 32 bits from a counter of four and a key of two. Words are held as uint64."""
    a, b, c, d = (word.copy() for word in counter)
    first, second = np.empty_like(a), np.empty_like(a)
    low_key, high_key = key
    for _ in range(_ROUNDS):
        np.multiply(a, _MULTIPLIERS[0], out=first)
        np.multiply(c, _MULTIPLIERS[1], out=second)
        np.right_shift(second, _HALF, out=a)
        np.bitwise_xor(a, b, out=a)
        np.bitwise_xor(a, np.uint64(low_key), out=a)
        np.right_shift(first, _HALF, out=c)
        np.bitwise_xor(c, d, out=c)
        np.bitwise_xor(c, np.uint64(high_key), out=c)
        np.bitwise_and(second, _LOW, out=b)
        np.bitwise_and(first, _LOW, out=d)
        low_key, high_key = (low_key + _WEYL[0]) & 0xFFFFFFFF, (high_key + _WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d


def _philox_rule(state: Spec, *, shape: Any, words: int) -> Normal:
    rules.expect(state.dtype, "a state of dtype uint32", lambda d: d is uint32)
    words = rules.as_index(words, "words")
    rules.one_of("words", words, (1, 2, 3, 4))
    if state.shape != (4,):
        raise ShapeError(f"expected a state of shape (4,), got {state.shape}")
    lengths = rules.normal_shape(shape)
    return Normal(spec((words, *lengths), uint32), {"shape": lengths, "words": words})


def _blocks_of_all(states: Tensor, count: int) -> tuple[Tensor, ...]:
    """The four words of the first blocks under each of many states, of shape (states, blocks), as uint64."""
    low_key, high_key, draw_low, draw_high = (expand_dims(states[:, i], axis=1).astype(uint64) for i in range(4))
    number = arange(count, dtype=uint64)
    a, b, c, d = number & _LOW_WORD, number >> 32, draw_low, draw_high
    for _ in range(_ROUNDS):
        first, second = a * int(_MULTIPLIERS[0]), c * int(_MULTIPLIERS[1])
        a, c = (second >> 32) ^ b ^ low_key, (first >> 32) ^ d ^ high_key
        b, d = second & _LOW_WORD, first & _LOW_WORD
        low_key, high_key = (low_key + _WEYL[0]) & _LOW_WORD, (high_key + _WEYL[1]) & _LOW_WORD
    return a, b, c, d


def _philox_batch(op: Op[Any], batched: Flags, states: Tensor, /, *, shape: Shape, words: int) -> Tensor:
    made = stack(_blocks_of_all(states, prod(shape))[:words], axis=1)
    return reshape(made.astype(uint32), (states.shape[0], words, *shape))


@op(OpKind.RANDOM, infer=_philox_rule, batch=_philox_batch)
def philox(state: Arr, /, *, shape: Any, words: int) -> Arr:
    """Random words of 32 bits, up to four planes of the given shape.

    The state is (seed low, seed high, draw low, draw high). Word w of element i, counted in row-major order, is word w
    of Philox with the seed as key and the counter (i low, i high, draw low, draw high).
    """
    size = prod(shape)
    out = np.empty((words, size), np.uint32)
    for start in range(0, size, _CHUNK):
        made = _blocks(state, start, min(start + _CHUNK, size))
        for plane, word in zip(out, made, strict=False):
            plane[start : start + _CHUNK] = word
    return out.reshape(words, *shape)


def _blocks(state: Arr, start: int, end: int) -> tuple[Array, ...]:
    """The four words of blocks with these numbers under a state."""
    seed_low, seed_high, draw_low, draw_high = (int(word) for word in state)
    number = np.arange(start, end, dtype=np.uint64)
    draw = (np.full_like(number, draw_low), np.full_like(number, draw_high))
    return philox4x32((number & _LOW, number >> _HALF, *draw), (seed_low, seed_high))


def _words_rule(state: Spec, *, shape: Any) -> Normal:
    lengths = _philox_rule(state, shape=shape, words=1).attrs["shape"]
    return Normal(spec(lengths, uint32), {"shape": lengths})


def _words_batch(op: Op[Any], batched: Flags, states: Tensor, /, *, shape: Shape) -> Tensor:
    count = states.shape[0]
    made = stack(_blocks_of_all(states, -(-prod(shape) // 4)), axis=2).astype(uint32)
    return reshape(reshape(made, (count, made.shape[1] * 4))[:, : prod(shape)], (count, *shape))


@op(OpKind.RANDOM, infer=_words_rule, batch=_words_batch)
def random_words(state: Arr, /, *, shape: Any) -> Arr:
    """A random word of 32 bits for each element: word i % 4 of Philox with the counter i // 4, for element i.

    The state is that of `philox`. One word is what most draws need: so four elements share the work of a block.
    """
    size = prod(shape)
    out = np.empty((-(-size // 4), 4), np.uint32)
    for start in range(0, len(out), _CHUNK):
        out[start : start + _CHUNK] = np.stack(_blocks(state, start, min(start + _CHUNK, len(out))), axis=-1)
    return out.reshape(-1)[:size].reshape(shape)
