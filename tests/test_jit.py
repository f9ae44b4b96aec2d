"""jit: traces, replays, signatures, and what a trace cannot do."""

import logging
import threading
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import yosegi as ys
from fakes import DiesAfter, FakeDevice, installed
from yosegi._run.trace import trace
from yosegi.errors import ArgumentError, TraceError


def counted(function):
    """The function, counting how often it is really run."""

    def wrapper(*args, **kwargs):
        wrapper.traces += 1
        return function(*args, **kwargs)

    wrapper.traces = 0
    wrapper.__wrapped__ = function
    return wrapper


def test_a_signature_is_traced_once():
    f = counted(lambda x, y: ys.tanh(x * 1.5 + y))
    g = ys.jit(f)
    x, y = np.arange(3.0), np.ones(3)
    for shift in range(3):
        np.testing.assert_allclose(g(ys.asarray(x + shift), ys.asarray(y)).numpy(), np.tanh((x + shift) * 1.5 + y))
    assert f.traces == 1
    g(ys.asarray(x.astype(np.float32)), ys.asarray(y))
    g(ys.asarray(x[:2]), ys.asarray(y[:2]))
    assert f.traces == 3


def test_arguments_of_every_kind():
    f = counted(lambda tree, scale, flag, *, name: {name: tree["a"] * scale if flag else tree["b"][0] - scale})
    g = ys.jit(f)
    tree = {"a": ys.asarray([1.0, 2.0]), "b": (np.ones(2), 3)}
    assert g(tree, 2.0, True, name="k")["k"].tolist() == [2.0, 4.0]
    assert g(tree, 3.0, True, name="k")["k"].tolist() == [3.0, 6.0]
    assert f.traces == 1, "numbers are traced"
    assert g(tree, 3.0, False, name="j")["j"].tolist() == [-2.0, -2.0]
    assert f.traces == 2, "bools and strings belong to the signature"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "complex64"])
@pytest.mark.parametrize("number", [2, 2.5, 1j])
def test_a_traced_number_keeps_the_dtype_it_would_keep_untraced(dtype, number):
    x = ys.asarray([1, 2, 3], dtype=dtype)
    plain = x * number + number
    traced = ys.jit(lambda x, n: x * n + n)(x, number)
    assert traced.dtype is plain.dtype
    np.testing.assert_array_equal(traced.numpy(), plain.numpy())


def test_static_arguments_may_decide():
    f = counted(lambda x, n, axis=0: ys.sum(ys.concat([x] * n, axis=axis)))
    g = ys.jit(f, static_argnames=("n", "axis"))
    x = ys.ones((2, 2))
    assert [float(g(x, 2)), float(g(x, 2)), float(g(x, n=3)), float(g(x, 2, 1))] == [8.0, 8.0, 12.0, 8.0]
    assert f.traces == 3
    with pytest.raises(ArgumentError, match=r"\[jit\] expected static_argnames among \['x', 'n', .*, got \['m'\]"):
        ys.jit(f.__wrapped__, static_argnames="m")


@pytest.mark.parametrize(
    "needs_a_value",
    [
        lambda x: x if ys.sum(x) > 0 else -x,
        lambda x: float(x[0]) * x,
        lambda x: x * int(x[0]),
        lambda x: x[x > 0],
        lambda x: np.asarray(x),
        lambda x: ys.nonzero(x),
        lambda x: ys.unique_values(x),
        lambda x: ys.zeros(x[0].astype(ys.int64)),
    ],
)
def test_a_trace_that_needs_a_value_says_so(needs_a_value):
    with pytest.raises(TraceError, match=r"\[jit\] expected no values of traced tensors to be read"):
        ys.jit(needs_a_value)(ys.asarray([1.0, 2.0]))


def test_a_traced_tensor_can_be_printed():
    shown = []
    ys.jit(lambda x: shown.append(repr(x + 1)) or x)(ys.asarray([1.0]))
    assert shown == ["Tensor(<traced float64[1]>)"]


