"""Timing and comparing: what is noise, and what is not."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from threading import Thread
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import document, result
from yosegi.errors import ArgumentError
from yosegi.tools.bench.compare import compare
from yosegi.tools.bench.timing import Contender, Timing, _rest, order_of_turns, race


def test_ratios_are_taken_within_a_round():
    slow, fast = Timing(((2.0, 20.0), (4.0,))), Timing(((1.0, 10.0), (2.0,)))
    ratio = slow.ratio_to(fast)
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def test_everyone_has_a_turn_in_every_round():
    ran = []
    turns = {name: Contender(lambda name=name: ran.append(name)) for name in "abcd"}
    timings = race(turns, rounds=2, seconds=10)
    assert {len(t.rounds) for t in timings.values()} == {2}
    in_turn = [a for a, b in zip(ran, [None, *ran], strict=False) if a != b]
    assert in_turn[-8:] == [*"abdc", *"bcad"]


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde"])
def test_everyone_is_first_and_behind_everyone_else_equally_often(names):
    """In rounds that were turned by one, everyone came behind the same one in all rounds but one: `auto` behind `cpu`,
    and `cpu` behind a device whose threads were still looking for work."""
    orders = [order_of_turns(names, n) for n in range(2 * len(names))]
    assert all(sorted(order) == list(names) for order in orders)
    assert {[order[0] for order in orders].count(name) for name in names} == {2}
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert set(pairs.values()) == {2}
    assert len(pairs) == len(names) * (len(names) - 1)


def test_a_turn_waits_for_the_threads_of_the_one_before():
    """Some pools look for work for a tenth of a second: whoever came next had one processor less."""
    end = perf_counter() + 0.3

    def looks_for_work():
        while perf_counter() < end:
            pass

    pool = Thread(target=looks_for_work)
    pool.start()
    _rest(60.0)
    assert end < perf_counter() < end + 50  # threads of other tests may still compute
    pool.join()


def test_a_sitting_ends_when_its_time_is_up_but_has_two_rounds():
    assert len(race({"a": Contender(lambda: None)}, rounds=1000, seconds=0.0)["a"].rounds) == 2


@given(st.floats(1e-7, 1e2), st.integers(0, 1000))
def test_the_interval_holds_the_median(scale, seed):
    rng = np.random.default_rng(seed)
    rounds = tuple(tuple(scale * rng.lognormal(0, 0.1, 5)) for _ in range(3))
    ratio = Timing(rounds).ratio_to(Timing(((scale,) * 5,) * 3))
    assert ratio.low <= ratio.median <= ratio.high


def noisy(rng, factor=1.0, noise=0.03):
    """A case whose machine drifts: the yardstick feels it too."""
    drift = rng.lognormal(0, 0.3, (4, 1))
    yardstick = 1e-3 * drift * rng.lognormal(0, noise, (4, 6))
    own = 4e-4 * factor * drift * rng.lognormal(0, noise, (4, 6))
    return yardstick, own


def pair_of_runs(rng, cases, slower=None, by=1.15):
    runs = []
    for run in range(2):
        results = []
        for n in range(cases):
            yardstick, own = noisy(rng, by if run == 1 and n == slower else 1.0)
            results.append(result(f"case{n}", "numpy", None, yardstick))
            results.append(result(f"case{n}", "one, jit", "one", own))
        runs.append(document(results))
    return runs


def test_noise_is_no_difference_and_15_percent_is_found():
    before, after = pair_of_runs(np.random.default_rng(1), cases=100, slower=17)
    comparison = compare(before, after)
    assert [c.case for c in comparison.regressions] == ["case17"]
    assert sum(c.verdict == "no difference" for c in comparison.changes) >= 95
    assert [c.case for c in compare(after, before).changes if c.verdict == "faster"] == ["case17"]


def test_a_result_that_is_no_longer_right_is_gone():
    before, after = pair_of_runs(np.random.default_rng(2), cases=2)
    results = [
        replace(r, status="wrong", sittings=()) if r.contender == "one, jit" and r.case == "case1" else r
        for r in after.results
    ]
    comparison = compare(before, replace(after, results=tuple(results)))
    assert comparison.gone == ("case1 one, jit",)
    assert len(comparison.changes) == 1


def test_runs_of_different_machines_are_not_compared_unless_told_to():
    before, after = pair_of_runs(np.random.default_rng(3), cases=1)
    after = replace(after, machine={**after.machine, "fingerprint": "other"})
    with pytest.raises(ArgumentError, match=r"expected two runs from one machine, got .* say --across-machines"):
        compare(before, after)
    assert len(compare(before, after, across=True).changes) == 1
