"""Which pieces of a graph a device that compiles subgraphs gets when it was named: few, and worth a call."""

from dataclasses import replace

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, ModelCompiler, installed
from yosegi._graph.graph import capture, graph_of
from yosegi._place.cost_model import Task, works_of
from yosegi._schedule.fuse import fuse

RNG = np.random.default_rng(0)


def layers(x, count=60):
    """A model with an op in each layer that not every device has."""
    for _ in range(count):
        x = ys.sort(ys.tanh(x @ x), axis=-1)
    return x


def devices_of(*tensors):
    return [step.device.name.rstrip("0123456789:") for step in ys.plan(*tensors).steps]


def test_small_pieces_between_ops_that_it_lacks_stay_with_their_neighbours():
    fake = ModelCompiler("sort", launch=1e-4)
    a = RNG.normal(size=(8, 8))
    with installed(fake) as name, ys.options(device=name):
        y = layers(ys.asarray(a))
        assert len(ys.plan(y).steps) == 1
        assert devices_of(y) == ["cpu"]
        assert f"not on {fake.name}: too little work to cover the launch cost" in str(ys.explain(y))
        result = y.numpy()
    with ys.options(device="cpu"):
        np.testing.assert_array_equal(result, layers(ys.asarray(a)).numpy())
    assert fake.runs == 0


def test_large_pieces_are_worth_it():
    fake = ModelCompiler("sort", launch=1e-4)
    with installed(fake) as name, ys.options(device=name):
        assert devices_of(layers(ys.asarray(RNG.normal(size=(160, 160))), 3)) == ["fake", "cpu"] * 3


def test_of_pieces_it_gets_those_that_are_worth_it():
    fake = ModelCompiler("sort", launch=1e-4)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(RNG.normal(size=(200, 200)))
        for n in (200, 16, 16, 180, 16):
            x = ys.sort(x[:n, :n] @ x[:n, :n], axis=-1) if n < 100 else ys.sort(x @ x, axis=-1) + ys.zeros((200, 200))
            x = ys.concat([x, ys.zeros((200 - x.shape[0], x.shape[1]))], axis=0)
            x = ys.concat([x, ys.zeros((200, 200 - x.shape[1]))], axis=1)
        assert "fake" in devices_of(x)
        assert "too little work" in str(ys.explain(x))


def test_a_single_piece_is_what_was_asked_for():
    fake = ModelCompiler("sort", launch=1.0)
    with installed(fake) as name, ys.options(device=name):
        assert devices_of(ys.sort(ys.exp(ys.asarray([1.0, 2.0])))) == ["fake", "cpu"]


def test_without_a_name_it_needs_products_by_constants():
    fake = ModelCompiler(launch=1e-5)
    w = ys.asarray(RNG.normal(size=(128, 128)))
    x = ys.asarray(RNG.normal(size=(128, 128)))
    with installed(fake), ys.options(device="auto"):
        assert devices_of(ys.exp(x) * 2) == ["cpu"]
        assert devices_of(ys.tanh(x @ w) @ w) == ["cpu"]  # w may be another one the next time
        before = fake.runs
        ys.jit(lambda x: ys.tanh(x @ w) @ w)(x)
        assert fake.runs == before + 1


def test_little_work_stays_on_the_host_unless_it_was_named():
    fake = ModelCompiler(launch=1e-4)
    w, x = ys.asarray(np.eye(4)), ys.asarray(np.eye(4))
    f = ys.jit(lambda x: (x @ w) @ w)
    with installed(fake):
        with ys.options(device="auto"):
            f(x)
        assert fake.runs == 0
        with ys.options(device=fake.name):
            f(x)
        assert fake.runs == 1


def test_what_does_not_depend_on_each_other_stands_together():
    fake = ModelCompiler("sort")
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(RNG.normal(size=(4, 4)))
        parts = []
        for n in range(5):  # in the graph, one after the other
            parts += [ys.exp(x + n), ys.sort(x * (n + 2), axis=0)]
        y = ys.concat(parts, axis=0)
        assert devices_of(y) == ["fake", "cpu", "fake"]
        got = y.numpy()
    a = x.numpy()
    expected = [f for n in range(5) for f in (np.exp(a + n), np.sort(a * (n + 2), axis=0))]
    np.testing.assert_allclose(got, np.concatenate(expected), rtol=1e-12)


def test_the_order_of_other_devices_does_not_change_results():
    class Half(FakeDevice):
        def supports(self, region):
            return "not this one" if hash(str(region)) % 2 else super().supports(region)

    a = RNG.normal(size=(6, 6))
    with ys.options(device="cpu"):
        expected = _mixed(ys.asarray(a)).numpy()
    with installed(Half()) as name, ys.options(device=name):
        np.testing.assert_allclose(_mixed(ys.asarray(a)).numpy(), expected, rtol=1e-12)


def _mixed(x):
    y = ys.sort(x @ x.T, axis=0)
    z = ys.cumulative_sum(ys.exp(-ys.abs(x)), axis=1)
    return ys.max(y[::2], axis=0) + ys.sum(z * y, axis=1) * ys.argmax(x, axis=0).astype(ys.float64)


@pytest.mark.parametrize(
    ("make", "task", "amount"),
    [
        (lambda: ys.zeros((3, 4)) @ ys.zeros((4, 5)), Task.PRODUCTS, 2 * 3 * 4 * 5),
        (lambda: ys.zeros((7, 3, 4)) @ ys.zeros((4,)), Task.PRODUCTS, 2 * 7 * 3 * 4),
        (lambda: ys.einsum("bij,bjk->ik", ys.zeros((2, 3, 4)), ys.zeros((1, 4, 5))), Task.PRODUCTS, 2 * 2 * 3 * 4 * 5),
        (lambda: ys.nn.conv2d(ys.zeros((1, 3, 8, 8)), ys.zeros((5, 3, 3, 3))), Task.CONVOLUTIONS, 2 * 5 * 36 * 27),
        (
            lambda: ys.nn.conv2d(ys.zeros((2, 6, 9, 9)), ys.zeros((8, 3, 3, 3)), groups=2),
            Task.CONVOLUTIONS,
            2 * (2 * 8 * 7 * 7) * 3 * 9,
        ),
        (lambda: ys.nn.linear(ys.zeros((5, 3)), ys.zeros((4, 3))), Task.PRODUCTS, 2 * 5 * 3 * 4 + 12),
        (lambda: ys.sum(ys.zeros((10, 10))), Task.REDUCTIONS, 100),
        (lambda: ys.exp(ys.zeros((10, 10))), Task.LOOPS, 800),
        (lambda: ys.sort(ys.zeros((10, 10))), Task.OTHER, 100),
        (lambda: ys.flip(ys.zeros((10, 10))), Task.MOVEMENT, 100),
    ],
)
def test_work(make, task, amount):
    node = make()._node
    for i in node.inputs:
        ys.eval(ys.Tensor(i))
    graph = graph_of(capture([node])[0])
    (work,) = works_of(graph, fuse(graph))
    assert (work.task, work.operations) == (task, amount)


@pytest.mark.parametrize(("unit", "steps"), [(256, 4), (None, 1), (100, 10)])
def test_a_device_says_how_many_ops_are_a_unit(unit, steps):
    fake = ModelCompiler()
    fake.limits = replace(fake.limits, unit=unit)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(RNG.normal(size=(8, 8)))
        for _ in range(500):
            x = ys.sum(x, axis=0, keepdims=True) + x.T  # no loop is as long as a unit
        assert len(ys.plan(x).steps) == pytest.approx(1500 / unit if unit else 1, rel=0.5)
