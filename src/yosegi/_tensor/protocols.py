"""NumPy's functions on tensors: `np.sin(x)`, `np.median(x)`, `np.concatenate([x, y])` are Yosegi's, and stay lazy.

A function that is not here raises `TypeError` with what to write: no result is half NumPy's and half ours. Functions
that take values out (files, text) get the tensor's value, as `np.asarray(x)` does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .info import namespace
from .tensor import HOOKS, Tensor

_KEYWORDS: Final = {"ddof": "correction", "newshape": "shape", "a_min": "min", "a_max": "max"}
"""NumPy's keywords that are called something else here."""

_REDUCTIONS: Final = {
    "add": "sum", "logical_and": "all", "logical_or": "any", "maximum": "max", "minimum": "min", "multiply": "prod",
}  # fmt: skip
_RUNNING: Final = {"add": "cumsum", "multiply": "cumprod"}

_TAKES_VALUES: Final = frozenset([
    "array2string", "array_repr", "array_str", "copyto", "may_share_memory", "result_type", "save", "savetxt", "savez",
    "savez_compressed", "shares_memory",
])  # fmt: skip
"""Functions of NumPy's that write values somewhere, or ask for memory: they get the tensors' values."""


def _own(name: str, module: str = "numpy") -> Any:
    """The function of that name in this package, `None` if there is none."""
    space: Any = namespace()
    for part in module.split(".")[1:]:
        space = getattr(space, part, None)
    return getattr(space, name, None)


def _missing(name: str) -> TypeError:
    return TypeError(
        f"[{name}] expected a function that Yosegi has, got np.{name}; call it with np.asarray(x), outside of traces, "
        "or write it with the functions of docs/reference/names.md"
    )


def _renamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {_KEYWORDS.get(name, name): value for name, value in kwargs.items() if name != "out" or value is not None}


def ufunc(function: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """The result of `__array_ufunc__`: the call with Yosegi's function, written to `out` if that is an array."""
    name = function.__name__
    out = kwargs.pop("out", None)
    if method == "__call__":
        ours = _own(name)
    elif method in ("reduce", "accumulate"):
        table = _REDUCTIONS if method == "reduce" else _RUNNING
        ours = _own(table.get(name, ""))
        name = f"{name}.{method}"
        kwargs.setdefault("axis", 0)
    elif method == "outer" and not kwargs:
        first, second = (x if isinstance(x, Tensor) else _own("asarray")(x) for x in inputs)
        inputs = (_own("reshape")(first, first.shape + (1,) * second.ndim), second)
        ours = _own(name)
    else:
        ours = None
        name = f"{name}.{method}"
    if ours is None:
        raise _missing(name)
    made = ours(*inputs, **_renamed(kwargs))
    return made if out is None else _written(name, made, out)


def _written(name: str, made: Any, out: tuple[Any, ...]) -> Any:
    """The result in an array that the caller owns: `array *= tensor`."""
    results = made if isinstance(made, tuple) else (made,)
    for target, result in zip(out, results, strict=True):
        if isinstance(target, Tensor):
            raise TypeError(f"[{name}] expected an array as out, got a tensor; tensors are values: use the result")
        np.copyto(target, np.asarray(result), casting="same_kind")
    return out[0] if len(out) == 1 else out


def function(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `__array_function__`: the call with Yosegi's function, or with values for functions that write."""
    name, module = called.__name__, called.__module__ or "numpy"
    if name in _TAKES_VALUES:
        return called(*_values(args), **{key: _values(value) for key, value in kwargs.items()})
    ours = _own(name, module)
    if ours is None:
        raise _missing(name)
    return ours(*args, **_renamed(kwargs))


def _values(given: Any) -> Any:
    if isinstance(given, Tensor):
        return np.asarray(given)
    return type(given)(_values(g) for g in given) if type(given) in (list, tuple) else given


HOOKS.ufunc, HOOKS.function = ufunc, function
