"""Limits on host memory, buffers with replicas, transfers."""

import json
import subprocess
import sys

import numpy as np

import yosegi as ys
from fakes import FakeDevice, installed
from yosegi.memory import HOST, Buffer, Method
from yosegi.run import transfers

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
