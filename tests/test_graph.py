"""Graphs: capture, keys, the checker, printing."""

from dataclasses import replace

import numpy as np
import pytest

import yosegi as ys
from yosegi._graph.graph import capture, check, graph_of


def key_of(*tensors):
    return capture([t._node for t in tensors])[0]


def graph_for(*tensors):
    return graph_of(key_of(*tensors))


@pytest.fixture
def x():
    return ys.asarray(np.arange(6.0).reshape(2, 3))


def test_a_graph_prints_as_a_program(x):
    program = str(graph_for(ys.sum(ys.exp(x), axis=1)))  # outside the assert, which would hold the intermediates
    assert program == (
        "%0 = leaf(): float64[2, 3]\n"
        "%1 = exp(%0): float64[2, 3]\n"
        "%2 = sum(%1, axis=(1,), dtype=yosegi.float64, keepdims=False): float64[2]\n"
        "return %2"
    )


def test_equal_structure_gives_equal_keys(x):
    y = ys.asarray(np.ones((2, 3)))
    assert key_of(ys.exp(x) * y + x) == key_of(ys.exp(y) * x + y)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: ys.exp(x) * y + y,  # other wiring
        lambda x, y: ys.sin(x) * y + x,  # another op
        lambda x, y: ys.exp(x) * x + y,  # the same value twice
        lambda x, y: ys.exp(x) * y + x[:1],  # another attribute
        lambda x, y: ys.exp(x.astype(ys.float32)) * y + x,  # another dtype
    ],
)
def test_other_structure_gives_another_key(x, other):
    y = ys.asarray(np.ones((2, 3)))
    assert key_of(ys.exp(x) * y + x) != key_of(other(x, y))


def test_ordinary_numbers_are_data_and_keep_the_key(x):
    assert key_of(x * 0.1) == key_of(x * 0.2)
    np.testing.assert_array_equal((x * 0.2).numpy(), x.numpy() * 0.2)


def test_numbers_that_simplification_knows_are_structure(x):
    assert key_of(x * 1.0) != key_of(x * 0.5)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_signed_zeros_are_not_mixed_up(zero):
    results = [(ys.asarray([1.0]) * z).numpy() for z in (0.0, -0.0, zero)]
    assert np.signbit(results[2])[0] == np.signbit(zero)
    assert [bool(np.signbit(r)[0]) for r in results[:2]] == [False, True]


def test_the_checker_accepts_what_capture_makes(x):
    q, r = ys.linalg.qr(x.mT)
    check(graph_for(ys.concat([q, x.mT], axis=1).mT @ x.mT, r[None, :1]))


def breakages(graph):
    last = len(graph.calls) - 1
    other = graph_for(ys.exp(ys.asarray([1.0])))
    yield "an input after its use", replace(graph, args=(*graph.args[:-1], (last,)))
    yield "an input of another spec", replace(graph, calls=(other.calls[0], *graph.calls[1:]))
    yield "an output out of range", replace(graph, outputs=(last + 1,))
    call = graph.calls[last]
    lie = type(call)(call.op, call.attrs, call.inputs, other.calls[0].outputs)
    yield "an output its rule does not give", replace(graph, calls=(*graph.calls[:-1], lie))


@pytest.mark.parametrize("number", range(4))
def test_the_checker_refuses_a_broken_graph(x, number):
    graph = graph_for(ys.exp(x))
    check(graph)
    _, broken = list(breakages(graph))[number]
    with pytest.raises(AssertionError):
        check(broken)
