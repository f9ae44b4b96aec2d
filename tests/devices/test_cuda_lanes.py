"""Which launches run side by side: what conflicts never does."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from yosegi.devices.cuda.concurrency import MOST_LANES, Turn, turns

PLACES = st.lists(st.integers(0, 6), max_size=3)
LAUNCHES = st.lists(st.tuples(PLACES, st.lists(st.integers(0, 6), min_size=1, max_size=2)), max_size=12)


def done_before(made: list[Turn]) -> list[set[int]]:
    """For each launch all that are done when it begins, by its lane and by what it waits for."""
    before: list[set[int]] = []
    last: dict[int, int] = {}
    for number, turn in enumerate(made):
        direct = {*turn.waits, *([last[turn.lane]] if turn.lane in last else [])}
        before.append(direct.union(*[before[n] for n in direct]))
        last[turn.lane] = number
    return before


@given(LAUNCHES)
def test_what_conflicts_is_in_order(launches: list[tuple[list[int], list[int]]]) -> None:
    made = turns(launches)
    before = done_before(made)
    assert all(0 <= turn.lane < MOST_LANES for turn in made)
    for first, second in combinations(range(len(launches)), 2):
        (reads, writes), (later_reads, later_writes) = launches[first], launches[second]
        if {*writes} & {*later_reads, *later_writes} or {*reads} & {*later_writes}:
            assert first in before[second]


def test_a_chain_is_one_lane() -> None:
    assert turns([((n,), (n + 1,)) for n in range(5)]) == [Turn(0, ())] * 5


def test_branches_are_lanes_and_their_end_waits_for_all() -> None:
    branches = [((0,), (n,)) for n in (1, 2, 3)]
    *sides, end = turns([*branches, ((1, 2, 3), (4,))])
    assert [turn.lane for turn in sides] == [0, 1, 2]
    assert end == Turn(0, (1, 2))


def test_memory_that_is_used_again_waits_for_its_readers() -> None:
    made = turns([((0,), (1,)), ((1,), (2,)), ((3,), (1,))])
    assert 1 in done_before(made)[2]


def test_there_are_never_too_many_lanes() -> None:
    made = turns([((0,), (n,)) for n in range(1, 20)])
    assert {turn.lane for turn in made} == set(range(MOST_LANES))
    assert not any(turn.waits for turn in made)
