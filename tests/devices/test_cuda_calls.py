"""Calls of jitted functions through the recordings of a CUDA device, on the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import yosegi as ys
from fakes.host_queue import QueueDevice
from yosegi._run.snapshots import snapshots
from yosegi.tools.fakes import installed

X = np.arange(8, dtype=np.float32)


@pytest.fixture
def fake() -> Iterator[QueueDevice]:
    device = QueueDevice()
    with installed(device) as name, ys.options(device=name):
        yield device
        snapshots.wait()


def step(p, t, i):
    p = ys.tree_map(lambda w: w * 0.9 + t, p)
    return p, ys.sum(p["a"]["w"][i])


def train(steps, device):
    with ys.options(device=device):
        f, p = ys.jit(step), {"a": {"w": ys.asarray(X)}, "b": [ys.asarray(X * n) for n in range(70)]}
        losses = []
        for n in range(steps):
            p, loss = f(p, ys.asarray(np.float32(n)), ys.asarray([1, 2]))
            losses.append(float(loss))
    return p, losses


@pytest.mark.parametrize("dies", [False, True])
def test_a_training_loop_is_replayed_and_its_snapshots_are_right(fake: QueueDevice, dies: bool) -> None:
    snapshots._next = 0.0
    before = ys.memory_stats()["snapshots"]["count"]
    p, losses = train(100, fake.name)
    snapshots.wait()
    assert fake.queue.replays > 50
    assert ys.memory_stats()["snapshots"]["count"] > before
    if dies:
        fake.space = f"{fake.name}/lost"
        ys.eval(p)
    same, same_losses = train(100, "cpu")
    np.testing.assert_allclose(losses, same_losses, rtol=1e-5)
    for one, other in zip(ys.tree_leaves(p), ys.tree_leaves(same), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)


def test_a_result_is_waited_for_once(fake: QueueDevice) -> None:
    f, x, i = ys.jit(lambda x, i: {"y": x[i] * 2}), ys.asarray(X), ys.asarray([3, 4])
    for _ in range(4):
        f(x, i)["y"].numpy()
    before = fake.queue.runtime.waits
    y = f(x, i)["y"]
    assert y.tolist() == [6.0, 8.0]
    assert y.tolist() == [6.0, 8.0]
    assert fake.queue.runtime.waits == before + 1


def test_a_snapshot_leaves_the_blocks_of_results_free(fake: QueueDevice) -> None:
    memory = fake.queue.memory
    data = [memory.uploaded(X * n) for n in range(3)]
    in_use = memory.statistics().in_use
    copied = memory.saving([*data, data[1].reshaped((2, 4)), memory.from_host(np.empty((0, 3)))])
    del data
    others = [memory.uploaded(X * 100) for _ in range(3)]  # at the same addresses
    arrays = copied()
    for n in range(3):
        np.testing.assert_array_equal(arrays[n], X * n)
    np.testing.assert_array_equal(arrays[3], X.reshape(2, 4))
    assert arrays[4].shape == (0, 3)
    assert memory.statistics().in_use == in_use
    del others


def test_data_without_room_for_a_copy_is_held_until_it_is_saved(fake: QueueDevice) -> None:
    memory = fake.queue.memory
    data = memory.uploaded(X)
    memory.pool.limit = memory.statistics().in_use
    copied, pointer = memory.saving([data]), data.pointer
    del data
    memory.pool.limit = None
    assert memory.uploaded(X * 2).pointer != pointer
    np.testing.assert_array_equal(copied()[0], X)


def test_a_number_of_the_host_is_copied_once(fake: QueueDevice) -> None:
    runtime = fake.queue.runtime
    f = ys.jit(lambda p, t: [w + t for w in p])
    queue = fake.queue
    number = queue.memory.from_host(np.float32(5))
    before = len(runtime.copies)
    assert queue.memory.to_host(number) == 5.0
    assert len(runtime.copies) == before + 2  # there, and back
    assert f([ys.asarray(X)], 3.0)[0].tolist() == (X + 3).tolist()
