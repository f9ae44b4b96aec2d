"""Composites: ops made of others, that devices may take whole."""

import numpy as np
import pytest

import yosegi as ys
from fakes import CompilerFails, DiesAfter, FailsAtRandom, FakeDevice, ModelCompiler, OutOfMemoryAt, installed
from gradients import check_gradient
from yosegi._graph.expand import expand
from yosegi._graph.graph import Graph, capture, check, graph_of
from yosegi._graph.reference import bind
from yosegi._graph.simplify import simplify
from yosegi._run.device import chain_named
from yosegi._run.trace import trace
from yosegi._tensor.composite import composite, decomposed
from yosegi._tensor.dtype import float_info
from yosegi._tensor.op import REGISTRY, Arr, OpKind
from yosegi.errors import CompileFailure, FallbackWarning

RNG = np.random.default_rng(0)
X, W, B = RNG.normal(size=(40, 30)), RNG.normal(size=(20, 30)), RNG.normal(size=20)
SOFTMAX = frozenset({"softmax"})


@pytest.fixture
def undeclared():
    """Ops that a test declares are gone after it."""
    before = set(REGISTRY)
    yield
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


def ops_of(*tensors):
    return [name for step in ys.explain(*tensors).to_json()["steps"] for name in step["ops"]]


# What a composite is


def test_it_keeps_its_name_in_the_graph_and_comes_apart_in_the_plan():
    y = ys.nn.softmax(ys.asarray(X))
    graph = graph_of(capture([y._node])[0])
    assert [c.op.name for c in graph.calls] == ["leaf", "softmax"]
    with ys.options(device="cpu"):
        assert ops_of(y) == ["max", "subtract", "exp", "sum", "divide"]


def test_its_spec_is_that_of_its_parts():
    y = ys.nn.softmax(ys.ones((2, 3), dtype=ys.int32), axis=0)
    assert (y.shape, y.dtype) == ((2, 3), ys.float64)
    assert y._node.call.attrs == {"axis": 0}
    assert ys.nn.softmax(ys.ones((2, 3)), axis=-2)._node.call is ys.nn.softmax(ys.ones((2, 3)), axis=0)._node.call


def test_its_reference_is_that_of_its_parts():
    y = ys.nn.layer_norm_linear(ys.asarray(X), ys.asarray(W), ys.asarray(B))
    np.testing.assert_array_equal(bind(y._node.call)(X, W, B), y.numpy())


def test_expanding_goes_all_the_way_down_and_remembers_the_name():
    y = ys.tanh(ys.nn.layer_norm_linear(ys.asarray(X), ys.asarray(W)))
    graph = expand(graph_of(capture([y._node])[0]), chain_named("cpu"))
    check(graph)
    assert all(call.op.decomposition is None for call in graph.calls)
    named = {call.op.name: origin for call, origin in zip(graph.calls, graph.origins, strict=True)}
    assert (named["leaf"], named["matmul"], named["sqrt"], named["tanh"]) == (
        "", "layer_norm_linear", "layer_norm_linear", "",
    )  # fmt: skip


def test_a_graph_knows_whether_it_has_composites():
    def graph(x: ys.Tensor) -> Graph:
        return graph_of(capture([x._node])[0])

    x = ys.asarray(X)
    assert not graph(ys.tanh(x)).has_composites
    assert graph(ys.nn.softmax(x)).has_composites
    assert not expand(graph(ys.nn.softmax(x)), ()).has_composites
    assert graph(ys.cond(x[0, 0] > 0, ys.nn.softmax, ys.tanh, x)).has_composites


def test_explain_tells_the_composites():
    x = ys.asarray(X)
    few = ys.nn.softmax(x * 3) * 2
    with ys.options(device="cpu"):
        assert "step 0 on cpu: multiply softmax(max subtract exp sum divide) multiply\n" in str(ys.explain(few))
        many = str(ys.explain(ys.nn.softmax(ys.nn.layer_norm(ys.tanh(x)))))
        assert "step 0 on cpu: tanh layer_norm softmax (14 ops)\n" in many
        assert ys.explain(ys.nn.softmax(x)).to_json()["steps"][0]["composites"] == ["softmax"] * 5
        assert "softmax(" in ys.explain(ys.nn.softmax(x))._repr_html_()


