"""Ops by CUDA's libraries, with NumPy in CuPy's place: their bodies against the reference, and that no replay is
without them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes.host_queue import HostQueue
from opencl_regions import graph_and_leaves, regions
from samples import SAMPLES
from values import Array
from yosegi._graph.reference import bind, outputs_of
from yosegi._schedule.fuse import Region, fuse, join
from yosegi._tensor.op import REGISTRY
from yosegi.devices.cuda import device as cuda_device
from yosegi.devices.cuda.device import CUDADevice
from yosegi.devices.cuda.library_ops import BODIES, LibraryOps
from yosegi.devices.cuda.memory import Data
from yosegi.devices.cuda.replay import Replayed
from yosegi.errors import OutOfMemory

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def cupyx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(errstate=lambda linalg: nullcontext()))


@pytest.fixture
def queue() -> HostQueue:
    return HostQueue()


def as_tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def agree(got: Any, expected: Any) -> None:
    """The results are the same but for rounding, with NaN in the same places."""
    for ours, theirs in zip(as_tuple(got), as_tuple(expected), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape
        wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(ours.astype(wide), theirs.astype(wide), rtol=1e-4, atol=1e-4)


def both(name: str, *arrays: Any, **attrs: Any) -> tuple[Any, Any]:
    """A body's result, and the reference's."""
    call = REGISTRY[name]._node(tuple(map(ys.asarray, arrays)), attrs).call
    with np.errstate(all="ignore"):
        return BODIES[name](np, *arrays, **call.attrs), bind(call)(*arrays)


# Bodies


@pytest.mark.parametrize("name", BODIES)
def test_bodies_are_the_reference(name: str) -> None:
    for sample in SAMPLES[name]:
        agree(*both(name, *sample.arrays, **sample.attrs))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_nan_and_ties_are_in_the_order_of_the_reference(name: str, descending: bool) -> None:
    x = np.array([[3, np.nan, -0.0, 0.0, -np.inf, 3], [np.inf, 1, 1, np.nan, np.nan, 0]], np.float32)
    for axis in (0, 1):
        got, expected = both(name, x, axis=axis, descending=descending)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(np.nan_to_num(got)), np.signbit(np.nan_to_num(expected)))


class Radix(np.ndarray[Any, Any]):
    """An array that is sorted by its bits, as by Thrust: a NaN with a sign comes first there."""

    def sort(self, axis: Any = -1, kind: Any = None, **rest: Any) -> None:
        self[...] = np.take_along_axis(self, self.argsort(axis), axis)

    def argsort(self, axis: Any = -1, kind: Any = None, **rest: Any) -> Any:
        bits = np.asarray(self + np.float32(0)).view(np.int32)  # zeros of both signs are the same
        return np.argsort(np.where(bits < 0, ~bits ^ np.int32(-(2**31)), bits), axis, kind="stable")


class RadixSorting:
    """NumPy with such arrays."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def ascontiguousarray(self, x: Array) -> Any:
        return np.ascontiguousarray(x).view(Radix)

    def argsort(self, x: Array, **how: Any) -> Any:
        return self.ascontiguousarray(x).argsort(**how)

    def sort(self, x: Array) -> Any:
        made = self.ascontiguousarray(x)
        made.sort()
        return made


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_a_nan_with_a_sign_is_still_the_largest(name: str) -> None:
    x = np.array([2, -np.nan, 1, np.nan, -1], np.float32)
    assert np.signbit(x[1])
    _, expected = both(name, x)
    attrs = {"axis": 0, "descending": False}
    np.testing.assert_array_equal(BODIES[name](RadixSorting(), x, **attrs), expected)
    got = BODIES["isin"](RadixSorting(), x, x[:3], invert=False)
    np.testing.assert_array_equal(got, [True, False, True, False, False])


def a_stack(kind: Callable[[Array], Array]) -> Array:
    """Matrices, of which one in the middle and the last are special."""
    x = RNG.normal(size=(2, 3, 4, 4)).astype(np.float32)
    x = x @ x.mT + 4 * np.eye(4, dtype=np.float32)
    x[0, 1], x[1, 2] = kind(x[0, 1]), kind(x[1, 2])
    return x


def with_nan(x: Array) -> Array:
    return np.where(np.eye(4, dtype=bool), np.float32(np.nan), x)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("inv", np.zeros_like),
        ("cholesky", np.negative),
        ("cofactors", np.zeros_like),
        ("svd", with_nan),
        ("svdvals", lambda x: x / 0),
        ("eigh", with_nan),
        ("eigvalsh", with_nan),
        ("det", np.zeros_like),
        ("slogdet", np.zeros_like),
    ],
)
def test_a_matrix_that_fails_costs_no_other(name: str, kind: Any) -> None:
    with np.errstate(all="ignore"):
        x = a_stack(kind)
    attrs = {"full_matrices": True} if name == "svd" else {}
    for given in (x, x[0, 1]):
        agree(*both(name, given, **attrs))


