"""Fourier transforms by cuFFT: the steps they are made of, and their recordings, with NumPy in cuFFT's place."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes.host_queue import HostQueue, Plan
from opencl_regions import regions
from values import Array
from yosegi._graph.reference import bind
from yosegi._tensor.node import Call
from yosegi.devices.cuda import fourier
from yosegi.devices.cuda.fourier import FourierPass, Ordered, Scaled, compile_transform, is_transform, steps_of
from yosegi.devices.cuda.replay import Replayed

RNG = np.random.default_rng(8)


def computed(call: Call, x: Array) -> Array:
    """A transform by its steps."""
    value = x
    for step in steps_of(call):
        if isinstance(step, Ordered):
            assert value.shape == step.shape
            value = np.ascontiguousarray(value.transpose(step.order))
        elif isinstance(step, FourierPass):
            distances = (1, 1) if step.stride > 1 else (np.prod(step.given), np.prod(step.made))
            plan = Plan(step.sizes, step.given, step.stride, distances[0], step.made, step.stride, distances[1],
                        step.kind, step.batch)  # fmt: skip
            value = plan.transformed(value, step.is_inverse).reshape(step.shape)
        else:
            assert value.size == step.size
            value = value * step.factor
    return value


PROGRAMS: list[Any] = [
    *[partial(f, axis=a, norm=n) for f in (ys.fft.fft, ys.fft.ifft, ys.fft.irfft, ys.fft.hfft)
      for a, n in ((0, "backward"), (1, "ortho"), (-1, "forward"))],
    *[partial(ys.fft.irfft, n=n, axis=a) for n in (5, 8) for a in (0, 1, 2)],
    *[partial(f, axes=axes) for f in (ys.fft.fftn, ys.fft.ifftn)
      for axes in (None, (0, 1), (1, 2), (2, 0), (1,), (3, 1), (1, 2, 3), (0, 2, 3))],
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_steps_are_the_reference(program: Any, dtype: Any) -> None:
    x = (RNG.normal(size=(4, 3, 6, 5)) + 1j * RNG.normal(size=(4, 3, 6, 5))).astype(dtype)
    _checked(program, x)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("axis", range(3))
def test_steps_of_real_numbers(axis: int, norm: str) -> None:
    x = RNG.normal(size=(4, 7, 6))
    for given in (x, x.astype(np.float32)):
        _checked(partial(ys.fft.rfft, axis=axis, norm=norm), given)
        _checked(partial(ys.fft.rfft, axis=axis, norm=norm), given[:1, :, :1])


def _checked(program: Any, x: Array) -> None:
    calls = [call for region in regions(program(ys.asarray(x))) for call in region.calls if is_transform(call)]
    for call in calls:  # of several, each has an input of its own
        shape, dtype = call.inputs[0].shape, call.inputs[0].dtype.numpy
        given = x if shape == x.shape else RNG.normal(size=shape).astype(dtype)
        given = given.astype(dtype)
        got, expected = computed(call, given), bind(call)(given)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert calls


def test_an_axis_at_either_end_is_not_moved() -> None:
    x = ys.asarray(RNG.normal(size=(4, 3, 6)) + 0j)
    for axis, kinds in ((0, [FourierPass]), (1, [Ordered, FourierPass, Ordered]), (2, [FourierPass])):
        (region,) = regions(ys.fft.fft(x, axis=axis))
        assert [type(step) for step in steps_of(region.calls[-1])] == kinds
    (region,) = regions(ys.fft.ifftn(x))
    (whole, scaled) = steps_of(region.calls[-1])
    assert isinstance(whole, FourierPass)
    assert whole.sizes == (4, 3, 6)
    assert scaled == Scaled(1 / 72, 72)


def test_what_is_overwritten_is_a_copy() -> None:
    """cuFFT writes into the spectrum that it makes real numbers of."""
    for axis in (0, 1):
        (region,) = regions(ys.fft.irfft(ys.asarray(RNG.normal(size=(4, 6)) + 0j), axis=axis))
        assert isinstance(steps_of(region.calls[-1])[0], Ordered)


def test_a_transform_is_recorded_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = HostQueue()
    streams: list[int] = []
    monkeypatch.setattr(fourier, "_set_stream", lambda: lambda handle, stream: streams.append(stream))
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    (first,) = regions(ys.fft.rfft(ys.asarray(x)))
    (second,) = regions(ys.fft.fft(ys.asarray(np.zeros((4, 4), np.complex64)), axis=0))
    half, other = (compile_transform(region, queue, lambda loop: pytest.fail("no loop")) for region in (first, second))
    kernel = Replayed(lambda d: other(*half(d)), queue, "half_spectrum+complex_transform")
    data = queue.memory.from_host(x)
    into = np.frombuffer((np.ctypeslib.ctypes.c_byte * x.nbytes).from_address(data.pointer), np.float32)
    for _ in range(10):
        into[...] = RNG.normal(size=24)
        got = queue.memory.to_host(kernel(data)[0])
        np.testing.assert_allclose(got, np.fft.fft(np.fft.rfft(into.reshape(4, 6)), axis=0), rtol=1e-4, atol=1e-4)
    assert queue.graphs
    assert len(streams) == 20
    assert len(queue.cupy.plans) == 2
