"""Learning from real runs: measured costs of steps, and perhaps a faster plan on `auto`.

`_run/evaluate.py` gives a new plan a `Watch` and runs it through `execute`. A look is a run timed step by step and two
timed as a whole. The third run of a plan begins one, and then every run whose number has doubled since the last. After
the first look the plan is judged: each single-device plan, which is the plan that naming the device gives, is tried
beside it on real inputs. Predictions decide the order of the trials, and whether a candidate plan that is predicted to
be hopeless is worth a run; nothing else. Trials together take at most half of the time that the plan itself has taken,
or up to `decided_runs` twice that time, if that is enough to decide by then. A plan that has slowed down since it was
judged is judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil
from threading import Lock
from time import perf_counter
from typing import Final
from weakref import ref

from .._place.candidates import Candidate
from .._place.costs import costs
from .._place.plan import Plan, Schedule, Step
from .._run.device import Device
from .._run.memory import HOST, Buffer
from .._run.run import fail, is_worth_trying, run_on, run_plan
from .._run.trace import log
from .._schedule.portable_region import digest
from .._tensor.options import current
from ..errors import DeviceFailure, NotReady, ValuesLost
from .timing import seconds_of, turn_of
from .trial import HOPELESS, Run, Trial, effort_of, timed_by_steps, timed_plan, tried


@dataclass(frozen=True, slots=True)
class LearningPolicy:
    """The effort that a plan's run time pays for, and the times from which another plan is tried or replaces it."""

    decided_runs: int = 200
    """The number of runs after which a plan has been judged."""
    late_runs: int = 100
    """The number of runs after which more effort is spent, to decide in time."""
    effort_shares: tuple[float, float] = (0.5, 2.0)
    """The share of a plan's run time that all trials together may take, before `late_runs` and from then on."""
    far_ratio: float = 8.0
    """A candidate plan with a GPU is hopeless if it is predicted to take this multiple of the plan's time."""
    far_effort_share: float = 0.1
    """The share of a plan's run time that the trial of a hopeless candidate plan may take."""
    missed_ratio: float = 1.3
    """A run that takes this multiple of the prediction, or of its time when judged, starts a new search."""
    better_share: float = 0.97
    """A candidate plan replaces the plan if it takes less than this share of its time."""
    unmeasured_seconds: float = 1e-3
    """Runs shorter than these seconds are not tried on devices that were never measured."""
    bounded_seconds: float = 1e-4
    """For runs shorter than these seconds, effort is bounded even if no decision is reached."""
    unwatched_seconds: float = 1e-3
    """A judged host kernel whose runs are shorter than these seconds is not timed any more."""
    trusted_ratio: float = 4.0
    """Times its estimate that a trial counts as effort: one surprise must not delay all others."""
    planning_seconds: float = 1e-4
    """Seconds of planning, roughly, for each call of a program."""


POLICY: Final = LearningPolicy()
_AGAIN: Final = "placed again"


