"""Kernels that begin with NumPy and become native when that pays.

Compiling takes milliseconds, and most programs that are run once need less in all. A kernel begins as NumPy calls and
counts its runs; when it has spent about as much time as compiling it would take, it is compiled. One that is known to
run many times, or that has much to do, is compiled at its first run. The function stays the same object: only its code
is exchanged, so that whoever holds it calls the new code at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from types import FunctionType
from typing import Any, Final

from ...codegen.llvm.expand import expanded, expands, in_parts
from ...codegen.llvm.groups import Group, grouped, reduces, runs
from ...device import Kernel
from ...fuse import Region, multiplies
from ...node import Call
from ...trace import trace
from .kernel import Body, Step, function_of, mixed_function, numpy_function, reference_body
from .natives import Natives, worthwhile
from .results import Results

_COMPILING: Final = 0.015
"""Seconds that a kernel takes to compile, about."""


def compile_region(region: Region, natives: Natives, results: Results, body: Body = reference_body) -> Kernel:
    """The region as a function of its inputs' arrays; `body` gives what computes a single entry."""
    region = in_parts(region)
    saved = _saved(region.calls)
    if natives.reason is not None or not saved:
        return numpy_function(region, body=body)
    runs = 1 if region.repeats else int(_COMPILING / saved) + 1
    return _Staged(region, natives, results, body, runs).kernel


def _saved(calls: Sequence[Call]) -> float:
    """The seconds of NumPy's that native code saves in a run, roughly."""
    return sum(
        5e-7 + 1e-9 * max([c.spec.size, *[s.size for s in c.inputs]])
        for c in calls
        if c.op.scalar is not None or reduces(c) or runs(c) or expands(c) or multiplies(c)
    )


class _Staged:
    """One kernel, with what it needs to become native."""

    def __init__(self, region: Region, natives: Natives, results: Results, body: Body, runs: int) -> None:
        self._region = region
        self._body = body
        self._natives = natives
        self._results = results
        self._left = runs
        self._is_native = False
        self._lock = Lock()
        if runs > 1:
            self.kernel = numpy_function(region, body=body, tick=self._tick)
        else:
            names = ", ".join(f"i{n}" for n in range(len(region.inputs)))
            self.kernel = function_of(f"def kernel({names}):\n return first({names})\n", {"first": self._first})

    def _tick(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._become_native()

    def _first(self, *arrays: Any) -> tuple[Any, ...]:
        if self._become_native():
            made: tuple[Any, ...] = self.kernel(*arrays)
            return made
        # Another thread is compiling, perhaps one that a forked child does not have.
        once: tuple[Any, ...] = numpy_function(self._region, body=self._body)(*arrays)
        return once

    def _become_native(self) -> bool:
        """Exchange the function's code; whether that was done, now or before."""
        if not self._lock.acquire(blocking=False):
            return self._is_native
        try:
            if not self._is_native:
                try:
                    made = native_function(self._region, self._natives, self._results, self._body)
                except Exception as failure:  # whatever it is, NumPy can do the same work
                    trace.failed(str(self._region), "cpu", failure)
                    made = numpy_function(self._region, body=self._body, label="x")
                self.kernel.__globals__.update(made.__globals__)
                self.kernel.__code__ = made.__code__
                self._is_native = True
            return True
        finally:
            self._lock.release()


def native_function(region: Region, natives: Natives, results: Results, body: Body = reference_body) -> FunctionType:
    """The region with native calls where they are worth it, and NumPy calls for the rest."""
    wide = expanded(region) if natives.runtime is not None else region
    steps: list[Step] = []
    for part in grouped(wide.graph, wide.nodes, wide.outputs):
        made = natives.native(part) if isinstance(part, Group) and worthwhile(part) else None
        if made is not None:
            steps.append(made)
        else:
            steps += part.nodes if isinstance(part, Group) else [part]

    def own(region: Region, entry: int) -> Callable[..., Any]:
        return natives.body(region.graph.calls[entry]) or body(region, entry)

    if all(isinstance(step, int) for step in steps):
        return numpy_function(region, body=own, label="x")
    return mixed_function(wide, steps, results, body=own, label="x")
