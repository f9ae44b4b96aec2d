"""Kernels that begin with NumPy and become native when that pays.

Compiling takes milliseconds, and most programs that are run once need less in all. A kernel begins as NumPy calls and
counts its runs; when it has spent about as much time as compiling it would take, it is compiled. One that is known to
run many times is native from its first run on if all its code is on disk, and is compiled at its second run otherwise:
a first result waits for no compiler. One whose NumPy calls would take longer than compiling does is compiled at its
first run. The function stays the same object: only its code is exchanged, so that every holder of it calls the new code
at no cost. While one thread compiles, NumPy serves others, whose results may differ in the last bits; in deterministic
runs they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from types import FunctionType
from typing import Any, Final

from ..._graph.expand import expand, in_parts
from ..._graph.graph import Graph
from ..._graph.reference import interpreter
from ..._graph.simplify import simplify
from ..._place.cost_model import operations_of_control
from ..._run.background import only_ready
from ..._run.device import Kernel, waits_for_drivers
from ..._run.forks import in_forked_child
from ..._run.progress import announced
from ..._run.trace import trace
from ..._schedule.fuse import Region, RegionKind, detached, is_constant, multiplies
from ..._schedule.groups import Group, RowLimits, reduces, runs
from ..._schedule.kernels import Fusion, kernels_of
from ..._schedule.order import freeing_early
from ..._schedule.recompute import Recomputed, recomputed
from ..._tensor.node import Call
from ..._tensor.op import leaf
from ..._tensor.options import current
from ..._tensor.role import Control, Transform
from ...codegen.llvm.einsum_products import expanded
from ...codegen.llvm.fused_product import Cluster, is_product, joins, work
from ...errors import NotReady, Unsupported
from .indexing import is_indexing
from .kernel import Body, Step, function_of, mixed_function, numpy_function, reference_body
from .native_groups import Natives, worthwhile
from .pools import is_pool
from .projections import Projections
from .random_bits import is_random
from .reduced import Reduced
from .results import LARGE, Results
from .variants import Variants


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """When kernels of NumPy calls become native. Times are in seconds."""

    compiling: float = 0.015
    """The time to compile a kernel, about."""
    choosing: int = 10
    """The time to choose the variant of a product, in times to compile."""
    slow: float = 0.5
    """Time that native code has to save in a run for the first one to wait for the compiler."""
    slow_loop: float = 0.02
    """That time for loops, which are compiled earlier: step by step they would take hundreds of times as long."""
    small_product: int = 4096
    """Products of elements up to which a call of NumPy's is as good as any."""


_POLICY: Final = TierPolicy()


class Stages:
    """Compiles kernels for this machine."""

    def __init__(self, results: Results) -> None:
        self.natives = Natives(results=results)
        self.reduced = Reduced(self.natives, results)
        self._variants = Variants(self.natives, results, self.reduced)

    def compiled(self, region: Region, kernel: FunctionType | None = None) -> Kernel:
        """The region as a function of its inputs' arrays. A function that computes it already becomes that one."""
        made = compile_region(region, self._variants, self.reduced.body, kernel)
        projections = self._projections if region.kind is RegionKind.PROJECTION else None
        return made if projections is None else projections.kernel(region, made)

    def kernels(self, region: Region) -> Sequence[Region]:
        """The kernels of a region; none without native code, where each op is a call of NumPy."""
        if self.natives.reason is not None:
            return []
        lowered = _lowered(region)
        return kernels_of(lowered.region, _FUSION, lowered.late)

    @cached_property
    def _projections(self) -> Projections | None:
        return None if self.natives.runtime is None else Projections(self.natives.runtime)


