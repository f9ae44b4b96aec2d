"""Regret: the time of a plan relative to the best single device.

Regret is the time of the plan that placement chose, divided by the time of the best single device. Every program runs
200 times under `auto`, and on each device by name, with the host for operations that the device does not support. Then
all take turns, each with a block of runs, in orders in which everyone comes directly behind everyone else equally
often. Ratios are taken within a round. Rounds are grouped in sittings, with all other programs in between. The regret
is the median over the sittings, with its 95% interval. As long as that interval holds 1.05 or 1.20, a program has
further sittings, up to 24 in all, of `auto` and the devices near it. A device that takes more than 5 times as long as
`auto` is timed once. "same" says that the plan of the best device is the plan of `auto`: the same kernels on the same
device, so that a regret is noise, or overhead of `auto`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import exp, log
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from ..._place.plan import Plan
from ..._run.device import devices
from ..._schedule.portable_region import digest
from ..._tensor.options import Options, options
from ..._tensor.tree import flatten
from ..._trace.jit import Jitted, jit
from ..._tune.comparison import agree
from ..._tune.learn import POLICY
from ..._tune.timing import seconds_of
from ...errors import ArgumentError
from . import machine
from .programs import Program, programs
from .timing import Contender, Ratio, Timing, race

FORMAT: Final = "yosegi-regret"
AUTO: Final = "auto"
ALLOWED: Final = 1.05
"""Times the best single device's time that a plan may take."""
SHARE: Final = 0.95
"""The share of programs for which that holds, at least."""
LIMIT: Final = 1.20
"""Times the best single device's time that no plan takes."""
_LEARNING: Final = 40.0  # seconds after which a program does not run on under `auto`, though it has not run 200 times
_HOPELESS: Final = 5.0  # times the time under `auto`: a device that takes longer is timed once
SITTINGS: Final = 5
_MOST_SITTINGS: Final = 24
"""Sittings of a program whose regret is too near a limit."""
_NEAR: Final = 1.3
"""Times the best device's time: devices that take longer have no further sittings."""
_ROUNDS: Final = 12
_TURN: Final = 0.01  # seconds
_SITTING: Final = 1.5  # seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """A program's times: a figure per round, grouped by sittings, under `auto` and on each device."""

    program: str
    family: str
    placed: tuple[str, ...]
    """Where the steps of the plan run that was chosen, each device once."""
    seconds: dict[str, tuple[tuple[float, ...], ...]]
    hopeless: dict[str, float] = field(default_factory=dict)
    """Seconds on the devices that were timed once."""
    runs: int = 0
    """Runs under `auto` before anything was timed."""
    alike: tuple[str, ...] = ()
    """The devices whose plan is the same as that of `auto`."""

    @property
    def best(self) -> str:
        """The single device that takes least."""
        return min((d for d in self.seconds if d != AUTO), key=self.median)

    @property
    def regret(self) -> Ratio:
        """The plan's time over that of the best single device, with its spread."""
        return self._ratio(AUTO, self.best)

    @property
    def is_same(self) -> bool:
        """Whether the best device's plan is the plan of `auto`."""
        return self.best in self.alike

    @property
    def is_open(self) -> bool:
        """Whether more sittings could show on which side of a limit the regret is."""
        regret = self.regret
        return any(regret.low <= limit < regret.high for limit in (ALLOWED, LIMIT))

    def median(self, name: str) -> float:
        """Seconds under `auto` or on a device."""
        return self.hopeless[name] if name in self.hopeless else Timing(self.seconds[name]).median

    def ratio(self, one: str, other: str) -> float:
        """The median over the rounds of one contender's time divided by another's."""
        if one in self.hopeless or other in self.hopeless:
            return self.median(one) / self.median(other)
        return self._ratio(one, other).median

    def _ratio(self, one: str, other: str) -> Ratio:
        """The ratio in the sittings that both had: the first ones."""
        both = min(len(self.seconds[one]), len(self.seconds[other]))
        return Timing(self.seconds[one][:both]).ratio_to(Timing(self.seconds[other][:both]))


@dataclass(frozen=True, slots=True)
class Run:
    """All programs on one machine."""

    created: str
    machine: dict[str, Any]
    devices: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def within(self) -> float:
        """The share of programs whose regret is allowed."""
        return sum(o.regret.median <= ALLOWED for o in self.outcomes) / len(self.outcomes)

    @property
    def worst(self) -> Outcome:
        """The program with the largest regret."""
        return max(self.outcomes, key=lambda o: o.regret.median)

    @property
    def is_good(self) -> bool:
        """Whether enough programs are within what is allowed, and none is beyond the limit."""
        return self.within >= SHARE and self.worst.regret.median <= LIMIT

    def gain_over(self, device: str) -> float:
        """How many times as fast as always that device, in the geometric mean."""
        return exp(sum(log(o.ratio(device, AUTO)) for o in self.outcomes) / len(self.outcomes))

    def write(self, path: str | Path) -> None:
        """Write the figures to a file."""
        Path(path).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1), encoding="utf-8")


