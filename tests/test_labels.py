"""Labellings: the best of all for two labels, and never worse than where they began."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yosegi._place.cost_model import TransferCost
from yosegi._place.labels import NEVER, Problem, SharedValue, best

SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 5.0))


@st.composite
def problems(draw, labels):
    """Regions that read each other and values from outside; every region can have the last label."""
    regions = draw(st.integers(1, 5 if labels > 2 else 6))
    spaces = [draw(st.integers(0, 2)) for _ in range(labels - 1)] + [0]
    up, down = ([draw(SECONDS) for _ in range(3)] for _ in range(2))
    transfers = [
        [TransferCost() if a == b else TransferCost((down[a] if a else 0.0) + (up[b] if b else 0.0)) for b in range(3)]
        for a in range(3)
    ]
    own = [
        [draw(st.one_of(SECONDS, st.just(NEVER))) for _ in range(labels - 1)] + [draw(SECONDS)] for _ in range(regions)
    ]
    calls = [draw(SECONDS) for _ in range(labels)]
    values, feeders = [], []
    for region in range(regions):
        later = st.integers(region + 1, regions - 1) if region + 1 < regions else st.nothing()
        readers = draw(st.sets(later, max_size=3)) if region + 1 < regions else set()
        if readers:
            values.append(SharedValue(region, 0, tuple(sorted(readers)), 0))
    for _ in range(draw(st.integers(0, 2))):
        readers = draw(st.sets(st.integers(0, regions - 1), min_size=1, max_size=3))
        values.append(SharedValue(-1, draw(st.integers(0, 2)), tuple(sorted(readers)), 0))
    for region in range(regions):
        feeders.append(max((v.maker for v in values if region in v.readers), default=-1))
    return Problem(spaces, calls, own, values, feeders, transfers)


def all_labellings(problem):
    return product(range(len(problem.spaces)), repeat=len(problem.own))


def singles(problem):
    last = len(problem.spaces) - 1
    return [[n if own[n] < NEVER else last for own in problem.own] for n in range(last + 1)]


@settings(max_examples=400)
@given(problems(labels=2))
def test_for_two_labels_none_is_better(problem):
    least = min(map(problem.total, all_labellings(problem)))
    host = [1] * len(problem.own)
    assert problem.total(problem.expanded(host, 0)) <= least + 1e-9
    assert problem.total(best(problem, singles(problem))) <= least + 1e-9


@settings(max_examples=400)
@given(problems(labels=3))
def test_for_more_it_is_no_worse_than_any_single_one(problem):
    found = problem.total(best(problem, singles(problem)))
    assert found <= min(map(problem.total, singles(problem))) + 1e-9


def test_for_more_it_is_nearly_always_the_best():
    rng = np.random.default_rng(0)
    optimal = 0
    for _ in range(200):
        regions = 6
        transfers = [
            [TransferCost() if a == b else TransferCost(float(w)) for b, w in enumerate(row)]
            for a, row in enumerate(rng.random((3, 3)))
        ]
        values = [SharedValue(n, 0, tuple({n + 1, int(rng.integers(n + 1, regions))}), 0) for n in range(regions - 1)]
        feeders = [max((v.maker for v in values if n in v.readers), default=-1) for n in range(regions)]
        problem = Problem(
            [1, 2, 0], list(rng.random(3) / 2), rng.random((regions, 3)).tolist(), values, feeders, transfers
        )
        least = min(map(problem.total, all_labellings(problem)))
        optimal += problem.total(best(problem, singles(problem))) <= least * 1.001
    assert optimal > 190


def test_a_value_is_moved_once_however_many_read_it():
    transfers = [[TransferCost(), TransferCost(1.0)], [TransferCost(1.0), TransferCost()]]
    value = SharedValue(0, 0, (1, 2, 3), 0)
    problem = Problem([0, 1], [0.0, 0.0], [[0.0, NEVER]] + [[1.0, 0.4]] * 3, [value], [-1, 0, 0, 0], transfers)
    assert problem.total([0, 1, 1, 1]) == pytest.approx(1 + 3 * 0.4)
    assert best(problem, [[0, 0, 0, 0]]) == [0, 1, 1, 1]


def test_what_shares_a_call_goes_together():
    """Each region is cheaper on the first label, but not by what a call costs: together they are."""

    def problem(regions):
        return Problem([0, 0], [1.0, 0.0], [[0.1, 0.5]] * regions, [], [-1, *range(regions - 1)], [])

    assert best(problem(2), [[1, 1]]) == [1, 1]
    assert best(problem(3), [[1, 1, 1]]) == [0, 0, 0]
