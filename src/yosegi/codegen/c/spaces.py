"""The space of indices that a product goes through, and how it looks at its operands.

A convolution is a product too: of kernels, whose outputs are the rows, and of windows, which are the columns. Where
both are in groups, these number a stack of products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from ..._tensor.node import Call, Shape
from ..._tensor.role import Contraction
from ...errors import Unsupported
from .expressions import View, Window

_MANY: Final = 256
"""Windows of one input from which a tile of columns is well filled with them alone."""
SMALL: Final = 16
"""The length of a kernel up to which a program is written for it. In gradients, a kernel may be as long as the data."""


@dataclass(frozen=True, slots=True)
class Space:
    """The axes of a product: those of its result, then those that are summed over."""

    sizes: Shape
    result: View
    left: View
    right: View
    summed: tuple[int, ...]
    """The axes that are summed over."""
    operands: tuple[int, int] = (0, 1)
    """Which of the call's inputs is the left one, and which the right one."""
    stacked: frozenset[int] = frozenset()
    """Axes that number a stack, although only one of the operands changes along them."""
    fixed: frozenset[int] = frozenset()
    """Axes whose sizes belong to the kind of the work, not to the data: a program may be written for them."""


def space_of(call: Call) -> Space:
    """The space of a product. Raises `Unsupported` if there is none."""
    role = call.op.role
    if not isinstance(role, Contraction):
        raise Unsupported(f"no kernel for {call.op.name}")
    return _SPACES[role](call)


def _of_matrices(call: Call) -> Space:
    shape = call.spec.shape
    a, b = (s.ndim for s in call.inputs)
    stack = len(shape) - (a > 1) - (b > 1)
    depth = len(shape)
    left = (*range(stack - max(a - 2, 0), stack), *([stack] if a > 1 else []), depth)
    right = (*range(stack - max(b - 2, 0), stack), depth, *([depth - 1] if b > 1 else []))
    sizes = (*shape, call.inputs[0].shape[-1])
    return Space(sizes, tuple(range(depth)), left, right, (depth,))


def _of_labels(call: Call) -> Space:
    shape = call.spec.shape
    given, _, wanted = call.attrs["subscripts"].replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != 2 or "." in given:
        raise Unsupported(f"the indices {call.attrs['subscripts']} are more than a product of two")
    summed = [x for x in dict.fromkeys("".join(terms)) if x not in wanted]
    axis = {x: n for n, x in enumerate([*wanted, *summed])}
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, call.inputs, strict=True):
        for label, n in zip(term, spec.shape, strict=True):
            sizes[label] = max(n, sizes.get(label, 1)) if n else 0
    left, right = (tuple(axis[x] for x in term) for term in terms)
    own = tuple(range(len(shape), len(shape) + len(summed)))
    return Space((*shape, *[sizes[x] for x in summed]), tuple(range(len(shape))), left, right, own)


def sliding(sizes: Shape, steps: Mapping[int, int], low: int, spread: int, length: int) -> Window:
    """A window in a space of these sizes. `steps` are the axes that move it, each with the places from one index to
    the next."""
    return Window(tuple([steps.get(axis, 0) if n != 1 else 0 for axis, n in enumerate(sizes)]), low, spread, length)


def _of_windows(call: Call) -> Space:
    """Axes: batch, groups, outputs of a group, windows; summed over are the channels of a group and a window's places.

    The windows of all inputs are columns together where one input has few of them.
    """
    (batch, _, *counts), (outputs, channels, *kernel) = call.spec.shape, call.inputs[1].shape
    attrs, lengths, rank = call.attrs, call.inputs[0].shape[2:], len(kernel)
    groups: int = attrs["groups"]
    sizes = (batch, groups, outputs // groups, *counts, channels, *kernel)
    summed = tuple(range(3 + rank, 4 + 2 * rank))
    windows = [
        sliding(sizes, {3 + n: attrs["stride"][n], summed[1 + n]: attrs["dilation"][n]}, attrs["padding"][n][0],
                attrs["spread"][n], lengths[n])
        for n in range(rank)
    ]  # fmt: skip
    return Space(
        sizes,
        result=(0, (1, 2), *range(3, 3 + rank)),
        left=((1, 2), *summed),
        right=(0, (1, summed[0]), *windows),
        summed=summed,
        operands=(1, 0),
        stacked=frozenset({0} if prod(counts) >= _MANY else ()),
        fixed=frozenset(axis for axis in summed[1:] if sizes[axis] <= SMALL),
    )


_SPACES: Final = {Contraction.MATRICES: _of_matrices, Contraction.LABELS: _of_labels, Contraction.WINDOWS: _of_windows}
