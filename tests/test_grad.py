"""The gradient pass itself; the ops' own rules are checked in test_gradients."""

import numpy as np
import pytest

import yosegi as ys
from yosegi.errors import ArgumentError, DTypeError, ShapeError


def test_trees_and_several_arguments():
    def loss(params, x, y):
        return ys.mean((x @ params["w"] + params["b"] - y) ** 2)

    rng = np.random.default_rng(0)
    x, y, w, b = (ys.asarray(rng.normal(size=s)) for s in [(5, 3), (5, 2), (3, 2), (2,)])
    value, (params, gx) = ys.value_and_grad(loss, argnums=(0, 1))({"w": w, "b": b}, x, y)
    residual = x.numpy() @ w.numpy() + b.numpy() - y.numpy()
    np.testing.assert_allclose(float(value), np.mean(residual**2))
    np.testing.assert_allclose(params["w"].numpy(), x.numpy().T @ residual / 5)
    np.testing.assert_allclose(params["b"].numpy(), residual.sum(0) / 5)
    np.testing.assert_allclose(gx.numpy(), residual @ w.numpy().T / 5)


def test_third_order():
    f = lambda x: ys.exp(2 * x) * ys.sin(x)
    third = ys.grad(ys.grad(ys.grad(f)))
    x = 0.7
    expected = np.exp(2 * x) * (2 * np.sin(x) + 11 * np.cos(x))
    np.testing.assert_allclose(float(third(ys.asarray(x))), expected)


def test_the_complex_convention_is_steepest_ascent():
    z = ys.asarray([1 + 2j, -0.5j])
    np.testing.assert_allclose(ys.grad(lambda z: ys.sum(ys.abs(z) ** 2))(z).numpy(), 2 * z.numpy())
    step = z - 0.1 * ys.grad(lambda z: ys.sum(ys.abs(z - 3) ** 2))(z)
    assert float(ys.sum(ys.abs(step - 3))) < float(ys.sum(ys.abs(z - 3)))


def test_python_control_flow_on_values():
    def f(x):
        y = x * 3
        while float(y) < 100:  # evaluates on the way; the gradient must not be cut off there
            y = y * x
        return y

    x = 2.0
    n = 1
    while 3 * x**n < 100:
        n += 1
    np.testing.assert_allclose(float(ys.grad(f)(ys.asarray(x))), 3 * n * x ** (n - 1))


def test_the_pullback_works_after_the_value_was_read():
    value, back = ys.vjp(lambda x: ys.exp(x) * x, ys.asarray([1.0, 2.0]))
    expected = np.exp([1.0, 2.0]) * np.array([2.0, 3.0])
    value.numpy()
    for _ in range(2):
        np.testing.assert_allclose(back(ys.ones((2,)))[0].numpy(), expected)


def test_an_argument_that_does_not_matter_has_a_zero_gradient():
    x, y = ys.asarray([1.0, 2.0, 3.0]), ys.ones((2,))
    gx, gy = ys.grad(lambda x, y: ys.sum(y), argnums=(0, 1))(x, y)
    assert (gx.tolist(), gy.tolist()) == ([0.0] * 3, [1.0] * 2)
    assert ys.grad(lambda tree: ys.sum(tree["used"]))({"used": x, "not": y})["not"].tolist() == [0.0] * 2


# Values that leave the graph

