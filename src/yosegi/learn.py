"""Learning from real runs: a few of them are timed, what was learned goes into the table, and plans that turn out worse
than they could be are changed.

The second to fourth run of a plan are timed, and then every one whose number is a power of two: once step by step, from
then on as a whole. A plan that takes longer than promised is made again with what is known by then. Other plans for the
same graph that were never measured are tried beside it, on real inputs. To take over, such a plan's results must agree,
and it must be faster. All trials together never take more than half of the time that the plan itself has taken, and a
tenth where the forecast leaves little hope: a wrong line does not stick, and a right one costs little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Any, Final
from weakref import ref

import numpy as np

from .candidates import Candidate
from .costs import costs
from .device import Device
from .dtype import as_dtype, float_info
from .errors import DeviceFailure, LaunchFailure, NotReady, ValuesLost
from .forecast import comes_from_host
from .health import health
from .memory import Buffer
from .options import current
from .plan import Plan, Rival, Step
from .run import fail, is_worth_trying, run_on, run_plan, run_short, run_step, run_steps, to_host, transfers
from .trace import log

_LATELY: Final = 3  # runs by which a plan is judged
_MISSED: Final = 1.3  # times what was promised
_BETTER: Final = 0.95  # of a plan's time: another must take less to take over
_NEAR: Final = 2.0  # times a plan's own time: a forecast that is probably not right enough to tell
_EFFORT: Final = (0.5, 0.1)  # of the time that a plan has taken, for all trials together, of near rivals and of others
_TURNS: Final = (3, 9)  # in which a plan and its rival are timed, at least and at most
_TURN: Final = (1e-3, 9)  # seconds for which a turn's runs go on, and how many they are at most
_CLOSE: Final = (0.8, 1.25)  # times the other's time: between, more turns tell more
_SLOW: Final = 5e-3  # seconds: beyond, a run says enough
_SHORT: Final = 1e-3  # seconds: below, watching a plan that is settled would show
_APART: Final = (
    16  # times the typical error of a product: products follow each other, and some elements are further off
)
_DIGITS: Final = 0.6  # of a dtype's, in which results of two plans must agree


def execute(plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer]:
    """Run a plan, and look at the clock if it is time to."""
    watch = plan.watch
    if watch is None:
        return run_plan(plan, inputs)
    watch.runs += 1
    if watch.runs < watch.due or not watch.lock.acquire(blocking=False):
        return run_plan(plan, inputs)
    try:
        return watch.run(plan, inputs)
    finally:
        watch.lock.release()


class Watch:
    """What is known of a plan's runs. `again` makes the plan anew, told which inputs are the same in every run and
    whether earlier times are in doubt; without it, the plan is as the user wants it: what it takes is learned, and it
    never changes."""

    def __init__(self, plan: Plan, again: Callable[[frozenset[int], bool], Plan] | None) -> None:
        self.lock = Lock()
        self.runs = 0
        self.due = 2  # the first compiles
        self._again = again
        self._rivals, plan.rivals = list(plan.rivals), ()
        self._promise = plan.forecast().total
        self._epoch = costs.epoch
        self._parts: list[float] = []
        """Seconds of each step by itself."""
        self._totals: deque[float] = deque(maxlen=_LATELY)
        self._effort = 0.0
        self._steps: dict[str, tuple[Step, ...]] = {}
        """Of rivals that are to be tried."""
        self._ruled_out: set[_Signature] = set()
        """Rivals that failed, or gave other results."""
        self._inputs: list[ref[Buffer]] = []
        self._steady: frozenset[int] = frozenset()

    def passes(self) -> bool:
        """Whether a run may go the short way. It is counted then; else it is one to look at."""
        if self.runs + 1 >= self.due:
            return False
        self.runs += 1
        return True

    @property
    def milliseconds(self) -> float | None:
        """What the plan takes, at best of the runs that were timed lately."""
        return min(self._totals) * 1e3 if self._totals else None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to find out, as things are."""
        return len(self._totals) > 1 and not self._rivals and not self._is_doubtful

    @property
    def _is_doubtful(self) -> bool:
        """Whether the plan took longer than was promised, but not often enough yet to tell."""
        return len(self._totals) < _LATELY and min(self._totals) > _MISSED * self._promise

    @property
    def _is_missed(self) -> bool:
        """Whether the plan keeps taking longer than was promised."""
        return len(self._totals) == _LATELY and min(self._totals) > _MISSED * self._promise

    def run(self, plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer]:
        """A run that is timed."""
        self._look_at(plan, inputs)
        if not self._parts:
            parts: list[float] = []
            timed = _timed_steps(plan.steps, run_step, parts)
            is_first, before = not self._totals, _signature(plan.steps)
            outputs = run_steps(plan, plan.steps, inputs, _with_precisions(timed, parts) if is_first else timed)
            if _signature(plan.steps) != before:
                plan.become(plan.steps)  # with other kernels
            self._parts = parts if _ran_as_planned(plan) else []
            self.due = self.runs + 1 + (0 if self._parts else self.runs // 4)
            return outputs
        outputs, seconds = _timed(plan, plan.steps, lambda: run_short(plan, inputs) or run_plan(plan, inputs))
        if seconds is None or not _ran_as_planned(plan):
            self.due = self.runs + 1 + self.runs // 4
            return outputs
        self._totals.append(seconds)
        self.due = self.runs + 1
        if len(self._totals) >= 2:
            self._observe(plan.steps, self._parts, min(self._totals), afresh=self._is_missed)
            self._parts = []
            self.due = self.runs + 1 if self._is_doubtful else 2 * self.runs
            if self._again is not None:
                self._review(plan, inputs, outputs)
            if not self._rivals and min(self._totals) < _SHORT and plan.host_kernel is not None:
                plan.watch = None
        return outputs

    def _look_at(self, plan: Plan, inputs: Sequence[Buffer]) -> None:
        """Notice which inputs are the same as the last time."""
        if self._inputs:
            same = zip(plan.inputs, inputs, self._inputs, strict=True)
            self._steady = frozenset(entry for entry, now, before in same if before() is now)
        self._inputs = [ref(b) for b in inputs]

    @staticmethod
    def _observe(steps: Sequence[Step], parts: Sequence[float], total: float, *, afresh: bool = False) -> None:
        """Put steps into the table. Steps that a device works off in a row take less than each by itself."""
        scale = min(1.0, total / sum(parts))
        for step, seconds in zip(steps, parts, strict=True):
            costs.observe(step.region, step.works, step.candidate, seconds * scale, afresh=afresh)

    # Changing the plan

    def _review(self, plan: Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Make the plan again if it is not what was promised, and try what may be better."""
        is_first = len(self._totals) == 2 and self._steady
        if self._is_missed or is_first or self._epoch != costs.epoch:
            self._make_again(plan, min(self._totals))
        if self._rivals:
            self._try(plan, *min(map(self._needed, self._rivals), key=lambda asked: asked[1]), inputs, outputs)

    def _make_again(self, plan: Plan, best: float) -> None:
        assert self._again is not None
        made = self._again(self._steady, self._is_missed)
        log.info("a plan that takes %.3f ms, promised %.3f ms, is made again", best * 1e3, self._promise * 1e3)
        self._promise, self._epoch = best, costs.epoch
        self._rivals = list(made.rivals)
        self._steps.clear()
        if _signature(made.steps) != _signature(plan.steps):
            self._rivals.append(Rival("made again", made.forecast(), lambda: made.steps))

    def _needed(self, rival: Rival) -> tuple[Rival, int]:
        """A rival, and the runs after which it is not too much to try it."""
        best, promised = min(self._totals), rival.forecast.total
        steps = self._steps.get(rival.name)
        if steps is None:
            steps = self._steps[rival.name] = rival.make()
        compiling = sum(costs.speed(s.device).compiling for s in steps if s.candidate not in s.kernels)
        is_far = promised > _NEAR * best  # then a run that is not timed and a turn will do
        turn = promised * _runs_of_a_turn(promised)
        effort = compiling + 2 * promised + turn
        if not is_far:
            effort += _TURNS[0] * (turn + best * _runs_of_a_turn(best))
        return rival, ceil(max((self._effort + effort) / _EFFORT[False], effort / _EFFORT[is_far]) / best)

    def _try(self, plan: Plan, rival: Rival, needed: int, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Run a rival beside the plan, if that is not too much, and let it take over if it is better."""
        steps = self._steps[rival.name]
        if _signature(steps) in self._ruled_out:
            self._rivals.remove(rival)
            return
        if self.runs < needed:
            self.due = min(self.due, needed)
            return
        begin = perf_counter()
        try:
            taken = self._raced(plan, steps, inputs, outputs)
        except NotReady:
            self.due = self.runs + 1
            return
        except (DeviceFailure, ValuesLost) as failure:
            log.info("%s was not tried to the end: %s: %s", rival.name, type(failure).__name__, str(failure))
            taken = None
        self._effort += perf_counter() - begin
        self._steps.pop(rival.name, None)
        self._rivals.remove(rival)
        self.due = self.runs + 1 if self._rivals else 2 * self.runs
        if taken is None:
            self._ruled_out.add(_signature(steps))
        else:
            self._observe(steps, taken.parts, min(taken.theirs))
            log.info("%s takes %.2f of the plan's time, %.3f ms", rival.name, taken.ratio, min(taken.theirs) * 1e3)
            if taken.ratio < _BETTER:
                plan.become(steps)
                self._promise = min(taken.theirs)
                self._totals.clear()
                self._totals.extend(taken.theirs)

    def _raced(
        self, plan: Plan, steps: tuple[Step, ...], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> _Race | None:
        """A plan and other steps for it in turns, until it is clear who is faster; `None` if results do not agree."""
        lasting = {e: _copy(b) for e, b in zip(plan.inputs, inputs, strict=True) if e in self._steady}

        def fresh() -> list[Buffer]:
            return [lasting.get(e) or _copy(b) for e, b in zip(plan.inputs, inputs, strict=True)]

        def turn(contender: tuple[Step, ...]) -> float:
            alone = Plan(plan.graph, contender)

            def run() -> float:
                given = fresh()
                seconds = _timed(
                    alone, contender, lambda: run_short(alone, given) or run_steps(alone, contender, given, _alone)
                )[1]
                return float("inf") if seconds is None else seconds

            return _turn_of(run)

        for step in steps:
            step.kernel_on(step.candidate, wait=not current().background)
        made = run_steps(plan, steps, fresh(), _alone)
        for own, other in zip(outputs, made, strict=True):
            if not agree(to_host(own), to_host(other), _slack((*plan.steps, *steps))):
                log.warning("another plan for %s gives other results, and is not used", str(steps[-1].region))
                return None
        race = _Race()
        run_steps(plan, steps, fresh(), _timed_steps(steps, _alone, race.parts))
        first = turn(steps)  # not counted: kernels may be recorded in it
        if first > _NEAR * min(self._totals):
            race.ours.append(min(self._totals))
            race.theirs.append(first)
            return race
        least, most = _TURNS
        while len(race.ours) < least or (len(race.ours) < most and _CLOSE[0] < race.ratio < _CLOSE[1]):
            race.ours.append(turn(plan.steps))
            race.theirs.append(turn(steps))
        return race


@dataclass(frozen=True, slots=True)
class _Race:
    """The times of a plan and of a rival, turn by turn, and of the rival's steps one by one."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    parts: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The rival's time over the plan's, in the middle turn: two that follow each other share what the machine does
        beside."""
        return median(b / a for a, b in zip(self.ours, self.theirs, strict=True))


_Signature = tuple[tuple[Candidate, tuple[int, ...]], ...]


def _signature(steps: Sequence[Step]) -> _Signature:
    """What runs where."""
    return tuple([(step.candidate, step.region.nodes) for step in steps])


def _ran_as_planned(plan: Plan) -> bool:
    return all(s.last is not None and s.last.device == s.device.name and not s.last.failures for s in plan.steps)


def _copy(buffer: Buffer) -> Buffer:
    """The same values without the replicas: a trial moves them as a run would, and leaves nothing behind."""
    return Buffer(buffer.data, buffer.space)


# Timing


def _runs_of_a_turn(seconds: float) -> int:
    """How many runs of this length make a turn. The first finds threads asleep and caches cold, which would count
    against whoever is fast, and which a program that runs again and again does not meet."""
    (least, most), few = _TURN, 3 if seconds < _SLOW else 1
    return max(few, min(most, ceil(least / max(seconds, 1e-9))))


def _turn_of(run: Callable[[], float]) -> float:
    """The middle of a turn's runs, in seconds."""
    taken = [run()]
    while len(taken) < _runs_of_a_turn(min(taken)):
        taken.append(run())
    return median(taken)


def _devices(steps: Iterable[Step]) -> list[Device]:
    return list({step.device.name: step.device for step in steps}.values())


def _wait_for(devices: Iterable[Device]) -> None:
    for device in devices:
        device.synchronize()


def _timed(plan: Plan, steps: Sequence[Step], run: Callable[[], list[Buffer]]) -> tuple[list[Buffer], float | None]:
    """A run from idle devices until its results are where they are wanted; no time if a device failed at the end."""
    used = _devices(steps)
    with suppress(DeviceFailure):
        _wait_for(used)
    start = perf_counter()
    outputs = run()
    try:
        if comes_from_host(plan.graph):
            for output in outputs:
                to_host(output)
        _wait_for(used)
    except (DeviceFailure, ValuesLost):
        return outputs, None  # whoever needs the values finds out, and has them made again
    return outputs, perf_counter() - start


def _timed_steps(
    steps: Sequence[Step], run: Callable[[Step, Sequence[Buffer]], list[Buffer]], parts: list[float]
) -> Callable[[Step, Sequence[Buffer]], list[Buffer]]:
    """Steps that run one by one on idle devices, with their inputs there; their times go into `parts`."""
    used = _devices(steps)

    def timed(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
        with suppress(DeviceFailure):
            for buffer in inputs:
                transfers.fetch(buffer, step.device.space, 0)
            _wait_for(used)
        start = perf_counter()
        made = run(step, inputs)
        with suppress(DeviceFailure):
            _wait_for(used)
        parts.append(perf_counter() - start)
        return made

    return timed


def _with_precisions(
    run: Callable[[Step, Sequence[Buffer]], list[Buffer]], parts: list[float]
) -> Callable[[Step, Sequence[Buffer]], list[Buffer]]:
    """Steps that run so and are timed; where the user admits several precisions, all that the step's device has are
    tried on the step's own inputs, and the fastest is kept."""

    def tried(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
        made = run(step, inputs)
        own = step.candidate
        others = [c for c in step.candidates if c.device is own.device and c != own and is_worth_trying(step, c)]
        if not step.policy.precisions or not others:
            return made
        best = _taken(step, own, inputs) or parts[-1]
        for candidate in others:
            seconds = _taken(step, candidate, inputs)
            if seconds is not None:
                costs.observe(step.region_on(candidate), step.works, candidate, seconds)
                if seconds < _BETTER * best:
                    best = parts[-1] = seconds
                    step.choose(candidate)
        return made

    return tried


def _taken(step: Step, candidate: Candidate, inputs: Sequence[Buffer]) -> float | None:
    """Seconds that a candidate takes for a step, after the first run; nothing if it fails, or is too far off."""

    def timed() -> float:
        start = perf_counter()
        run_on(step, candidate, inputs, wait=False)
        candidate.device.synchronize()
        return perf_counter() - start

    try:
        run_on(step, candidate, inputs, wait=not current().background)
        candidate.device.synchronize()
        return _turn_of(timed)
    except NotReady:
        return None
    except DeviceFailure as failure:
        fail(step, candidate, failure)
        return None


def _alone(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
    """A step on the one it is planned on, or not at all."""
    against = health.reason_against(step.device.name, step.region)
    if against is not None:
        raise LaunchFailure(against)
    try:
        return run_on(step, step.candidate, inputs, wait=not current().background)[0]
    except NotReady:
        raise
    except DeviceFailure as failure:
        fail(step, step.candidate, failure)
        raise


def _slack(steps: Iterable[Step]) -> float:
    """How far apart results may be because products are computed in reduced precision."""
    reduced = [step.candidate.precision.typical for step in steps if step.candidate.precision in step.policy.precisions]
    return _APART * max(reduced, default=0.0)


def agree(ours: Any, theirs: Any, slack: float = 0.0) -> bool:
    """Whether results of two plans are the same as far as rounding, and `slack`, allow.

    >>> agree(np.float32([1, 2]), np.float32([1, 2.00001])), agree(np.float32([1, 2]), np.float32([1, 2.1]))
    (True, False)
    """
    if isinstance(ours, tuple):
        return all(agree(a, b, slack) for a, b in zip(ours, theirs, strict=True))
    if ours.dtype.kind in "biu":
        return bool(np.array_equal(ours, theirs))
    # The dtypes of short floats are not NumPy's own: its functions know them as float64 or not at all.
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
    a, b = np.asarray(ours, wide), np.asarray(theirs, wide)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    scale = float(np.max(np.abs(a[finite]), initial=0.0))
    tolerance = max(slack, float_info(as_dtype(ours.dtype)).eps ** _DIGITS)
    return bool(np.all(np.abs(a[finite] - b[finite]) <= tolerance * scale))
