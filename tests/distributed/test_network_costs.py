"""Costs of collectives: layouts and messages follow from the network, alike on all ranks."""

import numpy as np
import pytest

import yosegi as ys
from yosegi import distributed as dist
from yosegi._tensor.op import OpKind
from yosegi.distributed import Shard
from yosegi.distributed.costs import PRIOR, Network
from yosegi.distributed.fake import FakeCommunicator, run_ranks

LATENCY, BANDWIDTH = Network(alpha=1e-3, beta=1e-12), Network(alpha=1e-9, beta=1e-8)
"""Networks in which messages cost, or bytes."""


def chosen(mesh):
    """Choose from a mask that is sharded by rows, and two rows that are sharded by columns."""
    mask = dist.shard(ys.ones((64, 32)) > 0, mesh, data=0)
    row = dist.shard(ys.ones((1, 32), dtype=ys.float32), mesh, data=1)
    return ys.where(mask, row, 2 * row)


def messages(plan):
    return [call.op.name for call in plan.graph.calls if call.op.kind is OpKind.DISTRIBUTED]


@pytest.mark.parametrize(
    ("network", "layout", "wanted", "sent"),
    [
        (LATENCY, Shard(1), "Shard(1), Shard(1), Shard(1)", ["all_to_all"]),
        (BANDWIDTH, Shard(0), "Shard(0), Replicate, Replicate", ["all_gather", "all_gather"]),
    ],
)
def test_layouts_follow_from_predicted_times(network, layout, wanted, sent):
    def run(ranks):
        made = chosen(dist.Mesh((ranks.size,), ("data",)))
        return made.layout.placements, messages(ys.plan(made)), str(ys.explain(made))

    for placements, found, text in run_ranks(2, run, network=network):
        assert (placements, found) == ((layout,), sent)
        assert f"for where({wanted}) along data: " in text
        assert "not (Replicate, Replicate, Replicate): " in text
        assert "by class: messages" in text


def test_a_conversion_that_is_free_needs_no_comparison():
    def run(ranks):
        x = dist.shard(ys.ones((4, 6)), dist.Mesh((2,), ("data",)), data=0)
        return (ys.tanh(x) * x).layout.placements

    assert run_ranks(2, run, network=LATENCY) == run_ranks(2, run, network=BANDWIDTH) == [(Shard(0),)] * 2


def test_axes_have_networks_of_their_own(monkeypatch):
    def seconds(self, name, nbytes):
        network = LATENCY if self.members[1] - self.members[0] == 1 else BANDWIDTH
        return network.seconds(name, self.size, nbytes)

    monkeypatch.setattr(FakeCommunicator, "seconds", seconds)

    def run(ranks):
        costs = dist.Mesh((2, 2), ("far", "near")).costs
        return [round(each["all_reduce"].latency, 6) for each in costs]

    assert run_ranks(4, run) == [[0.0, 0.001]] * 4


def test_all_ranks_take_the_costs_of_the_slowest(monkeypatch):
    monkeypatch.setattr(
        FakeCommunicator, "seconds", lambda self, name, nbytes: (self.rank + 1) * (1e-6 + nbytes * 1e-9)
    )
    found = run_ranks(3, lambda ranks: dist.Mesh((3,), ("data",)).costs[0]["all_gather"])
    assert found[0] == found[1] == found[2]
    assert found[0].seconds(1000) == pytest.approx(3 * 2e-6)


@pytest.mark.parametrize(("network", "sent"), [(LATENCY, 1), (BANDWIDTH, 8), (Network(alpha=2.2e-6, beta=1e-9), 2)])
def test_messages_are_joined_by_the_time_that_it_saves(network, sent):
    def run(ranks):
        mesh = dist.Mesh((2,), ("data",))
        sums = [dist.all_reduce(ys.sum(dist.shard(ys.ones((2, 2000)) * n, mesh, data=0), axis=0)) for n in range(8)]
        return [name for name in messages(ys.plan(*sums)) if name.startswith("all_reduce")]

    for found in run_ranks(2, run, network=network):
        assert len(found) == sent


def test_the_first_mesh_measures_and_others_remember(monkeypatch):
    timed, seconds = [], FakeCommunicator.seconds

    def counted(self, name, nbytes):
        timed.append(self.rank)
        return seconds(self, name, nbytes)

    monkeypatch.setattr(FakeCommunicator, "seconds", counted)

    def run(ranks):
        first = dist.Mesh((2,), ("data",))
        before = timed.count(ranks.rank)
        second = dist.Mesh((2,), ("model",))
        return first.costs is second.costs, timed.count(ranks.rank) - before

    assert run_ranks(2, run) == [(True, 0)] * 2
    assert timed


def test_costs_are_fixed_in_deterministic_runs():
    def run(ranks):
        with ys.deterministic():
            return dist.Mesh((2,), ("data",)).costs[0]["all_reduce"].latency

    assert run_ranks(2, run, network=LATENCY) == pytest.approx([PRIOR.alpha] * 2)


def test_one_process_measures_nothing(monkeypatch):
    monkeypatch.setattr(FakeCommunicator, "seconds", lambda *args: pytest.fail("it was measured"))
    mesh = dist.Mesh((1, 1), ("data", "model"))
    x = dist.shard(np.ones((4, 4)), mesh, data=0, model=1)
    assert (mesh.costs, x.layout) == (({}, {}), None)


def test_measured_costs_are_positive(monkeypatch):
    monkeypatch.setenv("YOSEGI_CALIBRATE", "1")
    monkeypatch.setattr(FakeCommunicator, "seconds", dist.Communicator.seconds)
    (costs,) = run_ranks(2, lambda ranks: dist.Mesh((2,), ("data",)).costs[0])[:1]
    assert all(each.seconds(1 << 20) > 0 for each in costs.values())
