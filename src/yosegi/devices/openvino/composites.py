"""Rows of the op table for composites that a model should have whole: OpenVINO has an op for them, or they are faster
than their parts, each of which must be right by itself.

Those that are not here come in parts, and lose nothing by it: OpenVINO puts these together again, or folds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._tensor.dtype import float32, float_info
from ..._tensor.node import Call
from ..model.op_row import OpRow
from ..model.shapes import causal, optional_input, too_large_a_causal_mask
from .op_row import BOOL, SINGLE, number, places
from .reductions import LONG, too_long, too_many

# Softmax


def _powers(o: Any, x: Any, axis: int) -> tuple[Any, Any, Any]:
    """x less its largest element, e to these powers, and their sum, which is NaN where an element was, or infinity.

    Its exp makes infinity of NaN, and nothing else here can: so one look at the sums finds what is wrong in a row.
    """
    axes = places(o, [axis])
    shifted = o.subtract(x, o.reduce_max(x, axes, True))
    powers = o.exp(shifted)
    total = o.reduce_sum(powers, axes, True)
    infinity, nan = number(o, float("inf"), x), number(o, float("nan"), x)
    return shifted, powers, o.select(o.less(total, infinity), total, nan)


def _softmax(o: Any, call: Call, args: Sequence[Any]) -> Any:
    _, powers, total = _powers(o, args[0], call.attrs["axis"])
    return o.divide(powers, total)


def _log_softmax(o: Any, call: Call, args: Sequence[Any]) -> Any:
    shifted, _, total = _powers(o, args[0], call.attrs["axis"])
    return o.subtract(shifted, o.log(total))


def _too_long_an_axis(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    return too_long(call.inputs[0], (call.attrs["axis"],))


# Norms


def _scaled(o: Any, call: Call, args: Sequence[Any], made: Any, shape: Sequence[int]) -> Any:
    """Times the weight and plus the bias, where they were given, brought to a shape that broadcasts."""
    weight, bias = (optional_input(call, args, name) for name in ("weight", "bias"))
    made = made if weight is None else o.multiply(made, o.reshape(weight, places(o, shape), False))
    return made if bias is None else o.add(made, o.reshape(bias, places(o, shape), False))


def _standardised(o: Any, x: Any, axes: Sequence[int], eps: float) -> Any:
    return o.mvn(x, places(o, axes), True, eps, "INSIDE_SQRT")


def _layer_norm(o: Any, call: Call, args: Sequence[Any]) -> Any:
    axes = call.attrs["axis"]
    shape = [n if i in axes else 1 for i, n in enumerate(call.spec.shape)]
    return _scaled(o, call, args, _standardised(o, args[0], axes, call.attrs["eps"]), shape)


def _not_normed(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    return too_long(call.inputs[0], call.attrs["axis"])


def _group_norm(o: Any, call: Call, args: Sequence[Any]) -> Any:
    batch, channels, *lengths = call.spec.shape
    groups = call.attrs["num_groups"]
    rows = o.reshape(args[0], places(o, (batch, groups, prod(call.spec.shape[1:]) // groups)), False)
    made = o.reshape(_standardised(o, rows, (2,), call.attrs["eps"]), places(o, call.spec.shape), False)
    return _scaled(o, call, args, made, (channels, *[1] * len(lengths)))


def _too_large_a_group(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    return too_many(prod(call.spec.shape[1:]) // call.attrs["num_groups"], LONG)


# Attention


def _attention(o: Any, call: Call, args: Sequence[Any]) -> Any:
    """Products around a softmax of OpenVINO's own, which it makes one kernel of. A row in which that softmax should be
    NaN has one at least, and the product by the values spreads it."""
    q, k, v = args[:3]
    scores = o.matmul(o.multiply(q, number(o, call.attrs["scale"], q)), k, False, True)
    mask = o.constant(causal(call)) if call.attrs["is_causal"] else optional_input(call, args, "mask")
    if mask is None:
        seen = o.softmax(scores, -1)
    elif mask.get_element_type().is_real():
        seen = o.softmax(o.add(scores, mask), -1)
    else:
        hidden = o.select(mask, scores, number(o, float_info(float32).min, q))
        seen = o.select(mask, o.softmax(hidden, -1), number(o, 0, q))
    return o.matmul(seen, v, False, False)


def _not_attended(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    return too_large_a_causal_mask(call) or too_many(call.inputs[1].shape[-2], LONG)


# Activations


def _leaky_relu(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.prelu(args[0], o.constant(np.array([call.attrs["negative_slope"]], np.float32)))


def _not_leaky(graph: Graph, entry: int) -> str | None:
    return None if graph.calls[entry].attrs["negative_slope"] else "with a slope of 0 it loses NaN"


def _gelu(o: Any, call: Call, args: Sequence[Any]) -> Any:
    """By its error function, in a form that is finite wherever x is, as its own gelu is not. The digits that its error
    function lacks near 0 do not count beside the 1 that is added to it."""
    (x,) = args
    if call.attrs["approximate"] == "tanh":
        return o.gelu(x, "tanh")
    half = o.multiply(x, number(o, 0.5, x))
    return o.add(half, o.multiply(half, o.erf(o.multiply(x, number(o, sqrt(0.5), x)))))


COMPOSITES: Final[dict[str, OpRow]] = {
    "softmax": OpRow(_softmax, SINGLE, _too_long_an_axis),
    "log_softmax": OpRow(_log_softmax, SINGLE, _too_long_an_axis, sums=True),
    "layer_norm": OpRow(_layer_norm, SINGLE, _not_normed, sums=True),
    "group_norm": OpRow(_group_norm, SINGLE, _too_large_a_group, sums=True),
    "scaled_dot_product_attention": OpRow(_attention, SINGLE | BOOL, _not_attended, sums=True),
    "leaky_relu": OpRow(_leaky_relu, SINGLE, _not_leaky),
    "gelu": OpRow(_gelu, SINGLE, sums=True),
}
