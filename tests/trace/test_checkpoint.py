"""`stop_gradient`, `checkpoint`, `custom_vjp`, `eval_shape`."""

import numpy as np
import pytest

import yosegi as ys
from yosegi._trace.recorded import recorded
from yosegi._trace.reverse import cotangent_inputs

X = np.linspace(0.1, 1.0, 5)
WIDTH, DEPTH = 32, 8


def same(got, expected):
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_no_gradient_flows_through_a_stopped_value():
    function = lambda p: ys.sum(ys.stop_gradient({"x": p["x"]})["x"] * p["x"] ** 2)
    same(ys.grad(function)({"x": ys.asarray(X)})["x"], 2 * X * X)
    same(ys.jvp(lambda x: ys.stop_gradient(x), (ys.asarray(X),), (ys.ones((5,)),))[1], np.zeros(5))
    same(ys.vmap(ys.grad(lambda x: x * ys.stop_gradient(x)))(ys.asarray(X)), X)


def test_a_stopped_value_costs_nothing():
    plan = ys.plan(ys.stop_gradient(ys.asarray(X) * 2) + 1)
    assert [c.op.name for c in plan.graph.calls if c.inputs] == ["multiply", "add"]


def layer(x, w):
    return ys.tanh(ys.sin(x @ w) * x)


def network(wrap):
    inner = wrap(layer)

    def loss(ws, x):
        for w in ws:
            x = inner(x, w)
        return ys.sum(x * x)

    return loss


WEIGHTS = [np.random.default_rng(n).normal(size=(WIDTH, WIDTH)) / 8 for n in range(DEPTH)]


def weights():
    return [ys.asarray(w) for w in WEIGHTS]


def inputs():
    return ys.asarray(np.random.default_rng(9).normal(size=(64, WIDTH)))


@pytest.mark.parametrize("transform", [ys.grad, lambda f: ys.jit(ys.grad(f)), lambda f: ys.grad(ys.jit(f))])
def test_gradients_are_the_same(transform):
    got, expected = (transform(network(wrap))(weights(), inputs()) for wrap in (ys.checkpoint, lambda f: f))
    for g, e in zip(got, expected, strict=True):
        same(g, e.numpy())


def peak(graph):
    """The most bytes of intermediate values that are needed at once, if the ops run in the order of the graph."""
    last = {i: n for n, args in enumerate(graph.args) for i in args}
    held, most = {}, 0
    for n, call in enumerate(graph.calls):
        if call.inputs and n not in graph.outputs:
            held[n] = call.spec.nbytes
        most = max(most, sum(held.values()))
        held = {i: size for i, size in held.items() if last.get(i, 0) > n}
    return most


def test_intermediate_values_are_not_kept():
    plans = []
    for wrap in (ys.checkpoint, lambda f: f):
        step = ys.jit(ys.value_and_grad(network(wrap)))
        step(weights(), inputs())
        plans.append(step.plans[0])
    again, kept = ([c.op.name for c in plan.graph.calls] for plan in plans)
    assert kept.count("tanh") == DEPTH
    assert again.count("tanh") >= 2 * DEPTH - 1
    assert peak(plans[0].graph) < 0.6 * peak(plans[1].graph)


def test_a_backward_function_does_not_hold_them_either():
    for wrap, ops in ((ys.checkpoint, set()), (lambda f: f, {"tanh", "sin"})):
        made = recorded("vjp", network(wrap), (weights(), inputs()), inputs_of=cotangent_inputs)
        assert {node.call.op.name for node, _ in made.tape} & {"tanh", "sin"} == ops


def test_values_from_an_enclosing_scope_get_gradients():
    def loss(w, wrap):
        return ys.sum(wrap(lambda x: ys.sin(x * w) * w)(ys.asarray(X)) ** 2)

    same(ys.grad(loss)(ys.asarray(0.7), ys.checkpoint), ys.grad(loss)(ys.asarray(0.7), lambda f: f).numpy())


def test_several_results_and_integers():
    def function(x, n):
        return {"a": ys.exp(x) * n, "b": (x * n, n + 1)}

    def loss(x, wrap):
        made = wrap(function)(x, ys.asarray(3))
        return ys.sum(made["a"] * made["b"][0]) * made["b"][1]

    same(ys.grad(loss)(ys.asarray(X), ys.checkpoint), ys.grad(loss)(ys.asarray(X), lambda f: f).numpy())


