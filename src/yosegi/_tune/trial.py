"""Trials: a plan and a candidate plan for the same program, timed in turns on the same real inputs.

A candidate's results must agree with the plan's. A turn is several runs in a row, as a program makes them; the first of
them is not counted, because it finds threads asleep and caches cold. What counts is the ratio of two turns that follow
each other: they share what else the machine does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

from .._place.plan import Plan, Schedule, Step
from .._run.device import Device
from .._run.health import health
from .._run.memory import HOST, Buffer
from .._run.run import attempted, fail, run_on, run_plan, run_short, run_step, run_steps, to_host, transfers
from .._run.trace import log
from .._tensor.options import current
from ..errors import DeviceFailure, LaunchFailure, NotReady, ValuesLost
from .comparison import agree
from .timing import runs_of_a_turn, timed, turn_of

Run = Callable[[Step, Sequence[Buffer]], list[Buffer]]

HOPELESS: Final = 2.0  # times a plan's time: a candidate plan that takes longer in a turn is dropped
_TURNS: Final = (3, 9)  # in which a plan and a candidate are timed, at least and at most
_CLOSE: Final = (0.8, 1.25)  # times the other's time: between, more turns are needed
_APART: Final = (
    16  # times the typical error of a product: products follow each other, and some elements are further off
)


@dataclass(frozen=True, slots=True)
class Trial:
    """The times of a plan and of a candidate, turn by turn, and of the candidate's steps one by one."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    parts: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The candidate's time over the plan's, in the middle turn."""
        return median(b / a for a, b in zip(self.ours, self.theirs, strict=True))


def tried(
    plan: Plan,
    schedule: Schedule,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    reused: Collection[int],
    best: float,
) -> Trial | None:
    """A plan, which takes `best` seconds and has made `outputs`, beside a candidate; `None` if results do not agree.

    The inputs at the positions `reused` are moved once, all others in every run. Raises what the candidate's
    devices do.
    """
    lasting = {n: _copy(inputs[n]) for n in reused}

    def fresh() -> list[Buffer]:
        return [lasting.get(n) or _copy(b) for n, b in enumerate(inputs)]

    def turn(one: Plan) -> float:
        def run() -> float:
            given = fresh()
            seconds = timed_plan(one, given, lambda: run_short(one, given) or run_steps(one.schedule, given, _alone))[1]
            return float("inf") if seconds is None else seconds

        return turn_of(run)

    _compile(schedule)
    other = Plan(schedule.graph, schedule.steps)
    made = run_steps(other.schedule, fresh(), _alone)
    for own, theirs in zip(outputs, made, strict=True):
        if not agree(to_host(own), to_host(theirs), _slack((*plan.steps, *other.steps))):
            log.warning("another plan for %s gives other results, and is not used", str(other.steps[-1].region))
            return None
    run_steps(other.schedule, fresh(), _alone)  # the host's kernels become native in their second run
    trial = Trial()
    first = turn(other)  # kernels may be recorded in it
    if first > HOPELESS * best:  # unless the machine is busier now
        trial.ours.append(turn(plan))
        trial.theirs.append(first)
        if trial.ratio > HOPELESS:
            return trial
    run_steps(other.schedule, fresh(), timed_steps(other.steps, _alone, trial.parts))
    least, most = _TURNS
    while len(trial.ours) < least or (len(trial.ours) < most and _CLOSE[0] < trial.ratio < _CLOSE[1]):
        trial.ours.append(turn(plan))
        trial.theirs.append(turn(other))
    return trial


def effort_of(candidate: float, plan: float) -> float:
    """Seconds that a trial takes, but for compiling, if a candidate plan's run and the plan's take so long."""
    turn = candidate * runs_of_a_turn(candidate)
    if candidate > HOPELESS * plan:
        return 2 * candidate + turn + plan * runs_of_a_turn(plan)
    return 3 * candidate + turn + _TURNS[0] * (turn + plan * runs_of_a_turn(plan))


def _compile(schedule: Schedule) -> None:
    """Compile all steps in the background, but for the host's; raises `NotReady` until all are done. No run of the
    program waits for a compiler that it may not need."""
    unready: NotReady | None = None
    for step in schedule.steps:
        try:
            compiled = partial(step.kernel_on, step.candidate, wait=not current().background, is_trial=True)
            attempted(False, compiled)
        except NotReady as failure:
            unready = failure
    if unready is not None:
        raise unready


def _copy(buffer: Buffer) -> Buffer:
    """The values without their replicas: a trial moves them as a run would, and leaves nothing behind."""
    return Buffer(buffer.data, buffer.space)


def _alone(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
    """A step on the candidate it is planned on, or not at all."""
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


# Timing


def _devices(steps: Iterable[Step]) -> list[Device]:
    return list({step.device.name: step.device for step in steps}.values())


def _wait_for(devices: Iterable[Device]) -> None:
    for device in devices:
        device.synchronize()


def timed_plan(
    plan: Plan, inputs: Sequence[Buffer], run: Callable[[], list[Buffer]] | None = None
) -> tuple[list[Buffer], float | None]:
    """A run from idle devices until its results are where they are wanted: on the host, if all inputs come from there.
    No time if a device failed at the end."""
    used = _devices(plan.steps)
    with suppress(DeviceFailure):
        _wait_for(used)
    is_wanted = all(b.space is HOST for b in inputs)

    def finished() -> tuple[list[Buffer], bool]:
        outputs = run_short(plan, inputs) or run_plan(plan, inputs) if run is None else run()
        try:
            for output in outputs if is_wanted else ():
                to_host(output)
            _wait_for(used)
        except (DeviceFailure, ValuesLost):
            return outputs, False  # the next reader of the values finds out, and computes them again
        return outputs, True

    (outputs, is_finished), seconds = timed(finished)
    return outputs, seconds if is_finished else None


def timed_steps(steps: Sequence[Step], run: Run, parts: list[float]) -> Run:
    """Steps that run one by one on idle devices, with their inputs there; their times go into `parts`."""
    used = _devices(steps)

    def finished(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
        made = run(step, inputs)
        with suppress(DeviceFailure):
            _wait_for(used)
        return made

    def timed_step(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
        with suppress(DeviceFailure):
            for buffer in inputs:
                transfers.fetch(buffer, step.device.space, 0)
            _wait_for(used)
        made, seconds = timed(lambda: finished(step, inputs))
        parts.append(seconds)
        return made

    return timed_step


def timed_by_steps(
    plan: Plan, inputs: Sequence[Buffer], wrapped: Callable[[Run, list[float]], Run] | None
) -> tuple[list[Buffer], list[float]]:
    """A run whose steps are timed one by one, each of them `wrapped`: the outputs, and the seconds of each step."""
    parts: list[float] = []
    run = timed_steps(plan.steps, run_step, parts)
    return run_steps(plan.schedule, inputs, run if wrapped is None else wrapped(run, parts)), parts


# Agreement


def _slack(steps: Iterable[Step]) -> float:
    """How far apart results may be because products are computed in reduced precision."""
    reduced = [step.candidate.precision.typical for step in steps if step.candidate.precision in step.policy.precisions]
    return _APART * max(reduced, default=0.0)
