"""Layouts: how ops propagate them, what is converted, and what is a mistake."""

import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

import yosegi as ys
from yosegi import distributed as dist
from yosegi._graph.graph import capture
from yosegi._tensor.op import OpKind
from yosegi.distributed import Partial, Replicate, Shard
from yosegi.distributed.communicator import Combine
from yosegi.distributed.fake import FakeCommunicator, run_ranks
from yosegi.extend import installed
from yosegi.tools.fakes import FakeDevice

SUM, MAX = Partial(), Partial(Combine.MAX)


def on_two_ranks(function):
    """Run a function of a mesh of two ranks."""
    return run_ranks(2, lambda ranks: function(dist.Mesh((2,), ("data",))))


def communication(plan):
    return [c.op.name for c in plan.graph.calls if c.op.kind is OpKind.DISTRIBUTED]


RULES = {
    "elementwise": (lambda x: ys.tanh(x) * 2, 0, Shard(0)),
    "broadcast": (lambda x: x + ys.ones((3, 4, 6)), 1, Shard(2)),
    "transpose": (lambda x: x.T, 0, Shard(1)),
    "sum along the sharded dimension": (lambda x: ys.sum(x, axis=0), 0, SUM),
    "sum along another": (lambda x: ys.sum(x, axis=0), 1, Shard(0)),
    "largest along the sharded dimension": (lambda x: ys.max(x, axis=0), 0, MAX),
    "mean of all": (ys.mean, 1, SUM),
    "product along the sharded dimension": (lambda x: ys.prod(x, axis=0), 0, Replicate()),
    "rows of a product": (lambda x: x @ ys.ones((6, 3)), 0, Shard(0)),
    "columns of a product": (lambda x: ys.ones((3, 4)) @ x, 1, Shard(1)),
    "contraction": (lambda x: x @ ys.ones((6, 3)), 1, SUM),
    "einsum": (lambda x: ys.einsum("ij,kj->ki", x, ys.ones((3, 6))), 0, Shard(1)),
    "linear function of a partial sum": (lambda x: -ys.sum(x, axis=0) * 3, 0, SUM),
    "other function of a partial sum": (lambda x: ys.exp(ys.sum(x, axis=0)), 0, Replicate()),
    "two partial sums": (lambda x: ys.sum(x, axis=0) + ys.sum(x * x, axis=0), 0, SUM),
    "split dimension": (lambda x: ys.reshape(x, (2, 2, 6)), 0, Shard(0)),
    "merged dimensions": (lambda x: ys.reshape(x, (24,)), 0, Shard(0)),
    "inner dimension merged": (lambda x: ys.reshape(x, (24,)), 1, Replicate()),
    "whole window": (lambda x: x[:, 2:4], 0, Shard(0)),
    "window of the sharded dimension": (lambda x: x[1:3], 0, Replicate()),
    "rows by index": (lambda x: ys.take(ys.ones((9, 5)), ys.abs(x).astype(ys.int32), axis=0), 0, Shard(0)),
    "sum of rows by index": (lambda x: ys.zeros((9,)).at[ys.abs(x).astype(ys.int32)].add(1.0), 0, SUM),
    "softmax along another dimension": (ys.nn.softmax, 0, Shard(0)),
    "running sum along another dimension": (lambda x: ys.cumulative_sum(x, axis=1), 0, Shard(0)),
    "running sum along the sharded dimension": (lambda x: ys.cumulative_sum(x, axis=0), 0, Replicate()),
    "sort along another dimension": (lambda x: ys.sort(x, axis=1), 0, Shard(0)),
    "concatenation": (lambda x: ys.concat([x, x], axis=1), 0, Shard(0)),
    "no rule": (lambda x: ys.linalg.svdvals(x), 0, Replicate()),
}


@pytest.mark.parametrize("name", RULES)
def test_layouts_follow_from_roles(name):
    function, dim, wanted = RULES[name]
    array = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def run(mesh):
        made = function(dist.shard(array, mesh, data=dim))
        found = Replicate() if made.layout is None else made.layout.placements[0]
        return found, dist.gather(made).numpy()

    for found, value in on_two_ranks(run):
        assert found == wanted
        np.testing.assert_allclose(value, function(ys.asarray(array)).numpy(), rtol=1e-5)


