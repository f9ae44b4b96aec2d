"""Groups of ops as native calls: when they are worth it, how their work is cut, and what happens if LLVM fails.

LLVM is looked at when the first kernel is wanted. If it is not there, or does not work on this machine, NumPy serves
all, and `reason` says why.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from threading import Lock
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._run.forks import in_forked_child
from ..._run.trace import log, trace
from ..._schedule.groups import Group, reduces
from ..._tune.store import Programs
from ...codegen.llvm.nest import Strides, VectorTarget
from ...codegen.llvm.rows import GroupKernel, kernel
from ...codegen.llvm.signature import signature
from ...errors import NotReady
from .callables import ALIGNED, IN_ORDER, Call, Runtime
from .compiler import Code, Compiler, HostMachine
from .convolutions import Convolutions
from .indexing import Indexed
from .kernel import Native
from .pools import Pools
from .probe import verdict
from .random_bits import RandomBits
from .results import LARGE, Results
from .transforms import Transforms


@dataclass(frozen=True, slots=True)
class NativePolicy:
    """The sizes from which native code, threads and special kernels pay. Work is elements times ops."""

    numpy_elements: int = 8192
    """Elements up to which one NumPy call does an op as fast as a kernel would."""
    threaded_work: int = 1 << 15
    """Work from which a second thread pays."""
    chunk_work: int = 1 << 14
    """Work that is worth a chunk of its own."""
    chunks_per_thread: int = 8
    """Chunks for each thread, so that one that comes late takes fewer."""
    releasing_work: int = 1 << 15
    """Work from which other Python threads may run meanwhile: letting them costs a tenth of a microsecond."""
    strided_elements: int = 1 << 14
    """Elements from which a kernel is made for arrays that are not in order: fewer are copied faster than it
    compiles."""
    strided_kernels: int = 8
    """Kernels of one group for arrays that are not in order."""
    streamed_bytes: int = 1 << 25
    """Bytes read and written from which results do not go through the caches: nothing would be left of them there."""


_POLICY: Final = NativePolicy()


class Natives:
    """Compiles groups into native calls for one machine."""

    def __init__(
        self, machine: HostMachine | None = None, runtime: Runtime | None = None, results: Results | None = None
    ) -> None:
        """For a machine other than this one, or with a runtime that is there already: that is for tests.

        Large results of single ops come from `results`.
        """
        self._machine = machine
        self.results = Results() if results is None else results
        self._runtime = runtime
        self.reason: str | None = None
        """Why there is no native code."""
        self._lock = Lock()
        if importlib.util.find_spec("llvmlite") is None:
            self.reason = "llvmlite is not installed"
        in_forked_child(self._after_fork)

    @property
    def runtime(self) -> Runtime | None:
        """The compiler and the threads, if there are any. Finding out takes some milliseconds, once."""
        if self._runtime is None and self.reason is None:
            with self._lock:
                if self._runtime is None and self.reason is None:
                    self._find()
        return self._runtime

    def _find(self) -> None:
        try:
            machine = self._machine or HostMachine.host()
            self.reason = verdict(machine)
            if self.reason is None:
                runtime = Runtime(Compiler(machine))
                runtime.prepare()
                self.results.skip = runtime.skip
                self._runtime = runtime
        except NotReady:  # nothing may be compiled now: the next call finds out
            raise
        except Exception as error:  # a broken installation raises whatever it likes
            self.reason = f"LLVM does not work: {type(error).__name__}: {error}"
        if self.reason is not None:
            log.warning("no native kernels: %s", self.reason)

    def _after_fork(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not there."""
        self._lock = Lock()

    def __str__(self) -> str:
        runtime = self.runtime
        if runtime is None:
            return f"NumPy kernels only ({self.reason})"
        threads = f"{runtime.threads} thread{'s' if runtime.threads > 1 else ''}"
        return f"native kernels for {runtime.compiler.machine}, {threads}"

    @cached_property
    def _target(self) -> VectorTarget:
        return self._compiler.machine.target

    @cached_property
    def _headers(self) -> Programs:
        """How kernels are called, and what their objects are named, by their signatures."""
        return Programs("kernels", self._compiler.machine.identity)

    @cached_property
    def _convolutions(self) -> Convolutions:
        assert self.runtime is not None
        return Convolutions(self.runtime, self.results)

    @cached_property
    def _pools(self) -> Pools:
        assert self.runtime is not None
        return Pools(self.runtime, self.results)

    @cached_property
    def _indexed(self) -> Indexed:
        assert self.runtime is not None
        return Indexed(self.runtime, self.results)

    @cached_property
    def _random(self) -> RandomBits:
        assert self.runtime is not None
        return RandomBits(self.runtime, self.results)

    @cached_property
    def _transforms(self) -> Transforms:
        assert self.runtime is not None
        return Transforms(self.runtime, self.results)

    def body(self, graph: Graph, entry: int) -> Callable[..., Any] | None:
        """The function that replaces the reference body of an op, or `None`."""
        if self.runtime is None:
            return None
        return (
            self._convolutions.body(graph, entry)
            or self._pools.body(graph, entry)
            or self._indexed.body(graph, entry)
            or self._random.body(graph, entry)
            or self._transforms.body(graph, entry)
        )

    @property
    def _compiler(self) -> Compiler:
        assert self.runtime is not None
        return self.runtime.compiler

    def native(self, group: Group) -> Native | None:
        """A group as a native call; `None` if LLVM fails on it, which the trace records."""
        if self.runtime is None:
            return None
        try:
            made, code = self._kernel(group, {}, streams=_streams(group))
            straight = _StridedFallback(self, group, made)
            straight.call = call = self._call(group, made, code, IN_ORDER, straight)
        except NotReady:
            raise
        except Exception as failure:  # whatever it is, NumPy can do the same work
            trace.failed(str(group), "cpu", failure)
            return None
        return Native(call, tuple(group.inputs[n] for n in made.reads), group.outputs, made.workspace)

    def strided(self, group: Group, strides: Strides, like: GroupKernel, fallback: Callable[..., Any]) -> Call | None:
        """A group's call for arrays of such strides; `None` if it takes other arrays than a kernel that it is to be
        called instead of, or LLVM fails on it."""
        try:
            made, code = self._kernel(group, strides, streams=_streams(group))
            if (made.reads, made.workspace) != (like.reads, like.workspace):
                return None
            return self._call(group, made, code, ALIGNED, fallback)
        except Exception as failure:
            trace.failed(str(group), "cpu", failure)
            return None

    def _kernel(self, group: Group, strides: Strides, *, streams: bool) -> tuple[GroupKernel, Code]:
        """A group's kernel and its code: as an earlier process has left them, or new."""
        words = signature(group, strides, streams)
        name = None if words is None else self._headers.name(words)
        stored = None if name is None else self._headers.get(name)
        if stored is not None:
            known = json.loads(stored)
            made = GroupKernel(tuple(known["sizes"]), tuple(known["reads"]), **known["more"])
            code = self._compiler.known(known["object"], _functions(made))
            if code is not None:
                return made, code
        source, made = kernel(group, self._target, strides, streams=streams)
        code = self._compiler.load(source, _functions(made))
        if name is not None:
            more = {k: getattr(made, k) for k in ("units", "unit", "workspace", "finishes")}
            header = {"sizes": made.sizes, "reads": made.reads, "more": more, "object": self._compiler.name(source)}
            self._headers.put(name, json.dumps(header).encode())
        return made, code

    def _call(self, group: Group, made: GroupKernel, code: Code, needs: int, fallback: Callable[..., Any]) -> Call:
        """A kernel as a callable, its work cut into chunks."""
        assert self.runtime is not None
        arrays = len(made.reads) + len(group.outputs) + bool(made.workspace)
        lets_go = made.unit * len(group.nodes) * made.units >= _POLICY.releasing_work
        return self.runtime.call(
            code, arrays, made.sizes, count=made.units, chunk=self._chunk(group, made), finishes=made.finishes,
            lets_go=lets_go, needs=needs, fallback=fallback,
        )  # fmt: skip

    def _chunk(self, group: Group, made: GroupKernel) -> int:
        """The units of work that a thread takes at a time."""
        runtime = self.runtime
        assert runtime is not None
        work = made.unit * len(group.nodes)
        if runtime.threads == 1 or work * made.units < _POLICY.threaded_work:
            return made.units
        chunk = max(-(-made.units // (runtime.threads * _POLICY.chunks_per_thread)), -(-_POLICY.chunk_work // work))
        return min(chunk, -(-made.units // runtime.threads))

    def launch(self, group: Group) -> tuple[bytes, GroupKernel, Code]:
        """A group as a part of a loop over kernels: its `Launch`, and how it is called. Raises if LLVM fails on it.

        Its results may lie anywhere, and so cannot go past the caches.
        """
        assert self.runtime is not None
        made, code = self._kernel(group, {}, streams=False)
        arrays = len(made.reads) + len(group.outputs) + bool(made.workspace)
        packed = self.runtime.packed(
            code, arrays, made.sizes, count=made.units, chunk=self._chunk(group, made), finishes=made.finishes
        )
        return packed, made, code


def _functions(made: GroupKernel) -> tuple[str, ...]:
    return ("kernel", "finish") if made.finishes else ("kernel",)


class _StridedFallback:
    """Arrays that do not all have their elements one behind the other.

    Those of many elements get a kernel for their strides, and the others, or those that come with ever new strides, are
    copied in order.
    """

    def __init__(self, natives: Natives, group: Group, made: GroupKernel) -> None:
        self._natives = natives
        self._group = group
        self._kernel = made
        self._is_large = prod(group.space) >= _POLICY.strided_elements
        self._known: dict[tuple[Any, ...], Call | None] = {}
        self.call: Call | None = None

    def __call__(self, *arrays: Any) -> None:
        inputs = len(self._kernel.reads)
        given = [np.asarray(a) for a in arrays[:inputs]]
        call = self._for_strides(given) if self._is_large else None
        if call is None:
            assert self.call is not None
            call = self.call
            given = [np.require(a, requirements="CA") for a in given]
        call(*given, *arrays[inputs:])

    def _for_strides(self, arrays: list[Any]) -> Call | None:
        strides: dict[int, tuple[int, ...]] = {}
        for place, array in zip(self._kernel.reads, arrays, strict=True):
            entry = self._group.inputs[place]
            if array.flags.num & IN_ORDER == IN_ORDER:
                continue
            if not array.flags.aligned or any(s % array.itemsize for s in array.strides):
                return None
            strides[entry] = tuple([s // array.itemsize for s in array.strides])
        key = tuple(strides.items())
        if key not in self._known:
            if len(self._known) >= _POLICY.strided_kernels:
                return None
            self._known[key] = self._natives.strided(self._group, strides, self._kernel, self)
        return self._known[key]


def worthwhile(group: Group) -> bool:
    """Whether a kernel is better than the few NumPy calls it replaces."""
    folds = any(reduces(group.graph.calls[n]) for n in group.nodes)  # NumPy needs microseconds to begin a reduction
    return folds or len(group.nodes) > 1 or prod(group.space) > _POLICY.numpy_elements


def _streams(group: Group) -> bool:
    """Whether results go past the caches: all of them large, and what is read and written more than the caches hold."""
    calls = group.graph.calls
    written = [calls[e].spec.nbytes for e in group.outputs]
    return (
        min(written) >= LARGE
        and sum(written) + sum(calls[e].spec.nbytes for e in group.inputs) >= _POLICY.streamed_bytes
    )
