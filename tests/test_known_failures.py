"""Known failures of tensor runtimes, each as a test on every device present.

docs/explanation/known-failures.md lists them with the defence that each test checks.
"""

import numpy as np
import pytest

import yosegi as ys
from fakes import CompilerFails, FakeDevice, Garbage, installed
from yosegi._run.child import attempt
from yosegi._run.memory.pool import Pool

DEVICES = [d.name for d in ys.devices()]
RNG = np.random.default_rng(0)

on_every_device = pytest.mark.parametrize("device", DEVICES)


@on_every_device
def test_a_square_product_is_not_computed_the_other_way_round(device):
    a, b = RNG.normal(size=(2, 24, 24))
    with ys.options(device=device):
        np.testing.assert_allclose((ys.asarray(a) @ ys.asarray(b)).numpy(), a @ b)


@on_every_device
@pytest.mark.parametrize(("m", "k", "n"), [(2, 3, 5), (5, 3, 2), (3, 5, 2), (7, 7, 3), (3, 7, 7), (7, 3, 7), (1, 9, 1)])
def test_a_product_has_its_lengths_in_the_right_order(device, m, k, n):
    a, b = RNG.normal(size=(m, k)), RNG.normal(size=(k, n))
    with ys.options(device=device):
        np.testing.assert_allclose((ys.asarray(a) @ ys.asarray(b)).numpy(), a @ b)


@on_every_device
def test_a_million_halves_do_not_overflow_their_sum(device):
    with ys.options(device=device):
        x = ys.asarray(np.ones(1_000_000, np.float16))
        assert float(ys.sum(x, dtype=ys.float32)) == 1e6
        assert float(ys.mean(x)) == 1.0
        small = ys.asarray(np.full(1_000_000, 0.03125, np.float16))
        assert float(ys.sum(small)) == 31248.0  # 31250, rounded once to float16


@on_every_device
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), None])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean", "any", "all"])
def test_a_reduction_along_an_axis_is_not_the_global_one(device, axis, name):
    x = (RNG.uniform(0.5, 1.5, size=(3, 5, 7)) * (RNG.random((3, 5, 7)) > 0.1)).astype(np.float32)
    with ys.options(device=device):
        result = getattr(ys, name)(ys.asarray(x), axis=axis).numpy()
    np.testing.assert_allclose(result, getattr(np, name)(x, axis=axis), rtol=1e-5)


@on_every_device
def test_float32_is_float32(device):
    a, b = (RNG.normal(size=(2, 100, 100))).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    with ys.options(device=device):
        result = (ys.asarray(a) @ ys.asarray(b)).numpy()
    assert np.linalg.norm(result - exact) / np.linalg.norm(exact) < 3e-7  # TF32 gives 3e-4


def test_a_pool_is_keyed_by_bytes_not_by_elements():
    pool = Pool(lambda nbytes, alignment: bytearray(nbytes), lambda memory: None)
    halves = pool.take(1000 * 2)
    memory = halves.memory
    del halves
    singles = pool.take(1000 * 4)
    assert singles.memory is not memory
    assert len(singles.memory) >= 4000


def test_stale_values_of_reused_memory_do_not_show():
    fake = Garbage()
    x = RNG.normal(size=(50, 3)).astype(np.float32)
    with installed(fake) as name, ys.options(device=name):
        for n in (50, 3, 17):  # each smaller than what the memory held before
            y = ys.concat([ys.asarray(x[:n]) * 2, ys.zeros((n, 3), dtype=ys.float32)], axis=0)
            np.testing.assert_array_equal(y.numpy(), np.concatenate([x[:n] * 2, np.zeros((n, 3), np.float32)]))
    assert fake.runs > 0


def test_the_users_mistake_is_not_tried_on_every_device():
    fakes = [CompilerFails("matmul"), FakeDevice()]
    with installed(*fakes) as name, ys.options(device=name):
        with pytest.raises(ys.errors.ShapeError):
            ys.ones((2, 3)) @ ys.ones((2, 3))
        with pytest.raises(ys.errors.IndexingError):
            ys.ones((2, 3))[5]
    assert [f.runs for f in fakes] == [0, 0]
    assert fakes[0].attempts == 0


def test_unsupported_ops_in_between_do_not_cut_the_host_into_pieces():
    class EveryOther(FakeDevice):
        def supports(self, region):
            return f"no {region.calls[0].op.name} here"

    with installed(EveryOther()) as name, ys.options(device=name):
        x = ys.asarray(np.eye(8))
        for _ in range(60):
            x = ys.sort(ys.tanh(x @ x), axis=-1)
        assert len(ys.plan(x).steps) == 1


def test_a_compiler_that_ends_the_process_ends_only_a_child():
    assert attempt("test_child:kill", 4).failure == "it ended the process with SIGILL"
