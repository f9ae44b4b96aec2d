"""Reductions: the initial value, the combination of two values, and the final step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from ..._tensor.dtype import DType, bool_, float32, float64, int32, real_of
from ..._tensor.node import Call
from ..._tensor.role import Reduction
from .primitives import Primitives
from .value import Value

_COMBINE: Final = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_ON_HOST: Final[dict[str, Callable[..., Any]]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
_OF_TRUTH: Final = {"sum": "max", "prod": "min"}
"""The sum and the product of truth values."""


def folds(call: Call) -> bool:
    """True if a call is a reduction that can be folded element by element."""
    return isinstance(call.op.role, Reduction)


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction. Truth values are combined as the integers 0 and 1, 16-bit floats as float."""

    name: str
    of_truth: bool
    accumulated: DType
    result: DType
    count: int
    """The divisor of the final value; 0 for none."""

    @classmethod
    def of(cls, call: Call) -> Fold:
        """The fold of a reduction's call."""
        role, given, result = call.op.role, call.inputs[0].dtype, call.spec.dtype
        assert isinstance(role, Reduction)
        of_truth = result is bool_
        name = _OF_TRUTH.get(role.combine, role.combine) if of_truth else role.combine
        if of_truth:
            accumulated = int32
        elif result.is_half:
            accumulated = float64 if given is float64 else float32
        else:
            accumulated = result
        count = prod(call.inputs[0].shape[a] for a in call.attrs["axis"]) if role.averages else 0
        return cls(name, of_truth, accumulated, result, count)

    @property
    def start(self) -> Any:
        """The number that changes nothing."""
        if self.of_truth:  # as one of them: a slice of nothing is a partial result like others
            return int(self.name == "min")
        if self.name in ("sum", "prod"):
            return int(self.name == "prod")
        if self.accumulated.is_integer:
            info = np.iinfo(self.accumulated.numpy)
            return info.min if self.name == "max" else info.max
        return float("-inf") if self.name == "max" else float("inf")

    def begin(self, k: Primitives, value: Value) -> Value:
        """An element as it is folded."""
        return k.convert(k.convert(value, bool_) if self.of_truth else value, self.accumulated)

    def combine(self, k: Primitives, a: Value, b: Value) -> Value:
        """Two as one."""
        made: Value = getattr(k, _COMBINE[self.name])(a, b)
        return made

    def end(self, k: Primitives, value: Value) -> Value:
        """The result, from what all elements have become."""
        if self.count:
            part = k.literal(self.count, real_of(self.accumulated))
            if self.accumulated.is_complex:
                value = k.paired(value.dtype, k.div(k.real(value), part), k.div(k.imag(value), part))
            else:
                value = k.div(value, part)
        return k.rounded(k.convert(value, self.result))

    def on_host(self, partials: Any) -> Any:
        """The results from partial ones, of which there is a row per slice."""
        with np.errstate(all="ignore"):
            folded = _ON_HOST[self.name](partials, axis=0)
            if self.count:
                folded = np.true_divide(folded, np.asarray(self.count, real_of(self.accumulated).numpy))
            folded = np.asarray(folded)
            return folded != 0 if self.of_truth else folded.astype(self.result.numpy)
