"""`debug.print`, `synchronize`, `block_until_ready`, `static_argnums`."""

import numpy as np
import pytest

import yosegi as ys
from yosegi._run import api
from yosegi.errors import IndexingError, LaunchFailure

X = np.asarray([1.0, 2.0])


def test_a_line_at_every_run_in_order(capsys):
    @ys.jit
    def function(x, scale):
        ys.debug.print("x = {}, {name:.2f}", x, name=ys.sum(x))
        y = x * scale
        ys.debug.print("tree {} and {}", {"y": [y]}, "text")
        return y

    plain = ys.jit(lambda x, scale: x * scale)
    for values in (X, X + 1):
        np.testing.assert_array_equal(function(ys.asarray(values), 2.0).numpy(), plain(ys.asarray(values), 2.0).numpy())
    assert capsys.readouterr().out.splitlines() == [
        "x = [1. 2.], 3.00", "tree {'y': [array([2., 4.])]} and text",
        "x = [2. 3.], 5.00", "tree {'y': [array([4., 6.])]} and text",
    ]  # fmt: skip


def test_without_a_trace_it_prints_at_once(capsys):
    ys.debug.print("now {}", ys.asarray(X) * 2)
    assert capsys.readouterr().out == "now [2. 4.]\n"


def test_in_gradients_and_nested_functions(capsys):
    def loss(x):
        ys.debug.print("x = {}", x)
        return ys.sum(x * x)

    ys.grad(loss)(ys.asarray(X))
    step = ys.jit(lambda x: ys.grad(ys.jit(loss))(x))
    for _ in range(2):
        np.testing.assert_array_equal(step(ys.asarray(X)).numpy(), 2 * X)
    assert capsys.readouterr().out == "x = [1. 2.]\n" * 3


@pytest.mark.parametrize("wrap", [lambda f: f, ys.jit])
def test_a_line_for_each_example(capsys, wrap):
    def function(x, y):
        ys.debug.print("x = {}", x)
        ys.debug.print("y = {}", y)
        return x

    wrap(ys.vmap(function, in_axes=(0, None)))(ys.asarray(X), ys.asarray(5.0))
    assert capsys.readouterr().out.splitlines() == ["x = 1.0", "y = 5.0", "x = 2.0", "y = 5.0"]


def test_eval_shape_prints_nothing(capsys):
    ys.eval_shape(lambda x: ys.debug.print("{}", x), ys.asarray(X))
    assert capsys.readouterr().out == ""


def test_a_function_that_returns_nothing_prints(capsys):
    function = ys.jit(lambda x: ys.debug.print("x = {}", x))
    assert function(ys.asarray(X)) is None
    assert function(ys.asarray(X)) is None
    assert capsys.readouterr().out == "x = [1. 2.]\n" * 2


# Waiting


class Waited:
    """The host's device, with another end of its work."""

    def __init__(self, error=None):
        self.waits, self._error, self._device = 0, error, api.host_device()

    def __getattr__(self, name):
        return getattr(self._device, name)

    def synchronize(self):
        self.waits += 1
        if self._error is not None:
            raise self._error


def test_synchronize_waits_for_every_device(monkeypatch):
    devices = [Waited(), Waited(LaunchFailure("gone")), Waited()]
    monkeypatch.setattr(api, "present", lambda: devices)
    ys.synchronize()
    assert [d.waits for d in devices] == [1, 1, 1]


def test_a_pending_mistake_is_raised(monkeypatch):
    mistaken = Waited(IndexingError("[take] expected indices from -3 to 2, got 7"))
    monkeypatch.setattr(api, "present", lambda: [mistaken])
    monkeypatch.setattr(api, "owner_of", lambda space: mistaken)
    with pytest.raises(IndexingError, match="got 7"):
        ys.synchronize()
    with pytest.raises(IndexingError, match="got 7"):
        (ys.asarray(X) * 2).block_until_ready()


def test_block_until_ready_computes_and_waits(monkeypatch):
    device = Waited()
    monkeypatch.setattr(api, "owner_of", lambda space: device)
    x = ys.asarray(X) * 2
    assert x.block_until_ready() is x
    assert x._node.buffer is not None
    assert device.waits == 1


def test_a_value_that_a_device_loses_is_there_all_the_same(monkeypatch):
    monkeypatch.setattr(api, "owner_of", lambda space: Waited(LaunchFailure("gone")))
    x = (ys.asarray(X) * 2).block_until_ready()
    np.testing.assert_array_equal(x.numpy(), X * 2)


@pytest.mark.parametrize("device", [d for d in ys.devices() if d.space != "host"], ids=str)
def test_a_mistake_that_only_the_device_finds(device):
    with ys.options(device=device):
        x = ys.jit(lambda x, i: ys.take(x, i, axis=0))
        x(ys.asarray(X), ys.asarray([0, 1]))
        with pytest.raises(IndexingError):
            x(ys.asarray(X), ys.asarray([0, 7])).block_until_ready()


# static_argnums


@pytest.mark.parametrize("numbers", [1, (1,), [-1], (1, -1)])
def test_static_arguments_by_their_position(numbers):
    function = ys.jit(lambda x, n: [x * i for i in range(n)], static_argnums=numbers)
    assert len(function(ys.asarray(X), 3)) == 3
    assert len(function(ys.asarray(X), n=2)) == 2
    assert len(function.plans) == 2


def test_static_arguments_of_a_method_and_a_decorator():
    class Model:
        @ys.jit(static_argnums=2)
        def power(self, x, n):
            return x**n if n > 1 else x

    assert Model().power(ys.asarray(X), 2).tolist() == [1, 4]
    bound = ys.jit(Model().power.__func__._function, static_argnums=(2,))
    assert bound(Model(), ys.asarray(X), 1).tolist() == [1, 2]


@pytest.mark.parametrize("numbers", [2, -3, (0, 5)])
def test_a_position_that_does_not_exist(numbers):
    with pytest.raises(ys.errors.ArgumentError, match="static_argnums among the positions"):
        ys.jit(lambda x, n: x, static_argnums=numbers)
