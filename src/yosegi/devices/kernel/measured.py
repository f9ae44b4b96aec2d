"""A kernel with several variants, which are measured on its own data when it repeats.

Until then it runs the variant that is expected to be the fastest. All variants are checked against the reference. The
winner is the tuning record for regions of that size class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from threading import Lock
from typing import Any, Final

from ..._graph.reference import outputs_of
from ..._run.background import Job, side_by_side
from ..._run.device import Kernel
from ..._run.trace import trace
from ..._schedule.fuse import Region, multiplies
from ..._tensor.dtype import float32
from ..._tensor.precision import Precision
from ..._tune.autotune import TrialSetup
from ..._tune.records import TuningRecords, size_class
from ...codegen.c.fused_kernels import NAIVE
from ...errors import CompileFailure, NoSuchVariant
from .half_operands import HALVES
from .launching import KernelMachine
from .work import PlannedRegion, steps_of


@dataclass(frozen=True, slots=True)
class MeasuringPolicy:
    """When variants are measured, and the tolerance of their results. Work is `PlannedRegion.size`."""

    patience_runs: int = 16
    """Runs after which a region is measured that is not known to repeat."""
    measured_work: int = 1 << 18
    """Work from which a faster variant repays the compile time of all."""
    calls_factor: int = 3
    """The calls in a turn, as a multiple of the host's: devices change their speed with their load."""
    tie_share: float = 0.01
    """The share that a variant has to be faster by."""
    sitting_seconds: float = 0.05
    """The length of a benchmark. The clock of a GPU counts no work of other programs."""
    roundings: int = 64
    """Spacings of the largest number of a result that an element may be off."""
    roundings_of_rounded: int = 8 << 13
    """Spacings where float32 operands are rounded to 10 bits, which is a spacing 2**13 times as wide."""
    host_work: int = 1 << 31
    """Work up to which the host's result is the reference; beyond, that of the simplest kernel is."""


_POLICY: Final = MeasuringPolicy()


def _words(region: Region) -> str:
    """The computation of a region without its sizes: ops with their attributes and inputs. A variant that was correct
    for another key may be wrong for this one."""
    at = {entry: n for n, entry in enumerate((*region.inputs, *region.nodes))}
    reads = [[at.get(a, "constant") for a in region.graph.args[n]] for n in region.nodes]
    return " ".join(f"{call!r}{read}" for call, read in zip(region.calls, reads, strict=True))


def is_rounded(region: Region) -> bool:
    """True for products of operands that the hardware rounds, or that are stored in 16 bits. Generated kernels have no
    such products."""
    is_asked = region.precision is Precision.TF32 or region.precision in HALVES
    return is_asked and any(multiplies(call) and call.spec.dtype is float32 for call in region.calls)


class _Shown:
    """A kernel whose results are copied to the host when they are compared."""

    def __init__(self, machine: KernelMachine, kernel: Kernel) -> None:
        self.kernel = kernel
        self._machine = machine

    def __call__(self, *data: Any) -> Sequence[Any]:
        """Run it."""
        return [_Lazy(self._machine, made) for made in self.kernel(*data)]


class _Lazy:
    """Data that is copied to the host when it is compared."""

    def __init__(self, machine: KernelMachine, data: Any) -> None:
        self._machine = machine
        self._data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self._machine.memory.to_host(self._data)
        return array if dtype is None else array.astype(dtype)


class MeasuredKernel:
    """A kernel that changes to a better variant when one has been found."""

    def __init__(
        self, machine: KernelMachine, records: TuningRecords, region: Region, work: PlannedRegion,
        variants: Mapping[str, Callable[[], Kernel]], expected: str,
    ) -> None:  # fmt: skip
        self._machine, self._records, self._region, self._work = machine, records, region, work
        self._variants, self._expected = variants, expected
        specs = [work.graph.calls[e].spec for e in work.graph.inputs]
        shapes = [f"{s.dtype.name} {size_class(*s.shape)}" for s in specs]
        self.kind = f"{_words(region)} {region.precision.value} {'; '.join(shapes)} of {', '.join(variants)}"
        known = records.known(self.kind)
        worth = work.size >= _POLICY.measured_work
        self._wait = 0 if known is not None or not worth else 1 if region.repeats else _POLICY.patience_runs
        self._lock = Lock()
        winner = None if known is None else known.winner
        variant, self._kernel = self._first(winner if winner is not None and winner in variants else expected)
        if known is not None:
            records.take(self.kind, variant)

    @property
    def compares_first(self) -> bool:
        """True if the first call compares variants."""
        return self._wait == 1 and len(self._variants) > 1

    @cached_property
    def jobs(self) -> dict[str, Job[_Shown]]:
        """The variants to be compared, the expected one first."""
        order = sorted(self._variants, key=lambda name: name != self._expected)
        return {name: Job(partial(self._shown, name), inf) for name in order}

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        """Run it."""
        if self._wait:
            self._machine.undecided()
            with self._lock:
                try:
                    if self.compares_first:
                        self._measure(data)
                finally:
                    self._wait = max(0, self._wait - 1)  # until then others wait
        return self._kernel(*data)

    def _first(self, name: str) -> tuple[str, Kernel]:
        """A variant and its kernel, or the next that compiles. The winner for other work of the kind may be missing."""
        failed: CompileFailure | None = None
        for variant in dict.fromkeys((name, self._expected, *self._variants)):
            try:
                return variant, self._variants[variant]()
            except CompileFailure as failure:
                failed = failed or failure
                if not isinstance(failure, NoSuchVariant):
                    trace.failed(str(self._region), self._machine.name, CompileFailure(f"{variant}: {failure}"))
        assert failed is not None
        raise failed

    def _measure(self, data: Sequence[Any]) -> None:
        machine, jobs = self._machine, self.jobs
        del self.jobs  # and with it the kernels that lose
        if self._records.known(self.kind) is None:
            side_by_side([job.run for job in jobs.values()], machine.compilers)

        def turn(shown: _Shown, given: Sequence[Any], calls: int) -> float:
            return machine.seconds(shown.kernel, given, _POLICY.calls_factor * calls)

        roundings = _POLICY.roundings_of_rounded if is_rounded(self._region) else _POLICY.roundings
        trial = TrialSetup(
            lambda: data, self._reference(), roundings, turn=turn, tie=_POLICY.tie_share,
            seconds=_POLICY.sitting_seconds,
        )  # fmt: skip
        chosen = self._records.best(self.kind, {name: job.result for name, job in jobs.items()}, trial)
        for name, refusal in chosen.verdict.refused.items():
            trace.failed(str(self._region), machine.name, CompileFailure(f"{name}: {refusal.reason}"))
        if chosen.verdict.winner is not None:
            self._kernel = jobs[chosen.verdict.winner].result().kernel

    def _shown(self, name: str) -> _Shown:
        return _Shown(self._machine, self._variants[name]())

    def _reference(self) -> Callable[..., Sequence[Any]]:
        """The host's results; of large products those of the simplest kernel."""
        region, machine = self._region, self._machine
        if self._work.size > _POLICY.host_work:
            simplest = steps_of(self._work.graph, self._work.kernels, machine, NAIVE)
            return lambda *data: [machine.memory.to_host(d) for d in simplest(*data)]
        return lambda *data: outputs_of(region, [machine.memory.to_host(d) for d in data])
