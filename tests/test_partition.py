"""Which pieces of a graph a device that compiles subgraphs gets: few, large, and worth it."""

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, ModelCompiler, installed
from yosegi.fuse import fuse
from yosegi.graph import capture, graph_of
from yosegi.partition import work

RNG = np.random.default_rng(0)


def layers(x, count=60):
    """A model with an op in each layer that not every device has."""
    for _ in range(count):
        x = ys.sort(ys.tanh(x @ x), axis=-1)
    return x


def devices_of(*tensors):
    return [step.device.name.rstrip("0123456789:") for step in ys.plan(*tensors).steps]


def test_small_pieces_between_ops_that_it_lacks_stay_with_their_neighbours():
    fake = ModelCompiler("sort", least_work=1_000_000)
    a = RNG.normal(size=(8, 8))
    with installed(fake) as name, ys.options(device=name):
        y = layers(ys.asarray(a))
        assert len(ys.plan(y).steps) == 1
        assert devices_of(y) == ["cpu"]
        assert f"not on {fake.name}: a piece of 2 ops with so little work is not worth a call" in str(ys.explain(y))
        result = y.numpy()
    with ys.options(device="cpu"):
        np.testing.assert_array_equal(result, layers(ys.asarray(a)).numpy())
    assert fake.runs == 0


def test_large_pieces_are_worth_it():
    fake = ModelCompiler("sort", least_work=1_000_000)
    with installed(fake) as name, ys.options(device=name):
        assert devices_of(layers(ys.asarray(RNG.normal(size=(128, 128))), 3)) == ["fake", "cpu"] * 3


def test_of_many_large_pieces_it_gets_a_few():
    fake = ModelCompiler("sort", most=4)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(RNG.normal(size=(16, 16)))
        for n in range(10):
            x = ys.sort(x[: 16 - n, : 16 - n] @ x[: 16 - n, : 16 - n], axis=-1)
        assert devices_of(x).count("fake") == 4
        assert "of 10 pieces it gets the 4 largest" in str(ys.explain(x))


def test_a_single_piece_is_what_was_asked_for():
    fake = ModelCompiler("sort", least_work=10**12)
    with installed(fake) as name, ys.options(device=name):
        assert devices_of(ys.sort(ys.exp(ys.asarray([1.0, 2.0])))) == ["fake", "cpu"]


def test_what_was_not_named_needs_products_by_constants():
    fake = ModelCompiler(least_work=1000, least_products=2)
    w = ys.asarray(RNG.normal(size=(32, 32)))
    x = ys.asarray(RNG.normal(size=(32, 32)))
    with installed(fake), ys.options(device="auto"):
        assert devices_of(ys.exp(x) * 2) == ["cpu"]
        assert devices_of(ys.tanh(x @ w) @ w) == ["cpu"]  # w may be another one the next time
        cases = {ys.jit(lambda x: ys.tanh(x @ w)): 0, ys.jit(lambda x: ys.tanh(x @ w) @ w): 1}
        for function, runs in cases.items():
            before = fake.runs
            function(x)
            assert fake.runs == before + runs


def test_little_work_stays_on_the_host_unless_it_was_named():
    fake = ModelCompiler(least_work=10**9, least_products=1)
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
    ("make", "amount"),
    [
        (lambda: ys.zeros((3, 4)) @ ys.zeros((4, 5)), 2 * 3 * 4 * 5),
        (lambda: ys.zeros((7, 3, 4)) @ ys.zeros((4,)), 2 * 7 * 3 * 4),
        (lambda: ys.einsum("bij,bjk->ik", ys.zeros((2, 3, 4)), ys.zeros((1, 4, 5))), 2 * 2 * 3 * 4 * 5),
        (lambda: ys.sum(ys.zeros((10, 10))), 1000),
        (lambda: ys.nn.conv2d(ys.zeros((2, 6, 9, 9)), ys.zeros((8, 3, 3, 3)), groups=2), 2 * (2 * 8 * 7 * 7) * 3 * 9),
        (lambda: ys.nn.linear(ys.zeros((5, 3)), ys.zeros((4, 3))), 2 * 5 * 3 * 4 + 10 * 12),
    ],
)
def test_work(make, amount):
    node = make()._node
    for i in node.inputs:
        ys.eval(ys.Tensor(i))
    (region,) = fuse(graph_of(capture([node])[0]))
    assert work(region) == amount
