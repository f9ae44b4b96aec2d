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
"""The names of keywords here, by function; "" stands for all functions."""


NAMES: Final[dict[str, str]] = {
    "addbmm": "ys.sum of ys.matmul and +", "addcdiv": "x + value * a / b", "addcmul": "x + value * a * b",
    "addmm": "ys.matmul and +", "addmv": "ys.matvec and +", "addr": "ys.outer and +", "adjoint": "ys.conj of x.mT",
    "aminmax": "ys.min and ys.max", "are_deterministic_algorithms_enabled": "ys.options", "as_tensor": "ys.asarray",
    "autograd": "ys.grad", "baddbmm": "ys.matmul and +", "bartlett_window": "ys.bartlett",
    "bernoulli": "ys.random.bernoulli", "binomial": "ys.random.binomial", "blackman_window": "ys.blackman",
    "block_diag": "ys.block", "bmm": "ys.matmul", "broadcast_tensors": "ys.broadcast_arrays",
    "bucketize": "ys.searchsorted", "cartesian_prod": "ys.meshgrid", "cat": "ys.concat",
    "cdist": "ys.linalg.vector_norm of the differences", "chain_matmul": "ys.linalg.multi_dot",
    "cholesky_inverse": "ys.linalg.inv", "cholesky_solve": "ys.linalg.solve", "chunk": "ys.array_split",
    "clamp": "ys.clip", "clamp_max": "ys.minimum", "clamp_min": "ys.maximum", "clone": "ys.copy", "compile": "ys.jit",
    "complex": "a + 1j * b", "conj_physical": "ys.conj", "constant_pad_nd": "ys.pad", "conv2d": "ys.nn.conv2d",
    "convolution": "ys.nn.conv2d", "copyto": "x.at[key].set", "cross_entropy": "ys.nn.cross_entropy",
    "cumulative_trapezoid": "ys.cumsum of the mean of neighbours", "detach": "ys.stop_gradient",
    "diag_embed": "x[..., None] * ys.eye(n)", "diagonal_scatter": "x.at[ys.diag_indices(n)].set",
    "dist": "ys.linalg.vector_norm of a - b", "div": "ys.divide", "dropout": "ys.nn.dropout", "embedding": "ys.take",
    "eq": "ys.equal", "erf": "ys.nn.erf", "erfc": "1 - ys.nn.erf(x)", "fill": "ys.full_like",
    "fill_diagonal": "x.at[ys.diag_indices(n)].set", "flatten": "ys.ravel", "frac": "x - ys.trunc(x)",
    "frobenius_norm": "ys.linalg.matrix_norm", "from_array": "ys.asarray", "gather": "ys.take_along_axis",
    "ge": "ys.greater_equal", "geqrf": "ys.linalg.qr", "ger": "ys.outer", "get_default_device": "ys.devices",
    "get_device": "x.device", "get_float32_matmul_precision": "ys.options", "get_num_threads": "YOSEGI_THREADS",
    "get_rng_state": "ys.random.default_rng", "gt": "ys.greater", "hamming_window": "ys.hamming",
    "hann_window": "ys.hanning", "histc": "ys.histogram", "index_add": "x.at[key].add", "index_copy": "x.at[key].set",
    "index_fill": "x.at[key].set", "index_put": "x.at[key].set", "index_reduce": "x.at[key].max, min or multiply",
    "index_select": "ys.take", "initial_seed": "ys.random.seed", "inverse": "ys.linalg.inv",
    "is_complex": "ys.iscomplexobj", "is_floating_point": "ys.isdtype", "is_grad_enabled": "ys.grad of what needs it",
    "is_nonzero": "bool(x)", "is_signed": "ys.isdtype", "is_tensor": "isinstance(x, ys.Tensor)",
    "kaiser_window": "ys.kaiser", "kthvalue": "ys.partition", "le": "ys.less_equal", "lerp": "a + weight * (b - a)",
    "log_softmax": "ys.nn.log_softmax", "logcumsumexp": "ys.scan of ys.logaddexp", "logdet": "ys.linalg.slogdet",
    "logit": "ys.log(p / (1 - p))", "logsumexp": "ys.nn.logsumexp", "lt": "ys.less", "manual_seed": "ys.random.seed",
    "masked_fill": "ys.where", "masked_scatter": "x.at[mask].set", "masked_select": "x[mask]", "mm": "ys.matmul",
    "movedim": "ys.moveaxis", "msort": "ys.sort", "mul": "ys.multiply", "multinomial": "ys.random.categorical",
    "mv": "ys.matvec", "narrow": "x[start:stop]", "ndarray": "ys.Tensor", "ne": "ys.not_equal", "neg": "ys.negative",
    "no_grad": "ys.grad of what needs it", "norm": "ys.linalg.norm", "nuclear_norm": "ys.linalg.matrix_norm",
    "numel": "ys.size", "one_hot": "ys.nn.one_hot", "permute": "ys.permute_dims", "pinverse": "ys.linalg.pinv",
    "place": "ys.where", "polar": "r * ys.exp(1j * angle)", "put": "x.at[key].set", "putmask": "ys.where",
    "rand": "ys.random.uniform", "rand_like": "ys.random.uniform", "randint": "ys.random.integers",
    "randint_like": "ys.random.integers", "randn": "ys.random.normal", "randn_like": "ys.random.normal",
    "randperm": "ys.random.permutation", "range": "ys.arange", "relu": "ys.nn.relu", "repeat_interleave": "ys.repeat",
    "require": "ys.asarray", "row_stack": "ys.vstack", "rsqrt": "1 / ys.sqrt", "rsub": "b - a",
    "scalar_tensor": "ys.asarray", "scatter": "ys.put_along_axis", "scatter_add": "x.at[key].add",
    "scatter_reduce": "x.at[key].max, min or multiply", "select_scatter": "x.at[key].set",
    "set_default_device": "ys.options", "set_float32_matmul_precision": "ys.options",
    "set_num_threads": "YOSEGI_THREADS", "set_rng_state": "ys.random.default_rng", "sgn": "ys.sign",
    "sigmoid": "ys.nn.sigmoid", "slice_scatter": "x.at[key].set", "softmax": "ys.nn.softmax",
    "split_with_sizes": "ys.split", "std_mean": "ys.std and ys.mean", "sub": "ys.subtract", "swapdims": "ys.swapaxes",
    "t": "x.T", "take_along_dim": "ys.take_along_axis", "tensor": "ys.asarray", "tensor_split": "ys.array_split",
    "trapz": "ys.trapezoid", "triangular_solve": "ys.linalg.solve", "unbind": "ys.unstack", "unflatten": "ys.reshape",
    "unsqueeze": "ys.expand_dims", "use_deterministic_algorithms": "ys.options", "var_mean": "ys.var and ys.mean",
    "vectorize": "ys.vmap", "view_as_complex": "x[..., 0] + 1j * x[..., 1]",
    "view_as_real": "ys.stack of x.real and x.imag", "xlogy": "ys.where around x * ys.log(y)",
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
