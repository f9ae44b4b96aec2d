"""Recordings and their graphs, on the host's memory: launches are functions, and a graph runs them in any order that
its lanes allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.host_queue import SHAPE, Function, HostQueue, seen
from yosegi._run.trace import trace
from yosegi._schedule.fuse import RegionKind
from yosegi._tensor.dtype import float32
from yosegi._tensor.precision import Precision
from yosegi._tune.records import TuningRecords
from yosegi.devices.cuda.concurrency import Turn
from yosegi.devices.cuda.launch import Queue
from yosegi.devices.cuda.memory import Data
from yosegi.devices.cuda.replay import Replayed
from yosegi.devices.kernel.measured import MeasuredKernel
from yosegi.errors import OutOfMemory


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
        compilers=2,
        target=queue.target,
        seconds=seconds,
        undecided=queue.undecided,
        memory=SimpleNamespace(to_host=lambda d: seen(d.pointer)),
    )  # fmt: skip
    region: Any = SimpleNamespace(
        kind=RegionKind.CONTRACTION, calls=(), inputs=(), nodes=(), precision=Precision.FULL, repeats=True
    )
    work: Any = SimpleNamespace(size=1 << 30 + number, graph=SimpleNamespace(inputs=(), calls=()))
    made = MeasuredKernel(machine, choices, region, work, {name: way(name) for name in ("first", "second")}, "first")
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


def stepped(queue: HostQueue) -> Replayed:
    """A training step: each parameter grows by one, and the sum of all is the loss."""
    grow, add = Function(queue, lambda a: a + 1), Function(queue, lambda a, b: a + b)

    def kernel(*given: Data) -> tuple[Data, ...]:
        loss = given[0]
        for parameter in given[1:]:
            loss = add(loss, parameter)
        return (*[grow(parameter) for parameter in given], loss)

    return Replayed(kernel, queue, "step")


def value(data: Data) -> float:
    (first, *others) = {float(x) for x in seen(data.pointer)}
    assert not others
    return first


def test_a_loop_over_many_results_needs_two_graphs(queue: HostQueue) -> None:
    kernel, count = stepped(queue), 40
    parameters = [put(queue, n) for n in range(count)]
    for run in range(30):
        *parameters, loss = kernel(*parameters)
        assert [value(p) for p in parameters] == [n + run + 1 for n in range(count)]
        assert value(loss) == sum(n + run for n in range(count))
    assert len(queue.graphs) == 2
    assert queue.replays > 20
    assert kernel.launched == "one launch of 79 kernels"


def test_the_order_in_which_results_are_let_go_of_does_not_matter(queue: HostQueue) -> None:
    kernel, count = stepped(queue), 600  # so many that they take several slabs of one size
    parameters = [put(queue, n) for n in range(count)]
    for _ in range(30):
        *made, _ = kernel(*parameters)
        order = list(range(count))
        random.shuffle(order)
        for n in order:
            parameters[n], made[n] = made[n], None
    assert len(queue.graphs) <= 3
    assert queue.replays > 15


def test_results_that_are_kept_stay_as_they_are_and_runs_are_graphs(queue: HostQueue) -> None:
    kernel, count = stepped(queue), 40
    parameters = [put(queue, n) for n in range(count)]
    losses = []
    for _ in range(60):
        *parameters, loss = kernel(*parameters)
        losses.append(loss)
    assert [value(loss) for loss in losses] == [sum(n + run for n in range(count)) for run in range(60)]
    assert queue.runtime.copies
    assert queue.replays > 30


def test_inputs_whose_addresses_do_not_come_again_are_copied(queue: HostQueue) -> None:
    kernel = stepped(queue)
    fixed = [put(queue, n) for n in range(39)]
    others = [put(queue, 1000 * n) for n in range(60)]
    for n, other in enumerate(others):
        *_, loss = kernel(*fixed, other)
        assert value(loss) == sum(range(39)) + 1000 * n
    assert queue.replays > 40
    assert len(queue.graphs) <= 3


def test_a_number_of_the_host_is_copied_to_where_a_graph_reads_it(queue: HostQueue) -> None:
    add, times = Function(queue, lambda a: a + 1), Function(queue, lambda a, t: a * t[0])

    def kernel(x: Data, t: Data) -> tuple[Data, ...]:
        for _ in range(70):
            x = add(x)
        return (times(x, t),)

    replayed, x = Replayed(kernel, queue, "rate"), put(queue, 1)
    rate = queue.memory.from_host(np.float32(3))
    for n in range(12):
        before = len(queue.runtime.copies)
        assert value(replayed(x, queue.memory.from_host(np.float32(n)))[0]) == 71 * n
        if queue.replays:
            assert queue.runtime.copies[before:] == [4]
        assert value(replayed(x, rate)[0]) == 71 * 3
    assert queue.replays > 10


def test_few_launches_are_not_worth_a_copy(queue: HostQueue) -> None:
    add = Function(queue, lambda a: a + 1)
    kernel = Replayed(lambda x: (add(x),), queue, "one")
    for n in range(30):
        assert value(kernel(put(queue, n))[0]) == n + 1
    kept = [kernel(put(queue, n)) for n in range(30)]
    assert [value(made) for (made,) in kept] == [n + 1 for n in range(30)]
    assert not queue.runtime.copies


def test_outputs_that_are_inputs_or_constants_or_twice_the_same_are_passed_on(queue: HostQueue) -> None:
    constant = put(queue, 42)
    add = Function(queue, lambda a: a + 1)

    def kernel(x: Data, y: Data) -> tuple[Data, ...]:
        made = add(add(x))
        return y.reshaped((4, 2)), made, constant, made.reshaped((2, 4)), queue.memory.new((0,), float32)

    replayed = Replayed(kernel, queue, "passing")
    x, y = put(queue, 1), put(queue, 2)
    for _ in range(10):
        passed, made, always, again, empty = replayed(x, y)
        assert (passed.pointer, passed.shape, value(passed)) == (y.pointer, (4, 2), 2)
        assert (made.shape, value(made)) == ((8,), 3)
        assert always.pointer == constant.pointer
        assert (again.pointer, again.shape) == (made.pointer, (2, 4))
        assert (empty.shape, empty.pointer) == ((0,), 0)
    assert queue.replays > 4
    z = put(queue, 7)
    del y
    assert replayed(x, z)[0].pointer == z.pointer
    assert passed.block is not None  # which keeps what was passed on where it is
    assert value(passed) == 2


def test_results_share_memory_until_the_last_of_them_is_gone(queue: HostQueue) -> None:
    kernel = stepped(queue)
    given = [put(queue, n) for n in range(20)]
    for _ in range(4):
        kernel(*given)
    kept = kernel(*given)[3]
    for _ in range(10):
        kernel(*[put(queue, 100 + n) for n in range(20)])
    assert value(kept) == 4


def test_a_recorded_run_takes_no_more_memory_than_any_other(queue: HostQueue) -> None:
    add = Function(queue, lambda a: a + 1)

    def chain(x: Data) -> tuple[Data, ...]:
        for _ in range(200):
            x = add(x)
        return (x,)

    kernel, x = Replayed(chain, queue, "chain"), put(queue, 0)
    peaks = []
    for _ in range(2):
        queue.memory.trim()
        kernel(x)
        peaks.append(queue.memory.statistics().peak)
    assert peaks[1] == peaks[0]
    for _ in range(4):
        assert value(kernel(x)[0]) == 200
    assert queue.replays
    assert queue.memory.statistics().in_use < 40 * 256


def test_recordings_share_what_they_need_on_the_way(queue: HostQueue) -> None:
    def chain(length: int) -> Replayed:
        add = Function(queue, lambda a: a + 1)

        def kernel(x: Data) -> tuple[Data, ...]:
            for _ in range(length):
                x = add(x)
            return (x,)

        return Replayed(kernel, queue, "chain")

    kernels, x = {n: chain(n) for n in (30, 5, 60)}, put(queue, 0)
    for _ in range(6):
        for n, kernel in kernels.items():
            assert value(kernel(x)[0]) == n
    assert queue.memory.statistics().in_use < 20 * 256
    with queue.lock:
        queue.scratch.release()
    queue.memory.trim()
    before = queue.replays
    for _ in range(4):
        for n, kernel in kernels.items():
            assert value(kernel(x)[0]) == n
    assert queue.replays > before


def test_threads_do_not_mix_what_recordings_share(queue: HostQueue) -> None:
    kernels = [branches(queue) for _ in range(2)]
    wrong: list[float] = []

    def work(kernel: Replayed, start: int) -> None:
        for n in range(200):
            made = kernel(put(queue, start + n % 3), put(queue, n % 5))[0]
            if value(made) != expected(start + n % 3, n % 5):
                wrong.append(value(made))

    threads = [Thread(target=work, args=(kernels[n % 2], 10 * n), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_values_on_the_way_that_take_too_much_are_not_kept(queue: HostQueue) -> None:
    queue.memory.total = 1024
    kernel, x, y = branches(queue), put(queue, 5), put(queue, 7)
    for _ in range(10):
        assert value(kernel(x, y)[0]) == expected(5, 7)
    assert not queue.graphs
    assert "launched step by step" in trace.records[-1].failures[0].message


def test_a_replay_without_memory_is_launched_one_by_one(queue: HostQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x, y = branches(queue), put(queue, 5), put(queue, 7)
    for _ in range(4):
        kernel(x, y)
    held = queue.memory.statistics().in_use

    def full(nbytes: int) -> Any:
        raise OutOfMemory("no room")

    with monkeypatch.context() as patched:
        patched.setattr(queue.scratch, "block", full)
        assert value(kernel(x, y)[0]) == expected(5, 7)
        assert queue.memory.statistics().in_use <= held
    before = queue.replays
    for _ in range(6):
        assert value(kernel(x, y)[0]) == expected(5, 7)
    assert queue.replays > before


def test_a_capture_that_fails_leaves_launches(queue: HostQueue) -> None:
    queue.refuses = True
    kernel, x, y = branches(queue), put(queue, 5), put(queue, 7)
    for _ in range(10):
        assert value(kernel(x, y)[0]) == expected(5, 7)
    assert kernel.launched == "5 launches"
    assert "not captured into a graph" in trace.records[-1].failures[0].message


def test_an_array_of_the_host_may_come_to_where_a_value_was(queue: HostQueue) -> None:
    add = Function(queue, lambda a: a + 1)

    def kernel(x: Data) -> tuple[Data, ...]:
        add(x)  # which nobody needs
        return (add(queue.memory.from_host(np.full(SHAPE, 10, np.float32))),)

    replayed = Replayed(kernel, queue, "constant")
    x = put(queue, 1)
    for _ in range(6):
        assert value(replayed(x)[0]) == 11
    assert queue.replays


def test_only_a_tape_that_holds_its_data_keeps_memory(queue: HostQueue) -> None:
    add, x = Function(queue, lambda a: a + 1), put(queue, 1)
    before = queue.memory.statistics().in_use
    for holds in (False, True):
        with queue.recording(holds=holds) as tape:
            add(add(x))
        assert (queue.memory.statistics().in_use > before) is holds
        assert len(tape.launches) == 2
