"""Graphs as plain data: every op comes back as it was, and what does not fit together is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from samples import BUILT_BY_INDEXING, SAMPLES, X, calls
from yosegi._graph.decode import Malformed
from yosegi._graph.graph import Graph, capture, check, graph_of
from yosegi._graph.portable import as_plain, graph_as_plain, graph_of_plain, of_plain
from yosegi._graph.simplify import simplify
from yosegi._tensor.op import REGISTRY
from yosegi.errors import ArgumentError


def graph(*tensors: ys.Tensor) -> Graph:
    return simplify(graph_of(capture([t._node for t in tensors])[0]))


def again(made: Graph) -> Graph:
    return graph_of_plain(json.loads(json.dumps(graph_as_plain(made))))


def same(a: Graph, b: Graph) -> bool:
    """Whether two graphs are one; constants by what they hold."""
    pairs = zip(a.calls, b.calls, strict=True)
    alike = [x is y or (x.op is y.op and x.outputs == y.outputs and str(x.attrs) == str(y.attrs)) for x, y in pairs]
    return all(alike) and (a.args, a.outputs, a.origins) == (b.args, b.outputs, b.origins)


@pytest.mark.parametrize(("name", "number"), calls())
def test_every_op_comes_back(name: str, number: int) -> None:
    sample = SAMPLES[name][number]
    op = REGISTRY[name]
    given = [ys.asarray(a) for a in sample.arrays]
    several = len(op._node(tuple(given), sample.attrs).call.outputs) > 1
    made = graph(*op.outputs(*given, **sample.attrs)) if several else graph(op(*given, **sample.attrs))
    check(again(made))
    assert same(again(made), made)


@pytest.mark.parametrize("name", BUILT_BY_INDEXING)
def test_indexing_comes_back(name: str) -> None:
    made = graph(BUILT_BY_INDEXING[name](ys.asarray(X)))
    assert same(again(made), made)


NUMBERS = [0.1, float("inf"), float("-inf"), float("nan"), -0.0, 5e-324, 1e300, 1 - 2j, True, 3, None, "text", (1, 2.5)]


@pytest.mark.parametrize("value", [*NUMBERS, np.array([1.5, np.nan], np.float32), np.zeros((0, 3), np.int8)], ids=repr)
def test_attributes_come_back_to_the_last_bit(value: Any) -> None:
    plain = json.loads(json.dumps(as_plain(value)))
    found = of_plain(plain, "value")
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    if isinstance(value, np.ndarray):
        assert not found.flags.writeable


def test_what_a_file_cannot_hold_is_refused() -> None:
    with pytest.raises(ArgumentError, match="got object"):
        as_plain(object())


BROKEN: dict[str, tuple[Any, str]] = {
    "an op of another version": (
        lambda d: d["calls"][-1].update(op="frobnicate"),
        r"an op of this version, got 'frobnicate' at graph.calls\[2\].op",
    ),
    "an op that gives something else": (
        lambda d: d["calls"][-1].update(outputs=[[[7], "float64", False]]),
        r"calls\[2\].outputs",
    ),
    "an entry that reads a later one": (
        lambda d: d["calls"][-1].update(args=[9, 9]),
        r"from 0 to 1, got 9 at graph.calls\[2\].args\[0\]",
    ),
    "an output that is none": (lambda d: d.update(outputs=[99]), r"got 99 at graph.outputs\[0\]"),
    "something missing": (lambda d: d.pop("calls"), "the keys calls, outputs, origins"),
    "another kind of thing": (lambda d: d.update(calls=7), "a list .* got 7 at graph.calls"),
    "an attribute of an unknown kind": (lambda d: d["calls"][-1].update(attrs={"axis": {"code": "x"}}), "attrs.axis"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_together_is_refused(name: str) -> None:
    break_it, told = BROKEN[name]
    data = copy.deepcopy(graph_as_plain(graph(ys.asarray([1.0]) + ys.asarray([2.0]))))
    break_it(data)
    with pytest.raises(Malformed, match=told):
        graph_of_plain(data)