def test_a_tensor_that_leaves_its_trace_is_refused():
    kept = []
    ys.jit(lambda x: kept.append(x * 2) or x)(ys.asarray([1.0]))
    with pytest.raises(TraceError):
        kept[0].numpy()


def test_values_from_outside_are_constants_and_computed_once(monkeypatch):
    calls = []
    body = ys.exp.body
    monkeypatch.setattr(ys.exp, "body", lambda x: calls.append(1) or body(x))
    w = ys.exp(ys.asarray(np.linspace(0, 1, 5000)))  # not computed yet
    f = ys.jit(lambda x: x * w)
    for _ in range(3):
        f(ys.asarray(np.ones(5000))).numpy()
    assert len(calls) == 1


def test_results_of_every_shape():
    f = ys.jit(lambda x, y: (x, [x + y, None], {"k": "label", "c": ys.ones((2,)), "n": np.ones(1)}, 7))
    x = ys.asarray([1.0, 2.0])
    same, (total, nothing), rest, seven = f(x, x)
    assert same.tolist() == [1.0, 2.0]
    assert total.tolist() == [2.0, 4.0]
    assert (nothing, rest["k"], seven) == (None, "label", 7)
    assert rest["c"].tolist() == [1.0, 1.0]
    assert rest["n"].tolist() == [1.0]


def test_unused_and_swapped_arguments():
    f = ys.jit(lambda a, b, c: c - a)
    for i in range(3):
        assert float(f(ys.asarray(1.0), ys.asarray(99.0), ys.asarray(5.0 + i))) == 4.0 + i


def test_jit_inside_jit_grad_inside_jit_jit_inside_grad():
    square = ys.jit(lambda x: x * x)
    outer = ys.jit(lambda x: ys.sum(square(x) + x))
    assert float(outer(ys.asarray([1.0, 2.0]))) == 8.0
    assert ys.jit(ys.grad(outer))(ys.asarray([1.0, 2.0])).tolist() == [3.0, 5.0]
    assert ys.grad(outer)(ys.asarray([1.0, 2.0])).tolist() == [3.0, 5.0]


def test_random_draws_are_made_anew_and_match_the_untraced_function():
    def noisy(x, rng):
        return x + rng.normal((3,)) * rng.uniform((3,))

    rng, same = ys.random.default_rng(5), ys.random.default_rng(5)
    f = ys.jit(lambda x: noisy(x, rng))
    x = ys.zeros((3,))
    for _ in range(3):
        np.testing.assert_array_equal(f(x).numpy(), noisy(x, same).numpy())


def test_methods_can_be_jitted():
    class Model:
        def __init__(self, w):
            self.w = w

        @ys.jit
        def apply(self, x):
            return x * self.w

    two, three = Model(ys.asarray(2.0)), Model(ys.asarray(3.0))
    x = ys.asarray(10.0)
    assert [float(two.apply(x)), float(three.apply(x)), float(two.apply(x))] == [20.0, 30.0, 20.0]


# Objects


class Layer:
    bias = 0.0

    def __init__(self, w, scale=1):
        self.w = w
        self.scale = scale

    def __call__(self, x):
        return x * self.w * self.scale + self.bias

    def loss(self, x):
        return ys.sum((x * self.w) ** 2)

    @ys.jit
    def apply(self, x):
        return x * self.w * self.scale + self.bias


class Slotted:
    __slots__ = ("empty", "w")

    def __init__(self, w):
        self.w = w


@dataclass(frozen=True)
class Frozen:
    w: object
    power: int = 1


@dataclass
class Mutable:
    w: object


class Model:
    """A list of layers, one of them tied, and a child that knows its parent."""

    def __init__(self, *layers):
        self.layers = list(layers)
        self.tied = self.layers[0]
        self.tied.parent = self
        self.names = {"a", "b"}
        self.rng = np.random.default_rng(0)
        self.log = logging.getLogger("test")

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        assert self.tied is self.layers[0]
        return self.tied.parent.tied(x)


ONE = ys.asarray(1.0)


def number(value):
    return ys.asarray(float(value))


