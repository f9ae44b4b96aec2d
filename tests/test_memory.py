"""Limits on host memory, buffers with replicas, transfers."""

import json
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

import yosegi as ys
from fakes import CompilerFails, FakeDevice, Linked, installed
from yosegi._graph.graph import capture, graph_of
from yosegi._place.forecast import _moved
from yosegi._run.memory import HOST, Buffer, Method
from yosegi._run.memory.pool import Pool
from yosegi._run.run import transfers
from yosegi.errors import DeviceLost, LaunchFailure, OutOfMemory, ValuesLost

LIMITED = """
import json, numpy as np, yosegi as ys
x = ys.asarray(np.ones(100_000)) + 0.0          # 800 kB
ys.eval(x)
try:
    ys.eval(ys.concat([x * 2, x * 3]))          # 1.6 MB more
    told = "nothing"
except ys.errors.OutOfMemory as error:
    told = str(error)
y = x + 1                                       # 800 kB: fits
print(json.dumps([told, float(ys.sum(x)), float(ys.sum(y))]))
del y
for _ in range(10):
    ys.eval(x * 2)                              # freed each time
print("done")
"""


def test_a_limit_that_cannot_be_met_names_the_tensor_and_loses_nothing():
    command = [sys.executable, "-c", LIMITED]
    environment = {"YOSEGI_MEMORY_LIMIT": "2MB", "YOSEGI_DEVICE": "cpu", "PYTHONPATH": ":".join(sys.path)}
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout.splitlines()
    told, x, y = json.loads(out[0])
    assert told.startswith("float64[200000] needs 1600000 bytes beside 800000 in use; the limit is 2000000")
    assert (x, y, out[1]) == (100_000.0, 200_000.0, "done")


def test_a_buffer_knows_its_replicas():
    buffer = Buffer("on host")
    buffer.add("a", "on a")
    assert (buffer.on(HOST), buffer.on("a"), buffer.on("b")) == ("on host", "on a", None)
    assert buffer.spaces() == (HOST, "a")
    left = buffer.without(HOST)
    assert (left.space, left.data) == ("a", "on a")
    assert left.without("a") is None
    left.add("b", 1)
    left.add("b/1", 2)  # the same device, after it was lost once
    assert left.spaces() == ("a", "b/1")


def test_a_value_is_moved_once_and_read_from_any_replica():
    a, b = FakeDevice(), FakeDevice()
    with installed(a, b):
        x = ys.asarray(np.arange(10.0))
        buffer = x._node.buffer
        there, moved = transfers.fetch(buffer, a.space, 80)
        assert (moved, transfers.fetch(buffer, a.space, 80)) == (80, (there, 0))
        assert transfers.method(HOST, a.space) is Method.COPY
        assert transfers.method(a.space, b.space) is Method.STAGED


def test_memory_that_is_shared_is_not_copied():
    shared = FakeDevice(is_volatile=False)
    with installed(shared):
        assert transfers.method(HOST, shared.space) is Method.ZERO_COPY


def test_statistics():
    a = FakeDevice()
    with installed(a):
        x = ys.asarray(np.arange(10.0), device=a)
        stats = ys.memory_stats()
        assert stats["devices"][a.name]["in_use"] == x.nbytes
        assert stats["transfers"]["copy"]["bytes"] >= x.nbytes


def test_ways_are_kept():
    a = FakeDevice()
    with installed(a):
        for _ in range(3):
            transfers.method(HOST, a.space)
        assert transfers.method.cache_info().hits == 2


# Pools


def pool_of(count):
    """A pool whose memory is numbers, so many at most."""
    return Pool(lambda nbytes, alignment, numbers=iter(range(count)): next(numbers), lambda memory: None)


def test_a_loop_gets_the_memory_that_came_back_last():
    pool = pool_of(2)
    first, second = pool.take(100), pool.take(100)
    del first, second
    again = pool.take(100), pool.take(100)
    assert [block.memory for block in again] == [1, 0]
    assert pool.statistics().in_use == 224


def test_what_came_back_is_not_handed_out_as_another_size():
    pool = pool_of(3)
    small = pool.take(100)
    del small
    large = pool.take(1000)
    assert (large.memory, large.nbytes, pool.take(100).memory) == (1, 1024, 0)
    assert pool.statistics().in_use == 1024


def test_what_another_thread_has_just_taken_again_is_not_collected():
    class Contended(deque):
        def popleft(self):
            self.pop()  # by a thread that needs no lock for it
            return super().popleft()

    pool = pool_of(1)
    pool._returned = Contended()
    block = pool.take(100)
    del block
    assert pool.statistics().in_use == 112


# From device to device


class LacksTanh(Linked):
    """Leaves something to its peer."""

    def supports(self, region):
        lacking = any(call.op.name == "tanh" for call in region.calls)
        return "it has no tanh" if lacking else super().supports(region)


def made_on(device, values):
    return Buffer(device.from_host(np.asarray(values)), device.space)


def counted(method):
    return transfers.traffic.count[method], transfers.traffic.nbytes[method]