def test_derivatives_of_checkpointed_functions():
    function, plain = (
        (lambda f: lambda x: ys.sum(f(lambda x: ys.tanh(ys.sin(x) ** 2))(x)))(ys.checkpoint),
        (lambda x: ys.sum(ys.tanh(ys.sin(x) ** 2))),
    )
    x, t = ys.asarray(X), ys.asarray(X[::-1].copy())
    same(ys.hessian(function)(x), ys.hessian(plain)(x).numpy())
    same(ys.jvp(function, (x,), (t,))[1], ys.jvp(plain, (x,), (t,))[1].numpy())
    same(ys.jvp(ys.grad(function), (x,), (t,))[1], ys.jvp(ys.grad(plain), (x,), (t,))[1].numpy())
    rows = ys.asarray(np.stack([X, X * 2]))
    same(ys.vmap(ys.grad(function))(rows), ys.vmap(ys.grad(plain))(rows).numpy())
    same(ys.grad(lambda r: ys.sum(ys.vmap(function)(r)))(rows), ys.vmap(ys.grad(plain))(rows).numpy())


def test_shared_weights_of_examples_are_not_repeated():
    """Gradients of each example by weights that all share: the barrier before the weights must not copy them."""
    w, x = ys.asarray(WEIGHTS[0]), inputs()
    function = ys.jit(ys.vmap(ys.grad(lambda w, x: ys.sum(ys.checkpoint(layer)(x, w))), in_axes=(None, 0)))
    expected = ys.vmap(ys.grad(lambda w, x: ys.sum(layer(x, w))), in_axes=(None, 0))(w, x)
    same(function(w, x), expected.numpy())
    shapes = [c.spec.shape for c in function.plans[0].graph.calls if c.op.name == "barrier"]
    assert (WIDTH, WIDTH) in shapes
    assert (64, WIDTH, WIDTH) not in shapes


def test_random_draws_are_the_same_in_both_computations():
    def loss(x, rng):
        return ys.sum(ys.checkpoint(lambda x: ys.nn.dropout(x, 0.5, rng=rng) * x)(x))

    got = ys.grad(loss)(ys.asarray(X), ys.random.default_rng(1)).numpy()
    mask = ys.nn.dropout(ys.ones((5,)), 0.5, rng=ys.random.default_rng(1)).numpy()
    np.testing.assert_allclose(got, 2 * X * mask)


# custom_vjp


def scaled(scale):
    @ys.custom_vjp
    def function(p, x):
        return {"y": p["a"] * ys.sin(x)}

    def forward(p, x):
        return {"y": p["a"] * ys.sin(x)}, (p, x, "text")

    def backward(residuals, g):
        p, x, text = residuals
        assert text == "text"
        return {"a": ys.sum(g["y"] * ys.sin(x)) * scale}, g["y"] * p["a"] * ys.cos(x) * scale

    function.defvjp(forward, backward)
    return function


def loss_of(function):
    return lambda p, x: ys.sum(function(p, x)["y"] ** 2)


def test_the_gradient_is_the_users():
    p, x = {"a": ys.asarray(2.0)}, ys.asarray(X)
    got = ys.grad(loss_of(scaled(10.0)), argnums=(0, 1))(p, x)
    exact = ys.grad(loss_of(scaled(1.0)), argnums=(0, 1))(p, x)
    plain = ys.grad(lambda p, x: ys.sum((p["a"] * ys.sin(x)) ** 2), argnums=(0, 1))(p, x)
    same(got[0]["a"], 10 * plain[0]["a"].numpy())
    same(got[1], 10 * plain[1].numpy())
    same(exact[1], plain[1].numpy())


def test_other_transforms_of_a_custom_gradient():
    p, x = {"a": ys.asarray(2.0)}, ys.asarray(X)
    function, plain = loss_of(scaled(1.0)), lambda p, x: ys.sum((p["a"] * ys.sin(x)) ** 2)
    same(ys.hessian(function, argnums=1)(p, x), ys.hessian(plain, argnums=1)(p, x).numpy())
    same(ys.jit(ys.grad(function, argnums=1))(p, x), ys.grad(plain, argnums=1)(p, x).numpy())
    rows = ys.asarray(np.stack([X, X * 2]))
    of_rows = [ys.vmap(ys.grad(f), in_axes=(None, 0))(p, rows)["a"].numpy() for f in (function, plain)]
    np.testing.assert_allclose(*of_rows)
    totals = [ys.grad(lambda p, f=f: ys.sum(ys.vmap(f, in_axes=(None, 0))(p, rows)))(p)["a"].numpy()
              for f in (function, plain)]  # fmt: skip
    np.testing.assert_allclose(*totals)
    tangents = [ys.jvp(f, (p, x), ({"a": 1.0}, x))[1].numpy() for f in (function, plain)]
    np.testing.assert_allclose(*tangents)


