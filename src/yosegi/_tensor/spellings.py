"""Other libraries' spellings, recognised in errors: "[dropout] has no p=; use rate=", "no cat; use ys.concat"."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

_FIRST: Final = "the first argument without a name"
_RESULT: Final = "the result: tensors are values"

SPELLINGS: Final[dict[str, dict[str, str]]] = {
    "": {
        "a": _FIRST, "a_max": "max=", "a_min": "min=", "arr": _FIRST, "ddof": "correction=", "dim": "axis=",
        "dims": "axis=", "generator": "rng=", "initial": "ys.maximum, ys.minimum or + behind it", "inplace": _RESULT,
        "input": _FIRST, "keepdim": "keepdims=", "key": "rng=", "num_samples": "size=",
        "other": "the second argument without a name", "out": _RESULT, "requires_grad": "ys.grad",
        "unbiased": "correction=1.0 or correction=0.0", "where": "ys.where before it",
    },
    "avg_pool": {"ceil_mode": "padding="},
    "batch_norm": {
        "running_mean": "mean without a name", "running_var": "var without a name", "training": "batch_norm_train",
    },
    "clip": {"amin": "min=", "amax": "max="},
    "concat": {"tensors": "the tensors without a name"},
    "cross_entropy": {"target": "labels without a name", "weight": "reduction='none' and your own weights"},
    "dropout": {"p": "rate="},
    "dropout_linear": {"p": "rate="},
    "layer_norm": {"normalized_shape": "axis="},
    "linear": {"bias": "b=", "weight": "w without a name"},
    "permute_dims": {"dims": "axes="},
    "scaled_dot_product_attention": {"attn_mask": "mask=", "dropout_p": "ys.nn.dropout"},
    "sort": {"kind": "stable=: every sort is stable", "reverse": "descending="},
    "topk": {"sorted": "the result, which is sorted"},
    "transpose": {"dim0": "ys.swapaxes", "dim1": "ys.swapaxes"},
    "uniform": {"maxval": "high=", "minval": "low="},
}  # fmt: skip
"""By function, "" for all of them: what a keyword is called here."""


NAMES: Final[dict[str, str]] = {
    "apply_along_axis": "ys.stack of the slices", "autograd": "ys.grad", "bmm": "ys.matmul", "cat": "ys.concat",
    "clamp": "ys.clip", "conv2d": "ys.nn.conv2d", "copyto": "x.at[key].set", "cross_entropy": "ys.nn.cross_entropy",
    "div": "ys.divide", "dropout": "ys.nn.dropout", "eq": "ys.equal", "erf": "ys.nn.erf",
    "fill_diagonal": "x.at[ys.diag_indices(n)].set", "from_array": "ys.asarray", "gather": "ys.take_along_axis",
    "ge": "ys.greater_equal", "gt": "ys.greater", "index_select": "ys.take", "le": "ys.less_equal",
    "log_softmax": "ys.nn.log_softmax", "logsumexp": "ys.nn.logsumexp", "lt": "ys.less",
    "manual_seed": "ys.random.seed",
    "masked_fill": "ys.where", "mm": "ys.matmul", "movedim": "ys.moveaxis", "mul": "ys.multiply", "mv": "ys.matvec",
    "ndarray": "ys.Tensor", "ne": "ys.not_equal", "neg": "ys.negative", "no_grad": "ys.grad of what needs it",
    "norm": "ys.linalg.norm", "numel": "ys.size", "one_hot": "ys.nn.one_hot", "permute": "ys.permute_dims",
    "put": "x.at[key].set", "putmask": "ys.where", "rand": "ys.random.uniform", "randint": "ys.random.integers",
    "randn": "ys.random.normal", "relu": "ys.nn.relu", "require": "ys.asarray", "rsqrt": "1 / ys.sqrt",
    "sigmoid": "ys.nn.sigmoid", "softmax": "ys.nn.softmax", "sub": "ys.subtract", "swapdims": "ys.swapaxes",
    "unbind": "ys.unstack", "unsqueeze": "ys.expand_dims",
}  # fmt: skip
"""Other libraries' names of functions, and what they are here."""


def missing(name: str) -> str:
    """The text of an `AttributeError` for a name that the package does not have."""
    found = NAMES.get(name)
    return f"module 'yosegi' has no {name}" + (f"; use {found}" if found else "")


def advice(name: str, known: Iterable[str], given: Iterable[str]) -> str | None:
    """The replacement of the first keyword that a function does not have; `None` if no replacement is known."""
    own = set(known)
    for keyword in given:
        if keyword not in own:
            found = SPELLINGS.get(name, {}).get(keyword) or SPELLINGS[""].get(keyword)
            return None if found is None else f"[{name}] has no {keyword}=; use {found}"
    return None


def respelled(function: Callable[..., Any], kwargs: dict[str, Any], error: TypeError) -> TypeError:
    """The error of a call with unknown keywords, with advice if there is any."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return error
    text = advice(function.__name__.strip("_"), [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY], kwargs)
    return error if text is None else TypeError(text)