def test_what_cannot_be_solved_is_nan_alone() -> None:
    x = a_stack(np.zeros_like)
    for sides in (RNG.normal(size=4), RNG.normal(size=(3, 4, 2)), RNG.normal(size=(2, 1, 4, 1))):
        got, expected = both("solve", x, sides.astype(np.float32))
        agree(got, expected)
        assert np.isnan(expected).any()
        assert not np.isnan(expected).all()


def test_a_factor_is_made_of_the_triangle_that_is_asked_for() -> None:
    x = a_stack(np.copy)
    x[..., 0, 3] += 1  # nobody looks at it for a lower factor
    for upper in (False, True):
        agree(*both("cholesky", x + 0j, upper=upper))


def test_a_factor_of_nan_is_nan_wherever_that_stands() -> None:
    """What LAPACK leaves of the rest depends on who made it."""
    x = a_stack(np.copy)
    x[0, 1, 3, 2] = np.nan
    got = BODIES["cholesky"](np, x, upper=False)
    assert np.isnan(got[0, 1]).all()
    assert not np.isnan(got[[0, 0, 1], [0, 2, 1]]).any()


# Calls on the device's memory


def call_on(queue: HostQueue, tensor: ys.Tensor) -> tuple[Any, Any]:
    """An op's result by the queue's libraries, and the reference's."""
    graph, leaves = graph_and_leaves(tensor)
    (region,) = [r for r in fuse(graph) if r.calls[-1].op.name in BODIES][-1:]
    arrays = [node.buffer.data for node in leaves]
    (made,) = LibraryOps(queue).compiled(region)(*[queue.memory.from_host(a) for a in arrays])
    expected = bind(region.calls[-1])(*arrays)
    got = tuple([queue.memory.to_host(d) for d in made]) if isinstance(made, tuple) else queue.memory.to_host(made)
    return got, expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_halves_are_computed_in_float32_and_rounded_once(queue: HostQueue, dtype: str) -> None:
    kind = getattr(ys, dtype)
    x = RNG.normal(size=(5, 5)).astype(kind.numpy)
    x[0, 0] = np.nan
    t = ys.asarray(x)
    for made in (ys.sort(t), ys.argsort(t, axis=0, descending=True), ys.isin(t, ys.asarray(x[0].copy()))):
        got, expected = call_on(queue, made)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(expected, np.float64))
    got, expected = call_on(queue, ys.linalg.solve(ys.asarray(x[1:, 1:]), ys.asarray(x[1:, 0])))
    assert got.dtype == expected.dtype == kind.numpy
    np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(expected, np.float64))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ys.sort(ys.asarray(np.zeros((0, 3)))),
        lambda: ys.linalg.svd(ys.asarray(np.zeros((2, 3, 0)))).U,
        lambda: ys.linalg.det(ys.asarray(np.zeros((2, 0, 0)))),
        lambda: ys.linalg.solve(ys.asarray(np.eye(3)), ys.asarray(np.zeros((3, 0)))),
    ],
)
def test_of_nothing_there_is_what_the_shapes_say(queue: HostQueue, make: Callable[[], ys.Tensor]) -> None:
    agree(*call_on(queue, make()))


