"""`jvp`, `linearize`, Jacobians and Hessians: trees, arguments, complex numbers, errors."""

import numpy as np
import pytest

import yosegi as ys

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=3), RNG.normal(size=3)
Z, ZT = X + 1j * RNG.normal(size=3), T - 0.5j * X


def same(got, expected, rtol=1e-12):
    np.testing.assert_allclose(got.numpy(), expected, rtol=rtol, atol=1e-12)


def difference(function, x, t, step=1e-6):
    ahead, behind = (function(ys.asarray(x + s * t)).numpy() for s in (step, -step))
    return (ahead - behind) / (2 * step)


# jvp


def test_trees_of_arguments_and_results():
    def function(p, x):
        return {"y": p["a"] * x, "z": (ys.sum(p["b"][0]), 5 * x)}

    primals = {"a": ys.asarray(2.0), "b": [ys.asarray(X)]}, ys.asarray(X)
    tangents = {"a": 1.0, "b": [T]}, ys.zeros((3,))
    value, tangent = ys.jvp(function, primals, tangents)
    same(value["y"], 2 * X)
    same(tangent["y"], X)
    same(tangent["z"][0], T.sum())
    same(tangent["z"][1], np.zeros(3))


def test_an_additional_result():
    _, tangent, aux = ys.jvp(lambda x: (x * x, {"n": 7}), (ys.asarray(X),), (T,), has_aux=True)
    same(tangent, 2 * X * T)
    assert aux == {"n": 7}


def test_control_flow_on_values():
    def function(x):
        while float(ys.sum(x * x)) < 100:
            x = x * 2
        return x

    same(ys.jvp(function, (ys.asarray([1.0, 2.0]),), (np.asarray([1.0, 0.0]),))[1], [8.0, 0.0])


def test_a_linear_function_of_tangents():
    value, forward = ys.linearize(lambda x, y: ys.sin(x) * y, ys.asarray(X), ys.asarray(T))
    same(value, np.sin(X) * T)
    for scale in (1.0, -3.0):
        same(forward(ys.asarray(scale * T), ys.zeros((3,))), np.cos(X) * T * T * scale)
    both = ys.vmap(forward)(ys.eye(3), ys.zeros((3, 3)))
    same(both, np.diag(np.cos(X) * T))


def test_single_precision_stays_single():
    x = ys.asarray(X, dtype=ys.float32)
    value, tangent = ys.jvp(lambda x: ys.sum(ys.exp(x)), (x,), (ys.asarray(T),))
    assert (value.dtype, tangent.dtype) == (ys.float32, ys.float32)


COMPLEX = {
    "holomorphic": lambda z: ys.exp(z) * z,
    "conj": lambda z: ys.conj(z) * z,
    "abs": lambda z: ys.abs(z) + 0j * z,
    "parts": lambda z: ys.real(z) * 2 + 1j * ys.imag(z) ** 2,
    "from real": lambda z: ys.sqrt(z) * ys.real(z),
    "products": lambda z: ys.vecdot(z, z * 1j) * z,
    "fft": lambda z: ys.fft.fft(z) * ys.fft.ifft(ys.abs(z)),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_tangents_follow_the_change_of_the_argument(name):
    function = COMPLEX[name]
    _, tangent = ys.jvp(function, (ys.asarray(Z),), (ys.asarray(ZT),))
    same(tangent, difference(function, Z, ZT), rtol=1e-7)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_tangents_are_those_of_jax(name):
    jax = pytest.importorskip("jax", reason="JAX is not installed: there is nothing to compare with")
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    theirs = {
        "holomorphic": lambda z: jnp.exp(z) * z,
        "conj": lambda z: jnp.conj(z) * z,
        "abs": lambda z: jnp.abs(z) + 0j * z,
        "parts": lambda z: jnp.real(z) * 2 + 1j * jnp.imag(z) ** 2,
        "from real": lambda z: jnp.sqrt(z) * jnp.real(z),
        "products": lambda z: jnp.vdot(z, z * 1j) * z,
        "fft": lambda z: jnp.fft.fft(z) * jnp.fft.ifft(jnp.abs(z)),
    }[name]
    _, tangent = ys.jvp(COMPLEX[name], (ys.asarray(Z),), (ys.asarray(ZT),))
    same(tangent, jax.jvp(theirs, (Z,), (ZT,))[1], rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ys.jvp(ys.sin, ys.asarray(X), ys.asarray(T)), ys.errors.ArgumentError, "as tuples"),
        (lambda: ys.jvp(ys.sin, (X,), (T, T)), ys.errors.ArgumentError, "structure"),
        (lambda: ys.jvp(ys.sin, (X,), (T[:2],)), ys.errors.ShapeError, r"shape \(3,\)"),
        (lambda: ys.jvp(ys.sin, (X,), (ZT,)), ys.errors.DTypeError, "real tangent"),
        (lambda: ys.jvp(ys.sin, (np.arange(3),), (T,)), ys.errors.DTypeError, r"\[jvp\] expected floating"),
        (lambda: ys.jvp(lambda x: None, (X,), (T,)), ys.errors.ArgumentError, "return a tensor"),
        (lambda: ys.jacrev(lambda x: x * 1j)(X), ys.errors.DTypeError, "real results"),
        (lambda: ys.jacfwd(lambda x: x)(Z), ys.errors.DTypeError, "real arguments"),
        (lambda: ys.jacrev(lambda x: x, holomorphic=True)(X), ys.errors.DTypeError, "leave holomorphic out"),
        (lambda: ys.jacfwd(lambda x: x, argnums=2)(X), ys.errors.ArgumentError, r"\[jacfwd\] expected argnums"),
        (lambda: ys.jacobian(lambda x, y: x, argnums=(0, 0))(X, X), ys.errors.ArgumentError, "each of argnums once"),
    ],
)
def test_mistakes(call, error, text):
    with pytest.raises(error, match=text):
        call()


