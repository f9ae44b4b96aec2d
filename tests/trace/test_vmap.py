"""`vmap`: axes, trees, nesting, random draws, and its errors."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import yosegi as ys

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))


def same(got, expected, **tolerances):
    np.testing.assert_allclose(got.numpy(), expected, **({"rtol": 1e-12} | tolerances))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("out", [0, 1, -1, -2])
def test_any_axis(axis, out):
    x = RNG.normal(size=(2, 3, 4))
    got = ys.vmap(lambda x: x[0] * 2, in_axes=axis, out_axes=out)(ys.asarray(x))
    expected = np.stack([part[0] * 2 for part in np.moveaxis(x, axis, 0)])
    same(got, np.moveaxis(expected, 0, out))


def test_several_arguments_with_axes_of_their_own():
    got = ys.vmap(lambda x, y, z: x @ y + z, in_axes=(0, 1, None))(ys.asarray(X), ys.asarray(Y.T), 2.0)
    same(got, np.sum(X * Y, axis=1) + 2)


class Pair(NamedTuple):
    first: object
    second: object


def test_trees_with_an_axis_for_each_part():
    params = {"w": ys.asarray(X), "b": Pair(ys.asarray(Y), 3.0)}
    axes = ({"w": 0, "b": Pair(1, None)},)

    def function(p):
        return {"sum": ys.sum(p["w"]), "rest": [p["b"].first * p["b"].second, None]}

    got = ys.vmap(function, in_axes=({"w": 0, "b": Pair(0, None)},))(params)
    same(got["sum"], X.sum(1))
    same(got["rest"][0], Y * 3)
    assert got["rest"][1] is None
    with pytest.raises(ys.errors.ShapeError, match=r"one number of examples, got 3 .* and 4"):
        ys.vmap(function, in_axes=axes)(params)


def test_out_axes_of_a_tree():
    a, b = ys.vmap(lambda x: (x, {"c": x}), out_axes=(0, {"c": 1}))(ys.asarray(X))
    same(a, X)
    same(b["c"], X.T)


def test_keyword_arguments_have_axis_0():
    same(ys.vmap(lambda x, *, y: x + y, in_axes=1)(ys.asarray(X.T), y=ys.asarray(Y)), X + Y)


def test_a_result_that_is_the_same_for_all_is_repeated():
    same(ys.vmap(lambda x: ys.arange(2.0))(ys.asarray(X)), np.tile(np.arange(2.0), (3, 1)))
    same(ys.vmap(lambda x, y: y * 2, in_axes=(0, None), out_axes=None)(ys.asarray(X), ys.asarray(Y)), Y * 2)
    same(ys.vmap(lambda: ys.ones((2,)), axis_size=3)(), np.ones((3, 2)))


def test_a_shared_argument_may_be_read():
    got = ys.vmap(lambda x, n: x * 2 if float(n) > 0 else x, in_axes=(0, None))(ys.asarray(X), ys.asarray(1.0))
    same(got, X * 2)


def test_no_examples():
    assert ys.vmap(lambda x: ys.sum(x))(ys.zeros((0, 3))).shape == (0,)
    assert ys.vmap(lambda s, x: ys.searchsorted(s, x))(ys.zeros((0, 3)), ys.zeros((0, 2))).shape == (0, 2)


def test_nested():
    distances = ys.vmap(ys.vmap(lambda a, b: ys.sum((a - b) ** 2), in_axes=(None, 0)), in_axes=(0, None))
    same(distances(ys.asarray(X), ys.asarray(Y)), ((X[:, None] - Y[None]) ** 2).sum(-1))


def test_jit_inside_and_outside():
    inner = ys.jit(lambda x, y: ys.tanh(x) @ y)
    expected = np.sum(np.tanh(X) * Y, axis=1)
    same(ys.vmap(inner)(ys.asarray(X), ys.asarray(Y)), expected)
    outer = ys.jit(ys.vmap(lambda x, y: ys.tanh(x) @ y))
    for _ in range(2):
        same(outer(ys.asarray(X), ys.asarray(Y)), expected)
    assert len(outer.plans) == 1


def test_a_method_of_a_model_under_jit_sees_new_weights():
    class Model:
        def __init__(self):
            self.w = ys.asarray(2.0)

        def forward(self, x):
            return x * self.w

    model = Model()
    function = ys.jit(ys.vmap(model.forward))
    same(function(ys.asarray(X)), X * 2)
    model.w = ys.asarray(3.0)
    same(function(ys.asarray(X)), X * 3)


def test_per_example_gradients():
    w = ys.asarray(RNG.normal(size=(4, 2)))

    def loss(w, x):
        return ys.sum(ys.tanh(x @ w) ** 2)

    got = ys.vmap(ys.grad(loss), in_axes=(None, 0))(w, ys.asarray(X))
    rows = [ys.grad(loss)(w, ys.asarray(row)).numpy() for row in X]
    same(got, np.stack(rows))
    total = ys.grad(lambda w: ys.sum(ys.vmap(partial(loss, w))(ys.asarray(X))))(w)
    same(total, np.sum(rows, axis=0), atol=1e-12)


def test_vjp_inside():
    def products(x, g):
        value, back = ys.vjp(lambda x: ys.sin(x) * ys.sum(x), x)
        return value, back(g)[0]

    value, pulled = ys.vmap(products)(ys.asarray(X), ys.asarray(Y))
    same(value, np.sin(X) * X.sum(1, keepdims=True))
    same(pulled, np.cos(X) * X.sum(1, keepdims=True) * Y + np.sum(np.sin(X) * Y, axis=1, keepdims=True))


def test_a_write_in_place():
    def function(x):
        y = x + 0.0
        y[0] = 5.0
        y += x
        return y

    expected = X.copy()
    expected[:, 0] = 5.0
    same(ys.vmap(function)(ys.asarray(X)), expected + X)


DRAWS = {
    "uniform": lambda rng, x: x + rng.uniform((5,)),
    "two draws": lambda rng, x: rng.normal((2,)) * rng.normal((2,)) + x,
    "integers": lambda rng, x: rng.integers(0, 100, (7,)),
    "dropout": lambda rng, x: ys.nn.dropout(ys.ones((9,)), 0.5, rng=rng) * x,
    "single precision": lambda rng, x: rng.normal((3, 3), dtype=ys.float32),
    "none": lambda rng, x: rng.uniform((0,)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("wrap", [lambda f: f, ys.jit], ids=["plain", "jit"])
def test_each_example_draws_what_a_loop_would_draw(name, wrap):
    x = np.arange(4.0)
    rng = ys.random.default_rng(11)
    function = wrap(ys.vmap(lambda x: DRAWS[name](rng, x)))
    got = [function(ys.asarray(x)).numpy() for _ in range(2)]
    again = ys.random.default_rng(11)
    for values in got:
        rows = [DRAWS[name](again, ys.asarray(v)).numpy() for v in x]
        np.testing.assert_allclose(values, np.stack(rows), rtol=1e-6)
    if got[0].size:
        assert not np.array_equal(got[0][0], got[0][1])


def test_nested_draws():
    rng = ys.random.default_rng(3)
    got = ys.vmap(ys.vmap(lambda x: x + rng.uniform((2,))))(ys.zeros((2, 3))).numpy()
    again = ys.random.default_rng(3)
    expected = [[again.uniform((2,)).numpy() for _ in range(3)] for _ in range(2)]
    np.testing.assert_array_equal(got, expected)


def test_a_composite_stays_whole():
    made = ys.vmap(lambda x: ys.nn.softmax(x))(ys.asarray(X))
    assert made._node.call.op.name == "softmax"
    same(made, ys.nn.softmax(ys.asarray(X), axis=1).numpy())


def test_rows_times_a_matrix_are_one_product():
    made = ys.vmap(lambda x: x @ ys.ones((4, 2)))(ys.asarray(X))
    assert made._node.call.op.name == "matmul"
    assert [i.spec.shape for i in made._node.inputs] == [(3, 4), (4, 2)]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ys.vmap(lambda x: x)(ys.asarray(1.0)), ys.errors.AxisError, "axis of a tensor of shape"),
        (lambda: ys.vmap(lambda x: x, in_axes=5)(ys.asarray(X)), ys.errors.AxisError, "got 5"),
        (lambda: ys.vmap(lambda x: x, in_axes=None)(ys.asarray(X)), ys.errors.ArgumentError, "give axis_size"),
        (lambda: ys.vmap(lambda x, y: x)(ys.asarray(X), ys.ones((2,))), ys.errors.ShapeError, "got 3 .* and 2"),
        (lambda: ys.vmap(lambda x, y: x)(ys.asarray(X), "text"), ys.errors.ArgumentError, "got str at"),
        (lambda: ys.vmap(lambda x: x, in_axes=(0, 0))(ys.asarray(X)), ys.errors.ArgumentError, "for 1 arguments"),
        (lambda: ys.vmap(lambda x: x, in_axes=([0],))(ys.asarray(X)), ys.errors.ArgumentError, "begins like"),
        (lambda: ys.vmap(lambda x: x, out_axes=None)(ys.asarray(X)), ys.errors.ArgumentError, "depends on the example"),
        (lambda: ys.vmap(lambda x: x, out_axes=3)(ys.asarray(X)), ys.errors.AxisError, "out_axes from -2 to 1"),
        (lambda: ys.vmap(lambda x: "text")(ys.asarray(X)), ys.errors.ArgumentError, "return tensors"),
        (lambda: ys.vmap(lambda x: x if x[0] > 0 else -x)(ys.asarray(X)), ys.errors.TraceError, r"\[vmap\]"),
    ],
)
def test_mistakes(call, error, text):
    with pytest.raises(error, match=text):
        call()
