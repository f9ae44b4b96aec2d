"""Dropout: elements set to 0 at random in training. The generator is a part of the module."""

from __future__ import annotations

from typing import final

from ..._tensor.tensor import Tensor
from ...ops.creation import asarray
from ...ops.linear import dropout
from ...ops.random import generator_of
from ..init import Rng
from ..module import Module


@final
class Dropout(Module):
    """Set each element to 0 with probability p in training, and divide the others by 1 - p.

    The state of the generator is a tensor of the module: `stateful` returns the module with the next state. So a call
    draws the same elements with and without `jit`, and again from a checkpoint.

    Parameters
    ----------
    p : float
        The probability of a zero, from 0 to below 1.
    rng : Generator or int, optional
        The generator that the module's own is split from.

    Examples
    --------
    >>> import yosegi as ys
    >>> drop = ys.nn.Dropout(0.5, rng=0)
    >>> y, drop = ys.nn.stateful(drop)(ys.ones((100,)))
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    >>> set(drop.eval()(ys.ones((100,))).tolist())
    {1.0}
    """

    generators = ("generator",)

    def __init__(self, p: float = 0.5, *, rng: Rng = None) -> None:
        self.p = p
        self.generator = generator_of(rng).split(1)[0].draw()

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements in training."""
        if not self.training or self.p == 0:
            return x
        generator = self.current("generator")
        self.update(generator=generator + asarray([0, 0, 1, 0], dtype=generator.dtype))
        return dropout(x, self.p, rng=generator)
