"""Actions for a forked child process: locks that no thread holds any more, threads and drivers that are not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import MethodType
from typing import Any, Final
from weakref import WeakMethod

_actions: Final[list[Callable[[], Callable[[], Any] | None]]] = []


def in_forked_child(action: Callable[[], Any]) -> None:
    """Run an action in every forked child, after those registered before it. A method runs while its object lives."""
    _actions.append(WeakMethod(action) if isinstance(action, MethodType) else lambda: action)


def _run_all() -> None:
    for reference in _actions:
        action = reference()
        if action is not None:
            action()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_run_all)
