"""Rows of the op table for composites that Core ML has an op for, or that lose nothing as a few ops of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from ..._graph.graph import Graph
from ..._tensor.dtype import bool_
from ..._tensor.node import Call
from ..model.op_row import OpRow, as_it_is
from ..model.shapes import causal, optional_input, too_large_a_causal_mask
from .library import builder
from .movement import reshaped, whole
from .op_row import BOOL, FLOATS, number


def _softmax(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return builder().softmax(x=args[0], axis=call.attrs["axis"])


def _scaled(o: Any, call: Call, args: Sequence[Any], made: Any, shape: Sequence[int]) -> Any:
    """Times the weight and plus the bias, where they were given, brought to a shape that broadcasts."""
    weight, bias = (optional_input(call, args, name) for name in ("weight", "bias"))
    made = made if weight is None else o.multiply(made, reshaped(weight, shape))
    return made if bias is None else o.add(made, reshaped(bias, shape))


def _standardised(o: Any, x: Any, axes: Sequence[int], eps: float) -> Any:
    return builder().layer_norm(x=x, axes=whole(axes), epsilon=number(o, eps, x))


def _layer_norm(o: Any, call: Call, args: Sequence[Any]) -> Any:
    axes = call.attrs["axis"]
    shape = [n if i in axes else 1 for i, n in enumerate(call.spec.shape)]
    return _scaled(o, call, args, _standardised(o, args[0], axes, call.attrs["eps"]), shape)


def _group_norm(o: Any, call: Call, args: Sequence[Any]) -> Any:
    batch, channels, *lengths = call.spec.shape
    groups = call.attrs["num_groups"]
    rows = reshaped(args[0], (batch, groups, prod(call.spec.shape[1:]) // groups))
    made = reshaped(_standardised(o, rows, (2,), call.attrs["eps"]), call.spec.shape)
    return _scaled(o, call, args, made, (channels, *[1] * len(lengths)))


def _attention(o: Any, call: Call, args: Sequence[Any]) -> Any:
    """Products around a softmax. A row that sees nothing is zero."""
    mb, (q, k, v) = builder(), args[:3]
    scores = mb.matmul(x=o.multiply(q, number(o, call.attrs["scale"], q)), y=k, transpose_y=True)
    mask = mb.const(val=causal(call)) if call.attrs["is_causal"] else optional_input(call, args, "mask")
    if mask is None:
        seen = mb.softmax(x=scores, axis=-1)
    elif call.attrs["is_causal"] or call.inputs[-1].dtype is bool_:
        hidden = o.select(mask, scores, number(o, -3e4, q))  # a number of float16, too
        seen = o.select(mask, mb.softmax(x=hidden, axis=-1), number(o, 0, q))
    else:
        seen = mb.softmax(x=o.add(scores, mask), axis=-1)
    return mb.matmul(x=seen, y=v)


def _not_attended(graph: Graph, entry: int) -> str | None:
    return too_large_a_causal_mask(graph.calls[entry])


def _leaky_relu(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return builder().leaky_relu(x=args[0], alpha=number(o, call.attrs["negative_slope"], args[0]))


def _gelu(o: Any, call: Call, args: Sequence[Any]) -> Any:
    mode = "TANH_APPROXIMATION" if call.attrs["approximate"] == "tanh" else "EXACT"
    return builder().gelu(x=args[0], mode=mode)


COMPOSITES: Final[dict[str, OpRow]] = {
    "softmax": OpRow(_softmax, FLOATS),
    "layer_norm": OpRow(_layer_norm, FLOATS, sums=True),
    "group_norm": OpRow(_group_norm, FLOATS, sums=True),
    "scaled_dot_product_attention": OpRow(_attention, FLOATS | BOOL, _not_attended, sums=True),
    "leaky_relu": OpRow(_leaky_relu, FLOATS),
    "gelu": OpRow(_gelu, FLOATS, sums=True),
    "silu": OpRow(as_it_is("silu"), FLOATS),
}