# Jacobians


def model(p, x):
    return {"y": ys.tanh(x @ p["w"] + p["b"]), "s": ys.sum(p["w"]) * ys.sum(x)}


PARAMS = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2)}


def tensors(tree):
    return ys.tree_map(ys.asarray, tree)


@pytest.mark.parametrize("transform", [ys.jacrev, ys.jacfwd, ys.jacobian])
def test_trees(transform):
    got = transform(model)(tensors(PARAMS), ys.asarray(X))
    slope = 1 - np.tanh(X @ PARAMS["w"] + PARAMS["b"]) ** 2
    same(got["y"]["b"], np.diag(slope))
    same(got["y"]["w"], np.einsum("o,i,oj->oij", slope, X, np.eye(2)))
    same(got["s"]["w"], np.full((3, 2), X.sum()))
    same(got["s"]["b"], np.zeros(2))


@pytest.mark.parametrize("transform", [ys.jacrev, ys.jacfwd, ys.jacobian])
def test_several_arguments(transform):
    by_p, by_x = transform(model, argnums=(0, 1))(tensors(PARAMS), ys.asarray(X))["y"]
    same(by_p["b"], transform(model)(tensors(PARAMS), ys.asarray(X))["y"]["b"].numpy())
    same(by_x, transform(model, argnums=-1)(tensors(PARAMS), ys.asarray(X))["y"].numpy())


@pytest.mark.parametrize("transform", [ys.jacrev, ys.jacfwd, ys.jacobian, ys.hessian])
def test_an_additional_result_of_a_jacobian(transform):
    got, aux = transform(lambda x: (ys.sum(x**3), {"value": ys.sum(x)}), has_aux=True)(ys.asarray(X))
    same(got, np.diag(6 * X) if transform is ys.hessian else 3 * X * X)
    same(aux["value"], X.sum())


@pytest.mark.parametrize("transform", [ys.jacrev, ys.jacfwd, ys.jacobian])
def test_a_holomorphic_function(transform):
    got = transform(lambda z: z**3, holomorphic=True)(ys.asarray(Z))
    same(got, np.diag(3 * Z * Z))


def test_complex_results_of_real_arguments_and_the_reverse():
    same(ys.jacobian(lambda x: x * 1j)(ys.asarray(X)), np.eye(3) * 1j)
    same(ys.jacobian(lambda z: ys.abs(z) ** 2)(ys.asarray(Z)), np.diag(2 * Z))


def directions(function, *args):
    """The number of unit vectors that a Jacobian sends through the function."""
    sizes = []
    original = ys._trace.jacobian.vmap
    ys._trace.jacobian.vmap = lambda f, **axes: (
        lambda *v: sizes.append(ys.tree_leaves(v)[0].shape[0]) or original(f, **axes)(*v)
    )
    try:
        ys.jacobian(function)(*args)
    finally:
        ys._trace.jacobian.vmap = original
    return sizes


def test_the_pass_with_fewer_directions_is_taken():
    assert directions(lambda x: ys.concat([x, x, x]), ys.asarray(X)) == [3]
    assert directions(lambda x: ys.sum(x), ys.asarray(X)) == [1]


def test_an_empty_result_and_an_empty_argument():
    assert ys.jacrev(lambda x: x[:0])(ys.asarray(X)).shape == (0, 3)
    assert ys.jacfwd(lambda x: ys.sum(x) + ys.ones((2,)))(ys.zeros((0,))).shape == (2, 0)


def test_a_hessian_of_trees():
    function = lambda p: ys.sum(p["a"] ** 2 * p["b"])
    got = ys.hessian(function)({"a": ys.asarray(X), "b": ys.asarray(T)})
    same(got["a"]["a"], np.diag(2 * T))
    same(got["a"]["b"], np.diag(2 * X))
    same(got["b"]["b"], np.zeros((3, 3)))


def test_a_hessian_and_a_vector():
    function = lambda x: ys.sum(ys.sin(x) * ys.sum(x * x))
    matrix = ys.hessian(function)(ys.asarray(X)).numpy()
    same(ys.jvp(ys.grad(function), (ys.asarray(X),), (T,))[1], matrix @ T)
    same(ys.jit(lambda x, t: ys.jvp(ys.grad(function), (x,), (t,))[1])(X, T), matrix @ T)
    same(ys.grad(lambda x: ys.sum(ys.grad(function)(x) * ys.asarray(T)))(ys.asarray(X)), matrix @ T)
