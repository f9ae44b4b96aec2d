"""A run: every case on every contender, checked, then timed in sittings."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from time import perf_counter
from typing import Any, Final

import numpy as np

from ..._run.api import eval, explain
from ..._run.device import Device
from ..._run.memory import HOST
from ..._tensor.options import options
from ...errors import YosegiError
from ...ops.creation import asarray
from . import machine
from .cases import Case, cases, layer_norm
from .document import Document, Result
from .peers import NUMPY_FUNCTIONS, numpy_runner, peers
from .runners import CACHED, DOWNLOAD, FUNCTIONS, JIT, SEPARATE, UPLOAD, NotHere, Runner, elsewhere, of_device
from .timing import Contender, Timing, race

SITTINGS: Final = 6
SPREAD: Final = 0.04
"""Half the interval of a ratio to NumPy's time, over the ratio: what is wider sits again while there is time."""
BUDGET: Final = 150.0
ROUNDS: Final = 5
SECONDS: Final = 0.4
_SETTLE: Final = 0.5
"""Seconds in which the threads of every product library have stopped looking for work."""
_MODES: Final = {
    "patterns": (JIT, SEPARATE), "overhead": (JIT, CACHED), "upload": (UPLOAD,), "download": (DOWNLOAD,)
}  # fmt: skip
_WITHOUT_PEERS: Final = ("transfer", "memory")


@dataclass(frozen=True, slots=True)
class Settings:
    """The selection of cases and contenders."""

    devices: tuple[Device, ...]
    against: tuple[str, ...] = ()
    pattern: str = "*"
    large: bool = False
    sittings: int = SITTINGS
    rounds: int = ROUNDS
    seconds: float = SECONDS
    """How long a sitting of one case goes on, at most."""
    budget: float = BUDGET
    """Seconds after which no case sits again because its ratios are still uncertain."""


class _SuiteEntry:
    """A contender in a case: what it takes to time it, or why it is not timed."""

    def __init__(self, case: Case, runner: Runner, device: Device | None) -> None:
        self.case, self.runner, self.device = case, runner, device
        self.call: Callable[..., Any] | None = None
        self.timing: Timing | None = None
        self.result = Result(
            case.id, case.suite, case.name, case.size, case.dtype.name, runner.label, runner.name if device else None,
            runner.mode, "failed", tolerance=case.tolerance, flops=case.flops, nbytes=case.nbytes,
        )  # fmt: skip

    def check(self, inputs: Sequence[Any], expected: Any) -> None:
        """Run once and compare with the reference: only what is right is timed."""
        try:
            own = self._adopted(inputs)
            if self.device is not None and self.runner.mode in (JIT, SEPARATE, CACHED):
                reason = elsewhere(self.device, self.case, own)
                if reason is not None:
                    self._ended("elsewhere", reason)
                    return
            call = self.runner.compile(self.case)
            with self.runner.turn():
                got = np.asarray(self.runner.fetch(call(*own)), np.float64)
        except NotHere as reason:
            self._ended("skipped", str(reason))
        except YosegiError as failure:
            self._ended("failed", f"{type(failure).__name__}: {failure}")
        except Exception as failure:
            if self.device is not None:
                raise  # Yosegi's own mistake
            self._ended("failed", f"{type(failure).__name__}: {failure}")
        else:
            error = _error(got, expected)
            self.result = replace(self.result, error=error)
            if error <= self.case.tolerance:
                self.call = call
                if self.case.suite == "memory":
                    self.result = replace(self.result, peak_bytes=self._peak(own))
            else:
                self._ended(
                    "wrong", f"its largest error is {error:.1e} of the largest value, not {self.case.tolerance:.1e}"
                )

    def _adopted(self, inputs: Sequence[Any]) -> list[Any]:
        with self.runner.turn():
            return [self.runner.adopt(a) for a in inputs]

    def _ended(self, status: str, reason: str) -> None:
        self.result = replace(self.result, status=status, reason=reason)

    def _peak(self, inputs: Sequence[Any]) -> int:
        """The bytes that a call has in use at most, beside its inputs."""
        assert self.call is not None
        if self.device is not None:
            self.device.trim()
        before = self._in_use()
        tracemalloc.start()  # NumPy tells it of its arrays
        with self.runner.turn():
            self.call(*inputs)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return max(peak, self._in_use("peak") - before)

    def _in_use(self, figure: str = "in_use") -> int:
        statistics = {} if self.device is None else self.device.statistics()
        return statistics.get(figure) or 0

    def contender(self, inputs: Sequence[Any]) -> Contender | None:
        """The call on inputs of its own; `None` if it fails now, which removes it from the comparison."""
        assert self.call is not None
        call, own = self.call, self._adopted(inputs)
        try:
            with self.runner.turn():
                call(*own)
        except YosegiError as failure:
            self.call = self.timing = None
            self._ended("failed", f"{type(failure).__name__}: {failure}")
            return None
        if len(own) == 1:  # unpacking a list costs as much as a small op
            (x,) = own
            return Contender(lambda: call(x), self.runner.turn)
        if len(own) == 2:
            x, y = own
            return Contender(lambda: call(x, y), self.runner.turn)
        return Contender(lambda: call(*own), self.runner.turn)

    def finished(self, limits: dict[str, Any]) -> Result:
        """The result, with its times and what the machine could do at most."""
        if self.timing is None:
            return self.result
        case = self.case
        seconds, held_by = machine.bound(limits, self.result.device or "", case.dtype.name, case.flops, case.nbytes)
        return replace(
            self.result, status="ok", sittings=self.timing.sittings, limit_seconds=seconds or None, bound=held_by
        )