HOLDERS = {
    "a method": lambda m: ys.jit(m.__call__),
    "a decorated method": lambda m: m.apply,
    "a callable object": lambda m: ys.jit(m),
    "a partial": lambda m: ys.jit(partial(Layer.__call__, m)),
    "a partial by name": lambda m: ys.jit(partial(lambda x, m: m(x), m=m)),
    "an argument": lambda m: partial(ys.jit(lambda m, x: m(x)), m),
    "an argument in a tree": lambda m: partial(ys.jit(lambda t, x: t["models"][0](x)), {"models": [m]}),
    "a bound method as an argument": lambda m: partial(ys.jit(lambda f, x: f(x)), m.__call__),
    "a keyword": lambda m: partial(ys.jit(lambda x, m: m(x)), m=m),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_an_attribute_that_is_assigned_is_seen(holder):
    m = Layer(number(2))
    f = HOLDERS[holder](m)
    assert float(f(ONE)) == 2.0
    m.w = number(3)
    assert float(f(ONE)) == 3.0
    m.w[...] = 4.0
    assert float(f(ONE)) == 4.0
    m.w += 1
    assert float(f(ONE)) == 5.0
    m.w = np.asarray(6.0)
    assert float(f(ONE)) == 6.0
    m.scale = 10
    assert float(f(ONE)) == 60.0
    m.bias = number(1)
    assert float(f(ONE)) == 61.0
    del m.bias
    assert float(f(ONE)) == 60.0


def test_an_attribute_of_the_class_is_seen(monkeypatch):
    f = ys.jit(Layer(number(2)))
    assert float(f(ONE)) == 2.0
    monkeypatch.setattr(Layer, "bias", number(5))
    assert float(f(ONE)) == 7.0


def test_tensors_of_an_object_are_inputs_and_numbers_decide():
    traces = []

    class Counting(Layer):
        @ys.jit
        def run(self, x):
            traces.append(1)
            for _ in range(self.scale):
                x = x * self.w
            return x

    m = Counting(number(2), 3)
    assert [float(m.run(ONE))] == [8.0]
    m.w = number(3)
    assert float(m.run(ONE)) == 27.0
    assert len(traces) == 1
    assert float(Counting(number(1), 3).run(ONE)) == 1.0, "another object of the same structure"
    assert len(traces) == 1
    m.scale = 2
    assert float(m.run(ONE)) == 9.0
    assert len(traces) == 2


def test_objects_in_objects():
    m = Model(Layer(number(2)), Layer(number(3)))
    f = ys.jit(m)
    assert float(f(ONE)) == 12.0
    m.layers[1].w = number(5)
    assert float(f(ONE)) == 20.0
    m.layers.append(Layer(number(10)))
    assert float(f(ONE)) == 200.0
    m.layers[0] = m.tied = Layer(number(1))
    m.tied.parent = m
    assert float(f(ONE)) == 50.0


@pytest.mark.parametrize("kind", [Slotted, Frozen, Mutable])
def test_objects_of_every_kind(kind):
    f = ys.jit(lambda m, x: x * m.w)
    assert [float(f(kind(number(n)), ONE)) for n in (2, 3)] == [2.0, 3.0]
    m = kind(number(2))
    f(m, ONE)
    object.__setattr__(m, "w", number(7))
    assert float(f(m, ONE)) == 7.0


def test_a_frozen_dataclass_of_values_is_compared_by_them():
    traces = counted(lambda m, x: x**m.power)
    f = ys.jit(traces)
    assert [float(f(Frozen(None, power), number(3))) for power in (2, 2, 3)] == [9.0, 9.0, 27.0]
    assert traces.traces == 2


def test_gradients_of_methods_see_attributes():
    m = Layer(number(2))
    for f in (ys.jit(ys.grad(m.loss)), ys.jit(partial(ys.grad(Layer.loss, argnums=1), m))):
        m.w = number(2)
        assert float(f(ONE)) == 8.0
        m.w = number(3)
        assert float(f(ONE)) == 18.0
    second = ys.jit(ys.grad(ys.grad(m.loss)))
    assert float(second(ONE)) == 18.0
    m.w = number(1)
    assert float(second(ONE)) == 2.0


def assign(self, x):
    self.w = x


def count(self, x):
    self.scale += 1


def add_in_place(self, x):
    self.w += x


def write(self, x):
    self.w[...] = x


def keep(self, x):
    self.cache = [x]


def forget(self, x):
    del self.w


def append(self, x):
    self.seen.append(x)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (assign, "w"),
        (count, "scale"),
        (add_in_place, "w"),
        (write, "w"),
        (keep, "cache"),
        (forget, "w"),
        (append, "seen"),
    ],
)
def test_a_traced_function_must_leave_its_objects_as_they_are(change, name):
    m = Layer(number(2))
    m.seen = []
    before = m.w
    with pytest.raises(TraceError, match=rf"got a new value of Layer\.{name}, .*; return it, and assign it outside"):
        ys.jit(lambda m, x: (change(m, x), x)[1])(m, ONE)
    assert m.w is before
    assert float(m.w) == 2.0


