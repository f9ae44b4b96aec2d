"""Programs in MIL, read from packages and evaluated op by op by our own reference bodies.

Values are computed in float32 and rounded to the type that the program has for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

import yosegi as ys
from yosegi._graph.reference import bind
from yosegi._tensor.dtype import as_dtype
from yosegi._tensor.node import spec
from yosegi._tensor.op import REGISTRY
from yosegi.devices.coreml.library import BUILDING, numpy_of, tools

MOST_DIMENSIONS = 5


def program_of(package: Path) -> Any:
    """The program of a package, parsed back from its files."""
    tools()
    from coremltools.converters.mil.frontend.milproto.load import load

    with BUILDING:
        model = tools().utils.load_spec(str(package))
        weights = package / "Data" / "com.apple.CoreML" / "weights"
        return load(model, model.specificationVersion, str(weights) if weights.exists() else "")


def refusal(program: Any) -> str | None:
    """Why Core ML would not compile a program."""
    function = program.functions["main"]
    for operation in function.operations:
        for value in operation.outputs:
            if value.rank > MOST_DIMENSIONS:
                return f"{operation.op_type} has rank {value.rank}, more than {MOST_DIMENSIONS}"
    for value in (*function.inputs.values(), *function.outputs):
        if numpy_of(value) not in (np.float16, np.float32, np.int32):
            return f"no {numpy_of(value).__name__} as input or output"
        if not value.rank:
            return f"{value.name} has no dimensions"
    if any(value.name in function.inputs for value in function.outputs):
        return "an output is an input"
    return None


def evaluated(program: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a program for its inputs, by name."""
    function = program.functions["main"]
    values: dict[str, Any] = dict(given)
    with np.errstate(all="ignore"):
        for operation in function.operations:
            (out,) = operation.outputs
            if operation.op_type == "const":
                made = out.val
            else:
                inputs = {name: _value(values, v) for name, v in operation.inputs.items() if v is not None}
                made = OPS[operation.op_type](**{k: v for k, v in inputs.items() if k != "name"})
            made = np.asarray(made)
            if operation.op_type != "const":
                made = made.astype(numpy_of(out))
                assert made.shape == tuple(out.shape), f"{operation.op_type}: {made.shape}, the program has {out.shape}"
            values[out.name] = made
    return {value.name: values[value.name] for value in function.outputs}


def _value(values: Mapping[str, Any], given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [_value(values, v) for v in given]
    found = values.get(given.name, given.val)
    if np.asarray(found).dtype.kind == "U":
        return str(found)
    return found.astype(np.float32) if getattr(found, "dtype", None) == np.float16 else found


def ours(name: str, *arrays: Any, **attrs: Any) -> Any:
    """One of our ops, by its reference body."""
    found = [np.asarray(a) for a in arrays]
    call = REGISTRY[name].call(tuple([spec(a.shape, as_dtype(a.dtype)) for a in found]), attrs)
    return bind(call)(*found)


def _named(name: str) -> Callable[..., Any]:
    return lambda **inputs: ours(name, *inputs.values())


def _binary(name: str) -> Callable[..., Any]:
    return lambda x, y: ours(name, *np.broadcast_arrays(x, y))


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in np.ravel(values))


def _slice(x: Any, begin: Any, end: Any, stride: Any, **masks: Any) -> Any:
    assert all(m is None or not np.any(m) for m in masks.values()), "the device uses no masks"
    return x[tuple(slice(*bounds) for bounds in zip(_ints(begin), _ints(end), _ints(stride), strict=True))]


def _pads(pad: Any) -> tuple[tuple[int, int], ...]:
    flat = _ints(pad)
    return tuple(pair for n, pair in enumerate(pairwise(flat)) if n % 2 == 0)


def _conv(x: Any, weight: Any, strides: Any, pad_type: str, pad: Any, dilations: Any, groups: Any) -> Any:
    assert pad_type == "custom"
    attrs = {"stride": _ints(strides), "padding": _pads(pad), "dilation": _ints(dilations), "groups": int(groups)}
    return ours("conv", x, weight, **attrs)


def _conv_transpose(x: Any, weight: Any, strides: Any, pad_type: str, pad: Any, dilations: Any, groups: Any) -> Any:
    assert pad_type == "custom"
    x, weight = ys.asarray(np.asarray(x, np.float32)), ys.asarray(np.asarray(weight, np.float32))
    apart, across = _ints(strides), _ints(dilations)
    function = {1: ys.nn.conv_transpose1d, 2: ys.nn.conv_transpose2d, 3: ys.nn.conv_transpose3d}[len(apart)]
    with ys.options(device="cpu"):
        whole = function(x, weight, stride=apart, dilation=across, groups=int(groups)).numpy()
    window = [slice(low, n - high) for (low, high), n in zip(_pads(pad), whole.shape[2:], strict=True)]
    return whole[(slice(None), slice(None), *window)]


