"""Loops and branches: values, gradients, laziness, plans and errors."""

from collections import namedtuple

import numpy as np
import pytest

import yosegi as ys
from control_vs_jax import KINDS, devices, failures
from yosegi._tensor.op import REGISTRY
from yosegi.devices.cpu.control import Loops
from yosegi.devices.cpu.native_groups import Natives
from yosegi.errors import ArgumentError, DTypeError, ShapeError, TraceError, Unsupported

Pair = namedtuple("Pair", "a b")
RNG = np.random.default_rng(0)
X = ys.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def compiled(f):
    """A jitted function that has run: its next run is that of compiled kernels."""

    def run(*args):
        jitted = ys.jit(f)
        ys.eval(jitted(*args))
        return jitted(*args)

    return run


WAYS = pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["plain", "compiled"])


@WAYS
def test_a_scan_is_a_loop_over_rows(way):
    def f(x):
        return ys.scan(lambda c, row: (c + row, c * 2.5), ys.zeros(2), x)

    carry, made = way(f)(X)
    assert carry.tolist() == [9.0, 12.0]
    assert made.tolist() == [[0.0, 0.0], [2.5, 5.0], [10.0, 15.0]]


@WAYS
def test_a_reversed_scan_keeps_the_order_of_its_rows(way):
    carry, made = way(lambda x: ys.scan(lambda c, row: (c + row[0], c), 0.0, x, reverse=True))(X)
    assert float(carry) == 9.0
    assert made.tolist() == [8.0, 5.0, 0.0]


@WAYS
def test_trees_keep_their_containers(way):
    def f(x):
        init = {"p": Pair(ys.zeros(2), ys.asarray(0)), "n": None}
        return ys.scan(lambda c, r: ({"p": Pair(c["p"].a + r, c["p"].b + 1), "n": None}, (r, None)), init, x)

    carry, (rows, none) = way(f)(X)
    assert isinstance(carry["p"], Pair)
    assert none is None
    assert carry["p"].a.tolist() == [9.0, 12.0]
    assert int(carry["p"].b) == 3
    assert rows.tolist() == X.tolist()


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@WAYS
def test_a_carry_that_changes_places_comes_out_right(way, length):
    a, b = ys.asarray([1.0, 2.0]), ys.asarray([3.0, 4.0])
    first, second = way(lambda a, b: ys.scan(lambda c, _: ((c[1], c[0]), None), (a, b), length=length)[0])(a, b)
    wanted = (a, b) if length % 2 == 0 else (b, a)
    assert (first.tolist(), second.tolist()) == (wanted[0].tolist(), wanted[1].tolist())


def test_a_number_as_a_carry_takes_the_dtype_of_the_body():
    total, _ = ys.scan(lambda c, x: (c + x, None), 0, ys.asarray([1.5, 2.0], dtype=ys.float32))
    assert total.dtype is ys.float32
    assert float(total) == 3.5


@WAYS
def test_a_while_loop_stops_when_its_condition_fails(way):
    value, count = way(lambda x: ys.while_loop(lambda c: c[0] < 100, lambda c: (c[0] * 2, c[1] + 1), (x, 0)))(
        ys.asarray(3.0)
    )
    assert (float(value), int(count)) == (192.0, 6)
    same = way(lambda x: ys.while_loop(lambda c: c < 1, lambda c: c * 2, x))(ys.asarray(3.0))
    assert float(same) == 3.0


@WAYS
@pytest.mark.parametrize("upper", [5, ys.asarray(5)], ids=["int", "tensor"])
def test_a_fori_loop_counts(way, upper):
    made = way(lambda x: ys.fori_loop(2, upper, lambda i, v: v * i, x))(ys.asarray(1.0))
    assert float(made) == 24.0
    assert float(ys.fori_loop(5, 2, lambda i, v: v * i, ys.asarray(1.0))) == 1.0


@WAYS
def test_a_branch_is_chosen_by_a_scalar(way):
    f = way(lambda x: ys.cond(ys.sum(x) > 3, lambda x: (x * 2, x[0]), lambda x: (-x, x[1]), x))
    assert [t.tolist() for t in f(ys.asarray([1.0, 4.0]))] == [[2.0, 8.0], 1.0]
    assert [t.tolist() for t in f(ys.asarray([1.0, 1.5]))] == [[-1.0, -1.5], 1.5]


def test_a_python_bool_calls_one_function():
    assert ys.cond(True, lambda x: x + 1, lambda x: x / 0, 1.0) == 2.0


