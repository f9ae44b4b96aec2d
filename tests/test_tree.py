"""Trees: containers of every kind, paths, and what takes trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from yosegi._tensor.tree import paths
from yosegi._tensor.tree_code import builder, reader
from yosegi.errors import ArgumentError, DTypeError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Layer:
    weight: Any
    bias: Any = None


@dataclass(frozen=True)
class Model:
    layers: list[Layer]
    scale: Any
    note: str = field(default="", init=False)


class Box:
    """A class that must be registered."""

    def __init__(self, content: Any, label: str) -> None:
        self.content, self.label = content, label


ys.register_tree(Box, lambda b: ((b.content,), b.label), lambda label, parts: Box(parts[0], label))

TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(Layer, inner, inner)
    ),
    max_leaves=8,
)


@given(TREES, TREES)
def test_generated_code_takes_trees_apart_and_puts_them_together(tree, other):
    leaves, structure = ys.tree_flatten(tree)
    read, build = reader(structure), builder(structure)
    assert read(tree) == leaves
    assert build(leaves) == tree
    structure_of_other = ys.tree_structure(other)
    fits = read(other)
    assert (fits is not None) >= (structure_of_other == structure)
    if fits is not None and structure_of_other != structure:  # where a leaf was, there is a container
        assert any(ys.tree_structure(leaf) is not ... for leaf in fits)


def test_generated_code_distinguishes_containers():
    read = reader(ys.tree_structure([Box((1, {}), "a"), Point(2, [])]))
    assert read([Box((3, {}), "a"), Point(4, [])]) == [3, 4]
    assert read([Box((3, {}), "b"), Point(4, [])]) is None
    assert read([Box((3, {}), "a"), (4, [])]) is None
    assert read([Box((3, {1: 2}), "a"), Point(4, [])]) is None
    assert read([Box((3, {}), "a")]) is None
    assert reader(...)(5) == [5]


def test_a_jitted_function_is_traced_anew_when_a_leaf_becomes_a_container():
    f = ys.jit(lambda p: ys.tree_reduce(lambda a, b: a + b, p))
    x = ys.asarray(1.0)
    for tree, expected in [([x, x], 2.0), ([x, x], 2.0), ([x, [x, x]], 3.0), ([x, x], 2.0), ((x, x), 2.0)]:
        assert float(f(tree)) == expected
    assert len(f.plans) == 3


@given(TREES)
def test_a_tree_is_put_together_again(tree):
    leaves, structure = ys.tree_flatten(tree)
    assert ys.tree_unflatten(structure, leaves) == tree
    assert ys.tree_leaves(tree) == leaves
    assert ys.tree_structure(tree) == structure
    assert len(paths(tree)) == len(leaves)
    hash(structure)


def model() -> Model:
    return Model([Layer(ys.ones((2,)), None), Layer(ys.ones((2,)), ys.zeros(()))], ys.asarray(2.0))


def test_paths_are_written_as_python_does():
    tree = {"layers": [0, Layer(Point(1, 2))], "box": Box(3, "b")}
    assert paths(tree, "params") == [
        "params['layers'][0]", "params['layers'][1].weight.x", "params['layers'][1].weight.y", "params['box']<0>",
    ]  # fmt: skip
    assert paths(5, "x") == ["x"]
    assert ys.tree_map_with_path(lambda p, v: (p, v), {"a": [7]}) == {"a": [("['a'][0]", 7)]}


def test_gradients_and_jit_of_dataclasses_and_registered_classes():
    def loss(m, x):
        for layer in m.layers:
            x = x * layer.weight + (0.0 if layer.bias is None else layer.bias)
        return ys.sum(x) * m.scale

    x = ys.asarray([1.0, 2.0])
    slopes = ys.jit(ys.grad(loss))(model(), x)
    assert isinstance(slopes, Model)
    assert slopes.layers[0].bias is None
    assert slopes.layers[1].weight.tolist() == [2.0, 4.0]
    assert float(slopes.scale) == 3.0
    box = ys.jit(lambda b: Box(b.content * 2, b.label))(Box(x, "kept"))
    assert (box.label, box.content.tolist()) == ("kept", [2.0, 4.0])
    assert ys.grad(lambda b: ys.sum(b.content**2))(Box(x, "b")).content.tolist() == [2.0, 4.0]


def test_a_changed_label_of_a_registered_class_is_traced_anew():
    f = ys.jit(lambda b: b.content * (2 if b.label == "two" else 3))
    assert [float(f(Box(ys.asarray(1.0), label))) for label in ("two", "three", "two")] == [2.0, 3.0, 2.0]


def test_reduce_and_map():
    assert ys.tree_reduce(lambda a, b: a + b, [1, {"x": 2}], 10) == 13
    assert ys.tree_map(lambda a, b: a * b, Point(2, None), Point(3, None)) == Point(6, None)
    with pytest.raises(ArgumentError, match=r"\[tree_reduce\] expected at least one leaf"):
        ys.tree_reduce(max, [None])


def test_mistakes_name_the_leaf():
    params = {"layers": [Layer(ys.ones((2,))), Layer(np.array([1, 2]))]}
    with pytest.raises(DTypeError, match=r"got int64 at params\['layers'\]\[1\]\.weight; cast it"):
        ys.grad(lambda params: ys.sum(params["layers"][0].weight))(params)
    with pytest.raises(DTypeError, match=r"got str at params\['layers'\]\[0\]\.bias"):
        ys.grad(lambda x, params: ys.sum(x), argnums=1)(ys.ones((2,)), {"layers": [Layer(ys.ones((2,)), "b")]})
    with pytest.raises(ArgumentError, match=r"\[eval\] expected tensors, got int at argument 0\['a'\]\[1\]"):
        ys.eval({"a": [ys.ones((2,)), 3]})
    with pytest.raises(ArgumentError, match=r"a leaf at \['b'\] in only one of them"):
        ys.tree_map(max, {"a": 1}, {"a": 1, "b": 2})
    with pytest.raises(ArgumentError, match=r"a leaf at \['a'\] in one, and at \['b'\] in the other"):
        ys.tree_map(max, {"a": 1}, {"b": 1})
    with pytest.raises(ArgumentError, match=r"\[tree_unflatten\] expected 2 leaves, got 1"):
        ys.tree_unflatten(ys.tree_structure([1, 2]), [1])
    with pytest.raises(ArgumentError, match=r"\[register_tree\]"):
        ys.register_tree(list, lambda x: (x, None), lambda _, x: x)
