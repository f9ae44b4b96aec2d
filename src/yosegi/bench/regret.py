"""Regret: how much longer the plan that placement chose takes than the best single device does.

Every program runs under `auto`, until nothing is left to learn about it, and on each device by name, with the host for
what that device lacks. Then all take turns, and what counts is the ratio within a round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from math import exp, log
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from ..device import devices
from ..errors import ArgumentError
from ..jit import Jitted, jit
from ..options import Options, options
from ..plan import Plan
from ..tree import flatten
from ..trial import agree
from . import machine
from .programs import Program, programs
from .timing import Contender, Timing, race

FORMAT: Final = "yosegi-regret"
AUTO: Final = "auto"
ALLOWED: Final = 1.10
"""Times the best single device's time that a plan may take."""
_LEARNING: Final = 4.0  # seconds that a program may learn for
SITTINGS: Final = 5
_ROUNDS: Final = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """A program's times: a figure per round, grouped by sittings, under `auto` and on each device."""

    program: str
    family: str
    placed: tuple[str, ...]
    """Where the steps of the plan run that was chosen, each device once."""
    seconds: dict[str, tuple[tuple[float, ...], ...]]

    @property
    def best(self) -> str:
        """The single device that takes least."""
        return min((d for d in self.seconds if d != AUTO), key=lambda d: Timing(self.seconds[d]).median)

    @property
    def regret(self) -> float:
        """The plan's time over that of the best single device."""
        return self.ratio(AUTO, self.best)

    def ratio(self, one: str, other: str) -> float:
        """One's time over the other's, in the middle round."""
        return Timing(self.seconds[one]).ratio_to(Timing(self.seconds[other])).median


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
        return sum(o.regret <= ALLOWED for o in self.outcomes) / len(self.outcomes)

    @property
    def worst(self) -> Outcome:
        """The program with the largest regret."""
        return max(self.outcomes, key=lambda o: o.regret)

    def gain_over(self, device: str) -> float:
        """How many times as fast as always that device, in the geometric mean."""
        return exp(sum(log(o.ratio(device, AUTO)) for o in self.outcomes) / len(self.outcomes))

    def write(self, path: str | Path) -> None:
        """To a file."""
        Path(path).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1), encoding="utf-8")


def read(path: str | Path) -> Run:
    """A run from a file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}")
        outcomes = tuple(
            Outcome(o["program"], o["family"], tuple(o["placed"]),
                    {d: tuple(tuple(s) for s in sittings) for d, sittings in o["seconds"].items()})
            for o in data["outcomes"]
        )  # fmt: skip
        return Run(data["created"], data["machine"], tuple(data["devices"]), outcomes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"[regret] expected a file that yosegi regret --json wrote, got {path}: {type(error).__name__} {error}"
        ) from None


def measure(
    pattern: str = "", tell: Callable[[str], None] = lambda text: None, sittings: int = SITTINGS
) -> Run:  # fmt: skip
    """Run all programs with this in their names. They learn first; then each has several sittings, with the others in
    between."""
    chosen = [p for p in programs() if pattern in p.name]
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
    outcomes = tuple(entry.outcome() for entry in entries)
    return Run(datetime.now(UTC).isoformat(timespec="seconds"), machine.description(), names, outcomes)


class _Entry:
    """A program, ready to be timed."""

    def __init__(self, program: Program, names: Sequence[str]) -> None:
        self.program = program
        function, inputs = program.prepared()
        functions = {name: jit(function) for name in (AUTO, *names)}
        self.plan = _learn(functions[AUTO], inputs)
        self.contenders = {
            name: Contender(partial(_call, own, inputs), partial(_turn, name)) for name, own in functions.items()
        }
        _check(program, self.contenders)
        self.timings: dict[str, Timing] = {}

    @property
    def placed(self) -> tuple[str, ...]:
        """Where its plan runs."""
        return tuple(dict.fromkeys(step.device.name for step in self.plan.steps))

    def sit(self) -> None:
        """One sitting of all contenders."""
        for name, timing in race(self.contenders, rounds=_ROUNDS, seconds=1.0, settle=0.001).items():
            self.timings[name] = self.timings[name].joined(timing) if name in self.timings else timing

    def outcome(self) -> Outcome:
        """All its times."""
        seconds = {name: timing.sittings for name, timing in self.timings.items()}
        return Outcome(self.program.name, self.program.family, self.placed, seconds)


def _turn(name: str) -> AbstractContextManager[Options]:
    return options(device=name, background=False)


def _call(function: Jitted[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """A call whose results are on the host when it returns."""
    return [result.numpy() for result in flatten(function(*inputs))[0]]


def _learn(function: Jitted[..., Any], inputs: Sequence[Any]) -> Plan:
    """Call a function under `auto` until nothing is left to learn about its plan, or time is up; the plan."""
    end = perf_counter() + _LEARNING
    with _turn(AUTO):
        while True:
            _call(function, inputs)
            (plan,) = function.plans
            if plan.watch is None or plan.watch.is_settled or perf_counter() > end:
                return plan


def _check(program: Program, contenders: dict[str, Contender]) -> None:
    """Nobody is timed who is wrong."""
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
    lines += ["Made by `make regret`; the times are medians of rounds in which all took turns.", ""]
    for run in runs:
        lines += _section(run)
    return "\n".join(lines).rstrip() + "\n"


def _section(run: Run) -> list[str]:
    first = run.devices[0]
    over = sorted((o for o in run.outcomes if o.regret > ALLOWED), key=lambda o: -o.regret)
    described = ", ".join(f"`{d['name']}` ({d['description']})" for d in run.machine["devices"])
    lines = [
        f"## {run.machine['processor']}", "",
        f"{run.created[:10]}, {len(run.outcomes)} programs. The chain: {described}.", "",
        "| what | figure |", "|---|---|",
        f"| programs whose plan takes at most {ALLOWED:.2f} times the best single device's time | {run.within:.1%} |",
        f"| the largest regret | {run.worst.regret:.2f} ({run.worst.program}) |",
        *[f"| times as fast as always `{d}`, geometric mean | {run.gain_over(d):.2f} |" for d in run.devices],
        "",
        f"The first device of the chain is `{first}`. "
        + (f"Above {ALLOWED:.2f}: {'; '.join(f'{o.program} ({o.regret:.2f})' for o in over)}." if over else ""),
        "",
        "| program | placed on | " + " | ".join(["auto", *run.devices]) + " | regret |",
        "|---|---|" + "--:|" * (len(run.devices) + 2),
    ]  # fmt: skip
    for outcome in run.outcomes:
        times = [_milliseconds(Timing(outcome.seconds[name]).median) for name in (AUTO, *run.devices)]
        lines.append(
            f"| {outcome.program} | {', '.join(outcome.placed)} | {' | '.join(times)} | {outcome.regret:.2f} |"
        )
    return [*lines, ""]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