def compile_region(
    region: Region, variants: Variants, body: Body = reference_body, kernel: FunctionType | None = None
) -> Kernel:
    """The region as a function of its inputs' arrays; `body` gives what computes a single entry. A `kernel` that
    computes it already becomes that function."""
    region = _decomposed(region)
    calls = expanded(region).calls
    saved = _saved(calls)
    if variants.natives.reason is not None or not saved:
        return _become(kernel, numpy_function(region, body=body))
    cost = _POLICY.compiling * (1 + _POLICY.choosing * sum(map(is_product, calls)))
    runs = 1 if region.repeats else int(cost / saved) + 1
    return _Staged(
        region, variants, body, runs, kernel, is_slow=saved > _POLICY.slow or _looping(calls) > _POLICY.slow_loop
    ).kernel


def _decomposed(region: Region) -> Region:
    """The region without composites, which were left whole for another device."""
    return in_parts(region) if any(call.op.decomposition is not None for call in region.calls) else region


def _lowered(region: Region) -> Recomputed:
    """The region in ops that kernels are generated for, large values computed again where they are read late."""
    return recomputed(expanded(detached(_decomposed(region))), LARGE)


def _become(kernel: FunctionType | None, other: FunctionType) -> FunctionType:
    """Another function, or one that has become it."""
    if kernel is None:
        return other
    kernel.__globals__.update(other.__globals__)
    kernel.__code__ = other.__code__
    return kernel


def _saved(calls: Sequence[Call]) -> float:
    """The seconds of NumPy's that native code saves in a run, roughly."""
    return (
        sum(
            5e-7 + 1e-9 * max([c.spec.size, *[s.size for s in c.inputs]])
            for c in calls
            if c.op.scalar is not None
            or isinstance(c.op.role, Transform)
            or any(has(c) for has in (reduces, runs, is_pool, is_indexing, is_random))
            or (multiplies(c) and not is_product(c))
        )
        + sum(2e-12 * work(c) for c in calls if is_product(c))
        + _looping(calls)
    )


def _looping(calls: Sequence[Call]) -> float:
    """The seconds that loops take step by step, roughly."""
    return sum(1e-8 * operations_of_control(c) for c in calls if isinstance(c.op.role, Control))