def read(path: str | Path) -> Run:
    """A run from a file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}")
        outcomes = tuple(
            Outcome(o["program"], o["family"], tuple(o["placed"]),
                    {d: tuple(tuple(s) for s in sittings) for d, sittings in o["seconds"].items()},
                    o.get("hopeless", {}), o.get("runs", 0), tuple(o.get("alike", ())))
            for o in data["outcomes"]
        )  # fmt: skip
        return Run(data["created"], data["machine"], tuple(data["devices"]), outcomes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"[regret] expected a file that yosegi regret --json wrote, got {path}: {type(error).__name__} {error}"
        ) from None


def joined(runs: Iterable[Run]) -> list[Run]:
    """Runs with those of other programs of the same machine and devices as one: a machine may be measured in parts."""
    made: list[Run] = []
    for run in runs:
        for n, other in enumerate(made):
            is_alike = (run.machine["processor"], run.devices) == (other.machine["processor"], other.devices)
            if is_alike and not {o.program for o in run.outcomes} & {o.program for o in other.outcomes}:
                made[n] = replace(other, outcomes=other.outcomes + run.outcomes)
                break
        else:
            made.append(run)
    return made


def measure(
    pattern: str = "", tell: Callable[[str], None] = lambda text: None, sittings: int = SITTINGS
) -> Run:  # fmt: skip
    """Run all programs with this in their names; semicolons separate several, and "2/3" is the second third of all.

    They learn first; then each has several sittings, with the others in between, and further ones as long as its regret
    is too near a limit.
    """
    chosen = _chosen(pattern)
    if not chosen:
        raise ArgumentError(f"[regret] expected a part of some program's name, got {pattern!r}; try 'product'")
    names = tuple(d.name for d in devices())
    entries = []
    for n, program in enumerate(chosen, 1):
        entries.append(_Entry(program, names))
        tell(f"learned {n} of {len(chosen)}: {program.name}: on {', '.join(entries[-1].placed)}")
    for sitting in range(1, sittings + 1):
        for entry in entries:
            entry.sit()
        tell(f"sitting {sitting} of {sittings}")
    while still := [e for e in entries if e.sittings < _MOST_SITTINGS and e.outcome().is_open]:
        for entry in still:
            entry.sit(of_near=True)
        tell(f"further sitting of {len(still)} programs")
    outcomes = tuple(entry.outcome() for entry in entries)
    return Run(datetime.now(UTC).isoformat(timespec="seconds"), machine.description(), names, outcomes)


def _chosen(pattern: str) -> list[Program]:
    known = programs()
    part, _, parts = pattern.partition("/")
    if part.isdecimal() and parts.isdecimal() and 0 < int(part) <= int(parts):
        first, end = (len(known) * n // int(parts) for n in (int(part) - 1, int(part)))
        return known[first:end]
    return [p for p in known if any(text in p.name for text in pattern.split(";"))]


class _Entry:
    """A program, ready to be timed."""

    def __init__(self, program: Program, names: Sequence[str]) -> None:
        self.program = program
        function, inputs = program.prepared()
        self.functions = functions = {name: jit(function) for name in (AUTO, *names)}
        self.plan, self.runs = _learn(functions[AUTO], inputs)
        self.contenders = {
            name: Contender(partial(_call, own, inputs), partial(_turn, name)) for name, own in functions.items()
        }
        _check(program, self.contenders)
        self.hopeless = _hopeless(self.contenders)
        for name in self.hopeless:
            del self.contenders[name]
        self.timings: dict[str, Timing] = {}
        self.sittings = 0

    @property
    def placed(self) -> tuple[str, ...]:
        """Where its plan runs."""
        return tuple(dict.fromkeys(step.device.name for step in self.plan.steps))

    def sit(self, *, of_near: bool = False) -> None:
        """Time all contenders in one sitting; `of_near` only those that are near the best device, from now on."""
        if of_near:
            outcome = self.outcome()
            most = _NEAR * outcome.median(outcome.best)
            self.contenders = {n: c for n, c in self.contenders.items() if n == AUTO or outcome.median(n) <= most}
        first = len(self.timings[AUTO].rounds) if self.sittings else 0
        taken = race(self.contenders, rounds=_ROUNDS, seconds=_SITTING, settle=0.02, turn=_TURN, first=first)
        for name, timing in taken.items():
            self.timings[name] = self.timings[name].joined(timing) if name in self.timings else timing
        self.sittings += 1

    def outcome(self) -> Outcome:
        """All its times."""
        seconds = {name: timing.sittings for name, timing in self.timings.items()}
        plans = {name: _steps_of(function.plans[0]) for name, function in self.functions.items()}
        alike = tuple(name for name, steps in plans.items() if name != AUTO and steps == plans[AUTO])
        return Outcome(self.program.name, self.program.family, self.placed, seconds, self.hopeless, self.runs, alike)


def _steps_of(plan: Plan) -> list[Any]:
    """The device, the precision and the region of each step: for these, a process has one kernel."""
    return [(step.candidate, digest(step.region)) for step in plan.steps]


def _hopeless(contenders: dict[str, Contender]) -> dict[str, float]:
    """The devices that take much longer than `auto`, with their seconds, at best of three runs; all but one at most."""
    taken = {name: _once(contender) for name, contender in contenders.items()}
    nearest = min(seconds for name, seconds in taken.items() if name != AUTO)
    return {n: s for n, s in taken.items() if n != AUTO and s > _HOPELESS * taken[AUTO] and s > nearest}


def _once(contender: Contender) -> float:
    with contender.turn():
        return min(seconds_of(contender.call) for _ in range(3))


def _turn(name: str) -> AbstractContextManager[Options]:
    return options(device=name, background=False)


def _call(function: Jitted[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """A call whose results are on the host when it returns."""
    return [result.numpy() for result in flatten(function(*inputs))[0]]


def _learn(function: Jitted[..., Any], inputs: Sequence[Any]) -> tuple[Plan, int]:
    """Call a function under `auto` until its plan has been judged, or time is up: the plan, and the number of runs."""
    end, runs = perf_counter() + _LEARNING, 0
    with _turn(AUTO):
        while runs < POLICY.decided_runs and perf_counter() < end:
            _call(function, inputs)
            runs += 1
    (plan,) = function.plans
    return plan, runs


def _check(program: Program, contenders: dict[str, Contender]) -> None:
    """Raise if a contender's result is wrong: only right ones are timed."""
    results: dict[str, Any] = {}
    for name, contender in contenders.items():
        with contender.turn():
            results[name] = contender.call()
    reference = next(reversed(results.values()))
    for name, result in results.items():
        if not all(map(agree, reference, result)):
            raise ArgumentError(f"[regret] expected equal results of {program.name!r} everywhere, got others by {name}")


