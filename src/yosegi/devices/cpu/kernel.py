"""Regions as straight-line Python: one NumPy call per op, written out and compiled once.

    def kernel(i0, i1):
        t0 = f0(i0, i1)
        t1 = f1(t0, c0, out=t0)  # a ufunc writes into an operand nobody needs any more
        return (t1,)

The text names nothing of the program but its wiring, so that regions of one structure share their code object.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from ...device import Kernel
from ...errors import OutOfMemory
from ...fuse import Region, is_constant
from ...interchange import settled
from ...node import Call
from ...reference import ERROR_STATE, bind


def compile_region(region: Region) -> Kernel:
    """The region as a function of its inputs' arrays."""
    source, names = _Writer(region).write()
    variable, ignore = ERROR_STATE
    namespace: dict[str, Any] = {**names, "asarray": np.asarray, "settled": settled, "out_of_memory": _out_of_memory,
                                 "error_state": variable, "ignore": ignore}  # fmt: skip
    exec(_code(source), namespace)
    kernel: Kernel = namespace["kernel"]
    return kernel


@lru_cache(maxsize=1024)
def _code(source: str) -> CodeType:
    return compile(source, "<yosegi kernel>", "exec")


def _out_of_memory(error: MemoryError) -> OutOfMemory:
    return OutOfMemory(str(error) or "the system has no memory left")


class _Writer:
    """Writes one region."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.graph = region.graph
        self.names: dict[str, Any] = {}
        self.local = {entry: f"i{n}" for n, entry in enumerate(region.inputs)}
        self.owned: set[int] = set()  # entries whose memory a ufunc has just made: nothing else refers to it

    def write(self) -> tuple[str, dict[str, Any]]:
        """The source, and what its free names stand for."""
        last = self._last_uses()
        parameters = ", ".join(self.local.values())
        body = []
        for n, entry in enumerate(self.region.nodes):
            body.append(self._statement(n, entry, last))
            dead = [self.local[a] for a in dict.fromkeys(self.graph.args[entry])
                    if last.get(a) == n and self.local[a].startswith("t")]  # fmt: skip
            if dead:
                body.append(f"del {', '.join(dead)}")
        results = ", ".join(self._result(entry) for entry in self.region.outputs)
        body.append(f"return ({results},)" if results else "return ()")
        text = "\n".join(f"  {line}" for line in body)
        return (
            f"def kernel({parameters}):\n token = error_state.set(ignore)\n try:\n{text}\n"
            " except MemoryError as error:\n  raise out_of_memory(error) from error\n"
            " finally:\n  error_state.reset(token)\n"
        ), self.names

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for n, entry in enumerate(self.region.nodes):
            for a in self.graph.args[entry]:
                last[a] = n
        for entry in self.region.outputs:
            last[entry] = len(self.region.nodes)
        return last

    def _statement(self, n: int, entry: int, last: dict[int, int]) -> str:
        call, args = self.graph.calls[entry], self.graph.args[entry]
        function = self.names[f"f{n}"] = bind(call)
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
        return f"t{n} = f{n}({', '.join(operands)})"

    def _is_free(self, entry: int, call: Call, n: int, last: dict[int, int]) -> bool:
        return entry in self.owned and last[entry] == n and self.graph.calls[entry].spec is call.spec

    def _operand(self, entry: int, *, plain: bool) -> str:
        if is_constant(self.graph, entry) and entry not in self.local:
            name = f"c{len(self.names)}"
            self.names[name] = bind(self.graph.calls[entry])()
            self.local[entry] = name
        name = self.local[entry]
        # NumPy returns its scalars from 0-d ufunc calls; bodies other than ufuncs are promised arrays.
        outputs = self.graph.calls[entry].outputs
        is_array = len(outputs) > 1 or outputs[0].ndim > 0 or not name.startswith("t")
        return name if plain or is_array else f"asarray({name})"

    def _result(self, entry: int) -> str:
        call = self.graph.calls[entry]
        name = self.local[entry]
        if len(call.outputs) > 1 or entry in self.owned:
            return name
        return f"settled(asarray({name}))" if not call.spec.ndim else f"settled({name})"
