"""Risky work in a process of its own, so that a crash takes nothing with it.

Drivers and compilers can end a process with a signal, or never return. What is new to a machine is tried in a child
first: `attempt("package.module:function", argument)` calls the function there and tells how it went.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Final

_TIMEOUT: Final = 60.0  # seconds
_MARK: Final = "yosegi-trial-result:"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial went: its result, or why there is none."""

    result: Any = None
    failure: str | None = None
    timed_out: bool = field(default=False, compare=False)
    """Whether it failed because time was up: a machine that is busy, or was asleep, may do better another time."""


def attempt(function: str, *arguments: Any, timeout: float = _TIMEOUT) -> Outcome:
    """Call `module:function` with arguments that JSON can hold, in a child process."""
    command = [sys.executable, "-m", __name__, function, json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"it did not return within {timeout:g} s", timed_out=True)
    except OSError as error:
        return Outcome(failure=f"no child process could be started: {error}")
    if child.returncode < 0:
        return Outcome(failure=f"it ended the process with {signal.Signals(-child.returncode).name}")
    for line in child.stdout.splitlines():
        if line.startswith(_MARK):
            return Outcome(result=json.loads(line.removeprefix(_MARK)))
    last = child.stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
    return Outcome(failure=last[0])


def _main() -> None:
    module, _, name = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]))
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    _main()
