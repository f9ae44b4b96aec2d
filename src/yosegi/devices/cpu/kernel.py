"""Regions as straight-line Python: a NumPy call for an op, or a native call for several, written out and compiled once.

    def kernel(i0, i1):
        t0 = empty(s0, d0)
        n0(i0, i1, t0)  # several ops by one native kernel
        t1 = f1(t0)
        t2 = f2(t1, c0, out=t1)  # a ufunc writes into an operand nobody needs any more
        return (t2,)

The text names nothing of the program but its wiring, so that regions of one structure share their code object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ..._graph.reference import ERROR_STATE, bind
from ..._run.memory.pool import ALIGNMENT
from ..._schedule.fuse import Region, is_constant
from ..._tensor.interchange import settled
from ..._tensor.node import Call, Shape
from ...errors import OutOfMemory
from .results import LARGE, Results


@dataclass(frozen=True, slots=True)
class Native:
    """Several ops as a callable: it takes the arrays that it reads, those that it writes, and the workspace."""

    call: Callable[..., None]
    """Takes the arrays that it reads, then those that it writes."""
    reads: tuple[Any, ...]
    """Entries, or arrays of its own."""
    outputs: tuple[int, ...]
    workspace: int = 0
    """Bytes."""

    @property
    def entries(self) -> list[int]:
        """The entries that it reads."""
        return [r for r in self.reads if isinstance(r, int)]


Step = int | Native
"""An entry by its body, or a group by native code."""
Body = Callable[[Region, int], Callable[..., Any]]
"""Gives the function that computes an entry of a region by itself."""


def reference_body(region: Region, entry: int) -> Callable[..., Any]:
    """The one that every op has."""
    return bind(region.graph.calls[entry])


def numpy_function(
    region: Region, *, body: Body = reference_body, label: str = "", tick: Callable[[], None] | None = None
) -> FunctionType:
    """The region as a function of its inputs' arrays, by the bodies of its entries alone.

    The names of its own begin with `label`. `tick` is called at the beginning of each call.
    """
    source, names = _PythonKernel(region, region.nodes, None, body, label).write(counted=tick is not None)
    return function_of(source, names | {"tick": tick})


def mixed_function(
    region: Region, steps: Sequence[Step], results: Results, *, body: Body = reference_body, label: str = ""
) -> FunctionType:
    """A Python function of steps, some of which are native calls."""
    source, names = _PythonKernel(region, steps, results, body, label).write(counted=False)
    return function_of(source, names)


def function_of(source: str, names: dict[str, Any]) -> FunctionType:
    """The function `kernel` of a source, with what its free names stand for."""
    variable, ignore = ERROR_STATE
    namespace: dict[str, Any] = {**names, "asarray": np.asarray, "settled": settled, "out_of_memory": _out_of_memory,
                                 "error_state": variable, "ignore": ignore, "empty": np.empty,
                                 "ndarray": np.ndarray, "byte": np.dtype(np.uint8)}  # fmt: skip
    exec(_code(source), namespace)
    kernel: FunctionType = namespace["kernel"]
    return kernel


@lru_cache(maxsize=1024)
def _code(source: str) -> CodeType:
    return compile(source, "<yosegi kernel>", "exec")


def _out_of_memory(error: MemoryError) -> OutOfMemory:
    return OutOfMemory(str(error) or "the system has no memory left")


class _PythonKernel:
    """Writes one region."""

    def __init__(self, region: Region, steps: Sequence[Step], results: Results | None, body: Body, label: str) -> None:
        self.label = label
        self.body = body
        self.region = region
        self.graph = region.graph
        self.steps = steps
        self.results = results
        self.names: dict[str, Any] = {}
        self.local = {entry: f"i{n}" for n, entry in enumerate(region.inputs)}
        self.owned: set[int] = set()  # entries whose memory has just been made: nothing else refers to it

    def write(self, *, counted: bool) -> tuple[str, dict[str, Any]]:
        """The source, and what its free names stand for."""
        last = self._last_uses()
        body: list[str] = []
        for n, step in enumerate(self.steps):
            body += [self._statement(n, step, last)] if isinstance(step, int) else self._native(n, step)
            dead = [self.local[a] for a in dict.fromkeys(self._reads(step))
                    if last.get(a) == n and self.local[a].startswith("t")]  # fmt: skip
            if dead:
                body.append(f"del {', '.join(dead)}")
        results = ", ".join(self._result(entry) for entry in self.region.outputs)
        body.append(f"return ({results},)" if results else "return ()")
        return self._function(body, counted), self.names

    def _function(self, body: list[str], counted: bool) -> str:
        head = f"def kernel({', '.join(f'i{n}' for n in range(len(self.region.inputs)))}):\n"
        head += " tick()\n" if counted else ""
        raises = " except MemoryError as error:\n  raise out_of_memory(error) from error\n"
        text = "\n".join(f"  {line}" for line in body)
        if all(not isinstance(step, int) for step in self.steps):  # nothing there that NumPy would warn of
            return f"{head} try:\n{text}\n{raises}"
        return (
            f"{head} token = error_state.set(ignore)\n try:\n{text}\n{raises}"
            " finally:\n  error_state.reset(token)\n"
        )  # fmt: skip

    def _reads(self, step: Step) -> Sequence[int]:
        return self.graph.args[step] if isinstance(step, int) else step.entries

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            for a in self._reads(step):
                last[a] = n
        for entry in self.region.outputs:
            last[entry] = len(self.steps)
        return last

    def _named(self, name: str, value: Any) -> str:
        """A name of the function's own for a value."""
        self.names[self.label + name] = value
        return self.label + name

    # Native calls

    def _native(self, n: int, step: Native) -> list[str]:
        operands = [self._operand(r, plain=False) if isinstance(r, int) else self._named(f"o{n}_{m}", r)
                    for m, r in enumerate(step.reads)]  # fmt: skip
        lines = []
        for m, entry in enumerate(step.outputs):
            self.local[entry] = f"t{n}_{m}"
            spec = self.graph.calls[entry].spec
            lines.append(f"t{n}_{m} = {self._new(f'{n}_{m}', spec.shape, spec.dtype.numpy, spec.nbytes)}")
            self.owned.add(entry)
        made = [self.local[e] for e in step.outputs]
        if step.workspace:
            made.append(self._new(f"{n}w", (step.workspace,), np.dtype(np.uint8), step.workspace))
        return [*lines, f"{self._named(f'n{n}', step.call)}({', '.join([*operands, *made])})"]

    def _new(self, label: str, shape: Shape, dtype: Any, nbytes: int) -> str:
        """The text of a new array."""
        what = f"{self._named(f's{label}', shape)}, {self._named(f'd{label}', dtype)}"
        if self.results is not None and nbytes >= LARGE:
            return f"{self._named('large', self.results.new)}({what}, {nbytes})"
        skip = None if self.results is None else self.results.skip_for(nbytes)
        if skip is None:
            return f"empty({what})"
        # What `results.any` does, which to call would take longer than all of this.
        return f"ndarray({what}, (raw := empty({nbytes + ALIGNMENT}, byte)), {self._named('skip', skip)}(raw))"

    # NumPy calls

    def _statement(self, n: int, entry: int, last: dict[int, int]) -> str:
        call, args = self.graph.calls[entry], self.graph.args[entry]
        function = self.body(self.region, entry)
        is_ufunc = isinstance(function, np.ufunc)
        operands = [self._operand(a, plain=is_ufunc) for a in args]
        if is_ufunc:
            free = next((a for a in args if self._is_free(a, call, n, last)), None)
            if free is not None:
                operands.append(f"out={self.local[free]}")
            if call.spec.ndim:
                self.owned.add(entry)
        else:
            self.owned.difference_update(args)  # the result may be a view of them
        self.local[entry] = f"t{n}"
        return f"t{n} = {self._named(f'f{n}', function)}({', '.join(operands)})"

    def _is_free(self, entry: int, call: Call, n: int, last: dict[int, int]) -> bool:
        return entry in self.owned and last[entry] == n and self.graph.calls[entry].spec is call.spec

    def _operand(self, entry: int, *, plain: bool) -> str:
        if is_constant(self.graph, entry) and entry not in self.local:
            value = np.require(bind(self.graph.calls[entry])(), requirements="CA")
            self.local[entry] = self._named(f"c{len(self.names)}", value)
        name = self.local[entry]
        # NumPy returns its scalars from 0-d ufunc calls; bodies other than ufuncs are promised arrays.
        outputs = self.graph.calls[entry].outputs
        is_array = len(outputs) > 1 or outputs[0].ndim > 0 or not name.startswith("t") or entry in self.owned
        return name if plain or is_array else f"asarray({name})"

    def _result(self, entry: int) -> str:
        call = self.graph.calls[entry]
        name = self.local[entry]
        if len(call.outputs) > 1 or entry in self.owned:
            return name
        return f"settled(asarray({name}))" if not call.spec.ndim else f"settled({name})"
