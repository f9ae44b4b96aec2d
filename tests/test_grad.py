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
    assert ys.grad(lambda x: ys.sum(ys.ones((2,))))(ys.asarray([1.0, 2.0, 3.0])).tolist() == [0.0] * 3


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
        (lambda: ys.grad(lambda x: 3)(ys.ones(())), ShapeError, r"\[grad\] expected .*"),
        (lambda: ys.vjp(lambda x: x, ys.ones((2,)))[1](ys.ones((3,))), ShapeError, r"\[vjp\] expected a cotangent"),
    ],
)  # fmt: skip
def test_mistakes(call, error, text):
    with pytest.raises(error, match=text):
        call()
