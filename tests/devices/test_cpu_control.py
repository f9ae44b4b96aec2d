"""Loops and branches as native programs of the CPU, compared with the reference."""

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from yosegi._graph.reference import bind
from yosegi._tensor.op import pick
from yosegi._tensor.tree import flatten
from yosegi.devices.cpu.control import Loops
from yosegi.devices.cpu.native_groups import Natives

RNG = np.random.default_rng(0)
NATIVES = Natives()
pytestmark = pytest.mark.skipif(NATIVES.runtime is None, reason=str(NATIVES.reason))


def normal(*shape: int, dtype: str = "float64") -> Any:
    return ys.asarray(RNG.normal(size=shape).astype(dtype))


TOLERANCES = {2: 1e-2, 4: 2e-5}
"""Of dtypes of so many bytes."""

X, W, ROWS = normal(3), normal(3, 3), normal(7, 3)
LARGES = normal(4, 97, 97, dtype="float32")
LARGE, LARGE64 = LARGES[0], normal(97, 97)
"""Their products are worth packing."""

BODIES = {
    "elementwise": lambda: ys.scan(lambda c, x: (ys.tanh(c + x), c * x), X, ROWS),
    "reversed": lambda: ys.scan(lambda c, x: (ys.tanh(c + x), c * x), X, ROWS, reverse=True),
    "reductions": lambda: ys.scan(lambda c, x: (c / ys.sum(c * c) + ys.max(x), ys.mean(c)), X, ROWS),
    "softmax": lambda: ys.scan(lambda c, x: (ys.nn.softmax(c + x), ys.argmax(c)), X, ROWS),
    "running total": lambda: ys.scan(lambda c, x: (ys.cumulative_sum(c * 0.1 + x), None), X, ROWS),
    "indices and a stack": lambda: ys.scan(lambda c, x: (ys.stack([c[1], x[0], c[2] - c[0]]), c[::-1]), X, ROWS),
    "joins": lambda: ys.scan(lambda c, x: (ys.concat([x[2:], c[:2]]), ys.roll(c, 1)), X, ROWS),
    "triangles": lambda: ys.scan(lambda c, x: (ys.tril(c) + x, ys.triu(c, k=1)), W, ROWS),
    "reshapes": lambda: ys.scan(lambda c, x: (ys.reshape(ys.reshape(c, (9,)) * 0.5, (3, 3)) + x, c[None]), W, ROWS),
    "products": lambda: ys.scan(lambda c, x: (ys.tanh(c @ W + x), W @ c), X, ROWS),
    "products of transposes": lambda: ys.scan(lambda c, x: (ys.tanh(c.T @ W.T + x), c @ c.T), W, ROWS),
    "stacks of products": lambda: ys.scan(lambda c, x: (ys.tanh(c @ x), c @ W), normal(2, 4, 3), normal(5, 2, 3, 3)),
    "wide products": lambda: ys.scan(
        lambda c, x: (ys.tanh(c @ x), ys.sum(c)), normal(5, 67, dtype="float32"), normal(3, 67, 67, dtype="float32")
    ),
    "packed products": lambda: ys.scan(
        lambda c, x: (ys.tanh(c @ LARGE.T / 10 + x @ LARGE), c @ LARGE), LARGE[:70], normal(3, 70, 97, dtype="float32")
    ),
    "packed products of float64": lambda: ys.scan(
        lambda c, x: (ys.tanh(LARGE64 @ c / 10 + x), c.T @ LARGE64), LARGE64, normal(3, 97, 97)
    ),
    "packed products of a row and of stacks": lambda: ys.scan(
        lambda c, x: (ys.tanh(c @ x / 10), LARGE[:50] @ c), normal(2, 50, 97, 97, dtype="float32")[0], LARGES
    ),
    "packed products in a branch in a loop": lambda: ys.fori_loop(
        0,
        5,
        lambda i, c: ys.cond(i % 2 == 0, lambda c: ys.tanh(c @ LARGE / 10), lambda c: ys.tanh(LARGE @ c / 10), c),
        LARGE,
    ),
    "packed products while": lambda: ys.while_loop(
        lambda c: ys.sum(c @ LARGE) ** 2 > 1, lambda c: (LARGE @ c) / 50, LARGE
    ),
    "gradients of packed products": lambda: ys.grad(
        lambda w: ys.sum(ys.scan(lambda c, x: (ys.tanh(c @ w + x), c), LARGE / 9, LARGES)[1])
    )(LARGE / 9),
    "einsum": lambda: ys.scan(lambda c, x: (ys.einsum("ij,j->i", W, c) * 0.1 + x, None), X, ROWS),
    "read at a place": lambda: ys.fori_loop(0, 7, lambda i, c: c * 0.5 + ROWS[i], X),
    "written at a place": lambda: ys.fori_loop(0, 7, lambda i, c: c.at[i % 3].set(c[i % 2] + 1.0), X),
    "added at places": lambda: ys.fori_loop(
        0, 7, lambda i, c: c.at[:, ys.stack([i % 3, (i + 1) % 3])].add(ROWS[:3, :2]), W
    ),
    "a branch inside": lambda: ys.scan(
        lambda c, x: (ys.cond(ys.sum(x) > 0, lambda c: c + x, lambda c: c * 0.5 - x, c), c), X, ROWS
    ),
    "a branch": lambda: ys.cond(ys.sum(X) > 0, lambda x: (x, x @ W), lambda x: (-x, x), X),
    "loops in loops": lambda: ys.scan(
        lambda c, x: (ys.fori_loop(0, 3, lambda i, v: ys.cos(v) + x * i, c), ys.sum(c)), X, ROWS
    ),
    "while": lambda: ys.while_loop(
        lambda c: (c[0] < 9) & (ys.sum(c[1]) < 50), lambda c: (c[0] + 1, c[1] * 1.5), (0, X)
    ),
    "while inside": lambda: ys.scan(
        lambda c, x: (ys.while_loop(lambda v: ys.sum(v * v) > 1, lambda v: v * 0.7, c + x), None), X, ROWS
    ),
    "a condition that is carried": lambda: ys.while_loop(
        lambda c: c[0], lambda c: (c[1] < 5, c[1] + 1), (ys.asarray(True), 0)
    ),
    "constants": lambda: ys.scan(lambda c, x: (c + ys.arange(3, dtype=ys.float64), ys.ones(2)), X, ROWS),
    "unchanged": lambda: ys.scan(lambda c, x: ((c[1], c[0]), x), (X, X * 2), ROWS),
    "one value twice": lambda: ys.scan(lambda c, x: ((x, x), (x, c[0])), (X, X * 2), ROWS),
    "halves": lambda: ys.scan(lambda c, x: (ys.tanh(c + x), c * x), X.astype(ys.bfloat16), ROWS.astype(ys.bfloat16)),
    "complex": lambda: ys.scan(lambda c, x: (c * 1j + x, ys.real(c)), X.astype(ys.complex128), ROWS),
    "integers": lambda: ys.scan(
        lambda c, x: ((c * 31 + x) % 1009, c > 500), ys.asarray([1, 2, 3]), ys.asarray(RNG.integers(0, 99, (50, 3)))
    ),
    "many elements": lambda: ys.scan(lambda c, x: (ys.sin(c) + x * 0.5, ys.sum(c)), normal(300, 400), normal(4, 400)),
    "rows past the caches": lambda: ys.scan(lambda c, x: (c * 0.5 + x, c + x), normal((1 << 21) + 1), normal(2, 1)),
    "gradients": lambda: ys.grad(lambda w: ys.sum(ys.scan(lambda c, x: (ys.tanh(c @ w + x), c), X, ROWS)[1]))(W),
}


