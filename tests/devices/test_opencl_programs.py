"""Ops with kernels of their own on the OpenCL device: against the reference, in memory full of garbage."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from opencl_regions import DEVICE, numbers, regions, run
from program_cases import BAD, ELEMENTS, INDEXING, RNG, SCANS, SEARCHES, array, call
from program_code import expected
from values import same
from yosegi._run.device import Absent
from yosegi._tensor.dtype import ALL, bool_
from yosegi.codegen.c.dialect import Target
from yosegi.devices.kernel.qualification import difference_of, inputs_for
from yosegi.errors import IndexingError
from yosegi.ops.index import gather, scatter, scatter_add

pytestmark = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))
ALL_CASES: dict[str, Callable[[], ys.Tensor]] = {**INDEXING, **SEARCHES, **ELEMENTS}
SOME = settings(max_examples=30, deadline=None)  # each may compile a kernel


@pytest.mark.parametrize("name", ALL_CASES)
def test_cases(name: str) -> None:
    tensor = ALL_CASES[name]()
    same(run(tensor)[0], expected(tensor))


@pytest.mark.parametrize(("name", "shape", "axis", "initial"), SCANS)
def test_scans(name: str, shape: tuple[int, ...], axis: int, initial: bool) -> None:
    tensor = call(name, RNG.integers(-3, 4, shape), axis=axis, include_initial=initial)
    same(run(tensor)[0], expected(tensor))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_every_dtype(dtype: Any) -> None:
    x, i, value = array(5, 7, dtype=dtype), ys.asarray(np.array([3, -1, 0, 3, 2, -2])), array(6, 7, dtype=dtype)
    for tensor in (gather(x, i, axes=(0,), at=0), scatter(x, value, i, axes=(0,), at=0)):
        same(run(tensor)[0], expected(tensor))
    added = scatter_add(x, value, i, axes=(0,), at=0)
    same(run(added)[0], expected(added), ulps=8)
    scanned = call("cumulative_sum", numbers(dtype, 2, 70), axis=1, dtype=dtype)
    same(run(scanned)[0], expected(scanned), ulps=64)
    if not dtype.is_complex:
        found = call("argmax", RNG.integers(0, 2 if dtype is bool_ else 100, (3, 90)).astype(dtype.numpy), axis=1)
        same(run(found)[0], expected(found))


@pytest.mark.parametrize("name", BAD)
def test_indices_out_of_range_raise_when_the_result_is_read(name: str) -> None:
    tensor, text = BAD[name]()
    with pytest.raises(IndexingError, match=text):
        run(tensor)
    (region,) = regions(tensor)
    DEVICE.compile(region)(*[DEVICE.from_host(n.buffer.data) for n in tensor._node.inputs])
    with pytest.raises(IndexingError, match=text):
        DEVICE.synchronize()
    DEVICE.synchronize()  # the mistake is known


def test_a_wrong_result_raises_whenever_it_is_read_and_nothing_else_does() -> None:
    x, bad = ys.asarray(np.arange(5.0, dtype=np.float32)), ys.asarray(np.array([1, 5]))
    with ys.options(device=DEVICE.name, on_fallback="error"):
        earlier = ys.take(x, ys.asarray(np.array([0, 4])))
        assert earlier.tolist() == [0.0, 4.0]
        wrong, other = gather(x, bad, axes=(0,), at=0), x + 1
        ys.eval(wrong)
        ys.eval(other)
        derived = wrong * 2
        ys.eval(derived)
        assert other.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        for tensor in (wrong, derived, wrong, wrong - 1, ys.sum(wrong)):
            with pytest.raises(IndexingError, match="got 5"):
                tensor.numpy()
        later = ys.take(x, ys.asarray(np.array([3])))
        assert (later.tolist(), (earlier + 1).tolist()) == ([3.0], [1.0, 5.0])


def test_a_wrong_result_raises_in_the_thread_that_reads_it() -> None:
    x = ys.asarray(np.arange(5.0, dtype=np.float32))
    good, stop = ys.asarray(np.array([1, 2])), Event()

    def reads() -> int:
        count = 0
        while not stop.is_set():
            assert (x * 3).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0]
            count += 1
        return count

    def run_in_options(work: Any) -> Any:
        with ys.options(device=DEVICE.name, on_fallback="error"):
            return work()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run_in_options, reads)
        try:
            for n in range(50):
                with ys.options(device=DEVICE.name, on_fallback="error"):
                    with pytest.raises(IndexingError, match=f"got {5 + n}"):
                        gather(x, ys.asarray(np.array([0, 5 + n])), axes=(0,), at=0).numpy()
                    assert gather(x, good, axes=(0,), at=0).tolist() == [1.0, 2.0]
        finally:
            stop.set()
        assert other.result() > 0


@pytest.mark.parametrize("name", ALL_CASES)
def test_cases_as_a_gpu_gets_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEVICE.queue, "target", Target(group=64, cooperating=64, units=64))
    tensor = ALL_CASES[name]()
    same(run(tensor)[0], expected(tensor))


def test_a_traced_program_raises_as_on_the_host() -> None:
    lookup = ys.jit(lambda x, i: ys.take(x, i, axis=0) * 2)
    x, good, bad = ys.asarray(np.ones((5, 3), np.float32)), ys.asarray([1, 2]), ys.asarray([1, 5])
    with ys.options(device=DEVICE.name, on_fallback="error"):
        assert lookup(x, good).numpy().sum() == 12
        with pytest.raises(IndexingError, match=r"\[take\] expected indices from -5 to 4 .* got 5"):
            lookup(x, bad).numpy()
        assert lookup(x, good).numpy().sum() == 12


@st.composite
def indexed(draw: Any) -> tuple[Any, ...]:
    """An array, axes of it, indices for these, and where their dimensions stand."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    counts = tuple(draw(st.lists(st.integers(0, 5), max_size=2)))
    dtype = draw(st.sampled_from([np.int8, np.int32, np.int64, np.uint16]))
    low = 0 if dtype is np.uint16 else -1
    places = [RNG.integers(low * shape[a], shape[a], counts).astype(dtype) for a in axes]
    return shape, axes, places, draw(st.integers(0, len(shape) - len(axes)))


