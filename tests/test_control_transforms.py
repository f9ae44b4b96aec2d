"""Loops and branches under `vmap`, `jvp` and `grad` of each other, compared with JAX."""

from types import SimpleNamespace

import numpy as np
import pytest

import yosegi as ys

RNG = np.random.default_rng(0)
ROWS, STATES, W = RNG.normal(size=(5, 4, 3)), RNG.normal(size=(5, 3)), RNG.normal(size=(3, 3)) * 0.5

HERE = SimpleNamespace(
    xp=ys, scan=ys.scan, cond=ys.cond, while_loop=ys.while_loop, fori_loop=ys.fori_loop, vmap=ys.vmap, jvp=ys.jvp,
    grad=ys.grad, array=ys.asarray,
)  # fmt: skip


def jax_names():
    jax = pytest.importorskip("jax", reason="JAX is not installed: make control installs it")
    jax.config.update("jax_enable_x64", True)
    lax = jax.lax
    return SimpleNamespace(
        xp=jax.numpy, scan=lax.scan, cond=lax.cond, while_loop=lax.while_loop, fori_loop=lax.fori_loop, vmap=jax.vmap,
        jvp=jax.jvp, grad=jax.grad, array=jax.numpy.asarray,
    )  # fmt: skip


PROGRAMS = {
    "rows and a product": lambda m: (
        lambda h, x, w: m.scan(lambda h, x: (m.xp.tanh(h @ w + x), (h, m.xp.sum(x))), h, x, reverse=True)
    ),
    "a carry that is the same for all": lambda m: (
        lambda h, x, w: m.scan(lambda c, x: ((c[0] + 1.0, c[1] * x), c[0]), (m.array(0.0), h), x)
    ),
    "a carry that differs later": lambda m: (
        lambda h, x, w: m.scan(lambda c, x: ((c[1] * 1.0, m.xp.sin(c[1] + x + h)), c[0]), (w[0], w[1]), x)
    ),
    "a predicate of each example": lambda m: (
        lambda h, x, w: m.cond(m.xp.sum(h) > 0, lambda h: (h @ w, w), lambda h: (-h, w * 2), h)
    ),
    "a predicate of all": lambda m: (
        lambda h, x, w: m.cond(m.xp.sum(w) > 0, lambda h: (h @ w, w), lambda h: (-h, w * 2), h)
    ),
    "a range": lambda m: lambda h, x, w: m.fori_loop(0, 4, lambda i, h: m.xp.cos(h) @ w, h),
    "a condition of each example": lambda m: (
        lambda h, x, w: m.while_loop(
            lambda c: (c[0] < 7) & (m.xp.sum(c[1]) < 2.0),
            lambda c: (c[0] + 1, m.xp.sin(c[1]) + x[0] + w[0]),
            (m.array(0), h),
        )
    ),
    "a condition of all": lambda m: (
        lambda h, x, w: m.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, m.xp.sin(c[1]) + x[0]), (m.array(0), h))
    ),
}


def loss(m, f):
    return lambda *args: sum(m.xp.sum(t) for t in ys.tree_leaves(f(*args)) if "float" in str(t.dtype))


TRANSFORMS = {
    "vmap": lambda m, f: m.vmap(f, (0, 0, None))(m.array(STATES), m.array(ROWS), m.array(W)),
    "vmap of states": lambda m, f: m.vmap(f, (0, None, None))(m.array(STATES), m.array(ROWS[0]), m.array(W)),
    "vmap of rows": lambda m, f: m.vmap(f, (None, 0, None))(m.array(STATES[0]), m.array(ROWS), m.array(W)),
    "vmap of closures": lambda m, f: m.vmap(f, (None, None, 0))(
        m.array(STATES[0]), m.array(ROWS[0]), m.array(np.stack([W, 2 * W, -W]))
    ),
    "jvp": lambda m, f: m.jvp(
        f, (m.array(STATES[0]), m.array(ROWS[0]), m.array(W)), (m.array(STATES[1]), m.array(ROWS[1]), m.array(W))
    ),
    "jvp of states": lambda m, f: m.jvp(
        lambda h: f(h, m.array(ROWS[0]), m.array(W)), (m.array(STATES[0]),), (m.array(STATES[1]),)
    ),
    "vmap of grad": lambda m, f: m.vmap(m.grad(loss(m, f)), (0, 0, None))(m.array(STATES), m.array(ROWS), m.array(W)),
    "jvp of grad": lambda m, f: m.jvp(
        m.grad(lambda h: loss(m, f)(h, m.array(ROWS[0]), m.array(W))), (m.array(STATES[0]),), (m.array(STATES[1]),)
    ),
    "grad of vmap": lambda m, f: m.grad(loss(m, m.vmap(f, (0, 0, None))))(m.array(STATES), m.array(ROWS), m.array(W)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_transforms_agree_with_jax(program, transform):
    if "condition" in program and "grad" in transform:
        pytest.skip("a while loop has no gradient in reverse mode")
    there = jax_names()
    wanted = TRANSFORMS[transform](there, PROGRAMS[program](there))
    got = TRANSFORMS[transform](HERE, PROGRAMS[program](HERE))
    pairs = list(zip(ys.tree_leaves(wanted), ys.tree_leaves(got), strict=True))
    for a, b in pairs:
        if np.asarray(a).dtype.kind == "f":  # JAX has float0 for the tangents of integers
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-9, atol=1e-12)