def test_numbers_inside_are_constants_of_the_program():
    call = ys.nn.gelu(ys.ones((3,)))._node.call
    assert "leaf" not in [inner.op.name for inner, _ in decomposed(call).steps]
    assert decomposed(call) is decomposed(call)


def test_a_function_declared_by_anyone(undeclared):
    @composite(OpKind.ACTIVATION, promotes_from=0, inexact=True)
    def squashed(x: Arr, /, y: Arr = None, *, power: int = 2) -> Arr:
        """x**power / (1 + x**power), plus y."""
        high = x**power
        return high / (1 + high) if y is None else high / (1 + high) + y

    x = ys.asarray([1.0, 3.0])
    assert squashed(x).tolist() == [0.5, 0.9]
    assert squashed(x, x).tolist() == squashed(x, y=x).tolist() == [1.5, 3.9]
    assert squashed(3).tolist() == 0.9
    assert squashed(x, power=1).tolist() == [0.5, 0.75]
    check_gradient(squashed, X[0], X[1])
    with pytest.raises(TypeError, match=r"\[squashed\] got an unexpected keyword argument 'z'"):
        squashed(x, z=1)
    with pytest.raises(ys.errors.DTypeError, match=r"\[squashed\] expected a tensor or a number, got NoneType"):
        squashed(None)


def test_one_that_gives_back_what_it_got(undeclared):
    @composite(OpKind.ACTIVATION, promotes_from=0)
    def first(x: Arr, y: Arr, /) -> Arr:
        """x."""
        return x

    x, y = ys.asarray(X), ys.asarray(W)
    assert first(x, y).tolist() == X.tolist()
    assert (first(x * 2, y) + 1).tolist() == (X * 2 + 1).tolist()
    slopes = ys.grad(lambda x, y: first(x, y).sum(), argnums=(0, 1))(x, y)
    assert [float(s.sum()) for s in slopes] == [X.size, 0]


def test_mistakes_are_told_as_the_composites_own():
    with pytest.raises(ys.errors.ShapeError, match=r"^\[linear_residual_relu\] expected shapes that broadcast"):
        ys.nn.linear_residual_relu(ys.asarray(X), ys.asarray(W), ys.ones((7,)))
    with pytest.raises(ys.errors.ShapeError, match=r"^\[gelu_linear\] expected w of shape \(outputs, 30\)"):
        ys.nn.gelu_linear(ys.asarray(X), ys.asarray(W.T))


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16])
def test_halves_are_computed_in_single_and_rounded_once(dtype):
    x = ys.asarray(X).astype(dtype)
    for function in (ys.nn.softmax, ys.nn.gelu, ys.nn.layer_norm):
        exact = function(x.astype(ys.float32)).astype(dtype)
        np.testing.assert_array_equal(function(x).numpy(), exact.numpy())
        assert function(x).dtype is dtype
    rough = ys.grad(lambda x: (ys.nn.softmax(x) * ys.asarray(X)).sum().astype(ys.float32))(x)
    fine = ys.grad(lambda x: (ys.nn.softmax(x) * ys.asarray(X)).sum())(x.astype(ys.float32))
    tolerance = 4 * float_info(dtype).eps
    np.testing.assert_allclose(rough.astype(ys.float32), fine, rtol=tolerance, atol=tolerance * 0.1)


# Gradients


def test_what_the_gradient_computes_again_is_one_value():
    value, slope = ys.value_and_grad(lambda x: ys.nn.gelu(x).sum())(ys.asarray(X))
    assert ops_of(value, slope).count("erf") == 1
    assert "variable" not in ops_of(value, slope)
    value, slope = ys.value_and_grad(lambda x: ys.nn.layer_norm(x).sum())(ys.asarray(X))
    assert ops_of(value, slope).count("sqrt") == 1


def test_one_tensor_as_several_inputs():
    check_gradient(lambda x: ys.nn.scaled_dot_product_attention(x, x, x), X[:4, :3], rtol=1e-5)