def test_axes_of_a_mesh_are_independent():
    def run(ranks):
        mesh = dist.Mesh((2, 2), ("data", "model"))
        x, w = dist.shard(ys.ones((4, 6)), mesh, data=0), dist.shard(ys.ones((6, 8)), mesh, model=1)
        assert str((x @ w).layout) == "data=Shard(0) model=Shard(1)"
        twice = dist.shard(np.arange(7), mesh, data=0, model=0)
        return dist.local(twice).tolist(), dist.gather(twice).tolist()

    found = run_ranks(4, run)
    assert [part for part, _ in found] == [[0, 1], [2, 3], [4, 5], [6]]
    assert all(whole == list(range(7)) for _, whole in found)


@pytest.mark.parametrize("function", [lambda s, r: s + r, lambda s, r: r - s, lambda s, r: s + 1])
def test_a_partial_sum_and_a_whole_value_do_not_add(function):
    def run(mesh):
        x = dist.shard(ys.ones((4,)), mesh, data=0)
        function(ys.sum(x), ys.asarray(2.0))

    with pytest.raises(
        ys.errors.ArgumentError, match=r"\[(add|subtract)\] expected operands that are both partial"
    ) as caught:
        on_two_ranks(run)
    assert caught.traceback[-1].path.name == "test_layouts.py"


def test_values_are_read_only_where_every_rank_has_them():
    def run(mesh):
        x = dist.shard(np.arange(4), mesh, data=0)
        with pytest.raises(ys.errors.ArgumentError, match=r"layout data=Shard\(0\); use ys.distributed.gather"):
            x.numpy()
        ys.eval(x)
        assert "layout=data=Shard(0)" in repr(x)
        return x[1:].tolist()  # of a value that is there

    assert on_two_ranks(run) == [[1, 2, 3]] * 2


def test_conversions_are_explained():
    def run(mesh):
        x = dist.shard(ys.ones((4, 6)), mesh, data=0)
        y = ys.exp(ys.sum(x, axis=0))
        shown = str(ys.explain(y))
        ys.eval(y)
        return shown

    for shown in on_two_ranks(run):
        assert "all_reduce" in shown


def test_one_rank_has_the_plan_of_a_program_without_ranks():
    mesh = dist.Mesh((1, 1), ("data", "model"))
    array = ys.asarray(np.ones((4, 6)))

    def program(x, w):
        return dist.all_reduce(ys.sum(ys.tanh(x @ w), axis=0)) + 1

    distributed = program(dist.shard(array, mesh, data=0), dist.shard(ys.asarray(np.ones((6, 3))), mesh, model=1))
    plain = ys.sum(ys.tanh(array @ ys.asarray(np.ones((6, 3)))), axis=0) + 1
    assert capture([distributed._node])[0] == capture([plain._node])[0]


def test_programs_of_one_process_do_not_load_it():
    code = "import sys, yosegi; sys.exit(any(name.startswith('yosegi.distributed') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_equal_values_are_sent_once():
    def run(mesh):
        x = dist.shard(ys.ones((4, 6)), mesh, data=0)
        total = ys.sum(x, axis=0)
        plan = ys.plan(ys.exp(total) + ys.sin(total))
        return communication(plan)

    assert on_two_ranks(run) == [["all_reduce"]] * 2


def test_small_all_reduces_share_a_bucket():
    def run(mesh):
        x = dist.shard(np.arange(12.0).reshape(4, 3), mesh, data=0)
        y = [dist.all_reduce(ys.sum(x * k)) for k in range(2, 6)]
        later = dist.all_reduce(ys.sum(x * y[0]))
        plan = ys.plan(*y, later)
        return communication(plan), [float(v) for v in (*y, later)]

    for ops, values in on_two_ranks(run):
        assert ops == ["all_reduce", "all_reduce"]
        assert values == [132.0, 198.0, 264.0, 330.0, 66.0 * 132]


