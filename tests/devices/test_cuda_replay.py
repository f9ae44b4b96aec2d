"""Recordings and their graphs, on the host's memory: launches are functions, and a graph runs them in any order that
its lanes allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.host_queue import SHAPE, Function, HostQueue, seen
from yosegi._schedule.fuse import RegionKind
from yosegi._tensor.dtype import float32
from yosegi._tensor.precision import Precision
from yosegi._tune.records import TuningRecords
from yosegi.devices.cuda.lanes import Turn
from yosegi.devices.cuda.launch import Queue
from yosegi.devices.cuda.memory import Data
from yosegi.devices.cuda.replay import Replayed
from yosegi.devices.kernel.fused import _Measured


class Stream:
    """A stream that tells what it is asked to do."""

    def __init__(self, told: list[Any], **how: Any) -> None:
        self.told = told
        self.ptr = id(self)

    def begin_capture(self) -> None:
        self.told.append("begin")

    def end_capture(self) -> Any:
        self.told.append("end")
        return self

    def record(self) -> Any:
        return ("after", self.ptr, len(self.told))

    def wait_event(self, event: Any) -> None:
        self.told.append((self.ptr, event))


@pytest.fixture
def queue() -> HostQueue:
    return HostQueue()


def put(queue: HostQueue, value: float) -> Data:
    data = queue.memory.new(SHAPE, float32)
    seen(data.pointer)[:] = value
    return data


def branches(queue: HostQueue) -> Replayed:
    """((x + 1) * (x + 2)) - (y + 3), with nothing kept that is not needed any more."""
    one, two, three = (Function(queue, lambda a, n=n: a + n) for n in (1, 2, 3))
    times, minus = Function(queue, lambda a, b: a * b), Function(queue, lambda a, b: a - b)
    return Replayed(lambda x, y: (minus(times(one(x), two(x)), three(y)),), queue, "branches")


def expected(x: float, y: float) -> float:
    return (x + 1) * (x + 2) - (y + 3)


def test_branches_run_side_by_side(queue: HostQueue) -> None:
    kernel = branches(queue)
    x, y = put(queue, 5), put(queue, 7)
    for _ in range(30):
        (made,) = kernel(x, y)
        np.testing.assert_array_equal(seen(made.pointer), expected(5, 7))
    assert queue.graphs
    assert {turn.lane for turn in queue.graphs[0]} == {0, 1, 2}


def test_inputs_and_outputs_may_lie_elsewhere(queue: HostQueue) -> None:
    kernel = branches(queue)
    kept = [(kernel(put(queue, n), put(queue, 2 * n))[0], expected(n, 2 * n)) for n in range(20)]
    for made, wanted in kept:
        np.testing.assert_array_equal(seen(made.pointer), wanted)


def test_a_loop_finds_its_graph_however_much_memory_has_come_back(queue: HostQueue) -> None:
    kernel = branches(queue)
    x, y = put(queue, 5), put(queue, 7)
    kept = [kernel(x, y) for _ in range(40)]
    del kept
    places = {kernel(x, y)[0].pointer for _ in range(40)}
    assert len(places) == 1
    assert len(queue.graphs) == 1


def test_inputs_that_come_once_cost_no_graph(queue: HostQueue) -> None:
    kernel = branches(queue)
    x, y = put(queue, 5), put(queue, 7)
    others = [put(queue, n) for n in range(20)]
    for _ in range(4):
        kernel(x, y)
    for n, other in enumerate(others):
        np.testing.assert_array_equal(seen(kernel(other, y)[0].pointer), expected(n, 7))
        np.testing.assert_array_equal(seen(kernel(x, y)[0].pointer), expected(5, 7))
    assert len(queue.graphs) == 1


def test_a_tensor_given_twice_is_replayed_and_two_tensors_after_it_are_right(queue: HostQueue) -> None:
    kernel = branches(queue)
    x, y = put(queue, 5), put(queue, 7)
    for _ in range(6):
        np.testing.assert_array_equal(seen(kernel(x, x)[0].pointer), expected(5, 5))
    assert len(queue.graphs) == 1
    for first, second, wanted in [(x, y, expected(5, 7)), (y, x, expected(7, 5)), (y, y, expected(7, 7))] * 4:
        np.testing.assert_array_equal(seen(kernel(first, second)[0].pointer), wanted)


def test_nothing_is_recorded_before_the_kernel_is_decided(queue: HostQueue) -> None:
    runs: list[int] = []
    add = Function(queue, lambda a: a + len(runs))

    def kernel(x: Data) -> tuple[Data, ...]:
        if len(runs) < 5:
            runs.append(1)
            queue.undecided()
        return (add(x),)

    replayed = Replayed(kernel, queue, "settling")
    x = put(queue, 0)
    values = [float(seen(replayed(x)[0].pointer)[0]) for _ in range(12)]
    assert values == [1, 2, 3, 4] + [5] * 8
    assert len(queue.graphs) == 1


def measured(queue: HostQueue, choices: TuningRecords, number: int, ran: list[str]) -> Any:
    """A kernel that measures in its first run, and finds its second way to be the better one."""

    def way(name: str) -> Callable[[], Any]:
        def work(a: Any) -> Any:
            ran.append(name)
            return a + 1

        launch = Function(queue, work)
        return lambda: lambda *data: (launch(*data),)

    def seconds(kernel: Any, data: Any, calls: int) -> float:
        sleep(0.02)  # in which the other thread comes
        with queue.lock, queue.recording():
            kernel(*data)
        return 1e-2 if ran[-1] == "first" else 1e-3

    machine: Any = SimpleNamespace(
        name="cuda:0",
        target=queue.target,
        seconds=seconds,
        undecided=queue.undecided,
        to_host=lambda d: seen(d.pointer),
    )  # fmt: skip
    region: Any = SimpleNamespace(
        kind=RegionKind.CONTRACTION, calls=(), inputs=(), nodes=(), precision=Precision.FULL, repeats=True
    )
    work: Any = SimpleNamespace(size=1 << 30 + number, graph=SimpleNamespace(inputs=(), calls=()))
    made = _Measured(machine, choices, region, work, {name: way(name) for name in ("first", "second")}, "first")
    made._reference = lambda: lambda data: [seen(data.pointer) + 1]  # type: ignore[method-assign]
    made._kind = f"work {number}"
    return made


def test_two_threads_while_ways_are_measured(queue: HostQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    ran: list[str] = []
    choices = TuningRecords("here")
    one, two = (measured(queue, choices, n, ran) for n in (1, 2))
    kernel = Replayed(lambda x: two(*one(x)), queue, "two products")
    x = put(queue, 1)
    threads = [Thread(target=kernel, args=(x,), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
        sleep(0.01)
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    kernel(x)
    ran.clear()
    for _ in range(4):
        np.testing.assert_array_equal(seen(kernel(x)[0].pointer), 3)
    assert ran == ["second"] * 8


def test_lanes_are_forked_and_joined_and_left_in_order(queue: HostQueue) -> None:
    told: list[Any] = []
    queue.cupy = SimpleNamespace(cuda=SimpleNamespace(Stream=lambda **how: Stream(told, **how)))
    own = queue.pointer
    at: list[tuple[int, int]] = []
    turns = [Turn(0, ()), Turn(1, ()), Turn(0, (1,))]
    launch = lambda: at.append((queue.lane, queue.pointer))
    Queue.captured(queue, [launch] * 3, turns)
    first, second = (pointer for _, pointer in at[:2])
    assert [lane for lane, _ in at] == [0, 1, 0]
    assert len({own, first, second}) == 3
    waits = [(who, event[1]) for who, event in (t for t in told if not isinstance(t, str))]
    assert waits == [(second, first), (first, second), (first, second)]  # the fork, what the third waits for, the end
    assert (told[0], told[-1]) == ("begin", "end")

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Queue.captured(queue, [fail], [Turn(0, ())])
    assert (queue.lane, queue.pointer) == (0, own)
    assert told[-1] == "end"


def test_what_a_library_needs_on_the_way_is_counted_as_nobodys(queue: HostQueue) -> None:
    before = queue.memory.statistics().in_use
    first = queue.workspace
    assert queue.workspace == first
    queue.lane = 1
    assert queue.workspace != first
    assert queue.memory.statistics().in_use == before
