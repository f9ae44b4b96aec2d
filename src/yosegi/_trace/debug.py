"""`ys.debug`: tools to inspect traced functions."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from .._tensor.node import fetch
from .._tensor.tensor import Tensor
from .._tensor.tree import flatten, unflatten
from .tracing import Print, printed


def print(format: str, /, *args: Any, **kwargs: Any) -> None:
    """Print values, also of traced functions: at every run, in the order of the calls.

    In a function under `jit` the values become additional outputs of its plan, and the line is printed after each run.
    Under `vmap` there is a line for each example. Results never change.

    Parameters
    ----------
    format : str
        The text, with a place such as `{}` or `{name:.3f}` for each value, as for `str.format`.
    *args, **kwargs : any
        The values. Tensors, also in trees, are shown as NumPy arrays and numbers.

    Examples
    --------
    >>> import yosegi as ys
    >>> @ys.jit
    ... def double(x):
    ...     ys.debug.print("x = {}", x)
    ...     return x * 2
    >>> _ = double(ys.asarray([1.0, 2.0])), double(ys.asarray([3.0, 4.0]))
    x = [1. 2.]
    x = [3. 4.]
    """
    leaves, structure = flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def show(tensors: Sequence[Tensor]) -> None:
        shown = list(leaves)
        for n, tensor in zip(places, tensors, strict=True):
            shown[n] = fetch(tensor._node)[()]
        values, keywords = unflatten(structure, shown)
        builtins.print(format.format(*values, **keywords))

    printed(Print(tuple([leaves[n]._node for n in places]), show))
