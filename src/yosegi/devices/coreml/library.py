"""coremltools, which writes models, and Core ML through pyobjc, which runs them: loaded when they are first needed."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from threading import RLock
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ..._tune.store import package_digest, processor

BUILDING: Final = RLock()
"""Held while a program is built and written: coremltools keeps the open block in a global variable."""

_BINARY: Final = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "real_div", "power": "pow", "maximum": "maximum",
    "minimum": "minimum", "equal": "equal", "not_equal": "not_equal", "less": "less", "less_equal": "less_equal",
    "greater": "greater", "greater_equal": "greater_equal", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}  # fmt: skip
_UNARY: Final = {
    "abs": "abs", "sign": "sign", "floor": "floor", "ceiling": "ceil", "round": "round", "sqrt": "sqrt", "exp": "exp",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "atanh": "atanh", "relu": "relu", "sigmoid": "sigmoid", "silu": "silu",
    "erf": "erf", "logical_not": "logical_not",
}  # fmt: skip


@cache
def tools() -> Any:
    """The package `coremltools`. Its import warns of every package that it would convert models of."""
    logger = logging.getLogger("coremltools")
    before, logger.disabled = logger.disabled, True
    try:
        import coremltools
    finally:
        logger.disabled = before
    return coremltools


@cache
def builder() -> Any:
    """The builder of programs in MIL, the language of Core ML's models."""
    tools()
    from coremltools.converters.mil import Builder

    return Builder


@cache
def opset() -> SimpleNamespace:
    """The operations that programs are made of, with inputs by position, under the names that formulas use."""
    mb = builder()

    def unary(function: Any) -> Callable[[Any], Any]:
        return lambda x: function(x=x)

    def binary(function: Any) -> Callable[[Any, Any], Any]:
        return lambda x, y: function(x=x, y=y)

    return SimpleNamespace(
        **{name: unary(getattr(mb, own)) for name, own in _UNARY.items()},
        **{name: binary(getattr(mb, own)) for name, own in _BINARY.items()},
        # Without an epsilon of its own it adds one that makes a number of log(0).
        log=lambda x: mb.log(x=x, epsilon=numpy_of(x)(0)),
        negative=lambda x: mb.mul(x=x, y=numpy_of(x)(-1)),
        select=_select,
    )


def _select(condition: Any, a: Any, b: Any) -> Any:
    """The elements of `a` or `b`. The type that MIL infers is that of the two, without the condition's shape."""
    mb = builder()
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    whole = np.broadcast_shapes(shape, condition.shape)
    if shape != whole and np.ndim(a) == 0:
        a = mb.fill(shape=np.array(whole, np.int32), value=a)
    elif shape != whole:
        a = broadcast(a, whole)
    return mb.select(cond=condition, a=a, b=b)


def broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """A node, repeated to a shape that it broadcasts to."""
    mb = builder()
    padded = (1,) * (len(shape) - x.rank) + tuple(x.shape)
    if padded != tuple(x.shape):
        x = mb.reshape(x=x, shape=np.array(padded, np.int32))
    repeats = [n // m for n, m in zip(shape, padded, strict=True)]
    return x if set(repeats) <= {1} else mb.tile(x=x, reps=np.array(repeats, np.int32))


def numpy_of(x: Any) -> Any:
    """The NumPy type of a node's elements."""
    tools()
    from coremltools.converters.mil.mil import types

    return types.nptype_from_builtin(x.dtype)


@cache
def core_ml() -> tuple[Any, Any, Any]:
    """The packages `CoreML`, `Foundation` and `objc`."""
    import CoreML
    import Foundation
    import objc

    return CoreML, Foundation, objc


@cache
def machine() -> str:
    """The processor, the system, which brings Core ML's compiler, and the packages."""
    return "\n".join([processor(), platform.platform(), version("coremltools"), package_digest()])
