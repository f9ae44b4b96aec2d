"""All programs of `target_programs` on the CPU device of a process of its own: YOSEGI_CPU is read once in a process.

`report` prints one line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import pytest

import scalar_calls
import yosegi as ys
from native_code import always, always_native
from target_programs import PROGRAMS, RULES, Program, rules
from values import Array
from yosegi._run.device import device_named
from yosegi._run.trace import trace
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.variants import GENERATED

MEASURED = ("relu(x @ w + b + r), generated", "conv2d of float32, generated")
"""Programs that also run in the variant that is measured to be fastest; all variants are checked then."""


class Run:
    """The programs as they run: which of them were wrong, and how many native calls were made for each."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.wrong: dict[str, str] = {}

    def attempt(
        self, name: str, function: Callable[..., Any], arrays: Sequence[Array], check: Callable[[list[Array]], None],
        way: str | None = GENERATED,
    ) -> None:  # fmt: skip
        """Run a program, jitted, by native code alone; its products in a variant, or in the fastest."""
        self.calls[name] = 0
        call = Runtime.call

        def counted(*given: Any, **more: Any) -> Any:
            self.calls[name] += 1
            return call(*given, **more)

        try:
            with pytest.MonkeyPatch.context() as patch, always_native(), nullcontext() if way is None else always(way):
                patch.setattr(Runtime, "call", counted)
                jitted = ys.jit(function)
                for _ in range(2):  # the first run may be NumPy's
                    made = jitted(*[ys.asarray(a, copy=False) for a in arrays])
                    check([t.numpy() for t in (made if isinstance(made, tuple) else (made,))])
        except Exception as error:
            self.wrong[name] = f"{type(error).__name__}: {error}"

    def program(self, program: Program, way: str | None) -> None:
        """Run one of the programs."""
        name = f"{program.name}{'' if way else ', measured'}"
        self.attempt(name, program.function, program.given, program.check, way)


def report() -> None:
    """Run all programs and print what happened."""
    run, natives = Run(), device_named("cpu").natives  # type: ignore[attr-defined]
    with ys.options(device="cpu"):
        for dtype, arity in RULES:
            of = rules(dtype, arity)
            check = partial(scalar_calls.check, of.read, of.arrays)
            run.attempt(f"elementwise ops on {arity} of {dtype.name}", of.function, of.arrays, check)
        for program in chain.from_iterable(make() for make in PROGRAMS.values()):
            run.program(program, program.way)
            if program.name in MEASURED:
                run.program(program, None)
    print(json.dumps({
        "machine": str(natives), "compiled": natives.runtime.compiler.compiled if natives.runtime else 0,
        "calls": run.calls, "wrong": run.wrong,
        "failures": [f"{r.ops}: {f.message}" for r in trace.records for f in r.failures],
    }))  # fmt: skip