def test_an_attribute_that_cannot_be_compared_is_refused_when_it_is_read():
    m = Model(Layer(number(2)))
    assert float(ys.jit(m)(ONE)) == 4.0
    with pytest.raises(ArgumentError, match=r"\[jit\] expected attributes .*, got Model\.names, a set; pass what"):
        ys.jit(lambda m, x: x * len(m.names))(m, ONE)
    with pytest.raises(ArgumentError, match=r"\[jit\] expected attributes .*, got Model\.rng, a Generator; pass what"):
        ys.jit(lambda m, x: x * m.rng.random())(m, ONE)
    with pytest.raises(AttributeError, match="nothing"):
        ys.jit(lambda m, x: m.nothing)(m, ONE)


@pytest.mark.parametrize("value", [np.random.default_rng(0), iter([])])
def test_an_argument_whose_changes_do_not_show_is_refused(value):
    with pytest.raises(ArgumentError, match=r"\[jit\] expected arguments whose changes show, got"):
        ys.jit(lambda x, v: x)(ONE, value)
    with pytest.raises(ArgumentError, match=r"\[jit\] expected a method or a partial of tensors, arrays"):
        ys.jit(partial(lambda v, x: x, value))(ONE)


@pytest.mark.parametrize(
    "value", [ys.float32, np.add, len, Layer, np, object(), counted, "text", (1, 2), ys.random.default_rng(1)]
)
def test_other_arguments_are_compared_as_they_are(value):
    function = counted(lambda x, v: x * 2)
    f = ys.jit(function)
    assert [float(f(ONE, value)), float(f(ONE, value))] == [2.0, 2.0]
    assert function.traces == 1


def test_an_attribute_may_be_none():
    class Optional(Layer):
        def call(self, x):
            return x * 2 if self.bias is None else x + self.bias

    layer = Optional(ys.ones((2,)))
    layer.bias = None
    f = ys.jit(layer.call)
    assert f(ys.ones((2,))).tolist() == [2.0, 2.0]
    layer.bias = ys.ones((2,))
    assert f(ys.ones((2,))).tolist() == [2.0, 2.0]
    layer.bias = None
    assert f(3 * ys.ones((2,))).tolist() == [6.0, 6.0]


def test_static_argnames_of_a_method():
    class Powers(Layer):
        def power(self, x, n):
            return (x * self.w) ** n

    m = Powers(number(2))
    f = ys.jit(m.power, static_argnames="n")
    assert [float(f(ONE, 2)), float(f(ONE, n=3))] == [4.0, 8.0]
    m.w = number(3)
    assert float(f(ONE, 2)) == 9.0
    assert len(f.plans) == 2


def test_an_unhashable_argument_is_refused():
    with pytest.raises(ArgumentError, match=r"\[jit\] expected arguments that are tensors, .*, got set"):
        ys.jit(lambda x, s: x)(ys.asarray(1.0), {1})


def test_the_users_mistake_inside_a_trace_is_raised_from_it():
    with pytest.raises(ys.errors.ShapeError, match=r"\[add\] expected shapes that broadcast"):
        ys.jit(lambda x, y: x + y)(ys.ones((2,)), ys.ones((3,)))


