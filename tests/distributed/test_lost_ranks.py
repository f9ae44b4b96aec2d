"""`survive` over ranks that are threads: the state is that of a run without faults."""

import numpy as np
import pytest

import yosegi as ys
from yosegi.distributed.communicator import Combine, RankLost
from yosegi.distributed.fake import Kill, Straggle, run_ranks
from yosegi.distributed.survival import survive

STEPS = 6


def step(ranks, number, state):
    """Adds all numbers of a batch of 12, each rank its share; draws once, to see that draws are not repeated."""
    share = np.arange(12.0)[ranks.rank :: ranks.size] * (number + 1)
    ranks.barrier()
    drawn = state["rng"].integers(0, 1000)
    total = float(ranks.all_reduce(np.asarray(share.sum()), Combine.SUM))
    return {**state, "w": state["w"] + total, "drawn": state["drawn"] + drawn, "count": state["count"] + 1}


def first():
    return {"w": ys.zeros(()), "drawn": ys.asarray(0), "count": 0, "rng": ys.random.default_rng(5)}


def summary(state):
    return float(state["w"]), int(state["drawn"]), state["count"], state["rng"].state


def expected():
    return run_ranks(1, lambda ranks: summary(survive(step, first(), steps=STEPS)))[0]


@pytest.mark.parametrize("call", range(2 * STEPS + 1))
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_dies_at_any_call(rank, call):
    results = run_ranks(3, lambda ranks: summary(survive(step, first(), steps=STEPS)), faults=[Kill(rank, call)])
    assert results == [None if r == rank else expected() for r in range(3)]


def test_two_ranks_die_one_after_the_other():
    faults = [Kill(0, 4), Kill(3, 9)]
    results = run_ranks(4, lambda ranks: summary(survive(step, first(), steps=STEPS)), faults=faults)
    assert results == [None, expected(), expected(), None]


def test_a_rank_dies_while_the_others_recover():
    faults = [Kill(0, 4), Kill(1, 6)]  # call 6 of rank 1 is in finding the latest state
    results = run_ranks(4, lambda ranks: summary(survive(step, first(), steps=STEPS)), faults=faults)
    assert results == [None, None, expected(), expected()]


def test_a_straggler_is_left_behind():
    def program(ranks):
        try:
            return summary(survive(step, first(), steps=STEPS))
        except RankLost as error:
            return error.ranks

    results = run_ranks(3, program, faults=[Straggle(1, 5)])
    assert results == [expected(), (1,), expected()]


def test_a_sharded_state_comes_from_the_last_checkpoint(tmp_path):
    begun = []

    def program(ranks):
        def counted(ranks, number, state):
            begun.append(number)
            return step(ranks, number, state)

        checkpoints = ys.training.Checkpoints(tmp_path)
        return summary(survive(counted, first(), steps=STEPS, checkpoints=checkpoints, every=2, replicated=False))

    assert run_ranks(2, program, faults=[Kill(1, 7)]) == [expected(), None]
    assert begun.count(2) == 3, "two ranks did step 2, and the survivor did it again"
    assert ys.training.Checkpoints(tmp_path).steps()[-1] == STEPS
