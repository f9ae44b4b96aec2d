"""Regions: what is computed as one, and in which order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from yosegi._graph.graph import capture, graph_of
from yosegi._schedule.fuse import fuse


def regions_of(*tensors):
    graph = graph_of(capture([t._node for t in tensors])[0])
    return graph, fuse(graph)


def is_runnable(graph, regions):
    """Whether every region finds what it reads, and each entry is computed once."""
    there = set(graph.inputs)
    for region in regions:
        if not set(region.inputs) <= there or there & set(region.nodes):
            return False
        there |= set(region.outputs)
    return set(graph.outputs) <= there


def test_a_loop_waits_for_small_values_that_it_reads():
    x, v = ys.asarray(np.ones((30, 40), np.float32)), ys.asarray(np.ones(40, np.float32))
    graph, regions = regions_of(ys.exp(x) * ys.sqrt(v + 1) + 2)
    assert [region.kind.value for region in regions] == ["loop", "loop"]
    assert [len(region.nodes) for region in regions] == [2, 3]
    assert is_runnable(graph, regions)


def test_a_loop_does_not_wait_for_what_is_made_of_it():
    x = ys.asarray(np.ones((30, 40), np.float32))
    powers = ys.exp(x)
    graph, regions = regions_of(powers / ys.sum(powers, axis=1, keepdims=True))
    assert len(regions) == 2
    assert is_runnable(graph, regions)


def test_loops_that_feed_one_op_are_one_region():
    p, m, v, g = (ys.asarray(np.full((30, 40), n, np.float32)) for n in (1, 2, 3, 4))
    mean, square = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    graph, regions = regions_of(p - 0.1 * (mean / (ys.sqrt(square) + 1e-8) + 0.01 * p), mean, square)
    assert [region.kind.value for region in regions] == ["loop"]
    assert len(regions[0].outputs) == 3
    assert is_runnable(graph, regions)


def test_loops_with_a_region_between_them_stay_apart():
    x = ys.asarray(np.ones((20, 20), np.float32))
    before = ys.exp(x)
    graph, regions = regions_of(before + 2 * (before @ before))
    assert [region.kind.value for region in regions] == ["loop", "contraction", "loop"]
    assert is_runnable(graph, regions)


def test_no_two_regions_wait_for_each_other():
    """The least value is of entries before the small loop, but waits for the loop of `powers`, which reads it."""
    x, v = ys.asarray(np.ones((4,))), ys.asarray(np.ones((1,)))
    powers, small = ys.exp(x), ys.exp(v)
    least = ys.sort(powers)[:1]
    graph, regions = regions_of(least, powers + small, small * least)
    assert is_runnable(graph, regions)


def test_a_loop_does_not_grow_without_limit():
    chains = []
    for n in range(8):
        chain = ys.asarray(np.full(9, n, np.float32))
        for _ in range(20):
            chain = ys.tanh(chain)
        chains.append(chain)
    graph, regions = regions_of(sum(chains[1:], chains[0]))
    assert max(len(region.nodes) for region in regions) <= 64
    assert is_runnable(graph, regions)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aers"), st.integers(0, 99), st.integers(0, 99)), max_size=60))
def test_any_graph_can_run_in_the_order_of_its_regions(steps):
    values = [ys.asarray(np.full(s, 0.5, np.float32)) for s in ((4, 5), (1, 5), (4, 1))]
    for kind, one, other in steps:
        a, b = values[one % len(values)], values[other % len(values)]
        match kind:
            case "a":
                values.append(a + b)
            case "e":
                values.append(ys.tanh(a))
            case "r":
                values.append(ys.sum(a, axis=one % 2, keepdims=True))
            case "s":
                values.append(ys.sort(a, axis=other % 2))
    graph, regions = regions_of(*values[-3:])
    assert is_runnable(graph, regions)