# The page


def page(runs: Iterable[Run]) -> str:
    """Runs as a document, written from their figures alone."""
    lines = ["# Regret", "", __doc__.partition("\n\n")[2].strip() if __doc__ else "", ""]
    lines += ["Generated by `make regret`. Times are medians over the rounds.", ""]
    for run in runs:
        lines += _section(run)
    return "\n".join(lines).rstrip() + "\n"


def _section(run: Run) -> list[str]:
    first = run.devices[0]
    over = sorted((o for o in run.outcomes if o.regret.median > ALLOWED), key=lambda o: -o.regret.median)
    described = ", ".join(f"`{d['name']}` ({d['description']})" for d in run.machine["devices"])
    lines = [
        f"## {run.machine['processor']}", "",
        f"{run.created[:10]}, {len(run.outcomes)} programs. The chain: {described}.", "",
        "| figure | value |", "|---|---|",
        f"| programs whose plan takes at most {ALLOWED:.2f} times the best single device's time | {run.within:.1%} |",
        f"| required share of programs, and largest allowed regret | {SHARE:.0%}, {LIMIT:.2f} |",
        f"| largest regret | {run.worst.regret.median:.2f} ({run.worst.program}) |",
        *[f"| speed relative to always `{d}`, geometric mean | {run.gain_over(d):.2f} |" for d in run.devices],
        "",
        f"The first device of the chain is `{first}`. "
        + (f"Above {ALLOWED:.2f}: {'; '.join(map(_described, over))}." if over else ""),
        "",
        "| program | placed on | best device's plan | " + " | ".join(["auto", *run.devices]) + " | regret |",
        "|---|---|---|" + "--:|" * (len(run.devices) + 2),
    ]  # fmt: skip
    for outcome in run.outcomes:
        times = [_milliseconds(outcome.median(name)) for name in (AUTO, *run.devices)]
        same = "same" if outcome.is_same else outcome.best
        placed = ", ".join(outcome.placed)
        lines.append(f"| {outcome.program} | {placed} | {same} | {' | '.join(times)} | {outcome.regret} |")
    return [*lines, ""]


def _described(outcome: Outcome) -> str:
    return f"{outcome.program} ({outcome.regret.median:.2f}{', same plan' if outcome.is_same else ''})"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