def test_the_function_itself_runs_outside_of_gradients():
    calls = []

    @ys.custom_vjp
    def function(x):
        calls.append("function")
        return x * 2

    function.defvjp(lambda x: (calls.append("forward"), (x * 2, None))[1], lambda _, g: (g,))
    function(ys.asarray(1.0))
    ys.vmap(function)(ys.asarray(X))
    assert calls == ["function"] * 2
    ys.grad(function)(ys.asarray(1.0))
    assert calls[2:] == ["forward"]


def test_arguments_without_a_gradient():
    def power(kind, x, n):
        return x**n

    function = ys.custom_vjp(power, nondiff_argnums=(0, 2))
    function.defvjp(
        lambda kind, x, n: (x**n, x), lambda kind, n, x, g: (g * n * x ** (n - 1) * (2 if kind == "twice" else 1),)
    )
    assert float(ys.grad(lambda x: function("once", x, n=3))(ys.asarray(2.0))) == 12
    assert float(ys.grad(lambda x: function("twice", x, 3))(ys.asarray(2.0))) == 24


def test_none_stands_for_zeros():
    function = ys.custom_vjp(lambda p: p["a"] * p["b"])
    function.defvjp(lambda p: (p["a"] * p["b"], p), lambda p, g: ({"a": g * p["b"], "b": None},))
    got = ys.grad(lambda p: function(p))({"a": ys.asarray(2.0), "b": ys.asarray(3.0)})
    assert (float(got["a"]), float(got["b"])) == (3, 0)


def test_a_second_evaluation_finds_the_plan():
    function = scaled(1.0)
    keys = [ys.grad(loss_of(function), argnums=1)({"a": ys.asarray(2.0)}, ys.asarray(X))._node.call for _ in range(2)]
    assert keys[0] is keys[1]


@pytest.mark.parametrize(
    ("backward", "error", "text"),
    [
        (lambda _, g: g, ys.errors.ArgumentError, "tuple of 1 cotangents"),
        (lambda _, g: (g, g), ys.errors.ArgumentError, "tuple of 1 cotangents"),
        (lambda _, g: (ys.sum(g),), ys.errors.ShapeError, r"shape \(5,\)"),
        (lambda _, g: ({"a": g},), ys.errors.ArgumentError, "got dict for a Tensor"),
    ],
)
def test_mistakes_of_a_backward_function(backward, error, text):
    function = ys.custom_vjp(lambda x: x * 2)
    function.defvjp(lambda x: (x * 2, None), backward)
    with pytest.raises(error, match=text):
        ys.grad(lambda x: ys.sum(function(x)))(ys.asarray(X))


def test_other_mistakes():
    function = ys.custom_vjp(lambda x: x)
    with pytest.raises(ys.errors.ArgumentError, match="call its defvjp first"):
        function(ys.asarray(1.0))
    function.defvjp(lambda x: (x, None), lambda _, g: (g * g,))
    with pytest.raises(ys.errors.ArgumentError, match="linear in the cotangent"):
        ys.jvp(function, (ys.asarray(1.0),), (1.0,))
    with pytest.raises(ys.errors.ArgumentError, match="nondiff_argnums"):
        ys.grad(lambda x: function("text"))(ys.asarray(1.0))


# eval_shape


def test_shapes_of_a_tree():
    x = ys.zeros((10**6, 10**5), dtype=ys.float32)
    got = ys.eval_shape(lambda p, k: {"a": [p["x"] @ p["x"].T, k], "b": ys.argmax(p["x"], axis=0)}, {"x": x}, "k")
    assert (got["a"][0].shape, got["a"][0].dtype) == ((10**6, 10**6), ys.float32)
    assert got["a"][1] == "k"
    assert (got["b"].shape, got["b"].dtype) == ((10**5,), ys.int64)
    again = ys.eval_shape(lambda x: ys.sum(x, axis=0), got["a"][0])
    assert again.shape == (10**6,)


def test_nothing_is_computed_or_drawn():
    rng = ys.random.default_rng(0)
    assert ys.eval_shape(lambda x: x + rng.normal((3,)), np.zeros(3)).shape == (3,)
    np.testing.assert_array_equal(rng.normal((3,)).numpy(), ys.random.default_rng(0).normal((3,)).numpy())
    with pytest.raises(ys.errors.TraceError, match=r"\[eval_shape\]"):
        ys.eval_shape(lambda x: x if x > 0 else -x, ys.asarray(1.0))
