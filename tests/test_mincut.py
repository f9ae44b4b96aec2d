"""Minimum cuts, against all cuts there are."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from yosegi._place.mincut import CutNetwork

PRICES = st.one_of(st.just(0.0), st.floats(0.0, 10.0), st.integers(0, 3).map(float))


@st.composite
def networks(draw):
    nodes = draw(st.integers(1, 7))
    prices = draw(st.lists(st.tuples(PRICES, PRICES), min_size=nodes, max_size=nodes))
    ends = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(ends, ends, PRICES, PRICES).filter(lambda e: e[0] != e[1]), max_size=14))
    return prices, edges


def cost(sides, prices, edges):
    """What a cut costs: `sides` says which nodes are on the second side."""
    own = sum(price[side] for side, price in zip(sides, prices, strict=True))
    forth = sum(c for a, b, c, _ in edges if not sides[a] and sides[b])
    back = sum(c for a, b, _, c in edges if sides[a] and not sides[b])
    return own + forth + back


def cut(prices, edges):
    network = CutNetwork(len(prices))
    for node, (first, second) in enumerate(prices):
        network.price(node, first=first, second=second)
    for edge in edges:
        network.edge(*edge)
    return network.second_side()


@settings(max_examples=400)
@given(networks())
def test_no_cut_is_cheaper(problem):
    prices, edges = problem
    least = min(cost(sides, prices, edges) for sides in product((False, True), repeat=len(prices)))
    found = cost(cut(prices, edges), prices, edges)
    assert found <= least + 1e-9


@given(networks())
def test_an_edge_that_costs_too_much_is_never_cut(problem):
    prices, edges = problem
    bound = [*edges, (0, len(prices) - 1, 1e9, 1e9)] if len(prices) > 1 else edges
    sides = cut(prices, bound)
    assert sides[0] == sides[-1]


def test_a_long_chain_is_cut_without_recursion():
    nodes = 20_000
    network = CutNetwork(nodes)
    network.price(0, second=1e3)
    network.price(nodes - 1, first=1e3)
    for n in range(nodes - 1):
        network.edge(n, n + 1, 1.0 if n == 12_345 else 2.0)
    sides = network.second_side()
    assert sides.index(True) == 12_346
    assert all(sides[12_346:])
