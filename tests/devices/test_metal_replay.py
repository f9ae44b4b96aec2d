"""Replays and binary archives of the Metal device, over a double of Metal's objects: see `fakes/apple/Metal.py`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import apple_doubles
import yosegi as ys
from device_regions import join_of, numbers
from values import Array
from yosegi._tensor.dtype import float32
from yosegi.devices.metal.replay import Replayed
from yosegi.errors import IndexingError
from yosegi.extend import installed

pytestmark = pytest.mark.skipif(apple_doubles.NO_METAL is not None, reason=str(apple_doubles.NO_METAL))


@pytest.fixture
def double() -> Iterator[Any]:
    """The module `Metal`, as a test found it."""
    module = apple_doubles.metal_double()
    yield module
    module.failing = lambda what: None
    module.detects_races = False
    module.families = {1006, 1007, 1009}


def step(x: Any, w: Any, b: Any) -> list[ys.Tensor]:
    """Several kernels, some of which do not wait for each other, with reductions of long rows on the way."""
    h = ys.tanh(x @ w + b)
    total = ys.sum(h * h)
    return [h - total * 0.5, ys.cumulative_sum(ys.max(h, axis=0)), ys.cumulative_sum(ys.min(h, axis=0)), h]


def expected(x: Array, w: Array, b: Array) -> list[Array]:
    X, W, B = (a.astype(np.float64) for a in (x, w, b))
    h = np.tanh(X @ W + B)
    return [h - (h * h).sum() * 0.5, np.cumsum(h.max(0)), np.cumsum(h.min(0)), h]


def arrays() -> list[Array]:
    return [numbers(float32, 70, 33) / 16, numbers(float32, 33, 100) / 16, numbers(float32, 100)]


def compiled(device: Any, given: list[Array]) -> Any:
    region = join_of(*step(*map(ys.asarray, given)))
    assert device.supports(region) is None
    return device.compile(region)


def close(device: Any, made: Any, given: list[Array]) -> None:
    """A region has its outputs in the order of its calls: here the last comes first."""
    for got, wide in zip(made, expected(*given)[::-1], strict=True):
        np.testing.assert_allclose(device.to_host(got), wide, rtol=2e-5, atol=2e-5)


def selectors(double: Any, run: Any) -> dict[str, int]:
    """The calls of encoders that a run makes."""
    before = double.selectors.copy()
    run()
    return dict(double.selectors - before)


def test_a_replay_encodes_nothing(double: Any) -> None:
    """With the same buffers a run is one command, however many kernels it has."""
    device, given = apple_doubles.metal_device(garbage=False), arrays()
    kernel, data = compiled(device, given), [device.from_host(a) for a in given]
    counts = []
    for _ in range(8):
        counts.append(selectors(double, lambda: close(device, kernel(*data), given)))
        gc.collect()
    kernels = counts[0]["dispatchThreadgroups"]
    assert kernels >= 5
    assert counts[-1] == counts[-2] == {"useResources": 1, "executeCommandsInBuffer": 1}
    assert kernel.launched == f"one launch of {kernels} kernels"


def test_gpus_before_the_m3_are_shown_the_pipelines(double: Any) -> None:
    double.families = {1006, 1007}
    device, given = apple_doubles.metal_device(garbage=False), arrays()
    kernel, data = compiled(device, given), [device.from_host(a) for a in given]
    for _ in range(8):
        counts = selectors(double, lambda: close(device, kernel(*data), given))
    assert counts["executeCommandsInBuffer"] == 1
    assert "setBuffer" not in counts


def test_a_jitted_step_is_replayed(double: Any) -> None:
    """A loop whose results are its next inputs has two sets of buffers."""
    device = apple_doubles.metal_device(garbage=False)
    x, w, b = arrays()

    @ys.jit
    def loop(x: ys.Tensor, w: ys.Tensor, b: ys.Tensor) -> tuple[ys.Tensor, ys.Tensor]:
        h = ys.tanh(x @ w + b)
        return x - ys.matrix_transpose(w @ ys.matrix_transpose(h)) / 100, ys.sum(h * h)

    with installed(device) as chain, ys.options(device=chain, on_fallback="error"):
        state, ww, bb = map(ys.asarray, (x, w, b))
        wide = x.astype(np.float64)
        for _ in range(14):
            before = double.selectors.copy()
            state, total = loop(state, ww, bb)
            h = np.tanh(wide @ w.astype(np.float64) + b)
            wide = wide - h @ w.astype(np.float64).T / 100
            assert abs(float(total) - (h * h).sum()) <= 1e-5 * (h * h).sum()
            counts = dict(double.selectors - before)
        np.testing.assert_allclose(state.numpy(), wide, rtol=1e-4, atol=1e-5)
    assert counts == {"useResources": 1, "executeCommandsInBuffer": 1}


def test_other_buffers_are_other_results(double: Any) -> None:
    device = apple_doubles.metal_device()  # its pool hands out garbage
    kernel = compiled(device, arrays())
    kept = []
    for _ in range(12):
        given = arrays()
        kept.append((kernel(*[device.from_host(a) for a in given]), given))
    for made, given in kept:
        close(device, made, given)


def test_results_that_are_kept_are_not_overwritten(double: Any) -> None:
    device, given = apple_doubles.metal_device(), arrays()
    kernel, data = compiled(device, given), [device.from_host(a) for a in given]
    kept = [kernel(*data) for _ in range(6)]
    for made in kept:
        close(device, made, given)
    assert len({made[0].buffer.address for made in kept}) == 6


def test_inputs_that_were_the_same_memory(double: Any) -> None:
    device, a = apple_doubles.metal_device(), numbers(float32, 40, 40) / 16
    region = join_of(ys.cumulative_sum(ys.asarray(a) @ ys.asarray(a.copy()), axis=1))
    kernel, same, other = device.compile(region), device.from_host(a), device.from_host(a * 2)
    wide = np.cumsum(a.astype(np.float64) @ a.astype(np.float64), axis=1)
    for _ in range(5):
        np.testing.assert_allclose(device.to_host(kernel(same, same)[0]), wide, rtol=1e-4)
    np.testing.assert_allclose(device.to_host(kernel(same, other)[0]), 2 * wide, rtol=1e-4)


def test_products_of_the_library_are_part_of_a_replay(double: Any) -> None:
    device, shaders = apple_doubles.metal_device(garbage=False), apple_doubles.shaders_double()
    a = numbers(float32, 33, 33) / 16
    x, data = ys.asarray(a), device.from_host(a)
    variants = device.variants(join_of(ys.tanh(x) @ x))
    kernel = Replayed(variants["library"](), device._queue)
    wide = np.tanh(a.astype(np.float64)) @ a.astype(np.float64)
    for _ in range(6):
        encoded = shaders.encoded
        counts = selectors(double, lambda: np.testing.assert_allclose(device.to_host(kernel(data)[0]), wide, rtol=1e-4))
        gc.collect()
        assert shaders.encoded == encoded + 1
    assert counts == {"useResources": 1, "executeCommandsInBuffer": 1}


def test_an_index_out_of_range_is_found_in_a_replay(double: Any) -> None:
    device, a = apple_doubles.metal_device(), numbers(float32, 5, 3)
    rows = np.array([0, 3])
    region = join_of(ys.cumulative_sum(ys.take(ys.asarray(a), ys.asarray(rows), axis=0), axis=1))
    kernel, data = device.compile(region), device.from_host(a)
    good, bad = device.from_host(rows), device.from_host(np.array([0, 7]))
    for _ in range(5):
        np.testing.assert_allclose(device.to_host(kernel(data, good)[0]), np.cumsum(a[rows], axis=1), rtol=1e-5)
    with pytest.raises(IndexingError, match="7"):
        device.to_host(kernel(data, bad)[0])
    np.testing.assert_allclose(device.to_host(kernel(data, good)[0]), np.cumsum(a[rows], axis=1), rtol=1e-5)


def test_two_threads_replay(double: Any) -> None:
    device, given = apple_doubles.metal_device(garbage=False), arrays()
    kernel = compiled(device, given)
    wrong: list[BaseException] = []

    def run(seed: int) -> None:
        own = [given[0] * (1 + seed), *given[1:]]
        data = [device.from_host(a) for a in own]
        try:
            for _ in range(12):
                close(device, kernel(*data), own)
        except BaseException as error:
            wrong.append(error)

    threads = [Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_recordings_give_their_memory_back(double: Any) -> None:
    device, given = apple_doubles.metal_device(garbage=False), arrays()
    kernel, data = compiled(device, given), [device.from_host(a) for a in given]
    for _ in range(5):
        close(device, kernel(*data), given)
    gc.collect()
    held = device.statistics()["in_use"]
    assert held > 0
    device.trim()
    gc.collect()
    assert device.statistics()["in_use"] < held
    close(device, kernel(*data), given)


def test_no_object_is_leaked_by_replays(double: Any) -> None:
    device, given = apple_doubles.metal_device(garbage=False), arrays()
    kernel, data = compiled(device, given), [device.from_host(a) for a in given]
    for _ in range(5):
        kernel(*data)
    device.synchronize()
    gc.collect()
    before = double.LIVE.copy()
    for _ in range(50):
        kernel(*data)
    device.synchronize()
    gc.collect()
    assert dict(double.LIVE - before) == {}


@pytest.mark.parametrize("what", ["buffer", "command"])
def test_the_runtime_survives(what: str, double: Any) -> None:
    device, given = apple_doubles.metal_device(), arrays()
    function, countdown = ys.jit(step), iter(range(10**6))
    with installed(device) as chain, ys.options(device=chain):
        for n in range(12):
            if n > 5:
                double.failing = lambda at: "it failed" if at == what and next(countdown) % 3 == 2 else None
            made = function(*map(ys.asarray, given))
            for got, wide in zip(made, expected(*given), strict=True):
                np.testing.assert_allclose(got.numpy(), wide, rtol=2e-5, atol=2e-5)


def test_the_double_refuses_what_metal_refuses(double: Any) -> None:
    gpu = double.MTLCreateSystemDefaultDevice()
    descriptor = double.MTLIndirectCommandBufferDescriptor.alloc().init()
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    descriptor.setMaxKernelBufferBindCount_(2)
    made = gpu.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(descriptor, 1, 0)
    command = made.indirectComputeCommandAtIndex_(0)
    with pytest.raises(AssertionError, match="more buffers"):
        command.setKernelBuffer_offset_atIndex_(double.MTLBuffer(64), 0, 2)
    with pytest.raises(AssertionError, match="another type"):
        command.concurrentDispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    made.pending = 1
    with pytest.raises(AssertionError, match="may be executing"):
        command.setBarrier()


# Archives -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return tmp_path / "programs"


def translated(double: Any) -> int:
    """The kernels whose machine code a new device makes for a program."""
    device, given, before = apple_doubles.metal_device(), arrays(), double.translated
    close(device, compiled(device, given)(*[device.from_host(a) for a in given]), given)
    return int(double.translated - before)


def test_machine_code_is_made_once(double: Any, folder: Path) -> None:
    first = translated(double)
    assert first > 3
    assert len(list(folder.glob("*.bin"))) == first
    assert translated(double) == 0


@pytest.mark.parametrize("damage", ["cut", "changed", "no archive", "of another kernel"])
def test_a_damaged_archive_is_made_again(damage: str, double: Any, folder: Path) -> None:
    from yosegi._tune.store import sealed, unsealed

    first = translated(double)
    paths = sorted(folder.glob("*.bin"))
    content = paths[0].read_bytes()
    if damage == "cut":
        paths[0].write_bytes(content[:100])
    elif damage == "changed":
        paths[0].write_bytes(content[:-1] + b"?")
    else:
        code = unsealed(paths[0])
        assert code is not None
        end = 8 + int.from_bytes(code[:8], "little")
        other = unsealed(paths[1])
        assert other is not None
        archive = b"" if damage == "no archive" else other[8 + int.from_bytes(other[:8], "little") :]
        sealed(paths[0], code[:end] + archive)
    assert translated(double) == 1
    assert translated(double) == 0
    assert first == len(paths)


def test_without_archives_nothing_is_kept(double: Any, folder: Path) -> None:
    double.failing = lambda at: "no archives here" if at == "archive" else None
    assert translated(double) > 3
    assert not list(folder.glob("*.bin"))
