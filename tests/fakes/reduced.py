"""A device whose products can be had in reduced precision: real roundings, in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import ml_dtypes
import numpy as np

from yosegi._graph.reference import bind
from yosegi._schedule.fuse import Region, RegionKind, is_constant, multiplies
from yosegi._tensor.precision import Precision

from . import FakeArray, FakeDevice

_TERMS: Final = {Precision.BF16: 1, Precision.BF16X2: 2, Precision.BF16X3: 3}


def parts(array: Any, precision: Precision) -> list[Any]:
    """The numbers that a product in this precision makes of an operand: their sum is what is left of it."""
    if precision is Precision.F16:
        return [array.astype(np.float16).astype(np.float32)]
    if precision is Precision.TF32:
        bits = np.ascontiguousarray(array).view(np.uint32)
        return [((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)]
    made, left = [], array
    for _ in range(_TERMS[precision]):
        made.append(left.astype(ml_dtypes.bfloat16).astype(np.float32))
        left = left - made[-1]
    return made


class Reduced(FakeDevice):
    """Computes float32 products in whatever precision it is asked for, and remembers which those were; certificates are
    not counted."""

    def __init__(self, *precisions: Precision, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limits = replace(self.limits, precisions=frozenset(precisions))
        self.ran: list[Precision] = []

    def compile(self, region: Region) -> Any:
        full = super().compile(region)

        def kernel(*data: FakeArray) -> tuple[FakeArray, ...]:
            if region.kind is not RegionKind.PROJECTION:
                self.ran.append(region.precision)
            if all(part.precision is Precision.FULL for part in region.parts):
                return full(*data)
            self.before_run(region)
            return tuple(self.allocated(m) for m in self._computed(region, [d.array for d in data]))

        return kernel

    def _computed(self, region: Region, arrays: list[Any]) -> list[Any]:
        graph = region.graph
        precisions = {n: part.precision for part in region.parts for n in part.nodes}
        values = dict(zip(region.inputs, arrays, strict=True))
        with np.errstate(all="ignore"):
            for entry in region.nodes:
                call = graph.calls[entry]
                args = [values[a] if a in values else np.asarray(bind(graph.calls[a])()) for a in graph.args[entry]]
                assert all(a in values or is_constant(graph, a) for a in graph.args[entry])
                precision = precisions[entry]
                if precision is not Precision.FULL and multiplies(call) and call.spec.dtype.numpy == np.float32:
                    values[entry] = _product(bind(call), args, precision)
                else:
                    values[entry] = np.asarray(bind(call)(*args))
        return [values[o] for o in region.outputs]


def _product(body: Any, args: list[Any], precision: Precision) -> Any:
    left, right = (parts(a, precision) for a in args)
    kept = len(left)
    made = [body(a, b) for i, a in enumerate(left) for j, b in enumerate(right) if i + j < kept]
    total = made[-1]
    for m in reversed(made[:-1]):
        total = total + m
    return np.asarray(total)