def test_jit_traces_once_for_each_layout():
    calls = []

    def run(mesh):
        @ys.jit
        def f(x):
            calls.append(x.layout)
            return ys.sum(ys.tanh(x), axis=1), dist.all_reduce(ys.sum(x))

        array = np.arange(8.0).reshape(4, 2)
        for _ in range(3):
            rows, total = f(dist.shard(array, mesh, data=0))
        assert str(rows.layout) == "data=Shard(0)"
        whole, _ = f(dist.shard(array, mesh, data=1))
        np.testing.assert_allclose(dist.gather(whole).numpy(), np.tanh(array).sum(axis=1))
        return float(total)

    assert on_two_ranks(run) == [28.0, 28.0]
    assert len(calls) == 4


def test_a_jitted_function_may_read_a_distributed_tensor_around_it():
    def run(mesh):
        w = dist.shard(np.arange(6.0), mesh, data=0)
        return dist.gather(ys.jit(lambda x: x * w)(ys.asarray(2.0))).tolist()

    assert on_two_ranks(run) == [[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]] * 2


def test_all_ranks_communicate_in_the_same_order_wherever_they_compute(monkeypatch):
    seen = defaultdict(list)
    meet = FakeCommunicator._meet

    def noting(self, name, value):
        seen[self.rank].append((name, getattr(value, "shape", None)))
        return meet(self, name, value)

    monkeypatch.setattr(FakeCommunicator, "_meet", noting)
    device = FakeDevice()

    def run(ranks):
        mesh = dist.Mesh((2,), ("data",))
        with ys.options(device=device.name if ranks.rank else "cpu"):
            x = dist.shard(np.random.default_rng(0).normal(size=(6, 4)), mesh, data=0)
            columns = [ys.exp(f(x, axis=0)) for f in (ys.sum, ys.max, ys.min)]  # each needs an all-reduce
            rows = [dist.gather(ys.sort(x * k, axis=1))[k:] for k in range(1, 3)]
            made = ys.sum(columns[2] * rows[1]) + ys.sum(rows[0] @ columns[0]) + ys.sum(columns[1])
            return float(dist.all_reduce(ys.sum(x)) + made)

    with installed(device):
        found = run_ranks(2, run)
    assert device.runs > 0
    assert found[0] == pytest.approx(found[1])
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 6


def test_a_failed_collective_is_not_tried_again(monkeypatch):
    tries = []

    def fails(self, array, combine, *, fixed_order=False):
        tries.append(1)
        raise MemoryError

    def run(mesh):
        monkeypatch.setattr(FakeCommunicator, "all_reduce", fails)
        x = dist.shard(ys.ones((4,)), mesh, data=0)
        float(dist.all_reduce(ys.sum(x)))

    with pytest.raises(ys.errors.YosegiError, match=r"\[all_reduce\] expected memory"):
        on_two_ranks(run)
    assert len(tries) == 2


def test_bodies_of_loops_get_whole_values():
    array = np.random.default_rng(0).normal(size=(4, 6))

    def run(mesh):
        x = dist.shard(array, mesh, data=0)

        def body(carry, row):
            total = dist.all_reduce(ys.sum(x * row))
            return carry + total, dist.gather(x[1:] * row)

        total, rows = ys.scan(body, ys.asarray(0.0), x)
        return float(total), rows.numpy()

    for total, rows in on_two_ranks(run):
        assert total == pytest.approx((array.sum(axis=0) ** 2).sum())
        np.testing.assert_allclose(rows, array[1:] * array[:, None])


def test_tensors_of_two_meshes_do_not_meet():
    def run(ranks):
        one, other = dist.Mesh((2,), ("a",)), dist.Mesh((2,), ("b",))
        dist.shard(ys.ones((4,)), one, a=0) + dist.shard(ys.ones((4,)), other, b=0)

    with pytest.raises(ys.errors.ArgumentError, match=r"\[add\] expected tensors on one mesh"):
        run_ranks(2, run)


def test_a_mesh_has_as_many_places_as_there_are_ranks():
    with pytest.raises(ys.errors.ArgumentError, match=r"\[Mesh\] expected a shape of 1 ranks, got \(2,\)"):
        dist.Mesh((2,), ("data",))
