"""Addresses of elements: the dimensions of a loop, and the strides of its arrays along them.

Data is contiguous unless strides are given. A loop's input is as large as the loop, or is repeated along some of its
dimensions. Neighbouring dimensions along which every input behaves alike become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..._tensor.node import Shape


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