def _pool(
    name: str, x: Any, kernel_sizes: Any, strides: Any, pad: Any, pad_type: str, ceil_mode: Any, **more: Any
) -> Any:
    assert pad_type == "custom"
    assert not ceil_mode
    attrs: dict[str, Any] = {"count_include_pad": not more["exclude_padding_from_average"]} if more else {"dilation": 1}
    return ours(name, x, kernel_size=_ints(kernel_sizes), stride=_ints(strides), padding=_pads(pad), **attrs)


def _layer_norm(x: Any, axes: Any, epsilon: Any) -> Any:
    return ours("layer_norm", x, axis=_ints(axes), eps=float(epsilon))


def _gelu(x: Any, mode: str) -> Any:
    if mode == "TANH_APPROXIMATION":
        return ours("gelu", x, approximate="tanh")
    assert mode == "EXACT"
    half = np.asarray(x, np.float64) / 2
    return half + half * ours("erf", np.asarray(x, np.float64) * sqrt(0.5))


def _cast(x: Any, dtype: str) -> Any:
    return np.asarray(x).astype({"fp16": np.float16, "fp32": np.float32, "bool": bool, "int32": np.int32}[dtype])


def _reduced(name: str) -> Callable[..., Any]:
    return lambda x, axes, keep_dims: ours(name, x, axis=_ints(axes), keepdims=bool(keep_dims))


def _cumsum(x: Any, axis: Any, exclusive: Any, reverse: Any) -> Any:
    assert not exclusive
    assert not reverse
    return ours("cumulative_sum", x, axis=int(axis))


def _product(x: Any, y: Any, transpose_x: Any, transpose_y: Any) -> Any:
    assert not transpose_x
    assert np.ndim(x) >= 2
    assert np.ndim(y) >= 2, "vectors go by other rules"
    return ours("matmul", x, np.swapaxes(y, -1, -2) if transpose_y else y)


def _log(x: Any, epsilon: Any) -> Any:
    assert epsilon == 0, "it would add to x"
    return ours("log", x)


def _gather(x: Any, indices: Any, axis: Any, batch_dims: Any, validate_indices: Any) -> Any:
    assert indices.min() >= 0
    assert indices.max() < x.shape[int(axis)], "out of range"
    return np.take(x, indices, int(axis))


_SAME = (
    "abs", "sign", "floor", "ceil", "round", "sqrt", "exp", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "atanh", "relu", "sigmoid", "silu", "erf", "logical_not",
)  # fmt: skip
_PAIRS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "real_div": "divide", "pow": "pow", "maximum": "maximum",
    "minimum": "minimum", "equal": "equal", "not_equal": "not_equal", "less": "less", "less_equal": "less_equal",
    "greater": "greater", "greater_equal": "greater_equal", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}  # fmt: skip

OPS: dict[str, Callable[..., Any]] = {
    **{name: _named(name) for name in _SAME},
    **{mil: _binary(name) for mil, name in _PAIRS.items()},
    **{f"reduce_{name}": _reduced(name) for name in ("sum", "prod", "mean", "max", "min")},
    "log": _log,
    "cast": _cast,
    "select": lambda cond, a, b: np.where(cond, a, b),
    "fill": lambda shape, value: np.full(_ints(shape), value),
    "identity": lambda x: x,
    "reshape": lambda x, shape: np.reshape(x, _ints(shape)),
    "squeeze": lambda x, axes=None: np.squeeze(x),
    "tile": lambda x, reps: np.tile(x, _ints(reps)),
    "transpose": lambda x, perm: np.transpose(x, _ints(perm)),
    "reverse": lambda x, axes: np.flip(x, _ints(axes)),
    "slice_by_index": _slice,
    "concat": lambda values, axis, interleave: np.concatenate(values, int(axis)),
    "gather": _gather,
    "cumsum": _cumsum,
    "matmul": _product,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": partial(_pool, "max_pool"),
    "avg_pool": partial(_pool, "avg_pool"),
    "softmax": lambda x, axis: ours("softmax", x, axis=int(axis)),
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "leaky_relu": lambda x, alpha: ours("leaky_relu", x, negative_slope=float(alpha)),
}


def names(program: Any) -> Sequence[str]:
    """The ops of a program, without constants."""
    return [op.op_type for op in program.functions["main"].operations if op.op_type != "const"]
