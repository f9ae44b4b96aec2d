"""Functions that have NumPy's names, against NumPy: what the tests of their families share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import yosegi as ys

Array = np.ndarray[Any, Any]


class Case:
    """A call of a function: what it is given, and whether it can be traced and how exact it is."""

    def __init__(self, *args: Any, eager: bool = False, rtol: float = 1e-12, reference: Any = None, **kwargs: Any):
        self.args, self.kwargs, self.eager, self.rtol, self.reference = args, kwargs, eager, rtol, reference


def rows(cases: dict[str, list[Case]]) -> list[Any]:
    """The table as parameters of a test: (name, number)."""
    return [(name, n) for name, each in cases.items() for n in range(len(each))]


def ids(value: Any) -> str:
    """Names of the parameters."""
    return str(value)


def find(module: Any, name: str) -> Callable[..., Any]:
    """A function of a namespace, by a name such as "linalg.norm"."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _mapped(value: Any, convert: Callable[[Array], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return convert(value)
    return type(value)(_mapped(v, convert) for v in value) if type(value) in (list, tuple) else value


def _leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, (list, tuple)) else [value]


def compare(made: Any, expected: Any, rtol: float = 1e-12) -> None:
    """Shapes, dtypes and values of all parts."""
    ours, theirs = _leaves(made), _leaves(expected)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        array, wanted = np.asarray(mine), np.asarray(other)
        assert array.shape == wanted.shape
        if isinstance(mine, ys.Tensor):
            assert array.dtype == wanted.dtype, (array.dtype, wanted.dtype)
        if wanted.dtype.kind in "fc":
            np.testing.assert_allclose(array, wanted, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(array, wanted)


def check(name: str, case: Case) -> None:
    """The function on tensors, called at once and traced by `jit`, against NumPy's on arrays."""
    function = find(ys, name)
    with np.errstate(all="ignore"):
        expected = (case.reference or find(np, name))(*case.args, **case.kwargs)
    compare(function(*_mapped(case.args, ys.asarray), **case.kwargs), expected, case.rtol)
    if case.eager:
        return
    arrays: list[Array] = []
    _mapped(case.args, arrays.append)

    def call(*tensors: ys.Tensor) -> Any:
        given = iter(tensors)
        return function(*_mapped(case.args, lambda _: next(given)), **case.kwargs)

    compare(ys.jit(call)(*map(ys.asarray, arrays)), expected, case.rtol)