Progress = Callable[[str, int, int], None]
"""Called with the progress: a text, the amount done, the total."""


def run(settings: Settings, progress: Progress = lambda *_: None) -> Document:
    """Run the cases. After a `KeyboardInterrupt` while they are checked or timed, the results so far."""
    end = perf_counter() + settings.budget
    machine.steady_memory()
    everyone = machine.threads()
    others, skipped = peers([n for n in settings.against if n != "numpy"], everyone)
    chosen = [c for c in cases(large=settings.large) if matches(c, settings.pattern)]
    progress("measuring the machine's limits", 0, _steps(chosen, settings))
    limits = machine.limits(list(settings.devices))
    entries: list[list[_SuiteEntry]] = []
    is_interrupted = False
    try:
        _measure(chosen, entries, settings, others, end, progress)
    except KeyboardInterrupt:
        is_interrupted = True
        for group in entries:
            _cut_off(group)
    return Document(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine.description(),
        limits=limits,
        settings={
            "large": settings.large, "filter": settings.pattern, "against": ["numpy", *settings.against],
            "devices": [d.name for d in settings.devices], "sittings": settings.sittings, "rounds": settings.rounds,
            "budget": settings.budget, "seconds": settings.seconds,
            "cases": len(chosen), "is_interrupted": is_interrupted,
        },
        results=tuple(e.finished(limits) for group in entries for e in group if e.call is None or e.timing is not None),
        skipped=skipped,
        placement={} if is_interrupted else _placement(),
    )  # fmt: skip


def _steps(chosen: Sequence[Case], settings: Settings) -> int:
    """The total amount of work, for `Progress`."""
    return len(chosen) * (settings.sittings + 1) + 1


def _measure(
    chosen: Sequence[Case], entries: list[list[_SuiteEntry]], settings: Settings, others: Sequence[Runner], end: float,
    progress: Progress,
) -> None:  # fmt: skip
    """Check every case, which adds its contenders to `entries`; then time them all."""
    steps = _steps(chosen, settings)
    for n, case in enumerate(chosen):
        progress(f"checking {case.id}", 1 + n, steps)
        entries.append(_checked(case, settings, others))
    for sitting in range(settings.sittings):
        for n, (case, group) in enumerate(zip(chosen, entries, strict=True)):
            progress(f"timing {case.id}", 1 + (sitting + 1) * len(chosen) + n, steps)
            _sit(case, group, sitting, settings)
    for sitting in range(settings.sittings, 4 * settings.sittings):
        for case, group in zip(chosen, entries, strict=True):
            if perf_counter() < end and _spread(group) > SPREAD:
                progress(f"timing {case.id} once more", steps, steps)
                _sit(case, group, sitting, settings)


def _cut_off(group: Sequence[_SuiteEntry]) -> None:
    """After an interrupt: the contenders of a case have the sittings that they all have."""
    timed = [e for e in group if e.call is not None]
    common = min((0 if e.timing is None else len(e.timing.sittings) for e in timed), default=0)
    for entry in timed:
        entry.timing = Timing(entry.timing.sittings[:common]) if entry.timing is not None and common else None