@SOME
@given(indexed())
def test_any_indexing(case: tuple[Any, ...]) -> None:
    shape, axes, places, at = case
    x, i = array(*shape), [ys.asarray(p) for p in places]
    read = gather(x, *i, axes=axes, at=at)
    same(run(read)[0], expected(read))
    value = array(*read.shape)
    for op in (scatter, scatter_add):
        made = op(x, value, *i, axes=axes, at=at)
        same(run(made)[0], expected(made))


@SOME
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_any_search_and_scan(shape: list[int], data: Any) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    values = RNG.integers(-3, 4, shape)
    floats = np.where(RNG.random(shape) < 0.05, np.nan, values)
    for name in ("argmax", "argmin"):
        tensor = call(name, floats, axis=data.draw(st.sampled_from([axis, None])))
        same(run(tensor)[0], expected(tensor))
    scanned = call("cumulative_sum", values, axis=axis, include_initial=data.draw(st.booleans()))
    same(run(scanned)[0], expected(scanned))


def test_the_same_bits_in_every_run() -> None:
    x, value = ys.asarray(np.zeros((50, 7), np.float32)), ys.asarray(RNG.normal(size=(900, 7)).astype(np.float32))
    made = scatter_add(x, value, ys.asarray(RNG.integers(0, 50, 900)), axes=(0,), at=0)
    first = run(made)[0].tobytes()
    assert all(run(made)[0].tobytes() == first for _ in range(5))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_of_nothing(shape: tuple[int, ...]) -> None:
    x = ys.asarray(np.zeros(shape, np.float32))
    none = ys.asarray(np.zeros((0,), np.int64))
    axis = shape.index(0)
    cases = [gather(x, none, axes=(0,), at=0), scatter(x, array(), none, axes=(0,), at=0),
             scatter_add(x, array(), none, axes=(0,), at=0), call("cumulative_sum", x, axis=axis)]  # fmt: skip
    if shape[-1:] != (3,) and len(shape) > 1:
        cases.append(call("argmax", x, axis=0))
    for tensor in cases:
        same(run(tensor)[0], expected(tensor))


def test_a_driver_is_proved_with_indices_that_are_in_range() -> None:
    x, i = array(2, 3), ys.asarray(np.array([1, 0, 1]))
    for tensor in (gather(x, i, axes=(0,), at=0), scatter_add(x, array(), i, axes=(0,), at=0)):
        (region,) = regions(tensor)
        assert difference_of(DEVICE, region, inputs_for(region), {"": partial(DEVICE.compile, region)}) is None
