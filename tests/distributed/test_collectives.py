"""Collectives on tensors: values and gradients against NumPy, on one to four ranks."""

import pytest

import yosegi as ys
from distributed_cases import DTYPES
from tensor_collectives import (
    check_gradients,
    check_gradients_of_parts,
    check_parts,
    check_reductions,
    check_replicate,
)
from yosegi import distributed as dist
from yosegi.distributed import Combine, Partial
from yosegi.distributed.fake import run_ranks

RANKS = (1, 2, 3, 4)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_reduce_combines_the_parts_of_all_ranks(size, dtype):
    run_ranks(size, lambda ranks: check_reductions(ranks, dtype))


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_are_put_together_and_split_again(size, dtype):
    run_ranks(size, lambda ranks: check_parts(ranks, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_replicate_gives_every_rank_the_value_of_the_root(dtype):
    run_ranks(3, lambda ranks: check_replicate(ranks, dtype))


@pytest.mark.parametrize("size", RANKS)
def test_the_gradient_is_that_of_one_process(size):
    run_ranks(size, check_gradients)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind not in "biu"], ids=str)
def test_gradients_of_parts(size, dtype):
    run_ranks(size, lambda ranks: check_gradients_of_parts(ranks, dtype))


GRADIENTS = {  # of the sum of squares of the combination of [1, 2, 6] and [2, 4, 6]
    Combine.SUM: [[6, 12, 24], [6, 12, 24]],
    Combine.MEAN: [[1.5, 3, 6], [1.5, 3, 6]],
    Combine.MAX: [[0, 0, 6], [4, 8, 6]],
    Combine.MIN: [[2, 4, 6], [0, 0, 6]],
}


@pytest.mark.parametrize("combine", list(Combine))
def test_the_gradient_of_a_part_is_that_of_the_combination(combine):
    def run(ranks):
        mesh = dist.Mesh((2,), ("data",))

        def loss(part):
            return ys.sum(dist.all_reduce(dist.from_local(part, mesh, data=Partial(combine))) ** 2)

        return ys.grad(loss)(ys.asarray([[1.0, 2.0, 6.0], [2.0, 4.0, 6.0]][ranks.rank])).tolist()

    assert run_ranks(2, run) == GRADIENTS[combine]


def test_point_to_point_and_barrier():
    def run(ranks):
        dist.barrier()
        if ranks.rank == 0:
            dist.send(ys.asarray([1.0, 2.0]) * 2, 1, tag=3)
            return None
        return dist.recv(0, tag=3).tolist()

    assert run_ranks(2, run) == [None, [2.0, 4.0]]


def test_point_to_point_in_a_trace_is_a_mistake():
    with pytest.raises(ys.errors.ArgumentError, match=r"\[send\] expected a call outside of traced functions"):
        ys.jit(lambda x: dist.send(x, 0))(ys.ones(()))


def test_a_part_of_the_wrong_shape_is_a_mistake():
    def run(ranks):
        mesh = dist.Mesh((2,), ("data",))
        dist.from_local(ys.ones((2,)), mesh, shape=(6,), data=0)

    with pytest.raises(ys.errors.ShapeError, match=r"\[from_local\] expected a part of shape \(3,\)"):
        run_ranks(2, run)


@pytest.mark.parametrize("change", [dist.gather, lambda x: dist.all_to_all(x, 1)])
def test_parts_of_other_lengths_than_expected_are_a_mistake(change):
    def run(ranks):
        mesh = dist.Mesh((3,), ("data",))
        return dist.local(change(dist.from_local(ys.ones((1 + ranks.rank, 3)), mesh, data=0))).numpy()

    with pytest.raises(ys.errors.ShapeError, match=r"expected parts of .*, got \(1, .\), \(2, .\), \(3, .\)"):
        run_ranks(3, run)
