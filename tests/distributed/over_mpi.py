"""Programs that tests run on several processes: `yosegi launch -n 3 tests/distributed/over_mpi.py collectives`."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import yosegi as ys
from distributed_cases import DTYPES, MISTAKES, check_collectives, check_mistake
from overlap_cases import LAYER, communications, first_communication_held, hidden, trained
from tensor_collectives import check_gradients, check_gradients_of_parts, check_parts, check_reductions, check_replicate
from yosegi.distributed import buckets, runtime, sequence
from yosegi.distributed.communicator import Combine, RankLost
from yosegi.distributed.mpi import MPICommunicator


def collectives():
    """All collectives of all dtypes against NumPy, on arrays and on tensors, and their gradients."""
    ranks = runtime.current()
    with ys.options(device="cpu"):
        for dtype in DTYPES:
            check_collectives(ranks, dtype)
            check_reductions(ranks, dtype)
            check_parts(ranks, dtype)
            check_replicate(ranks, dtype)
            if dtype.kind not in "biu":
                check_gradients_of_parts(ranks, dtype)
        check_gradients(ranks)


def mistakes():
    """Ranks that call different things learn of it; behind that they may form a group again."""
    ranks = runtime.current()
    for name in MISTAKES:
        check_mistake(ranks, name)
        ranks = ranks.shrink()
        assert ranks.all_reduce(np.asarray(1), Combine.SUM) == 3


def overlap():
    """Gradients are sent while the backward pass runs, and have the bits of gradients that are sent after it. A second
    argument names the signal by which rank 1 ends, between the starts of two communications."""
    buckets.bucket_size = lambda mesh, axis: LAYER
    with first_communication_held():
        _, params, profile = trained(4)
    print(f"{hidden(profile):.0%} of {len(communications(profile))} communications hidden", flush=True)
    assert hidden(profile) > 0
    if len(sys.argv) > 2 and runtime.rank() == 1:
        begun = MPICommunicator.all_reduce

        def all_reduce(self, array, combine, **attrs):
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
            return begun(self, array, combine, **attrs)

        MPICommunicator.all_reduce = all_reduce
    if len(sys.argv) > 2:
        ys.distributed.Mesh((runtime.size(),), ("other",)).groups[0].deadline = 4.0
    sequence._WORK = sys.maxsize if len(sys.argv) < 3 else sequence._WORK
    _, expected, profile = trained(4, "other")  # a new mesh: plans of the first are not used
    assert not communications(profile)
    assert all(np.array_equal(a, b) for a, b in zip(params, expected, strict=True))


def costs():
    """All ranks measure the same costs of collectives, and one rank alone may explain a program."""
    mesh = ys.distributed.Mesh((runtime.size(),), ("data",))
    own = np.asarray([(each.latency, each.bandwidth) for each in mesh.costs[0].values()])
    assert (own > 0).any()
    assert all(np.array_equal(each, own) for each in runtime.current().all_gather(own))
    x = ys.distributed.shard(np.ones((4, 6), np.float32), mesh, data=0)
    if runtime.rank() == 1:
        assert "predicted" in str(ys.explain(ys.distributed.gather(x)))


def orders():
    """Sums in a fixed order have the bits of a sum from rank 0 on; those in any order, the same on all ranks."""
    ranks = runtime.current()
    for size in (5, 3000, 100_000):
        values = [np.random.default_rng(rank).normal(size=size).astype(np.float32) for rank in range(ranks.size)]
        total = values[0].copy()
        for value in values[1:]:
            total += value
        assert (ranks.all_reduce(values[ranks.rank], Combine.SUM, fixed_order=True) == total).all()
        free = ranks.all_gather(ranks.all_reduce(values[ranks.rank], Combine.SUM))
        assert all((each == free[0]).all() for each in free)


def slow():
    """The deadline holds if each test of a request takes long, as on a loaded machine."""
    tests = []

    class Request:
        def Test(self):
            time.sleep(0.02)
            tests.append(1)

    ranks = runtime.init(deadline=2.0)
    try:
        ranks._do("barrier", Request)
    except RankLost:
        ranks._world.whole = True
    assert 1 < len(tests) < 100


def faults():
    """Rank 1 fails after some collectives, in the way that the second argument names."""
    ranks = runtime.current()
    for _ in range(10):
        ranks.barrier()
    ranks.deadline = 4.0
    if ranks.rank == 1:
        if sys.argv[2] == "raise":
            raise ValueError("the mistake of rank 1")
        if sys.argv[2] == "end":  # as a library does
            os._exit(3)
        if sys.argv[2].startswith("exit"):
            sys.exit(int(sys.argv[2][4:]))
        if sys.argv[2] == "differ":
            for _ in range(2):
                ranks.all_reduce(np.zeros(1 << 20), Combine.SUM)
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    ranks.barrier()


if __name__ == "__main__":
    {each.__name__: each for each in (collectives, mistakes, overlap, costs, orders, slow, faults)}[sys.argv[1]]()
    print(f"{sys.argv[1]} on rank {runtime.rank()} of {runtime.size()}: done", flush=True)
