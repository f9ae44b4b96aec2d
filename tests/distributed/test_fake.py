"""Ranks that are threads: all collectives against NumPy, faults, and the current communicator."""

import ml_dtypes
import numpy as np
import pytest

from distributed_cases import DTYPES, MISTAKES, check_collectives, check_mistake
from yosegi.distributed import runtime
from yosegi.distributed.communicator import Combine, RankLost
from yosegi.distributed.fake import Kill, Straggle, run_ranks
from yosegi.errors import DTypeError


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_collectives_agree_with_numpy(size, dtype):
    run_ranks(size, lambda ranks: check_collectives(ranks, dtype))


def test_sums_of_halves_are_rounded_once():
    ones = np.asarray(1, ml_dtypes.bfloat16)
    assert run_ranks(300, lambda ranks: float(ranks.all_reduce(ones, Combine.SUM)))[0] == 300


def test_results_are_not_shared():
    def program(ranks):
        mine = np.zeros(3)
        got = [*ranks.all_gather(mine), ranks.broadcast(mine, 0), ranks.all_reduce(mine, Combine.SUM)]
        for array in (mine, *got):
            array += ranks.rank + 1
        ranks.barrier()
        return {float(array[0]) for array in (mine, *got)}

    assert run_ranks(2, program) == [{1.0}, {2.0}]


@pytest.mark.parametrize(
    ("dtype", "combine"), [(np.int32, Combine.MEAN), (bool, Combine.MEAN), (np.complex64, Combine.MAX)]
)
def test_undefined_reductions_raise(dtype, combine):
    with pytest.raises(DTypeError, match=r"\[all_reduce\] expected a (floating-point|real) array"):
        run_ranks(2, lambda ranks: ranks.all_reduce(np.zeros(2, dtype), combine))


@pytest.mark.parametrize("name", MISTAKES)
def test_ranks_that_call_different_things_learn_of_it(name):
    run_ranks(3, lambda ranks: check_mistake(ranks, name))


def test_a_killed_rank_is_named_at_once():
    def program(ranks):
        with pytest.raises(RankLost, match=r"\[barrier\] rank 2 (died|was lost)") as caught:
            [ranks.barrier() for _ in range(9)]
        return caught.value.ranks

    assert run_ranks(4, program, faults=[Kill(2, 5)], deadline=60) == [(2,), (2,), None, (2,)]


def test_a_straggler_is_named_at_the_deadline():
    def program(ranks):
        with pytest.raises(RankLost, match=r"\[barrier\] rank 1") as caught:
            ranks.barrier()
        return caught.value.ranks

    assert run_ranks(3, program, faults=[Straggle(1, 0)]) == [(1,)] * 3


def test_survivors_go_on():
    def program(ranks):
        try:
            while True:
                ranks.barrier()
        except RankLost:
            ranks = ranks.shrink()
        return ranks.rank, ranks.members, int(ranks.all_reduce(np.asarray(1), Combine.SUM))

    assert run_ranks(3, program, faults=[Kill(0, 2)]) == [None, (0, (1, 2), 2), (1, (1, 2), 2)]


def test_a_straggler_does_not_join_the_survivors():
    def program(ranks):
        try:
            ranks.barrier()
        except RankLost:
            return ranks.shrink().members

    with pytest.raises(RankLost, match=r"\[shrink\] rank 1 came after the other ranks"):
        run_ranks(3, program, faults=[Straggle(1, 0)])


def test_the_error_of_a_rank_comes_before_the_loss_of_it():
    def program(ranks):
        if ranks.rank == 1:
            raise KeyError("mine")
        ranks.barrier()

    with pytest.raises(KeyError, match="mine"):
        run_ranks(3, program)


def test_each_rank_has_its_current_communicator():
    def program(ranks):
        assert runtime.current() is ranks is runtime.init()
        smaller = ranks.split(ranks.rank % 2, 0)
        runtime.use(smaller)
        return runtime.rank(), runtime.size()

    assert run_ranks(3, program) == [(0, 2), (0, 1), (1, 2)]
    assert (runtime.rank(), runtime.size()) == (0, 1)