def execute(plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer]:
    """Run a plan, timed if a look is due."""
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


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The schedules that can replace a plan on `auto`."""

    chain: tuple[Device, ...]
    single: Callable[[Device], Schedule]
    """The schedule that naming a device gives."""
    again: Callable[[Collection[int]], Schedule]
    """The schedule of least predicted cost now, if the inputs at these positions never change."""
    size: int
    """Calls of the program."""

    @property
    def planning(self) -> float:
        """Seconds that making all candidate plans takes, roughly."""
        return POLICY.planning_seconds * self.size * (1 + len(self.chain))


def is_worth_judging(plan: Plan, chain: Sequence[Device]) -> bool:
    """False if a host kernel is predicted to take less than the launch cost of every device.

    A plan of several steps always counts: counting its runs costs nothing beside them.
    """
    if plan.host_kernel is None:
        return bool(plan.steps)
    step = plan.steps[0]
    seconds = costs.modelled(step.works, step.candidate).total
    return any(_overhead(device) < POLICY.far_ratio * seconds for device in chain[:-1])


def _overhead(device: Device) -> float:
    """Seconds that using a device takes at least."""
    speed = costs.speed(device)
    return speed.launch + (0.0 if device.space == HOST else speed.download.latency)


_Signature = tuple[tuple[Candidate, str], ...]

_overruns: Final[dict[str, float]] = {}
"""For each device the largest ratio of compile time in a trial to that of calibration."""


@dataclass(frozen=True, slots=True)
class _CandidatePlan:
    """A plan that may replace another, with its prediction."""

    name: str
    schedule: Schedule
    expected: float
    """Seconds of a run: by what was measured, or by the cost model alone, whichever is less."""
    signature: _Signature

    @classmethod
    def of(cls, name: str, schedule: Schedule, reused: Collection[int]) -> _CandidatePlan:
        forecast = schedule.forecast(reused)
        modelled = sum(costs.modelled(s.works, s.candidate).total for s in schedule.steps) + forecast.transfer
        return cls(name, schedule, min(modelled, forecast.total), _signature(schedule))

    @property
    def compiling(self) -> float:
        """Seconds that compiling it takes: a kernel for each region, or for each step if the device is a model
        compiler."""
        return sum(_compiling(s) for s in self.schedule.steps if s.candidate not in s.kernels)


def _compiling(step: Step) -> float:
    kernels = 1 if step.device.limits.compiles_slowly else len(step.works)
    return costs.speed(step.device).compiling * kernels * _overruns.get(step.device.name, 1.0)


class Watch:
    """The runs of a plan. A plan without alternatives never changes, because the user has fixed it; its times are
    still recorded."""

    def __init__(self, plan: Plan, alternatives: Alternatives | None = None) -> None:
        self.lock = Lock()
        self.runs = 0
        self.due = 3  # the first two compile
        self._alternatives = alternatives
        self._promise = plan.forecast().total
        """Seconds that the plan should take: as predicted, or as measured at best since it was judged."""
        self._epoch = costs.epoch
        self._best: float | None = None
        self._parts: list[float] = []
        """Seconds of each step alone, in this look."""
        self._totals: list[float] = []
        """Seconds of the runs as a whole, in this look."""
        self._next_look = 3
        self._inputs: list[ref[Buffer]] = []
        self._reused: frozenset[int] = frozenset()
        """The positions of the inputs that do not change."""
        self._untried: list[_CandidatePlan] | None = None
        """The candidate plans that remain to be compared; `None` before they are made."""
        self._is_mixed = len({step.device.name for step in plan.steps}) > 1
        """True if its steps are on several devices, and no single-device plan places them so."""
        self._tried: dict[_Signature, float] = {}
        """Seconds that trials of candidate plans took."""
        self._effort = 0.0
        self._ruled_out: set[_Signature] = set()
        """Plans that failed, or gave other results."""

    def passes(self) -> bool:
        """True if a run needs no timing; it is counted then."""
        if self.runs + 1 >= self.due:
            return False
        self.runs += 1
        return True

    @property
    def milliseconds(self) -> float | None:
        """The best time of the plan in its last timed runs."""
        return None if self._best is None else self._best * 1e3

    @property
    def is_settled(self) -> bool:
        """True if the plan has been judged, except by trials that are not worth their cost yet."""
        if self._best is None or self._parts:
            return False
        return self._alternatives is None or (
            self._untried is not None and self.due > max(POLICY.decided_runs, self.runs + 1)
        )

    @property
    def has_tried_precisions(self) -> bool:
        """True if the steps have the precisions that were measured to be fastest."""
        return bool(self._parts) or self._best is not None

    def run(self, plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer]:
        """A run that is timed, or followed by a trial."""
        if self._parts or self.runs >= self._next_look:
            outputs, is_over = self._looked(plan, inputs)
            if not is_over:
                return outputs
        else:
            outputs = run_plan(plan, inputs)
        self.due = self._next_look
        if self._alternatives is not None and self._best is not None:
            self._judge(plan, self._alternatives, self._best, inputs, outputs)
        return outputs

    # Looking at the clock

    def _looked(self, plan: Plan, inputs: Sequence[Buffer]) -> tuple[list[Buffer], bool]:
        """A run that is timed, and whether the look is over."""
        self._notice_reused(inputs)
        self.due = self.runs + 1
        if not self._parts:
            before = [step.candidate for step in plan.steps]
            outputs, parts = timed_by_steps(plan, inputs, _with_precisions if self._best is None else None)
            if [step.candidate for step in plan.steps] != before:
                plan.become(plan.schedule)  # with other kernels
            if _ran_as_planned(plan):
                self._parts = parts
            else:
                self.due += self.runs // 4
            return outputs, False
        outputs, seconds = timed_plan(plan, inputs)
        if seconds is None or not _ran_as_planned(plan):
            self.due += self.runs // 4
            return outputs, False
        self._totals.append(seconds)
        best = min(self._totals)
        is_missed = best > POLICY.missed_ratio * self._promise
        if len(self._totals) < (3 if is_missed else 2):
            return outputs, False
        _observe(plan.schedule, self._parts, best, afresh=is_missed)
        self._reconsider(best, is_missed)
        self._promise = best if is_missed else min(best, self._promise)
        self._best = best
        self._parts, self._totals, self._next_look = [], [], 2 * self.runs
        return outputs, True

    def _notice_reused(self, inputs: Sequence[Buffer]) -> None:
        """Note the inputs that are the same as in the last run."""
        if self._inputs:
            same = zip(inputs, self._inputs, strict=True)
            self._reused = frozenset([n for n, (now, before) in enumerate(same) if before() is now])
        self._inputs = [ref(b) for b in inputs]

    def _reconsider(self, best: float, is_missed: bool) -> None:
        """Judge the plan again if it has slowed down, or if devices have been measured anew."""
        is_new = self._epoch != costs.epoch
        self._epoch = costs.epoch
        if self._untried is not None and (is_missed or is_new):
            log.info("a plan takes %.3f ms, expected %.3f ms, and is judged again", best * 1e3, self._promise * 1e3)
            self._untried = None

    # The judgement

    def _judge(
        self, plan: Plan, known: Alternatives, best: float, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> None:
        """Try the candidate plan that is cheapest to try, if the plan has run long enough for that."""
        if self._untried is None:
            needed = self._runs_for(known.planning, best)
            if self.runs < needed:
                self.due = min(self.due, needed)
                return
            self._make(known, best)
        assert self._untried is not None
        own = _signature(plan.schedule)
        if any(c.signature == own for c in self._untried if c.name != _AGAIN):
            self._is_mixed = False
        self._untried = [c for c in self._untried if c.signature != own and not self._is_excluded(c, best)]
        asked = sorted([(self._needed(c, best, known.chain[-1]), n) for n, c in enumerate(self._untried)])
        if asked and self.runs >= asked[0][0]:
            self._try(plan, self._untried[asked[0][1]], best, inputs, outputs)
            return
        if asked:
            self.due = min(self.due, asked[0][0])
        is_judged = not asked or (
            asked[0][0] > POLICY.decided_runs and all(c.expected > POLICY.far_ratio * best for c in self._untried)
        )
        if is_judged and best < POLICY.unwatched_seconds and plan.host_kernel is not None:
            plan.watch = None

    def _make(self, known: Alternatives, best: float) -> None:
        """Make the candidate plans: one for each device alone, and the best by present predictions."""
        start = perf_counter()
        host = known.chain[-1]
        worth = [d for d in known.chain if d is host or costs.speed(d).is_measured or best > POLICY.unmeasured_seconds]
        made = {_AGAIN: known.again(self._reused), **{device.name: known.single(device) for device in worth}}
        candidates = [_CandidatePlan.of(name, schedule, self._reused) for name, schedule in made.items()]
        self._untried = list({c.signature: c for c in candidates}.values())  # of equal ones the single device's
        self._effort += perf_counter() - start

    def _runs_for(self, effort: float, best: float) -> int:
        """The number of runs that pay for a trial of so many seconds."""
        early, late = [ceil((self._effort + effort) / (share * best)) for share in POLICY.effort_shares]
        return min(early, max(late, POLICY.late_runs)) if late <= POLICY.decided_runs else early

    def _needed(self, candidate: _CandidatePlan, best: float, host: Device) -> int:
        """The number of runs that pay for the trial of a candidate plan."""
        expected = candidate.expected
        effort = candidate.compiling + effort_of(expected, best)
        needed = self._runs_for(effort, best)
        others = [s.device for s in candidate.schedule.steps if s.device is not host]
        # Beside the program, devices that are no GPU take the host's cores.
        far = POLICY.far_ratio if any(d.is_gpu for d in others) else HOPELESS
        if expected > far * best and others:
            return max(needed, ceil(effort / (POLICY.far_effort_share * best)))
        is_near = expected < HOPELESS * best and best > POLICY.bounded_seconds
        return min(needed, POLICY.late_runs) if is_near or not others else needed

    def _is_excluded(self, candidate: _CandidatePlan, best: float) -> bool:
        """True if a candidate plan failed, gave other results, or took too long when it was tried before."""
        return candidate.signature in self._ruled_out or self._tried.get(candidate.signature, 0.0) > HOPELESS * best

    def _try(
        self, plan: Plan, candidate: _CandidatePlan, best: float, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> None:
        """Run a candidate plan beside the plan, and replace the plan if the candidate is better."""
        assert self._untried is not None
        compiling = candidate.compiling
        estimate = compiling + effort_of(candidate.expected, best)
        start = perf_counter()
        self.due = self.runs + 1
        trial: Trial | None = None
        try:
            trial = tried(plan, candidate.schedule, inputs, outputs, self._reused, best)
        except NotReady:
            self.due += self.runs // 16
            return
        except (DeviceFailure, ValuesLost) as failure:
            log.info("%s was not tried to the end: %s: %s", candidate.name, type(failure).__name__, str(failure))
        seconds = perf_counter() - start
        self._effort += min(seconds, POLICY.trusted_ratio * estimate)
        self._untried.remove(candidate)
        if trial is None:
            self._ruled_out.add(candidate.signature)
            return
        theirs = min(trial.theirs)
        _note_overrun(candidate.schedule, seconds - effort_of(theirs, best), compiling)
        _observe(candidate.schedule, trial.parts, theirs)
        self._note_trial(candidate.signature, theirs)
        log.info("%s takes %.2f of the plan's time, %.3f ms", candidate.name, trial.ratio, theirs * 1e3)
        is_single = candidate.name != _AGAIN
        if trial.ratio < (1.0 if self._is_mixed and is_single else POLICY.better_share):
            plan.become(candidate.schedule)
            self._is_mixed = not is_single and len({step.device.name for step in plan.steps}) > 1
            self._best = self._promise = theirs

    def _note_trial(self, tried: _Signature, seconds: float) -> None:
        """Note what a candidate plan took. One that was tried before shows how much slower the whole machine is now:
        all others are taken to have slowed down as much."""
        if tried in self._tried:
            times = seconds / self._tried[tried]
            self._tried = {other: before * times for other, before in self._tried.items()}
        self._tried[tried] = seconds


def _note_overrun(schedule: Schedule, taken: float, estimate: float) -> None:
    if estimate > 0:
        for step in schedule.steps:
            _overruns[step.device.name] = max(_overruns.get(step.device.name, 1.0), taken / estimate)


def _signature(schedule: Schedule) -> _Signature:
    """The candidate and the region of each step."""
    return tuple([(step.candidate, digest(step.region)) for step in schedule.steps])


def _ran_as_planned(plan: Plan) -> bool:
    return all(s.last is not None and s.last.device == s.device.name and not s.last.failures for s in plan.steps)


def _observe(schedule: Schedule, parts: Sequence[float], total: float, *, afresh: bool = False) -> None:
    """Put steps into the table. Steps that a device works off in a row take less than each by itself; where they were
    not timed one by one, they share the total as they are predicted to."""
    shares = parts or [step.cost_on(step.candidate).total for step in schedule.steps]
    scale = total / sum(shares)
    for step, seconds in zip(schedule.steps, shares, strict=True):
        costs.observe(
            step.region, step.works, step.candidate, seconds * (min(1.0, scale) if parts else scale), afresh=afresh
        )


def _with_precisions(run: Run, parts: list[float]) -> Run:
    """Steps that are run and timed; where the user admits several precisions, all that the step's device has are
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
                if seconds < POLICY.better_share * best:
                    best = parts[-1] = seconds
                    step.choose(candidate)
        return made

    return tried


def _taken(step: Step, candidate: Candidate, inputs: Sequence[Buffer]) -> float | None:
    """Seconds that a candidate takes for a step, after the first run; nothing if it fails, or is too far off."""

    wait = candidate.device.synchronize
    try:
        run_on(step, candidate, inputs, wait=not current().background)
        wait()
        return turn_of(lambda: seconds_of(lambda: run_on(step, candidate, inputs, wait=False), wait=wait))
    except NotReady:
        return None
    except DeviceFailure as failure:
        fail(step, candidate, failure)
        return None
