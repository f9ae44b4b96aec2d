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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aers"), st.integers(0, 99), st.integers(0, 99)), max_size=30))
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
