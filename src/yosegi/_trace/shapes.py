"""`eval_shape`: the shapes and dtypes of a function's results, without computing any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._tensor.interchange import is_array
from .._tensor.node import Node, Spec, spec
from .._tensor.op import leaf_call
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, unflatten
from ..ops import rules
from ..ops.creation import asarray
from .tracing import tracing


@short_tracebacks
def eval_shape(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of a function's results, without computing any.

    The function runs once, on placeholders: no value is computed, no memory is taken, no random number is drawn.
    Tensors that are not computed yet stay so, so `ys.zeros(shape)` stands for an argument of any size.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors.
    *args, **kwargs : Tensor, array, Spec, or tree of these
        The arguments. Of tensors and arrays only shape and dtype count; all others are passed as they are.

    Returns
    -------
    Spec or tree of Spec
        What the function returns, with a `Spec` in place of each tensor. It has the attributes `shape` and `dtype`.

    Raises
    ------
    TraceError
        If the function reads a value.

    Examples
    --------
    >>> import yosegi as ys
    >>> huge = ys.zeros((100_000, 100_000), dtype=ys.float32)
    >>> ys.eval_shape(lambda x: (x @ x, ys.sum(x, axis=0)), huge)
    (float32[100000, 100000], float32[100000])
    """
    rules.function("eval_shape", function)
    leaves, structure = flatten((args, kwargs))
    inner, keywords = unflatten(structure, [_placeholder(leaf) for leaf in leaves])
    with tracing("eval_shape"):
        results, shape = flatten(function(*inner, **keywords))
    return unflatten(shape, [_spec(result) for result in results])


def _placeholder(value: Any) -> Any:
    if is_array(value):
        value = asarray(value)
    if isinstance(value, Tensor):
        value = value._node.spec
    return Tensor(Node(leaf_call(value), ())) if isinstance(value, Spec) else value


def _spec(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = asarray(value)
    return spec(value.shape, value.dtype) if isinstance(value, Tensor) else value
