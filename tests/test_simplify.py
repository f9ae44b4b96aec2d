"""Simplification: less work, the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from yosegi._graph.graph import capture, check, graph_of
from yosegi._graph.simplify import simplify

X = np.array([[-0.0, 1.5, -2.0], [np.inf, np.nan, 3.0]])


def simplified(*tensors):
    graph = simplify(graph_of(capture([t._node for t in tensors])[0]))
    check(graph)
    return [call.op.name for call in graph.calls if call.op.name != "leaf"]


CASES = {
    "multiply by one": (lambda x: x * 1, []),
    "multiply by ones": (lambda x: x * ys.broadcast_to(ys.ones(()), (2, 3)), []),
    "multiply by many ones": (lambda x: ys.broadcast_to(x, (900, 2, 3)) * ys.ones((900, 2, 3)), ["broadcast_to"]),
    "one times": (lambda x: 1 * x, []),
    "divide by one": (lambda x: x / 1.0, []),
    "subtract zero": (lambda x: x - 0, []),
    "add zero is not the identity for -0.0": (lambda x: x + 0, ["constant", "add"]),
    "first power": (lambda x: x**1, []),
    "square": (lambda x: x**2, ["square"]),
    "double negation": (lambda x: ys.negative(-x), []),
    "flip back": (lambda x: ys.flip(ys.flip(x, axis=0), axis=0), []),
    "transpose back": (lambda x: x.T.T, []),
    "reshape chain": (lambda x: ys.reshape(ys.reshape(x, (3, 2)), (6,)), ["reshape"]),
    "reshape to itself": (lambda x: ys.reshape(x, (2, 3)), []),
    "broadcast chain": (lambda x: ys.broadcast_to(ys.broadcast_to(x, (1, 2, 3)), (4, 2, 3)), ["broadcast_to"]),
    "cast to itself": (lambda x: x.astype(ys.float64), []),
    "common subexpressions": (lambda x: ys.exp(x) + ys.exp(x), ["exp", "add"]),
    "constants": (lambda x: x * (ys.ones(()) + 1), ["embedded", "multiply"]),
}


@pytest.mark.parametrize(("build", "left"), CASES.values(), ids=CASES)
def test_rules(build, left):
    x = ys.asarray(X)
    assert simplified(build(x)) == left


PRODUCTS = {
    "left": (lambda xp, a, b, c, d, s: (a.T @ b).T, 1, 1),
    "right": (lambda xp, a, b, c, d, s: (a @ c.T).T, 1, 1),
    "both": (lambda xp, a, b, c, d, s: (b.T @ d.T).T, 1, 0),
    "stacks": (lambda xp, a, b, c, d, s: (s.mT @ (s * 2)).mT, 1, 1),
    "a stack that is repeated": (lambda xp, a, b, c, d, s: (s.mT @ (s[:1] * 2)).mT, 1, 1),
    "through what goes": (lambda xp, a, b, c, d, s: xp.negative(-(a.T @ b)).T, 1, 1),
    "twice": (lambda xp, a, b, c, d, s: xp.concat([(a.T @ b).T, xp.permute_dims(a.T @ b, (1, 0)) * 2]), 1, 1),
    "as it is, too": (lambda xp, a, b, c, d, s: xp.sum((a.T @ b).T) + xp.sum((a.T @ b) * 2), 1, 2),
    "neither": (lambda xp, a, b, c, d, s: (a @ c.T @ c).T, 2, 2),
    "a stack and a matrix": (lambda xp, a, b, c, d, s: (s.mT @ b).mT, 1, 2),
    "the other is large": (lambda xp, a, b, c, d, s: (c[:, :1].T @ (c @ a.T @ d.T)).T, 3, 4),
    "nothing": (lambda xp, a, b, c, d, s: (a[:0].T @ b[:0]).T, 1, 1),
}


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.int32])
@pytest.mark.parametrize(("build", "products", "turns"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_turned_product_is_that_of_turned_operands(build, products, turns, dtype):
    rng = np.random.default_rng(7)
    arrays = [(rng.normal(size=s) * 5).astype(dtype) for s in [(4, 3), (4, 5), (5, 3), (7, 4), (2, 4, 3)]]
    names = simplified(build(ys, *map(ys.asarray, arrays)))  # not in the assertion, which would hold the product
    assert (names.count("matmul"), names.count("permute_dims")) == (products, turns)
    made = build(ys, *map(ys.asarray, arrays)).numpy()
    np.testing.assert_allclose(made, build(np, *arrays), rtol=1e-5, atol=1e-4)


def test_a_chain_of_products_is_not_too_deep():
    turn, made = ys.asarray(np.eye(4)[[1, 2, 3, 0]]), ys.asarray(np.arange(12.0).reshape(4, 3))
    for _ in range(4000):
        made = turn.T @ made
    np.testing.assert_array_equal(made.T.numpy(), np.arange(12.0).reshape(4, 3).T)


def test_a_product_that_others_want_stays():
    a, b = (ys.asarray(np.ones(s)) for s in ((4, 3), (4, 5)))
    product = a.T @ b
    assert simplified(product.T) == ["permute_dims", "matmul", "permute_dims"]


def test_the_values_of_a_turned_product():
    x, w, g = (np.random.default_rng(n).normal(size=s) for n, s in enumerate([(6, 4), (5, 4), (6, 5)]))
    made = ys.grad(lambda w: ys.sum((ys.asarray(x) @ w.T) * ys.asarray(g)))(ys.asarray(w))
    np.testing.assert_allclose(made.numpy(), g.T @ x, rtol=1e-12)


def test_integer_addition_of_zero_goes():
    assert simplified(ys.asarray([1, 2]) + 0) == []


def test_broadcasting_by_a_neutral_number_stays():
    one = ys.ones((2, 3))
    x = ys.asarray([1.0, 2.0, 3.0])
    assert (x * one).numpy().shape == (2, 3)


def test_what_no_output_needs_is_left_out():
    x = ys.asarray(X)
    graph = graph_of(capture([(ys.exp(x) * 2 + ys.sin(x))._node])[0])
    only_exp = type(graph)(graph.calls, graph.args, (1,))
    assert [c.op.name for c in simplify(only_exp).calls] == ["leaf", graph.calls[1].op.name]


def test_views_are_not_copied():
    x = ys.asarray(np.arange(24.0).reshape(2, 3, 4))
    for view in (x.reshape(6, 4), ys.permute_dims(x, (2, 0, 1)), x[:, 1:], ys.flip(x), x[..., None]):
        assert np.shares_memory(view.numpy(), x.numpy())


UNARY = [
    lambda x: x * 1,
    lambda x: x**2,
    lambda x: -x,
    ys.exp,
    lambda x: x + 0,
    lambda x: x - 0,
    ys.abs,
    lambda x: x / 1,
]
BINARY = [ys.add, ys.multiply, ys.subtract, ys.maximum]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(0, 100)), max_size=12))
def test_any_program_keeps_its_bits(program):
    def build(values):
        values = list(values)
        for unary, binary, pick in program:
            a, b = values[pick % len(values)], values[(pick * 7 + 3) % len(values)]
            values.append(BINARY[binary](UNARY[unary](a), b))
        return values[-1]

    leaves = [ys.asarray(X), ys.asarray(X[::-1].copy())]
    whole = build(leaves).numpy()
    step_by_step = build_eagerly(program, leaves)
    np.testing.assert_array_equal(whole, step_by_step)
    np.testing.assert_array_equal(np.signbit(whole), np.signbit(step_by_step))


def build_eagerly(program, leaves):
    values = list(leaves)
    for unary, binary, pick in program:
        a, b = values[pick % len(values)], values[(pick * 7 + 3) % len(values)]
        middle = UNARY[unary](a)
        ys.eval(middle)
        result = BINARY[binary](middle, b)
        ys.eval(result)
        values.append(result)
    return values[-1].numpy()


def windows(*places, shape=(4, 3, 2)):
    """A sum of zeros with a window set at each of some places along the middle axis, and the same in NumPy."""
    made, expected = [], np.zeros(shape, np.float32)
    for number, place in enumerate(places, start=1):
        whole = np.zeros(shape, np.float32)
        values = np.random.default_rng(number).normal(size=whole[:, place].shape).astype(np.float32)
        whole[:, place] = values
        expected = expected + whole
        made.append(ys.zeros(shape, dtype=ys.float32).at[:, place].set(ys.asarray(values)))
    return sum(made[1:], made[0]), expected


@pytest.mark.parametrize(
    ("places", "is_joined"),
    [
        ((0, 1, 2), True),
        ((2, 0, 1), True),
        ((slice(0, 2), 2), True),
        ((slice(1, 3), slice(0, 1)), True),
        ((0, 1), False),
        ((0, 0, 1), False),
        ((slice(0, 2), slice(1, 3)), False),
        ((slice(0, 3, 2), 1), False),
    ],
)
def test_windows_in_zeros_are_joined_if_they_are_all_of_an_array(places, is_joined):
    tensor, expected = windows(*places)
    names = simplified(tensor)
    assert ("concatenate" in names) == is_joined
    assert ("add" in names) != is_joined
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_the_gradient_of_slices_is_joined():
    x = ys.asarray(np.arange(24, dtype=np.float32).reshape(3, 8))
    gradient = ys.grad(lambda v: ys.sum(v[0] * v[1] + ys.exp(v[2])))(x)
    names = simplified(gradient)
    assert "concatenate" in names
    assert "slice_set" not in names
    a, b, c = x.numpy()
    np.testing.assert_allclose(gradient.numpy(), np.stack([b, a, np.exp(c)]), rtol=1e-6)