def matches(case: Case, pattern: str) -> bool:
    """True if a case is meant: by a part of its name, or a pattern with `*`, or several with commas."""
    return any(fnmatch(case.id, p) or p.strip("*") in case.id for p in pattern.split(","))


def _checked(case: Case, settings: Settings, others: Sequence[Runner]) -> list[_SuiteEntry]:
    inputs = case.inputs(np.random.default_rng(0))
    with np.errstate(all="ignore"):
        exact = [a.astype(np.float64) for a in (*inputs, *case.weights())]
        expected = np.asarray(case.program(_EXACT, *exact), np.float64)
    group = [_SuiteEntry(case, numpy_runner(), None), *_on_devices(case, settings)]
    if case.suite not in _WITHOUT_PEERS:
        group += [_SuiteEntry(case, peer, None) for peer in others]
    with np.errstate(all="ignore"):
        for entry in group:
            entry.check(inputs, expected)
    return group


def _on_devices(case: Case, settings: Settings) -> Iterator[_SuiteEntry]:
    for device in settings.devices:
        if case.suite == "transfer" and device.space == HOST:
            continue
        for mode in _MODES.get(case.name) or _MODES.get(case.suite) or (JIT,):
            if mode == SEPARATE and device.limits.compiles_slowly:
                continue  # it compiles whole programs: op by op is no way to use it
            yield _SuiteEntry(case, of_device(device, mode), device)


class _Exact:
    """NumPy's functions, but a conversion keeps float64: its rounding is the error that is measured."""

    def __getattr__(self, name: str) -> Any:
        return (lambda x, dtype: x) if name == "convert" else getattr(NUMPY_FUNCTIONS, name)


_EXACT: Final = _Exact()


def _error(got: Any, expected: Any) -> float:
    """The largest error over the largest value; infinite when the shape or what is not a number differs."""
    if got.size != expected.size:
        return float("inf")
    difference = np.abs(got.reshape(-1) - expected.reshape(-1))
    if not np.all(np.isfinite(difference)):
        return float("inf")
    return float(np.max(difference, initial=0.0) / (np.max(np.abs(expected), initial=0.0) or 1.0))


def _aligned(array: Any) -> Any:
    """A copy at the start of a cache line: where NumPy happens to put an array can double the time of a loop on it."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    made = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def _sit(case: Case, group: Sequence[_SuiteEntry], sitting: int, settings: Settings) -> None:
    """Time a case in one sitting, on new inputs."""
    entries = [e for e in group if e.call is not None]
    if not entries:
        return
    inputs = tuple(_aligned(a) for a in case.inputs(np.random.default_rng(sitting + 1)))
    settle = _SETTLE if case.multiplies else 0.0
    with np.errstate(all="ignore"):  # NumPy's warnings would be timed too
        contenders = {e.runner.label: c for e in entries if (c := e.contender(inputs)) is not None}
        timings = race(contenders, rounds=settings.rounds, seconds=settings.seconds, settle=settle)
    for entry in entries:
        timing = timings.get(entry.runner.label)
        if timing is not None:
            entry.timing = timing if entry.timing is None else entry.timing.joined(timing)


def _spread(group: Sequence[_SuiteEntry]) -> float:
    """How uncertain the ratios of a case still are: the widest interval, halved, over its ratio."""
    timings = [e.timing for e in group if e.timing is not None]
    ratios = [t.ratio_to(timings[0]) for t in timings[1:]]
    return max(((r.high - r.low) / 2 / r.median for r in ratios), default=0.0)


def _placement() -> dict[str, Any]:
    """A small network's forward pass over the machine's whole chain: what ran where."""
    rng = np.random.default_rng(0)
    with options(device="auto"):
        x, w, v = (asarray(rng.standard_normal((512, 1024), np.float32)) for _ in range(3))
        scale, shift = (asarray(rng.standard_normal(1024, np.float32)) for _ in range(2))
        hidden = layer_norm(FUNCTIONS, x, scale, shift)
        result = FUNCTIONS.matmul(FUNCTIONS.relu(FUNCTIONS.matmul(hidden, w.T)), v)
        plan = explain(result)
        eval(result)
        return {"program": "relu(layer_norm(x) @ w.T) @ v", **plan.to_json()}