def test_a_device_takes_what_its_peer_has_and_the_host_sees_nothing_of_it():
    a, b, stranger = Linked(), Linked(), FakeDevice()
    with installed(a, b, stranger):
        assert transfers.method(a.space, b.space) is Method.PEER
        assert transfers.method(a.space, stranger.space) is transfers.method(stranger.space, b.space) is Method.STAGED
        buffer, (count, nbytes) = made_on(a, np.arange(10.0)), counted(Method.PEER)
        data, moved = transfers.fetch(buffer, b.space, 80)
        assert (moved, buffer.spaces(), data.owner) == (80, (a.space, b.space), b)
        assert counted(Method.PEER) == (count + 1, nbytes + 80)
        assert ys.memory_stats()["transfers"]["device to device"]["count"] == count + 1
        transfers.fetch(buffer, stranger.space, 80)
        assert buffer.spaces() == (a.space, b.space, HOST, stranger.space)
        assert (b.to_host(data) == np.arange(10.0)).all()


def test_what_the_host_has_comes_from_there():
    a, b = Linked(), Linked()
    with installed(a, b):
        buffer = made_on(a, np.arange(10.0))
        transfers.fetch(buffer, HOST, 80)
        transfers.fetch(buffer, b.space, 80)
        assert b.taken == 0


@pytest.mark.parametrize("make", [Linked, FakeDevice])
def test_a_chain_of_two(make):
    first = LacksTanh() if make is Linked else CompilerFails("tanh")
    second = make()
    x = np.random.default_rng(0).normal(size=(30, 30)).astype(np.float32)
    with installed(first, second) as chain, ys.options(device=chain):
        y = ys.tanh(ys.asarray(x) @ ys.asarray(x)) @ ys.asarray(x)
        np.testing.assert_allclose(y.numpy(), np.tanh(x @ x) @ x, rtol=1e-5)
    assert first.runs
    assert second.runs
    if make is Linked:
        assert (second.taken, first.taken) == (1, 1)


def test_a_link_that_is_down_costs_a_detour():
    a, b = Linked(), Linked(fails=LaunchFailure)
    with installed(a, b):
        buffer, (count, _) = made_on(a, np.arange(10.0)), counted(Method.STAGED)
        data, _ = transfers.fetch(buffer, b.space, 80)
        assert (b.to_host(data) == np.arange(10.0)).all()
        assert (buffer.on(HOST) == np.arange(10.0)).all()
        assert counted(Method.STAGED)[0] == count + 1


def test_no_room_is_the_targets_failure_and_moves_nothing():
    a, b = Linked(), Linked(fails=OutOfMemory)
    with installed(a, b):
        buffer = made_on(a, np.arange(10.0))
        with pytest.raises(OutOfMemory):
            transfers.fetch(buffer, b.space, 80)
        assert buffer.spaces() == (a.space,)


def test_a_source_that_is_gone_is_told_as_the_source():
    class Gone(Linked):
        def to_host(self, data):
            raise DeviceLost("it fell off the bus")

    a, b = Gone(), Linked(fails=DeviceLost)
    with installed(a, b):
        name, buffer = a.space, made_on(a, np.arange(10.0))
        with pytest.raises(ValuesLost, match=name):
            transfers.fetch(buffer, b.space, 80)
        assert (a.space == name, b.space == b.name) == (False, True)
        with pytest.raises(ValuesLost):  # by now nobody has a memory of that name
            transfers.fetch(buffer, b.space, 80)


def test_a_tensor_that_both_have_lost_is_made_again():
    a, b = Linked(), Linked()
    with installed(a, b):
        with ys.options(device=a.name):
            x = ys.asarray(np.arange(10.0)) * 2
            ys.eval(x)
        y = x.to_device(b.name)
        assert y._node.buffer.spaces() == (b.space, a.space)
        a.space, b.space = f"{a.name}/1", f"{b.name}/1"
        assert (y.numpy() == 2 * np.arange(10.0)).all()


def test_values_that_go_to_and_fro_have_no_endless_history():
    a, b = Linked(), Linked()
    with installed(a, b):
        x = ys.asarray(np.zeros(4), device=a.name)
        for n in range(1000):
            x = (x + 1).to_device((b, a)[n % 2].name)
        assert a.taken + b.taken > 800
        steps, node = 0, x._node
        while node.inputs:
            steps, node = steps + 1, node.inputs[0]
        assert steps < 600
        assert (x.numpy() == 1000).all()


@pytest.mark.parametrize(("make", "homes"), [(Linked, 2), (FakeDevice, 3)])
def test_a_forecast_knows_what_has_come_by_the_host(make, homes):
    a, b = make(), make()
    with installed(a, b):
        graph = graph_of(capture([(ys.asarray(np.arange(10.0)) * 2)._node])[0])
        spaces = [a.space]
        assert _moved(graph, graph.inputs[0], spaces, b.space) > 0
        assert (len(spaces), HOST in spaces) == (homes, make is FakeDevice)