def test_no_room_is_told_though_a_library_goes_on_without_it(queue: HostQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(xp: Any, x: Any, **attrs: Any) -> Any:
        assert queue.cupy.allocate is not None
        with pytest.raises(MemoryError):
            queue.cupy.allocate(1 << 40)
        return x

    monkeypatch.setitem(BODIES, "sort", careless)
    queue.memory.pool.limit = 1 << 20
    with pytest.raises(OutOfMemory):
        call_on(queue, ys.sort(ys.asarray(RNG.normal(size=9))))


def test_memory_on_the_way_is_the_pools_and_goes_back(queue: HostQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[int] = []

    def hungry(xp: Any, x: Any, **attrs: Any) -> Any:
        assert queue.cupy.allocate is not None
        held = queue.cupy.allocate(1 << 16)
        during.append(queue.memory.statistics().in_use)
        assert held.mem.size >= 1 << 16
        return x

    monkeypatch.setitem(BODIES, "sort", hungry)
    call_on(queue, ys.sort(ys.asarray(RNG.normal(size=9))))
    assert during[0] >= 1 << 16
    assert queue.memory.statistics().in_use < 1 << 16


# On a device whose kernels are reference bodies, in recordings and graphs


class RegionLaunch:
    """A region as one launch."""

    def __init__(self, region: Region, queue: HostQueue) -> None:
        self._region, self._queue = region, queue
        self.calls = 0

    def __call__(self, *data: Data) -> tuple[Data, ...]:
        self.calls += 1
        graph, memory = self._region.graph, self._queue.memory
        made = tuple([memory.new(graph.calls[o].spec.shape, graph.calls[o].spec.dtype) for o in self._region.outputs])
        self.at([d.pointer for d in (*data, *made)])
        self._queue.note(self, (*data, *made), len(made))
        return made

    def at(self, pointers: list[int]) -> None:
        graph = self._region.graph
        specs = [graph.calls[e].spec for e in (*self._region.inputs, *self._region.outputs)]
        seen = [self._queue.cupy.ndarray(s.shape, s.dtype.numpy, _at(p, s.nbytes))
                for s, p in zip(specs, pointers, strict=True)]  # fmt: skip
        inputs = len(self._region.inputs)
        for into, value in zip(seen[inputs:], outputs_of(self._region, seen[:inputs]), strict=True):
            into[...] = value


def _at(pointer: int, nbytes: int) -> Any:
    return SimpleNamespace(mem=SimpleNamespace(ptr=pointer, size=nbytes))


class HostGPU(CUDADevice):
    """A CUDA device on the host's memory."""

    def __init__(self, queue: HostQueue) -> None:
        self.name = self.space = "cuda:0"
        self.queue, self._memory = queue, queue.memory
        self._library_ops = LibraryOps(queue)
        self.launches: list[RegionLaunch] = []


@pytest.fixture
def gpu(queue: HostQueue, monkeypatch: pytest.MonkeyPatch) -> HostGPU:
    device = HostGPU(queue)
    device._products = device._fused = None  # type: ignore[assignment]

    def compiled(region: Region, queue: HostQueue, *rest: Any) -> Any:
        device.launches.append(RegionLaunch(region, queue))
        return device.launches[-1]

    monkeypatch.setattr(cuda_device, "compile_region", compiled)
    return device


def unit(*tensors: ys.Tensor) -> Region:
    """All of a program as one unit."""
    graph, _ = graph_and_leaves(*tensors)
    return join(fuse(graph), graph.outputs)


def spectrum(x: Any) -> Any:
    """A transform and a sort between loops and sums."""
    found = ys.fft.rfft(ys.exp(x) * 2 + ys.sum(x))
    return ys.sort(ys.real(found * ys.conj(found))) * 0.5 + ys.sum(x)


def test_no_replay_is_without_its_transform(gpu: HostGPU, queue: HostQueue) -> None:
    kernel = gpu.compile(unit(spectrum(ys.asarray(np.zeros((4, 16))))))
    data = queue.memory.new((4, 16), ys.float64)
    into = queue.cupy.ndarray(data.shape, np.float64, _at(data.pointer, data.nbytes))
    for _ in range(12):
        into[...] = RNG.normal(size=(4, 16))
        (made,) = kernel(data)
        power = np.abs(np.fft.rfft(np.exp(into) * 2 + into.sum())) ** 2
        np.testing.assert_allclose(gpu.to_host(made), np.sort(power) * 0.5 + into.sum(), rtol=1e-9)
    assert queue.graphs  # the loops are replayed all the same
    assert all(launch.calls <= 2 for launch in gpu.launches)


def test_a_recording_that_would_miss_a_call_is_not_kept(queue: HostQueue) -> None:
    """Were such a call inside a recording after all: it must notice."""
    x = ys.asarray(np.zeros(8))
    sort = LibraryOps(queue).compiled(regions(ys.sort(x))[0])
    before, after = (RegionLaunch(regions(made)[0], queue) for made in (x + 1, x * 2))
    kernel = Replayed(lambda d: after(*sort(*before(d))), queue, "add+sort+multiply")
    data = queue.memory.new((8,), ys.float64)
    into = queue.cupy.ndarray(data.shape, np.float64, _at(data.pointer, data.nbytes))
    for _ in range(8):
        into[...] = RNG.normal(size=8)
        np.testing.assert_allclose(queue.memory.to_host(kernel(data)[0]), np.sort(into + 1) * 2)
    assert not queue.graphs


def test_several_outputs_go_their_ways_and_to_the_host_and_back(gpu: HostGPU) -> None:
    a = RNG.normal(size=(3, 5, 4))
    u, s, vh = ys.linalg.svd(ys.asarray(a), full_matrices=False)
    graph, _ = graph_and_leaves(ys.sum(u * u), s * 2, vh + 0.5)
    kernel = gpu.compile(replace(join(fuse(graph), graph.outputs), outputs=graph.outputs[:3]))
    for _ in range(5):
        norm, doubled, more = map(gpu.to_host, kernel(gpu.from_host(a)))
        np.testing.assert_allclose(norm, 12)
        np.testing.assert_allclose(doubled, 2 * np.linalg.svd(a, compute_uv=False))
        np.testing.assert_allclose(more, np.linalg.svd(a, full_matrices=False)[2] + 0.5)
    alone = next(r for r in fuse(graph) if r.calls[-1].op.name == "svd")
    (made,) = gpu.compile(alone)(gpu.from_host(a))
    back = gpu.to_host(gpu.from_host(gpu.to_host(made)))
    np.testing.assert_allclose((back[0] * back[1][:, None]) @ back[2], a)


def test_what_a_device_says_of_ops_by_libraries() -> None:
    ops = LibraryOps(HostQueue())
    x = ys.asarray(np.eye(3))
    (region, *_) = regions(ys.linalg.eigvals(x))
    assert ops.takes(region)
    assert "cuSOLVER" in str(ops.refusal(region))
    (region, *_) = regions(ys.linalg.inv(x))
    assert ops.refusal(region) is None
    assert not ops.takes(regions(x + 1)[0])