@WAYS
def test_everything_nests(way):
    def f(x):
        def outer(c, row):
            inner = ys.fori_loop(0, 3, lambda i, v: ys.cond(v[0] > 2, lambda v: v * 0.5, lambda v: v + row, v), c)
            return inner, ys.while_loop(lambda v: v < 9, lambda v: v + ys.sum(row), ys.sum(inner))

        return ys.scan(outer, ys.ones(2), x)

    def expected(x):
        c, made = np.ones(2), []
        for row in x:
            for _ in range(3):
                c = c * 0.5 if c[0] > 2 else c + row
            v = c.sum()
            while v < 9:
                v = v + row.sum()
            made.append(v)
        return c, np.array(made)

    got, wanted = way(f)(X), expected(X.numpy())
    np.testing.assert_allclose(got[0].numpy(), wanted[0])
    np.testing.assert_allclose(got[1].numpy(), wanted[1])


@WAYS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "int32", "uint8", "bool"])
def test_every_dtype_goes_round(way, dtype):
    kind = getattr(ys, dtype)
    x = ys.asarray([[1, 0], [1, 1], [0, 1]], dtype=kind)
    carry, made = way(lambda x: ys.scan(lambda c, r: (ys.where(r != 0, r, c), c[::-1]), x[0], x))(x)
    assert carry.dtype is kind
    assert carry.tolist() == [1, 1]
    assert made.tolist() == [[0, 1], [0, 1], [1, 1]]


@WAYS
def test_an_op_without_a_kernel_goes_step_by_step(way):
    carry, made = way(lambda x: ys.scan(lambda c, r: (ys.sort(c + r), ys.sum(c)), ys.asarray([5.0, -5.0]), x))(X)
    assert carry.tolist() == [5.0, 16.0]
    assert made.tolist() == [0.0, 3.0, 10.0]


@WAYS
@pytest.mark.parametrize("kind", ["int64", "int8", "uint16"])
def test_elements_at_places_that_are_data(way, kind):
    def f(x):
        def step(i, c):
            at = (i % 3).astype(getattr(ys, kind))
            c = c.at[at].set(c[at] * 2.0 + x[at - 1 if kind != "uint16" else at])
            return c.at[:, at % 2].add(1.5)

        return ys.fori_loop(0, 7, step, x)

    def expected(x):
        c = x.copy()
        for i in range(7):
            at = i % 3
            c[at] = c[at] * 2.0 + x[at - 1 if kind != "uint16" else at]
            c[:, at % 2] += 1.5
        return c

    np.testing.assert_allclose(way(f)(X).numpy(), expected(X.numpy()))


@WAYS
def test_an_index_out_of_range_is_told(way):
    f = way(lambda x, n: ys.fori_loop(0, n, lambda i, c: c + x[i], ys.zeros(2)))
    with pytest.raises(IndexError, match=r"expected indices from -3 to 2 for a dimension of length 3, got 3"):
        f(X, ys.asarray(9)).tolist()


@WAYS
def test_products_of_transposes(way):
    a, b = (ys.asarray(RNG.normal(size=shape)) for shape in ((5, 3), (4, 19, 3)))

    def f(a, b):
        def step(c, row):
            m = row @ ys.matrix_transpose(a)  # 19 by 5
            v = ys.matrix_transpose(m) @ row  # 5 by 3
            return c * 0.5 + v, (m @ a, a @ c[0], c[:, 0] @ c, ys.matrix_transpose(c))

        return ys.scan(step, a, b)

    carry, made = way(f)(a, b)
    c = x = a.numpy()
    for n, row in enumerate(b.numpy()):
        m = row @ x.T
        for got, wanted in zip(made, (m @ x, x @ c[0], c[:, 0] @ c, c.T), strict=True):
            np.testing.assert_allclose(got[n].numpy(), wanted, rtol=1e-10, atol=1e-12)
        c = c * 0.5 + m.T @ row
    np.testing.assert_allclose(carry.numpy(), c, rtol=1e-10)


def test_unsupported_bodies_are_told():
    body = ys.scan(lambda c, r: (ys.sort(c + r), None), ys.zeros(2), X)[0]._node
    call = body.call if body.call.op is REGISTRY["scan"] else body.inputs[0].call
    natives = Natives()
    if natives.runtime is None:
        pytest.skip(str(natives.reason))
    with pytest.raises(Unsupported, match="sort inside a loop"):
        Loops(natives).body(call)


# Laziness and structure


def test_nothing_is_computed_before_a_value_is_needed():
    pending = ys.exp(X)
    carry, _ = ys.scan(lambda c, r: (c + r, None), ys.zeros(2), pending)
    chosen = ys.cond(ys.sum(pending) > 0, lambda: carry, lambda: -carry)
    assert pending._node.buffer is None
    assert carry._node.buffer is None
    assert chosen.tolist() == np.exp(X.numpy()).sum(0).tolist()


