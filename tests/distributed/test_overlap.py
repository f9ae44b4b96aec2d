"""Communication beside computation: the order, the channel, the bits, and the faults."""

import re
import time
from itertools import pairwise
from threading import enumerate as enumerate_threads

import numpy as np
import pytest

from overlap_cases import LAYER, communications, first_communication_held, hidden, trained
from yosegi._tensor.op import OpKind
from yosegi.distributed import buckets, channel, sequence
from yosegi.distributed.channel import Channel
from yosegi.distributed.communicator import RankLost
from yosegi.distributed.costs import Network
from yosegi.distributed.fake import Kill, Straggle, run_ranks

SLOW = Network(alpha=0.002, beta=0.0)


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(buckets, "bucket_size", lambda mesh, axis: LAYER)


def names(plan):
    """The steps of a plan: the name of a communication, or "work"."""
    first = [step.region.calls[0].op for step in plan.steps]
    return [op.name if op.kind is OpKind.DISTRIBUTED else "work" for op in first]


def test_gradients_are_sent_while_the_backward_pass_runs():
    def run(ranks):
        plan, _, profile = trained(2)
        return names(plan), str(plan.explain()), hidden(profile), len(communications(profile)), profile

    with first_communication_held():
        made = run_ranks(2, run, deadline=120, network=SLOW)
    for order, text, share, sent, profile in made:
        starts = [n for n, name in enumerate(order) if name == "all_reduce_start"]
        waits = [n for n, name in enumerate(order) if name == "wait"]
        assert sent == len(starts) == len(waits) >= 6
        assert max(starts) < min(waits)
        assert all("work" in order[a:b] for a, b in pairwise(starts))
        assert all(order[n + 1] == "work" for n in waits)
        assert ": all_reduce_start\n" in text
        assert ": wait\n" in text
        assert share > 0
        rows = [e["args"]["name"] for e in profile.to_json()["traceEvents"] if e["name"] == "thread_name"]
        assert "network (communication of rank 0)" in rows


def test_overlap_does_not_change_bits(monkeypatch):
    def run(ranks):
        plan, params, profile = trained(3)
        return "wait" in names(plan), hidden(profile), params

    overlapped = run_ranks(2, run, deadline=120, network=SLOW)
    monkeypatch.setattr(sequence, "_WORK", 1 << 60)
    for (is_split, _, params), (was_split, share, expected) in zip(
        overlapped, run_ranks(2, run, deadline=120), strict=True
    ):
        assert (is_split, was_split, share) == (True, False, 0)
        assert all(np.array_equal(a, b) for a, b in zip(params, expected, strict=True))


@pytest.mark.parametrize(
    ("fault", "text"),
    [(Kill(1, 9), r"\[all_reduce\] rank 1 died"), (Straggle(1, 9), r"\[all_reduce\] rank 1 did not come within")],
)
def test_a_rank_that_is_lost_in_the_background_is_named(fault, text):
    raised = []

    def run(ranks):
        try:
            trained(2)
        except RankLost as error:
            raised.append((ranks.rank, str(error)))

    run_ranks(2, run, deadline=120, faults=[fault])
    assert any(re.match(text, message) for rank, message in raised if rank == 0), raised


def test_a_channel_keeps_the_order():
    ran = []
    own = Channel("test")
    tickets = [own.start("sleep", lambda n=n: (time.sleep(0.002), ran.append(n), n)[-1]) for n in range(5)]
    assert own.run("last", lambda: ran.append("last")) is None
    assert ran == [0, 1, 2, 3, 4, "last"]
    assert [own.wait(ticket) for ticket in reversed(tickets)] == [4, 3, 2, 1, 0]


def test_an_error_fails_all_that_stand_behind_it():
    own = Channel("test")

    def fail():
        time.sleep(0.01)
        raise RankLost([1], "rank 1 died")

    first, second = own.start("fail", fail), own.start("never", lambda: pytest.fail("it ran"))
    for ticket in (second, first):
        with pytest.raises(RankLost, match="rank 1 died"):
            own.wait(ticket)
    assert own.wait(own.start("next", lambda: 1)) == 1


def test_the_thread_ends_and_begins_again(monkeypatch):
    monkeypatch.setattr(channel, "_IDLE", 0.01)
    own = Channel("test")
    for n in range(3):
        ticket = own.start("number", lambda n=n: n)
        for thread in enumerate_threads():
            if thread.name == "communication of test":
                thread.join(60)
        assert not own._has_thread
        assert own.wait(ticket) == n


def test_results_of_a_plan_that_failed_are_dropped():
    own = Channel("test")
    own.start("left", lambda: np.zeros(1000))
    own.start("first", lambda: 1, is_first=True)
    assert len(own._started) == 1
