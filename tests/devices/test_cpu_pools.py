"""Pools on the CPU by generated code, against their reference bodies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import yosegi as ys
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.reference import bind
from yosegi._run.device import device_named
from yosegi._tensor.dtype import bfloat16, float16, float32, float64, int8, uint16
from yosegi._tensor.node import spec
from yosegi.devices.cpu import pools
from yosegi.devices.cpu.pools import PoolCall, Pools
from yosegi.errors import NotReady
from yosegi.ops.pool import max_pool, max_pool_gradient

FLOATS = (float32, float64, float16, bfloat16)


@pytest.fixture(scope="module")
def owner():
    natives = device_named("cpu").natives
    if natives.runtime is None:
        pytest.skip(natives.reason)
    return Pools(natives.runtime, natives.results)


@st.composite
def cases(draw, dtypes):
    rank = draw(st.integers(1, 3))
    numbers = st.integers(1, 4)
    kernel = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    stride = tuple(draw(numbers) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple((draw(st.integers(0, e // 2)), draw(st.integers(0, e // 2))) for e in extents)
    lengths = tuple(max(1, e - sum(p)) + draw(st.integers(0, 40 if n == rank - 1 else 4))
                    for n, (e, p) in enumerate(zip(extents, padding, strict=True)))  # fmt: skip
    attrs = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), *lengths)
    return shape, draw(st.sampled_from(dtypes)), attrs, draw(st.integers(0, 1 << 30))


def expected_of(call, *arrays):
    """The result of the reference body, without NumPy's warnings about NaN."""
    with np.errstate(all="ignore"):
        return bind(call)(*arrays)


def drawn(rng, shape, dtype, *, few):
    """Numbers, of which many are equal, and some special."""
    if dtype.is_integer:
        return rng.integers(0, 50, shape).astype(dtype.numpy)
    made = rng.integers(-3, 3, shape) if few else rng.normal(size=shape)
    made = np.asarray(made, np.float64)
    made[rng.random(shape) < 0.03] = rng.choice([np.nan, np.inf, -np.inf])
    return made.astype(dtype.numpy)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases((*FLOATS, int8, uint16)), st.booleans())
def test_the_largest_element(owner, case, few):
    shape, dtype, attrs, seed = case
    call = max_pool.call((spec(shape, dtype),), attrs)
    x = drawn(np.random.default_rng(seed), shape, dtype, few=few)
    np.testing.assert_array_equal(PoolCall(owner, call, 1 << 20)(x), expected_of(call, x))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases(FLOATS), st.booleans())
def test_the_gradient(owner, case, few):
    shape, dtype, attrs, seed = case
    rng = np.random.default_rng(seed)
    forward = max_pool.call((spec(shape, dtype),), attrs)
    x = drawn(rng, shape, dtype, few=few)
    out = expected_of(forward, x)
    g = rng.normal(size=out.shape).astype(dtype.numpy)
    call = max_pool_gradient.call((forward.inputs[0], forward.spec, forward.spec), attrs)
    made, expected = PoolCall(owner, call, 1 << 20)(x, out, g), expected_of(call, x, out, g)
    eps = float(ys.finfo(dtype).eps)
    np.testing.assert_allclose(made.astype(np.float64), expected.astype(np.float64), rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("view", [lambda x: x[::2, :, 1:-1], lambda x: x[..., ::2], lambda x: x.transpose(1, 0, 3, 2)])
def test_inputs_that_are_not_contiguous(owner, view):
    x = view(np.random.default_rng(0).normal(size=(4, 6, 20, 22)).astype(np.float32))
    attrs = {"kernel_size": (3, 3), "stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
    call = max_pool.call((spec(x.shape, float32),), attrs)
    np.testing.assert_array_equal(PoolCall(owner, call, 1 << 20)(x), expected_of(call, x))


def test_a_pool_that_may_not_be_compiled_yet_is_compiled_later(owner, monkeypatch):
    x = ys.asarray(np.ones((8, 4, 32, 32), np.float32))
    graph = graph_of(capture([ys.nn.max_pool2d(x, 2)._node])[0])

    def not_now(*arguments):
        raise NotReady("nothing may be compiled now")

    with monkeypatch.context() as patch:
        patch.setattr(owner.runtime.compiler, "load", not_now)
        with pytest.raises(NotReady):
            owner.body(graph, graph.outputs[0])
    assert isinstance(owner.body(graph, graph.outputs[0]), PoolCall)


def test_programs_use_generated_pools(monkeypatch):
    monkeypatch.setattr(pools, "_POLICY", replace(pools._POLICY, numpy_elements=1))
    ran = []
    call = PoolCall.__call__
    monkeypatch.setattr(PoolCall, "__call__", lambda self, *arrays: (ran.append(self), call(self, *arrays))[-1])
    x = ys.asarray(np.random.default_rng(0).normal(size=(8, 4, 32, 32)).astype(np.float32))
    slope = ys.jit(ys.grad(lambda x: (ys.nn.max_pool2d(x, 3, 2, 1) ** 2).sum()))
    with ys.options(device="cpu", on_fallback="error"):
        made = [slope(x).numpy() for _ in range(4)]
    if device_named("cpu").natives.runtime is not None:
        assert len(ran) >= 2
    np.testing.assert_allclose(made[-1], made[0], rtol=1e-6)