def test_a_body_is_traced_once():
    calls = []

    def body(c, x):
        calls.append(1)
        return c + x, None

    ys.eval(ys.scan(body, ys.zeros(2), X))
    assert len(calls) == 1


def test_two_traces_of_one_body_are_one_structure():
    def made(scale):
        out = ys.scan(lambda c, x: (c * scale + x, c), ys.zeros(2), X)[1]._node
        return out.inputs[0].call

    assert made(0.3) is made(0.7)


def test_closures_are_computed_once_before_the_loop():
    w = ys.asarray([0.5, 0.25])
    call = ys.scan(lambda c, x: (c + ys.exp(w) * x, None), ys.zeros(2), X)[0]._node.call
    assert [c.op.name for c in call.attrs["body"].calls] == ["leaf", "leaf", "leaf", "multiply", "add"]


def test_a_plan_with_a_loop_is_saved_and_loaded(tmp_path):
    @ys.jit
    def f(x):
        total, rows = ys.scan(lambda c, r: (ys.cond(r[0] > 1, lambda c: c + r, lambda c: c - r, c), c), x[0], x)
        return total, rows

    wanted = f(X)
    (plan,) = f.plans
    plan.save(tmp_path / "plan.json")
    again = ys.load_plan(tmp_path / "plan.json")(X)
    assert [t.tolist() for t in again] == [t.tolist() for t in wanted]


# Gradients


@WAYS
def test_gradients_of_loops_and_branches(way):
    def f(w):
        h, made = ys.scan(lambda h, x: (ys.tanh(h * w + x), ys.sum(h)), ys.zeros(2), X)
        return ys.cond(ys.sum(h) > 0, lambda h: ys.sum(h * w), lambda h: ys.sum(h), h) + ys.sum(made) * 0.1

    w, d = np.array([0.3, -0.2]), 1e-6
    numeric = [float((f(ys.asarray(w + e)) - f(ys.asarray(w - e))) / (2 * d)) for e in np.eye(2) * d]
    np.testing.assert_allclose(way(ys.grad(f))(ys.asarray(w)).numpy(), numeric, rtol=1e-6)


def test_gradients_of_any_order():
    def f(x):
        return ys.fori_loop(0, 3, lambda i, v: v * x, ys.asarray(1.0))

    x = ys.asarray(2.0)
    assert float(ys.grad(f)(x)) == 12.0
    assert float(ys.grad(ys.grad(f))(x)) == 12.0
    assert float(ys.grad(ys.grad(ys.grad(f)))(x)) == 6.0


def test_the_pass_back_reads_the_carries_of_the_pass_forward():
    w = ys.asarray([0.3, 0.2])
    value, back = ys.vjp(lambda w: ys.scan(lambda h, x: (h * w + x, None), ys.zeros(2), X)[0], w)
    ops = [step for step in _ops_below(back(ys.ones(2))[0]._node) if step == "scan"]
    assert len(ops) == 2, "one scan forward, one back"
    assert value.shape == (2,)


def test_outputs_that_nothing_reads_are_not_computed():
    def f(w):
        (_, h, _), made = ys.scan(
            lambda c, x: ((c[0] + 1, c[1] * w + c[2] * 0.1 * x, c[2] * 0.9), (ys.sum(c[0]), c[1])),
            (ys.asarray(0.0), ys.zeros(2), ys.ones(2)), X,
        )  # fmt: skip
        return ys.sum(h) + ys.sum(made[1])

    value = ys.jit(f)
    value(ys.asarray([0.3, 0.2]))
    (scan,) = [c for c in value.plans[0].graph.calls if c.op is REGISTRY["scan"]]
    assert (scan.attrs["carries"], len(scan.outputs)) == (2, 3)
    back = ys.jit(ys.grad(f))
    back(ys.asarray([0.3, 0.2]))
    scans = [c for c in back.plans[0].graph.calls if c.op is REGISTRY["scan"]]
    assert [len(c.outputs) for c in scans] == [3, 2], "forward: carries that the pass back reads; back: of h, and of w"


def _ops_below(root):
    seen, stack = {}, [root]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = node.call.op.name
            stack.extend(node.inputs)
    return list(seen.values())


def test_a_while_loop_has_no_gradient_in_reverse():
    with pytest.raises(ArgumentError, match=r"^\[while_loop\] expected .* use scan, or fori_loop with integers$"):
        ys.grad(lambda x: ys.while_loop(lambda v: v < 9, lambda v: v * 2, x))(ys.asarray(1.0))


# Errors