def test_an_index_out_of_range_is_raised_at_the_replay():
    f = ys.jit(lambda x, i: x[i])
    assert f(ys.asarray([1.0, 2.0]), ys.asarray([1])).tolist() == [2.0]
    with pytest.raises(ys.errors.IndexingError):
        f(ys.asarray([1.0, 2.0]), ys.asarray([7]))


def test_threads_share_a_jitted_function():
    f = ys.jit(lambda x, n: ys.sum(x * n))
    results = {}

    def work(n):
        results[n] = [float(f(ys.ones((4 + i % 3,)), float(n))) for i in range(60)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {n: [n * (4.0 + i % 3) for i in range(60)] for n in range(8)}


def test_a_plan_of_one_step_replays_on_the_device_that_has_the_inputs():
    device = FakeDevice()
    f = ys.jit(lambda x, y: ys.tanh(x * 2 + y) - y)
    a, b = np.arange(6.0), np.ones(6)
    with installed(device) as name, ys.options(device=name):
        x, y = (ys.asarray(v).to_device(name) for v in (a, b))
        f(x, y)
        trace.clear()
        for _ in range(3):
            made = f(x, y)
            assert made.device.name == name
            np.testing.assert_allclose(made.numpy(), np.tanh(a * 2 + b) - b)
        assert device.runs == 4
        assert not trace.records  # the short way keeps none


def test_a_replay_survives_the_loss_of_its_device():
    device = DiesAfter(3)
    f = ys.jit(lambda x: x * 2 + 1)
    a = np.arange(6.0)
    with installed(device) as name, ys.options(device=name):
        x = ys.asarray(a).to_device(name)
        for _ in range(6):
            x = f(x)
            a = a * 2 + 1
        np.testing.assert_array_equal(x.numpy(), a)


def step_of(params, x):
    """A training step of several results, in a tree."""
    loss, slopes = ys.value_and_grad(lambda p: ys.sum((x * p["w"] + p["b"]) ** 2))(params)
    return {name: params[name] - 0.01 * slopes[name] for name in params}, loss


def test_a_loop_does_not_keep_the_results_of_its_last_runs_on_the_device():
    device = FakeDevice()
    f = ys.jit(step_of)
    size = 1000
    with installed(device) as name, ys.options(device=name):
        params = {"w": ys.ones((size,)), "b": ys.zeros((size,))}
        x = ys.asarray(np.arange(float(size)) / size)
        for _ in range(20):
            params, _ = f(params, x)
        # The parameters and the input are there, the last ones' parameters may be.
        assert device.live < 6 * 8 * size
        one = ys.jit(lambda x: x + 1)
        for _ in range(20):
            x = one(x)
        assert device.live < 8 * 8 * size


@pytest.mark.parametrize("dies_after", [1, 5, 11, 40])
def test_a_loop_of_replays_survives_the_loss_of_its_device(dies_after):
    def trained(name):
        f, g, h = ys.jit(step_of), ys.jit(lambda a: a * 0.5), ys.jit(lambda a, b: a + b)
        with ys.options(device=name):
            params, x = {"w": ys.ones((7,)), "b": ys.zeros((7,))}, ys.asarray(np.arange(7.0) / 7)
            losses = []
            for _ in range(45):
                params, loss = f(params, x)
                losses.append(loss)
                x = h(g(x), g(x))  # twice of the same: its history must not double with every run
            return [float(loss) for loss in losses], params["w"].numpy(), x.numpy()

    expected = trained("cpu")
    with installed(DiesAfter(dies_after)) as name:
        survived = trained(name)
    np.testing.assert_allclose(survived[0], expected[0])
    np.testing.assert_allclose(survived[1], expected[1])
    np.testing.assert_allclose(survived[2], expected[2])


def test_a_value_that_came_to_the_host_lets_go_of_its_history():
    device = FakeDevice()
    f = ys.jit(step_of)
    with installed(device) as name, ys.options(device=name):
        _, loss = f({"w": ys.ones((5,)), "b": ys.zeros((5,))}, ys.ones((5,)))
        assert loss._node.inputs
        float(loss)
        assert not loss._node.inputs
