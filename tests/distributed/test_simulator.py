"""Simulated ranks: times against formulas, stragglers, and 4,096 ranks."""

import numpy as np
import pytest
from simulator import hollow, simulate

from yosegi.distributed.communicator import Combine
from yosegi.distributed.costs import Network

NETWORK = Network(alpha=1e-5, beta=1e-9)


def data_parallel(ranks):
    """Work, then the sums of the gradients in four buckets."""
    for _ in range(4):
        ranks.compute(0.01)
        ranks.all_reduce(hollow((1 << 20,)), Combine.SUM)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 4096])
def test_data_parallel_time_is_work_and_sums(size):
    expected = 4 * (0.01 + NETWORK.seconds("all_reduce", size, 4 << 20))
    assert simulate(size, data_parallel, NETWORK) == pytest.approx(expected)


def test_all_wait_for_a_straggler():
    alone = simulate(8, data_parallel, NETWORK)
    assert simulate(8, data_parallel, NETWORK, {3: 1.5}) == pytest.approx(alone + 4 * 0.005)


def test_groups_do_not_wait_for_each_other():
    def program(ranks):
        row = ranks.split(ranks.rank // 4, ranks.rank)
        for _ in range(3):
            row.compute(0.01)
            row.all_reduce(hollow((1000,)), Combine.SUM)
        times[ranks.rank] = row.now

    times = {}
    simulate(8, program, NETWORK, {0: 2.0})
    assert times[1] == times[0] == pytest.approx(times[7] + 0.03)


def test_messages_take_their_time():
    def program(ranks):
        array = hollow((1 << 20,), np.uint8)
        for n in range(ranks.size):  # around the ring
            if ranks.rank == n:
                ranks.send(array, (n + 1) % ranks.size)
            if ranks.rank == (n + 1) % ranks.size:
                array = ranks.receive(n)

    assert simulate(5, program, NETWORK) == pytest.approx(5 * (1e-5 + (1 << 20) * 1e-9))


def test_shapes_come_back_without_memory():
    def program(ranks):
        parts = [hollow((1 << 30,))] * ranks.size
        shapes.append([ranks.broadcast(parts[0] if ranks.rank == 1 else None, 1).shape])
        shapes[-1] += [each.shape for each in ranks.all_gather(parts[0])]
        shapes[-1] += [each.shape for each in ranks.all_to_all(parts)]
        shapes[-1] += [ranks.reduce_scatter(parts, Combine.SUM).shape]

    shapes = []
    simulate(3, program, NETWORK)
    assert shapes == [[(1 << 30,)] * 8] * 3