class _Staged:
    """One kernel, and the state that it needs to become native."""

    def __init__(
        self, region: Region, variants: Variants, body: Body, runs: int, kernel: FunctionType | None, *, is_slow: bool
    ) -> None:
        self._region = region
        self._variants = variants
        self._body = body
        self._left = runs
        self._is_native = False
        self._has_run = is_slow
        self._lock = Lock()
        if runs > 1:
            made = numpy_function(region, body=body, tick=self._tick)
        else:
            names = ", ".join(f"i{n}" for n in range(len(region.inputs)))
            made = function_of(f"def kernel({names}):\n return first({names})\n", {"first": self._first})
        self.kernel = _become(kernel, made)

    def _tick(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._become_native()

    def _first(self, *arrays: Any) -> tuple[Any, ...]:
        has_run, self._has_run = self._has_run, True
        with nullcontext() if has_run or waits_for_drivers() else only_ready():
            is_native = self._become_native()
        if is_native:
            made: tuple[Any, ...] = self.kernel(*arrays)
            return made
        once: tuple[Any, ...] = numpy_function(self._region, body=self._body)(*arrays)
        return once

    def _become_native(self) -> bool:
        """Exchange the function's code; whether that was done, now or before. If not, another thread is at it."""
        lock = self._lock
        if not lock.acquire(blocking=current().deterministic):
            return self._is_native
        _compiling.add(self)
        try:
            if not self._is_native:
                try:
                    with announced("compiling kernels for this processor, and choosing the fastest, once"):
                        made = native_function(self._region, self._variants, self._body)
                except NotReady:
                    return False
                except Exception as failure:  # whatever it is, NumPy can do the same work
                    trace.failed(str(self._region), "cpu", failure)
                    made = numpy_function(self._region, body=self._body, label="x")
                _become(self.kernel, made)
                self._is_native = True
            return True
        finally:
            _compiling.discard(self)
            lock.release()

    def forget_thread(self) -> None:
        """In a forked child: the thread that compiled is not there."""
        self._lock = Lock()


_compiling: Final[set[_Staged]] = set()
"""The kernels that are being made native."""


def _after_fork() -> None:
    for staged in _compiling:
        staged.forget_thread()
    _compiling.clear()


in_forked_child(_after_fork)


def native_function(region: Region, variants: Variants, body: Body = reference_body) -> FunctionType:
    """The region with native calls where they are worth it, and NumPy calls for the rest."""
    natives = variants.natives
    if natives.runtime is None:
        return numpy_function(region, body=body, label="x")
    wide, late = _lowered(region)
    steps: list[Step] = []
    for kernel in freeing_early(kernels_of(wide, _FUSION, late), wide.inputs, wide.outputs):
        if kernel.kind is RegionKind.SEQUENCE or _grows(kernel):
            steps += variants.steps(Cluster.of(kernel), wide.precision)
            continue
        group = Group.of(kernel) if kernel.kind in (RegionKind.LOOP, RegionKind.REDUCTION) else None
        made = natives.native(group) if group is not None and worthwhile(group) else None
        steps += kernel.nodes if made is None else [made]

    def own(region: Region, entry: int) -> Callable[..., Any]:
        call = region.graph.calls[entry]
        if isinstance(call.op.role, Control):
            return _controlled(call, variants, body)
        return natives.body(region.graph, entry) or body(region, entry)

    if all(isinstance(step, int) for step in steps):
        return numpy_function(region, body=own, label="x")
    return mixed_function(wide, _needed(wide, steps), variants.results, body=own, label="x")


def _grows(part: Region) -> bool:
    """True for a product that is worth a kernel."""
    call = part.calls[0]
    return part.kind is RegionKind.CONTRACTION and is_product(call) and work(call) >= _POLICY.small_product


_FUSION: Final = Fusion(joins, _grows, RowLimits(), only_first_reader=True)


def _controlled(call: Call, variants: Variants, body: Body) -> Callable[..., Any]:
    """Control flow as native code, or step by step with compiled bodies where one has an op without a kernel."""
    role = call.op.role
    assert isinstance(role, Control)
    try:
        return variants.loops.body(call)
    except NotReady:
        raise
    except Unsupported:
        pass
    except Exception as failure:  # whatever it is, the body can be called step by step
        trace.failed(str(call), "cpu", failure)
    known: dict[Graph, Callable[..., list[Any]]] = {}

    def compiled(graph: Graph) -> Callable[..., list[Any]]:
        if graph not in known:
            known[graph] = _step(graph, variants, body)
        return known[graph]

    return partial(role.drive, compiled, **call.attrs)


def _step(graph: Graph, variants: Variants, body: Body) -> Callable[..., list[Any]]:
    """A graph as a function of its inputs' arrays."""
    whole = simplify(expand(graph, ()))
    made = tuple(dict.fromkeys(o for o in whole.outputs if o not in whole.inputs))
    nodes = tuple(n for n, c in enumerate(whole.calls) if c.op is not leaf and (n in made or not is_constant(whole, n)))
    if not nodes:
        return interpreter(whole)
    kernel = native_function(Region(whole, RegionKind.SEQUENCE, nodes, whole.inputs, made), variants, body)

    def run(*arrays: Any) -> list[Any]:
        values = dict(zip(made, kernel(*arrays), strict=True)) | dict(zip(whole.inputs, arrays, strict=True))
        return [values[o] for o in whole.outputs]

    return run


def _needed(region: Region, steps: Sequence[Step]) -> list[Step]:
    """The steps without those whose results nobody reads: views of operands that are read where they lie."""
    needed, kept = set(region.outputs), []
    for step in reversed(steps):
        made = (step,) if isinstance(step, int) else step.outputs
        if needed.intersection(made):
            needed.update(region.graph.args[step] if isinstance(step, int) else step.entries)
            kept.append(step)
    return kept[::-1]
