"""Actions for forked children."""

import gc
import os

import pytest

from yosegi._run.forks import in_forked_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def increase(self) -> None:
        self.count += 1


def in_child(check) -> int:
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_actions_run_in_the_child_and_not_in_the_parent():
    counter, seen = Counter(), []
    in_forked_child(counter.increase)
    in_forked_child(lambda: seen.append(counter.count))
    assert in_child(lambda: (counter.count, seen) == (1, [1])) == 0
    assert (counter.count, seen) == (0, [])


def test_an_object_is_not_kept_alive_by_its_action():
    gone = []

    class Short(Counter):
        def __del__(self) -> None:
            gone.append(True)

    short = Short()
    in_forked_child(short.increase)
    del short
    gc.collect()
    assert gone