def _drawn():
    rng = ys.random.default_rng(0)
    return ys.scan(lambda c, x: (c + rng.normal((2,)), None), ys.zeros(2), X)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ys.scan(lambda c, x: ({"a": c["a"][:1]}, None), {"a": ys.zeros(2)}, X), ArgumentError,
         r"^\[scan\] expected the function to return float64\[2\] at init\['a'\], as it gets it, got float64\[1\]; "
         "keep its shape$"),
        (lambda: ys.scan(lambda c, x: (c.astype(ys.float32), None), ys.zeros(2), X), ArgumentError,
         r"float64\[2\] at init, as it gets it, got float32\[2\]; cast it"),
        (lambda: ys.scan(lambda c, x: ((c, c), None), ys.zeros(2), X), ArgumentError,
         r"^\[scan\] expected the function to return a carry like the one it gets, got a leaf at"),
        (lambda: ys.scan(lambda c, x: c, ys.zeros(2), X), ArgumentError, r"expected .* pair \(carry, y\), got Tensor"),
        (lambda: ys.scan(lambda c, x: (c, float(x[0])), ys.zeros(2), X), TraceError,
         r"^\[scan\] expected no values of traced tensors to be read, got float\(\) at .*test_control.py:\d+"),
        (lambda: ys.scan(lambda c, x: (c, None), ys.zeros(2)), ArgumentError, "expected xs or a length, got neither"),
        (lambda: ys.scan(lambda c, x: (c, None), ys.zeros(2), X, length=2), ShapeError, "expected 2 rows, the length"),
        (lambda: ys.scan(lambda c, x: (c, None), 0, (X, X[:2])), ShapeError, r"3 rows as at xs\[0\], got 2 at xs\[1\]"),
        (lambda: ys.scan(lambda c, x: (c, None), 0, ys.asarray(1.0)), ShapeError, "tensors with rows, got float64"),
        (lambda: ys.scan(lambda c, x: (c, None), 0, X, length=-1), ArgumentError, "a length of 0 or more, got -1"),
        (lambda: ys.scan(lambda c, x: (c, None), {"a": "b"}, X), DTypeError, r"got str at init\['a'\]; close over it"),
        (lambda: ys.scan(lambda c, x: (c, "b"), 0, X), ArgumentError, "to return tensors and numbers"),
        (_drawn, TraceError, "to draw no random numbers, got a draw, which would be the same in every iteration"),
        (lambda: ys.cond(X > 0, lambda: X, lambda: X), ShapeError,
         r"^\[cond\] expected a scalar predicate, got bool\[3, 2\]; reduce it with ys.all or ys.any, or use ys.where"),
        (lambda: ys.cond(X[0, 0] > 0, lambda: X, lambda: (X, X)), ArgumentError, "trees of one structure, got a leaf"),
        (lambda: ys.cond(X[0, 0] > 0, lambda: {"a": X}, lambda: {"a": X[0]}), ArgumentError,
         r"got float64\[3, 2\] of true_fn and float64\[2\] of false_fn at the result\['a'\]; reshape or cast"),
        (lambda: ys.cond(X[0, 0] > 0, lambda x: x if x > 0 else -x, lambda x: x, 1.0), TraceError,
         r"^\[cond\] expected no values of traced tensors to be read, got .*bool\(\) at"),
        (lambda: ys.while_loop(lambda x: x > 0, lambda x: x - 1, X), ShapeError,
         r"^\[while_loop\] expected cond_fn to return a scalar, got bool\[3, 2\]"),
        (lambda: ys.while_loop(lambda x: x[0, 0] > 0, lambda x: x[0], X), ArgumentError,
         r"^\[while_loop\] expected body_fn to return float64\[3, 2\] at init_val"),
        (lambda: ys.fori_loop(0, 1.5, lambda i, x: x, X), ArgumentError, "an integer scalar as upper, got float64"),
        (lambda: ys.fori_loop(0, 2, lambda i, x: x[0], X), ArgumentError,
         r"^\[fori_loop\] expected body_fun to return float64\[3, 2\] at init_val, as it gets it"),
        (lambda: ys.fori_loop(ys.asarray(0), 2, lambda i, x: {"a": x["a"][0]}, {"a": X}), ArgumentError,
         r"at init_val\['a'\]"),
    ],
)  # fmt: skip
def test_mistakes_are_told(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_random_draw_in_a_branch_is_made_anew():
    rng = ys.random.default_rng(0)
    f = ys.jit(lambda x: ys.cond(x > 0, lambda x: x + rng.normal(), lambda x: x, x))
    assert float(f(ys.asarray(1.0))) != float(f(ys.asarray(1.0)))


# Against JAX


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_random_programs_agree_with_jax(kind, part):
    pytest.importorskip("jax", reason="JAX is not installed: make control installs it")
    names = devices()
    assert [f for seed in range(part * 5, part * 5 + 5) for f in failures(kind, seed, names)] == []
