"""Checks in a forked child, which ends whatever happens: it must not go on as a second test run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def holds_in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether a check is true in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries that are loaded warn of it
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