VALUES = np.array([1.0, 2.0, 3.0])
OUTSIDE = {
    "float": (lambda x: float(ys.sum(x**2)), "got float: float\\(\\) at .*test_grad.py"),
    "item": (lambda x: ys.sum(x**2).item(), "got float: item\\(\\) at .*test_grad.py"),
    "a NumPy array": (lambda x: x.numpy().sum(), "got float64: numpy\\(\\) at .*test_grad.py"),
    "a NumPy function": (lambda x: np.linalg.norm(np.asarray(x)), "got float64: NumPy at .*test_grad.py"),
    "np.asarray": (lambda x: np.asarray(x) ** 2, "got ndarray: NumPy at .*test_grad.py"),
    "a list": (lambda x: sum(x.tolist()), "got float: tolist\\(\\) at .*test_grad.py"),
    "None": (lambda x: None, "got NoneType; return the tensor itself"),
    "a number": (lambda x: 3, "got int; return the tensor itself"),
    "a float as a tensor": (lambda x: ys.asarray(float(ys.sum(x))), "none of them: float\\(\\) at .*test_grad.py"),
    "a NumPy result as a tensor": (
        lambda x: ys.sum(ys.asarray(np.sort(np.asarray(x)))),
        "none of them: NumPy at .*test_grad.py",
    ),
    "DLPack": (lambda x: ys.sum(ys.asarray(np.from_dlpack(x))), "none of them: DLPack at .*test_grad.py"),
    "a branch of constants": (lambda x: ys.asarray(1.0 if x[0] > 0 else 2.0), "none of them: bool\\(\\) at"),
    "nothing of the arguments": (lambda x: ys.sum(ys.ones((2,))), "none of them; compute it from the arguments"),
    "only a shape": (lambda x: ys.sum(ys.zeros_like(x)), "none of them; compute it from the arguments"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("transform", [ys.grad, ys.value_and_grad])
def test_a_loss_that_has_left_the_graph_raises(kind, transform):
    loss, text = OUTSIDE[kind]
    with pytest.raises(ArgumentError, match=rf"^\[grad\] expected .*{text}"):
        transform(loss)(ys.asarray(VALUES))
    if ":" in text or "got" in text:
        with pytest.raises(ArgumentError, match=rf"^\[vjp\] expected .*{text}"):
            ys.vjp(loss, ys.asarray(VALUES))
    else:  # any function will do for a vjp, a constant one too
        value, back = ys.vjp(loss, ys.asarray(VALUES))
        assert back(value)[0].tolist() == [0.0] * 3


def test_values_may_be_read_on_the_way(capsys):
    def loss(x):
        y = ys.sum(x**2)
        print(float(y), f"{y:.1f}", y, x.numpy().max(), x.tolist())
        assert bool(y > 0)
        return y * 2 if y.item() > 5 else y

    np.testing.assert_allclose(ys.grad(loss)(ys.asarray(VALUES)).numpy(), 4 * VALUES)
    assert capsys.readouterr().out.startswith("14.0 14.0 Tensor(14.")


ZERO = {
    "of steps": lambda x: ys.sum(ys.floor(x)),
    "of comparisons": lambda x: ys.sum(ys.where(x > 2, 1.0, 0.0)),
    "of integers": lambda x: ys.sum(x.astype(ys.int32).astype(ys.float64)),
    "of a product with zero": lambda x: ys.sum(x * 0),
    "of the gradient of a linear function": lambda x: ys.sum(ys.grad(ys.sum)(x)),
    "of one that logs": lambda x: ys.sum(ys.grad(lambda y: ys.sum(y) + 0 * float(y[0]))(x)),
}


@pytest.mark.parametrize("kind", ZERO)
def test_what_depends_on_the_arguments_may_have_a_zero_gradient(kind):
    assert ys.grad(ZERO[kind])(ys.asarray(VALUES)).tolist() == [0.0] * 3


def test_gradients_of_linear_functions_are_differentiated():
    assert float(ys.grad(ys.grad(lambda x: 3 * x))(ys.asarray(2.0))) == 0.0
    assert float(ys.grad(ys.grad(ys.grad(lambda x: x**2)))(ys.asarray(2.0))) == 0.0
    assert float(ys.jit(ys.grad(ys.grad(lambda x: 3 * x)))(ys.asarray(2.0))) == 0.0
    _, back = ys.vjp(ys.grad(lambda x: 3 * x), ys.asarray(2.0))
    assert float(back(ys.asarray(1.0))[0]) == 0.0


def test_an_inner_loss_that_has_left_the_graph_raises():
    inner = ys.grad(lambda y: float(y) ** 2)
    with pytest.raises(ArgumentError, match=r"got float: float\(\) at"):
        ys.grad(lambda x: inner(x))(ys.asarray(2.0))


def test_no_arguments_have_no_gradient():
    assert ys.grad(lambda tree: ys.sum(ys.ones((2,))))({}) == {}


def test_an_argument_that_was_read_and_gets_no_gradient_is_a_warning():
    def loss(x, y):
        return float(ys.sum(x)) * ys.sum(y)

    x, y = ys.asarray(VALUES), ys.ones((2,))
    with pytest.warns(UserWarning, match=r"\[grad\] an argument has a zero gradient: float\(\) at .*test_grad.py"):
        gx, gy = ys.grad(loss, argnums=(0, 1))(x, y)
    assert (gx.tolist(), gy.tolist()) == ([0.0] * 3, [6.0] * 2)
    ys.grad(loss, argnums=1)(x, y)  # x is no variable here
    ys.grad(lambda x, y: ys.sum(y) if x[0] > 0 else ys.sum(x), argnums=(0, 1))(x, y)  # a decision


def test_has_aux():
    gradient, extra = ys.grad(lambda x: (ys.sum(x * x), "aux"), has_aux=True)(ys.asarray([3.0]))
    assert (gradient.tolist(), extra) == ([6.0], "aux")
    (value, extra), _ = ys.value_and_grad(lambda x: (ys.sum(x * x), x + 1), has_aux=True)(ys.asarray([3.0]))
    assert (float(value), extra.tolist()) == (9.0, [4.0])


def test_mixed_precision_gradients_have_the_inputs_dtypes():
    x, w = ys.asarray([1.0, 2.0], dtype=ys.float16), ys.asarray([3.0, 4.0], dtype=ys.float32)
    gx, gw = ys.grad(lambda x, w: ys.sum(x * w), argnums=(0, 1))(x, w)
    assert (gx.dtype, gw.dtype) == (ys.float16, ys.float32)


def test_in_place_writes_are_differentiated():
    def f(x):
        y = x * 2
        y[1:] = y[1:] * x[0]
        y += x
        return ys.sum(y)

    np.testing.assert_allclose(ys.grad(f)(ys.asarray([2.0, 3.0, 4.0])).numpy(), [3 + 2 * 7, 5, 5])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ys.grad(lambda x: x)(ys.ones((2,))), ShapeError, r"\[grad\] expected .* scalar, got float64\[2\]"),
        (lambda: ys.grad(ys.sum)(ys.asarray([1, 2])), DTypeError, r"\[grad\] expected floating arguments, got int64"),
        (lambda: ys.grad(ys.sum, argnums=3)(ys.ones(())), ArgumentError, r"\[grad\] expected argnums below 1"),
        (lambda: ys.vjp(lambda x: x, ys.ones((2,)))[1](ys.ones((3,))), ShapeError, r"\[vjp\] expected a cotangent"),
    ],
)  # fmt: skip
def test_mistakes(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_read_of_something_else_is_no_mistake():
    """Indices are read to check them. A result that does not depend on the argument has the derivative zero."""
    index = ys.asarray([0, 1])
    value, back = ys.vjp(lambda x: ys.take(ys.ones((3,)), index, axis=0), ys.asarray(2.0))
    assert float(back(ys.ones((2,)))[0]) == 0
    assert value.tolist() == [1.0, 1.0]
