"""Values with a backward rule of their own.

An op of this kind takes the computed values and the inputs of the rule, and returns the values. The reverse pass takes
the cotangents from the rule, and does not continue through the values.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from .._tensor.batch import Flags, applied, size_of, spread
from .._tensor.node import Spec
from .._tensor.op import Arr, Op
from .._tensor.tensor import Tensor
from ..ops.reduce import sum as reduce_sum
from .vmap import vmap

Cotangents = tuple[Tensor | None, ...]


class Rule(Hashable, Protocol):
    """A backward rule. Equal rules give equal graphs, which share a plan."""

    def __call__(self, cotangents: tuple[Tensor, ...], inputs: tuple[Tensor, ...], /) -> Cotangents:
        """The cotangents of the inputs, given those of the values; `None` where none flows."""


def infer(*inputs: Spec, count: int, rule: Rule) -> Spec | tuple[Spec, ...]:
    """The specs of the values, which are the first `count` inputs."""
    return inputs[0] if count == 1 else inputs[:count]


def body(*inputs: Arr, count: int, rule: Rule) -> Arr:
    """The values."""
    return inputs[0] if count == 1 else inputs[:count]


def vjp(g: Any, out: Any, *inputs: Tensor, count: int, rule: Rule) -> Cotangents:
    """The cotangents by the rule; none for the values."""
    return (*[None] * count, *rule(g if isinstance(g, tuple) else (g,), inputs[count:]))


def batch(op: Op[Any], batched: Flags, *inputs: Tensor, count: int, rule: Rule) -> Any:
    """The op on many examples, each with its part of every value."""
    size = size_of(batched, inputs)
    values = [spread(x, b, size) for x, b in zip(inputs[:count], batched[:count], strict=True)]
    every = _Batched(rule, batched[count:])
    return applied(op, [*values, *inputs[count:]], {"count": count, "rule": every})


@dataclass(frozen=True, slots=True)
class _Batched:
    """A rule for many examples."""

    rule: Rule
    batched: Flags
    """For each input, whether each example has its own."""

    def __call__(self, cotangents: tuple[Tensor, ...], inputs: tuple[Tensor, ...], /) -> Cotangents:
        axes = tuple([0 if b else None for b in self.batched])
        made = vmap(self.rule, in_axes=(0, axes))(cotangents, inputs)
        # What all examples share gets the sum of what flows from each.
        return tuple([g if b or g is None else reduce_sum(g, axis=0) for g, b in zip(made, self.batched, strict=True)])