def test_derivatives_of_higher_order():
    third = ys.grad(ys.grad(ys.grad(lambda x: ys.nn.silu(x))))(ys.asarray(0.5))
    step = 1e-4
    second = ys.grad(ys.grad(lambda x: ys.nn.silu(x)))
    numeric = (float(second(ys.asarray(0.5 + step))) - float(second(ys.asarray(0.5 - step)))) / (2 * step)
    np.testing.assert_allclose(float(third), numeric, rtol=1e-6)


def test_a_value_asked_for_on_the_way():
    def loss(x):
        y = ys.nn.softmax(x)
        scale = 2.0 if float(y[0, 0]) >= 0 else 1.0
        return (y * ys.asarray(X)).sum() * scale

    plain = ys.grad(lambda x: (ys.nn.softmax(x) * ys.asarray(X)).sum() * 2.0)(ys.asarray(X))
    np.testing.assert_allclose(ys.grad(loss)(ys.asarray(X)), plain)


# jit


def test_under_jit():
    def network(x, w, b):
        return ys.nn.softmax(ys.nn.gelu_linear(x, w, b) * 0.5)

    fast = ys.jit(network)
    inputs = [ys.asarray(a) for a in (X, W, B)]
    for _ in range(2):
        np.testing.assert_allclose(fast(*inputs), network(*inputs), rtol=1e-12)
    slope = ys.jit(ys.grad(lambda x: (network(x, *inputs[1:]) ** 2).sum()))
    np.testing.assert_allclose(slope(inputs[0]), ys.grad(lambda x: (network(x, *inputs[1:]) ** 2).sum())(inputs[0]))
    assert float(ys.jit(ys.nn.gelu)(1.0)) == pytest.approx(0.8413447460685429)
    assert ys.jit(lambda x, s: x * ys.nn.sigmoid(s))(ys.ones((2,), dtype=ys.float32), 0.0).dtype is ys.float32


def test_an_attribute_that_is_traced_is_told():
    with pytest.raises(ys.errors.TraceError, match="static_argnames"):
        ys.jit(lambda x, slope: ys.nn.leaky_relu(x, slope))(ys.asarray(X), 0.1)
    with pytest.raises(ys.errors.TraceError, match="static_argnames"):
        ys.jit(lambda x, rate: ys.nn.dropout(x, rate))(ys.asarray(X), 0.1)


# Devices that have a version of their own


class Native(FakeDevice):
    """Computes softmax by a kernel of its own."""

    calls = 0

    def compile(self, region):
        if str(region) != "softmax":
            return super().compile(region)
        self.compiled.append("softmax")
        (call,) = region.calls

        def kernel(x):
            self.before_run(region)
            self.calls += 1
            powers = np.exp(x.array - x.array.max(axis=call.attrs["axis"], keepdims=True))
            return (self.allocated(powers / powers.sum(axis=call.attrs["axis"], keepdims=True)),)

        return kernel


def program(x):
    return ys.nn.softmax(ys.tanh(x) * 2) @ x.T


def expected():
    with ys.options(device="cpu"):
        return program(ys.asarray(X)).numpy()


def test_a_device_takes_a_composite_whole():
    device = Native(natives=SOFTMAX)
    with installed(device) as name, ys.options(device=name):
        y = program(ys.asarray(X))
        assert "softmax" in ops_of(y)
        assert "exp" not in ops_of(y)
        np.testing.assert_allclose(y.numpy(), expected(), rtol=1e-12)
        np.testing.assert_allclose(ys.jit(program)(ys.asarray(X)), expected(), rtol=1e-12)
    assert device.calls == 2


def test_one_inside_another_is_taken_too():
    device = Native(natives=SOFTMAX)
    with installed(device) as name, ys.options(device=name):
        scores = ys.nn.attention_scores(ys.asarray(X), ys.asarray(X))
        assert sorted(ops_of(scores)) == ["matmul", "multiply", "permute_dims", "softmax"]
        ys.eval(scores)
    assert device.calls == 1