def control_call(made: Any) -> Any:
    """The call of control flow that an expression ends in, and its inputs' arrays."""
    node = flatten(made)[0][0]._node
    while node.call.op is pick:
        (node,) = node.inputs
    ys.eval([ys.Tensor(i) for i in node.inputs])
    return node.call, [np.asarray(ys.Tensor(i)) for i in node.inputs]


@pytest.mark.parametrize("name", BODIES)
def test_a_native_program_gives_what_the_reference_gives(name):
    call, arrays = control_call(BODIES[name]())
    check_control(Loops(NATIVES).body(call), call, arrays)


def check_control(native: Any, call: Any, arrays: list[Any]) -> None:
    """Run a native program twice, and compare its results with the reference's."""
    wanted = bind(call)(*arrays)
    for _ in range(2):
        got = native(*arrays)
        for g, w in zip(*[m if isinstance(m, tuple) else (m,) for m in (got, wanted)], strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            wide = np.complex128 if g.dtype.kind == "c" else np.float64
            tolerance = TOLERANCES.get(w.dtype.itemsize, 1e-11)
            np.testing.assert_allclose(g.astype(wide), w.astype(wide), rtol=tolerance, atol=tolerance)


def test_arrays_that_are_not_in_order_are_copied():
    call, arrays = control_call(BODIES["elementwise"]())
    turned = [np.asfortranarray(np.stack([a, a], axis=-1))[..., 0] for a in arrays]
    for g, w in zip(Loops(NATIVES).body(call)(*turned), bind(call)(*arrays), strict=True):
        np.testing.assert_allclose(g, w)