def test_the_gradient_of_one_that_is_taken_whole():
    device = Native(natives=SOFTMAX | {"gelu"})

    def loss(x):
        return (ys.nn.softmax(ys.nn.gelu(x)) * ys.asarray(W[:, :30].sum(0))).sum()

    with ys.options(device="cpu"):
        slope = ys.grad(loss)(ys.asarray(X)).numpy()
    with installed(device) as name, ys.options(device=name):
        value, made = ys.value_and_grad(loss)(ys.asarray(X))
        assert {"softmax", "gelu"} <= set(ops_of(value, made))
        np.testing.assert_allclose(made.numpy(), slope, rtol=1e-12, atol=1e-15)


def test_a_device_that_lacks_the_dtype_gets_it_neither_whole_nor_in_parts():
    device = FakeDevice(dtypes=frozenset({ys.float32}), natives=SOFTMAX)
    with installed(device) as name, ys.options(device=name):
        assert "softmax" not in ops_of(ys.nn.softmax(ys.asarray(X)))
        assert ops_of(ys.nn.softmax(ys.asarray(X).astype(ys.float32)))[-1] == "softmax"


def test_a_device_that_has_it_not_is_passed_over():
    first, second = FakeDevice(), Native(natives=SOFTMAX)
    with installed(first, second) as name, ys.options(device=name):
        y = ys.nn.softmax(ys.asarray(X))
        assert f"not on {first.name}: it has no softmax of its own" in str(ys.explain(y))
        ys.eval(y)
    assert (first.runs, second.calls) == (0, 1)


def test_one_that_was_left_whole_for_nobody_comes_in_parts():
    """A device that has it may yet get nothing: to the others it is what it is made of."""
    picky, other = ModelCompiler(natives=frozenset({"elu"}), launch=1.0), FakeDevice()
    big = ys.asarray(RNG.normal(size=(400, 400)))
    with installed(picky, other), ys.options(device="auto"):
        steps = ys.explain(ys.nn.elu(big)).to_json()["steps"]
    assert {step["device"] for step in steps} == {other.name}
    assert [op for step in steps for op in step["ops"]] == ["greater", "where", "expm1", "where"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompilerFails("softmax", natives=SOFTMAX),
        lambda: DiesAfter(1, natives=SOFTMAX),
        lambda: OutOfMemoryAt(12_000, natives=SOFTMAX),
        lambda: FailsAtRandom(np.random.default_rng(1), 1.0, natives=SOFTMAX),
    ],
)
def test_when_it_fails_the_host_takes_it_whole(make):
    device = make()
    with installed(device) as name, ys.options(device=name):
        y = program(ys.asarray(X))
        np.testing.assert_allclose(y.numpy(), expected(), rtol=1e-12)
        assert any(r.device == "cpu" and "softmax" in r.ops for r in trace.records)
        np.testing.assert_allclose(ys.jit(program)(ys.asarray(X)), expected(), rtol=1e-12)


def test_users_are_told_of_the_fallback():
    with installed(CompilerFails("softmax", natives=SOFTMAX)) as name:
        with ys.options(device=name, on_fallback="error"), pytest.raises(CompileFailure):
            program(ys.asarray(X)).numpy()
        with ys.options(device=name, on_fallback="warn"), pytest.warns(FallbackWarning, match="softmax ran on cpu"):
            program(ys.asarray(X)).numpy()


def test_a_part_that_is_computed_anyway_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention's gradient needs the scores: where it is decomposed, attention is too, and both share them."""
    q, k, v, g = (ys.asarray(np.ones((2, 3, 4), np.float32)) for _ in range(4))
    grads = ys.grad(lambda q, k, v: ys.sum(ys.nn.scaled_dot_product_attention(q, k, v) * g), argnums=(0, 1, 2))(q, k, v)
    graph = graph_of(capture([t._node for t in (ys.nn.scaled_dot_product_attention(q, k, v), *grads)])[0])

    def composites(*taken: str) -> list[str]:
        monkeypatch.setattr("yosegi._graph.expand.is_taken_whole", lambda call, *_: call.op.name in taken)
        made = simplify(expand(graph, ()))
        return [call.op.name for call in made.calls if call.op.decomposition is not None]

    assert composites("scaled_dot_product_attention", "attention_scores") == ["attention_scores"]
    both = "attention_gradient", "scaled_dot_product_attention"
    assert sorted(composites(*both, "attention_scores")) == list(both)
