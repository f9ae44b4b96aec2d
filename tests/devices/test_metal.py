"""The Metal device over a double of Metal's objects: see `fakes/apple/Metal.py`. MSL runs by emulation.

`YOSEGI_TEST_METAL=whole` runs every sample of every op; otherwise a few are run.
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import apple_doubles
import yosegi as ys
from device_regions import in_two_threads, join_of, numbers, reduces, regions, run
from native_ops import _single
from samples import SAMPLES, calls
from values import same
from yosegi._graph.reference import bind
from yosegi._run.device import Absent
from yosegi._tensor.dtype import ALL, as_dtype, float16, float32, float_info
from yosegi._tensor.op import REGISTRY
from yosegi.codegen.c.kernel_source import NAME
from yosegi.codegen.c.kernel_source import Kernel as Generated
from yosegi.devices import metal
from yosegi.devices.kernel.device import checked
from yosegi.devices.kernel.qualification import families
from yosegi.errors import CompileFailure, DeviceLost, IndexingError, OutOfMemory
from yosegi.extend import installed

pytestmark = pytest.mark.skipif(apple_doubles.NO_METAL is not None, reason=str(apple_doubles.NO_METAL))
IS_WHOLE = os.environ.get("YOSEGI_TEST_METAL") == "whole"
SINGLES = {ys.float64: ys.float32, ys.complex128: ys.complex64}
DTYPES = [d for d in ALL if d not in (ys.float64, ys.complex128)]


@pytest.fixture(scope="module")
def shared() -> Any:
    return apple_doubles.metal_device()


@pytest.fixture
def device() -> Any:
    return apple_doubles.metal_device()


@pytest.fixture
def double() -> Iterator[Any]:
    """The module `Metal`, whose calls fail no more behind a test."""
    module = apple_doubles.metal_double()
    yield module
    module.failing = lambda what: None
    module.detects_races = False
    module.families = {1006, 1007, 1009}


def pages(shape: tuple[int, ...]) -> Any:
    """Numbers of float32 that begin at a page."""
    made = np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * 4), np.float32).reshape(shape)
    made[...] = numbers(float32, *shape)
    return made


# Ops ----------------------------------------------------------------------------------------------------------------

CALLS = calls() if IS_WHOLE else [
    ("sin", 0), ("erf", 0), ("pow", 0), ("floor_divide", 0), ("nextafter", 0), ("where", 0), ("permute_dims", 0),
    ("concatenate", 1), ("sum", 1), ("prod", 1), ("argmax", 1), ("cumulative_sum", 0), ("matmul", 1), ("conv", 0),
    ("max_pool", 0), ("softmax", 1), ("layer_norm_linear", 0), ("scaled_dot_product_attention", 1), ("philox", 0),
]  # fmt: skip
HOSTS = {
    "sort", "argsort", "inv", "solve", "det", "cofactors", "slogdet", "cholesky", "qr", "svd", "svdvals",
    "pinv", "eigh", "eigvalsh", "eig", "eigvals", "complex_transform", "half_spectrum", "from_half_spectrum",
}  # fmt: skip
"""The ops that have no kernel."""
DIAGONAL = ("einsum", 1)
"""A product that takes a diagonal, which has none either."""


@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{a}-{b}" for a, b in CALLS])
def test_op(name: str, number: int, shared: Any) -> None:
    """Every op in float32, by the device alone, against its reference body."""
    op, sample = REGISTRY[name], SAMPLES[name][number]
    inputs = [ys.asarray(_single(np.asarray(a)), copy=False) for a in sample.arrays]
    attrs = {k: SINGLES[v] if v in (ys.float64, ys.complex128) else v for k, v in sample.attrs.items()}
    call = op._node(tuple(inputs), attrs).call
    arrays = [i._node.buffer.data.astype(s.dtype.numpy) for i, s in zip(inputs, call.inputs, strict=True)]
    with np.errstate(all="ignore"):
        made = bind(call)(*arrays)
    is_many, is_hosts = len(call.outputs) > 1, name in HOSTS or (name, number) == DIAGONAL
    with installed(shared) as chain, ys.options(device=chain, on_fallback="silent" if is_hosts else "error"):
        results = op.outputs(*inputs, **attrs) if is_many else (op(*inputs, **attrs),)
        if is_hosts:
            assert any(step.device.name != "metal:0" for step in ys.plan(*results).steps)
            return
        found = [r.numpy() for r in results]
    for got, expected in zip(found, [np.asarray(m) for m in (made if is_many else (made,))], strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        ulps = op.tolerance.ulps * float_info(as_dtype(got.dtype)).eps if got.dtype.kind in "fc" else 0
        np.testing.assert_allclose(got, expected, rtol=ulps, atol=ulps * np.max(np.abs(expected), initial=0))


@pytest.mark.parametrize("dtype", DTYPES if IS_WHOLE else [float16, ys.bfloat16, ys.uint64], ids=lambda d: d.name)
def test_dtypes(dtype: Any, shared: Any) -> None:
    a, b = numbers(dtype, 5, 129), numbers(dtype, 129)
    x, y = ys.asarray(a), ys.asarray(b)
    if dtype.kind == "bool":
        same(run(ys.logical_xor(x, y), device=shared)[0], np.logical_xor(a, b))
        return
    same(run(x * y + x, device=shared)[0], (a * b + a).astype(a.dtype), ulps=2)
    same(run(x[::-1, 3:], device=shared)[0], a[::-1, 3:])


def test_float64_is_refused_with_a_reason(shared: Any) -> None:
    (region,) = regions(ys.asarray(numbers(ys.float64, 3)) * 2)
    assert shared.supports(region) == "no float64 on this device"
    assert "no float64" in shared.description


@pytest.mark.parametrize("family", ["Apple7", "Apple6", ""])
def test_a_gpu_uses_what_its_family_has(family: str, double: Any) -> None:
    double.families = {"": set(), "Apple6": {1006}, "Apple7": {1006, 1007}}[family]
    device = apple_doubles.metal_device()
    for dtype in (float32, float16, ys.bfloat16):
        a, b = numbers(dtype, 33, 40), numbers(dtype, 40, 17)
        (region,) = regions(ys.asarray(a) @ ys.asarray(b))
        assert ("unit 32" in device.variants(region)) == (family == "Apple7")
        wide = a.astype(np.float64) @ b.astype(np.float64)
        got = run(ys.asarray(a) @ ys.asarray(b), device=device)[0].astype(np.float64)
        assert np.abs(got - wide).max() <= 64 * float_info(dtype).eps * np.abs(wide).max()
    sources = device._queue.programs.sources()
    assert any("bfloat(x)" in source for source in sources) == (family != "")
    assert any("simdgroup_load" in source for source in sources) == (family == "Apple7")


def test_reductions_in_two_stages(shared: Any) -> None:
    a = numbers(float32, 100_003)
    reduces(ys.sum(ys.asarray(a)), np.sum(a.astype(np.float64)), shared)


def test_an_index_out_of_range_is_the_users_mistake(device: Any) -> None:
    x, rows = ys.asarray(numbers(float32, 5, 3)), ys.asarray(np.array([0, 7]))
    with installed(device) as chain, ys.options(device=chain), pytest.raises(IndexingError, match="7"):
        ys.take(x, rows, axis=0).numpy()


def test_as_many_arrays_as_a_kernel_takes(shared: Any) -> None:
    arrays = [numbers(float32, 33) for _ in range(29)]
    total = ys.asarray(arrays[0])
    for a in arrays[1:]:
        total = total + ys.asarray(a)
    same(run(total, device=shared)[0], sum(arrays[1:], arrays[0]))
    (region,) = regions(total + ys.asarray(numbers(float32, 33)) * ys.asarray(numbers(float32, 33)))
    assert "arrays are more than a kernel of this device takes" in shared.supports(region)


# The vendor's library -------------------------------------------------------------------------------------------------


@pytest.fixture
def shaders(double: Any) -> Iterator[Any]:
    """The module `MetalPerformanceShaders`."""
    module = apple_doubles.shaders_double()
    yield module
    module.sums_in_half = False


PRODUCTS: dict[str, Any] = {
    "plain": lambda x, y: x @ y,
    "transposes": lambda x, y: ys.matrix_transpose(ys.matrix_transpose(y) @ ys.matrix_transpose(x)),
    "left transposed": lambda x, y: ys.matrix_transpose(x) @ x,
    "right transposed": lambda x, y: x @ ys.matrix_transpose(x),
    "a factor": lambda x, y: (x * 0.5) @ y,
}


@pytest.mark.parametrize("dtype", [float32, float16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("stack", [(), (3,)])
def test_products_by_the_library(name: str, dtype: Any, stack: tuple[int, ...], shaders: Any, shared: Any) -> None:
    a, b = numbers(dtype, *stack, 17, 33), numbers(dtype, *stack, 33, 21)
    region = join_of(PRODUCTS[name](ys.asarray(a), ys.asarray(b)))
    kernel = shared.variants(region)["library"]()
    before = shaders.encoded
    made = kernel(*[shared.from_host(x) for x in (a, b)[: len(region.inputs)]])
    got = shared.to_host(made[0]).astype(np.float64)
    assert shaders.encoded == before + 1
    with ys.options(device="cpu"):
        wide = PRODUCTS[name](ys.asarray(a.astype(np.float64)), ys.asarray(b.astype(np.float64))).numpy()
    assert np.abs(got - wide).max() <= 32 * float_info(dtype).eps * np.abs(wide).max()


def test_a_stack_that_repeats_a_matrix_is_not_the_librarys(shared: Any) -> None:
    x, y = ys.asarray(numbers(float32, 3, 8, 8)), ys.asarray(numbers(float32, 3, 8, 8))
    assert "library" in shared.variants(join_of(x @ y))
    assert "library" not in shared.variants(join_of(x[:1] @ y))
    assert "library" in shared.variants(join_of(x @ y[0]))  # one product of all rows


def test_sums_in_float16_are_refused(shaders: Any, double: Any) -> None:
    x = ys.asarray(numbers(float16, 8, 8))
    assert "library" in apple_doubles.metal_device().variants(join_of(x @ x))
    shaders.sums_in_half = True
    assert "library" not in apple_doubles.metal_device().variants(join_of(x @ x))
    y = ys.asarray(numbers(ys.bfloat16, 8, 8))
    assert "library" not in apple_doubles.metal_device().variants(join_of(y @ y))


def test_without_the_package_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["yosegi.devices.metal.library"], "_package", lambda: None)
    x = ys.asarray(numbers(float32, 8, 8))
    assert "library" not in apple_doubles.metal_device().variants(join_of(x @ x))


def test_the_double_refuses_what_the_library_refuses(shaders: Any, double: Any) -> None:
    describe = shaders.MPSMatrixDescriptor
    describe = describe.matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType_
    kind = shaders.MPSDataTypeFloat32
    for rows, columns, row, matrix, reason in [
        (4, 4, 12, 64, "rows overlap"), (4, 4, 18, 72, "multiple of an element"), (4, 4, 16, 48, "matrices overlap"),
        (4, 4, 16, 72, "multiple of rowBytes"),
    ]:  # fmt: skip
        with pytest.raises(AssertionError, match=reason):
            describe(rows, columns, 2, row, matrix, kind)
    with pytest.raises(AssertionError, match="too short"):
        shaders.MPSMatrix.alloc().initWithBuffer_descriptor_(double.MTLBuffer(100), describe(4, 4, 2, 16, 64, kind))


# Memory -------------------------------------------------------------------------------------------------------------


def test_nothing_is_copied_of_what_begins_at_a_page(device: Any, double: Any) -> None:
    a, before = pages((40, 1000)), double.copied
    data = device.from_host(a)
    assert data.buffer.address == a.ctypes.data
    assert device.to_host(data) is a
    (region,) = regions(ys.asarray(a) + 1)
    (made,) = device.compile(region)(data)
    result = device.to_host(made)
    assert result.ctypes.data == made.buffer.address
    assert double.copied == before
    same(result, a + 1)


def test_other_arrays_are_copied_once(device: Any, double: Any) -> None:
    a, before = pages((40, 1000))[0, 1:], double.copied
    data = device.from_host(a)
    assert double.copied == before + a.nbytes
    assert device.to_host(data) is a


def test_the_host_may_let_go_of_an_input_at_once(device: Any) -> None:
    results = []
    for n in range(10):
        a = pages((300, 100))
        a[...] = n
        (region,) = regions(ys.asarray(a) + 1)
        results.append(device.compile(region)(device.from_host(a))[0])
        del a, region
        gc.collect()
    assert all((device.to_host(r) == n + 1).all() for n, r in enumerate(results))


def test_a_launch_returns_before_the_work_is_done(double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device, a = apple_doubles.metal_device(garbage=False), numbers(float32, 1000)
    monkeypatch.setattr(double, "pace", 10**6)
    (region,) = regions(ys.asarray(a) + 1)
    kernel, data = device.compile(region), device.from_host(a)
    made = [kernel(data)[0] for _ in range(100)]
    waiting = device._queue.commands._queue.waiting
    assert [len(buffer.work) for buffer in waiting] == [1, 32, 32, 32]  # an idle device gets a command at once
    for each in made:
        same(device.to_host(each), a + 1)
    assert not waiting


def test_no_object_is_leaked_in_ten_thousand_launches(double: Any) -> None:
    device = apple_doubles.metal_device(garbage=False)
    assert leaked(device, double, 10_000) == {}


def test_without_a_pool_objects_are_leaked(double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = apple_doubles.metal_device(garbage=False)
    monkeypatch.setattr(sys.modules["yosegi.devices.metal.commands"], "pool", nullcontext)
    assert leaked(device, double, 100)["MTLComputeCommandEncoder"] > 0


def leaked(device: Any, double: Any, launches: int) -> dict[str, int]:
    """The objects that launches leave behind, by class."""
    (region,) = regions(ys.asarray(numbers(float32, 8)) + 1)
    kernel, data = device.compile(region), device.from_host(numbers(float32, 8))
    kernel(data)
    device.synchronize()
    before = double.LIVE.copy()
    for _ in range(launches):
        kernel(data)
    device.synchronize()
    gc.collect()
    return dict(double.LIVE - before)


def test_two_threads(device: Any) -> None:
    assert in_two_threads(device) == []


# Failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "kind"), [
    ("library", CompileFailure), ("pipeline", CompileFailure), ("buffer", OutOfMemory), ("command", DeviceLost),
])  # fmt: skip
def test_failures_are_what_they_mean(what: str, kind: type[Exception], device: Any, double: Any) -> None:
    x = ys.asarray(numbers(float32, 40)) + 0.5
    double.failing = lambda at: "it failed" if at == what else None
    with pytest.raises(kind):
        run(x, device=device)
    double.failing = lambda at: None
    assert run(x, device=device)[0].shape == (40,)


def test_data_from_before_a_failure_is_never_shown(device: Any, double: Any) -> None:
    a = numbers(float32, 40)
    (region,) = regions(ys.asarray(a) + 1)
    kernel = device.compile(region)
    (good,) = kernel(device.from_host(a))
    device.synchronize()
    double.failing = lambda at: "a page fault" if at == "command" else None
    (bad,) = kernel(device.from_host(a))
    with pytest.raises(DeviceLost, match="a page fault"):
        device.synchronize()
    double.failing = lambda at: None
    for lost in (good, bad):
        with pytest.raises(DeviceLost, match="a page fault"):
            device.to_host(lost)
        with pytest.raises(DeviceLost, match="a page fault"):
            kernel(lost)
    same(device.to_host(kernel(device.from_host(a))[0]), a + 1)


def test_a_failure_between_two_looks_is_found(device: Any) -> None:
    """A command buffer may end at any moment: its error counts whenever it is found to be done."""
    statuses, before = iter([2, 5, 5, 5, 5]), device._memory.losses
    error = SimpleNamespace(localizedDescription=lambda: "it failed")
    device._memory.keep(SimpleNamespace(status=lambda: next(statuses), error=lambda: error), ())
    device._memory.let_go()
    assert not device._memory._waiting
    assert device._memory.losses == before + 1


def test_a_table_of_index_faults_that_was_never_cleared_is_not_believed(device: Any, double: Any) -> None:
    """Its memory had other data before, which was taken for indices out of range."""
    a, index = numbers(float32, 40), np.arange(0, 40, 3)
    (region,) = regions(ys.take(ys.asarray(a), ys.asarray(index), axis=0))
    kernel = device.compile(region)
    device._memory.fill_with_garbage()
    double.failing = lambda at: "a page fault" if at == "command" else None
    kernel(device.from_host(a), device.from_host(index))
    with pytest.raises(DeviceLost, match="a page fault"):
        device.synchronize()
    double.failing = lambda at: None
    with suppress(DeviceLost):  # the table is cleared again first
        device.synchronize()
    (taken,) = kernel(device.from_host(a), device.from_host(index))
    same(device.to_host(taken), a[index])
    (wrong,) = kernel(device.from_host(a), device.from_host(index + 40))
    with pytest.raises(ys.errors.UserError):
        device.to_host(wrong)


@pytest.mark.parametrize("what", ["library", "pipeline", "buffer", "command"])
def test_the_runtime_survives(what: str, device: Any, double: Any) -> None:
    a = numbers(float32, 50, 40)
    countdown = iter(range(1000))
    double.failing = lambda at: "it failed" if at == what and next(countdown) % 2 else None
    with installed(device) as chain, ys.options(device=chain):
        for _ in range(4):
            x = ys.asarray(a)
            got = ys.sum(ys.exp(x) @ ys.permute_dims(x, (1, 0)), axis=0).numpy()
            wide = a.astype(np.float64)
            np.testing.assert_allclose(got, (np.exp(wide) @ wide.T).sum(0), rtol=1e-5)


def test_a_group_that_is_too_large(device: Any) -> None:
    places = ("thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid")
    own = ", ".join(f"uint p{n} [[{place}]]" for n, place in enumerate(places))
    source = f"#include <metal_stdlib>\nkernel void {NAME}({own})\n{{}}\n"
    with pytest.raises(CompileFailure, match="groups of 1024, not of 2048"):
        device._queue.launch(Generated(source, (), False, 1, 2048), 0)


def test_without_the_library_the_device_is_absent() -> None:
    (absent,) = metal.discover()
    assert isinstance(absent, Absent)
    assert (absent.name, absent.reason) == ("metal:0", "only macOS has it")


# Races --------------------------------------------------------------------------------------------------------------

FAMILIES = families(frozenset(DTYPES)) if IS_WHOLE else [
    "products float32", "products float16", "products bfloat16", "windows float32", "composites float32",
    "reductions float32", "loops float32",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_no_threads_race(family: str, double: Any) -> None:
    """Every template of a family, in every variant."""
    double.detects_races = True
    assert checked(apple_doubles.metal_device(), family) == {}


RACE = f"""#include <metal_stdlib>
using namespace metal;
kernel void {NAME}(device float* b0 [[buffer(0)]], uint p0 [[thread_position_in_grid]],
uint p1 [[thread_position_in_threadgroup]], uint p2 [[threadgroup_position_in_grid]])
{{
    threadgroup float shared[64];
    shared[p1] = p1;
    BARRIER
    b0[WHERE] = shared[63 - p1];
}}
""".replace(",\nuint", ", uint")


IN_SIMDGROUP = f"""#include <metal_stdlib>
using namespace metal;
kernel void {NAME}(device float* b0 [[buffer(0)]], uint p0 [[thread_position_in_grid]],
uint p1 [[thread_position_in_threadgroup]], uint p2 [[threadgroup_position_in_grid]])
{{
    threadgroup float shared[128];
    simdgroup_matrix<float, 8, 8> m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    simdgroup_store(m, shared + p1 / 32 * 64, 8);
    BARRIER
    b0[p0] = shared[WHERE];
}}
""".replace(",\nuint", ", uint")


@pytest.mark.parametrize(("barrier", "where", "fault"), [
    ("simdgroup_barrier", "p1 / 32 * 64 + p1 % 32 * 2", None),
    ("", "p1 / 32 * 64 + p1 % 32 * 2", "an item read what another wrote since the last barrier"),
    ("simdgroup_barrier", "p1 * 2 ^ 64", "an item read what another wrote since the last barrier"),
    ("threadgroup_barrier", "p1 * 2 ^ 64", None),
    ("if (p1) simdgroup_barrier", "0", "items of a team left at a common call"),
])  # fmt: skip
def test_a_race_in_a_simdgroup_is_found(barrier: str, where: str, fault: str | None, double: Any, device: Any) -> None:
    double.detects_races = True
    text = f"{barrier}(mem_flags::mem_threadgroup);" if barrier else ""
    source = IN_SIMDGROUP.replace("BARRIER", text).replace("WHERE", where)
    launch = device._queue.launch(Generated(source, (), False, 128, 64), 1)
    data = device.from_host(numbers(float32, 128))
    with pytest.raises(AssertionError, match=fault) if fault else nullcontext():
        launch([], [data])
        device.synchronize()


@pytest.mark.parametrize(("barrier", "where", "fault"), [
    (True, "p0", None),
    (False, "p0", "an item read what another wrote since the last barrier"),
    (True, "p1 / 2 + 64 * p2", "two items wrote one address between barriers"),
    (True, "p1", "two groups wrote one address"),
])  # fmt: skip
def test_a_race_is_found(barrier: bool, where: str, fault: str | None, double: Any, device: Any) -> None:
    double.detects_races = True
    text = "threadgroup_barrier(mem_flags::mem_threadgroup);" if barrier else ""
    source = RACE.replace("BARRIER", text).replace("WHERE", where)
    launch = device._queue.launch(Generated(source, (), False, 128, 64), 1)
    data = device.from_host(numbers(float32, 128))
    with pytest.raises(AssertionError, match=fault) if fault else nullcontext():
        launch([], [data])
        device.synchronize()


# The double ---------------------------------------------------------------------------------------------------------


def test_the_double_refuses_what_metal_refuses(double: Any) -> None:
    gpu = double.MTLCreateSystemDefaultDevice()
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    inside = (double.ctypes.c_char * mmap.PAGESIZE).from_buffer(memory, 64)
    with pytest.raises(AssertionError, match="begins at a page"):
        gpu.newBufferWithBytesNoCopy_length_options_deallocator_(inside, mmap.PAGESIZE, 0, None)
    begins = (double.ctypes.c_char * 100).from_buffer(memory)
    with pytest.raises(AssertionError, match="whole pages"):
        gpu.newBufferWithBytesNoCopy_length_options_deallocator_(begins, 100, 0, None)
    with pytest.raises(AssertionError, match="too large"):
        gpu.newBufferWithLength_options_(8 << 30, 0)
    options = double.MTLCompileOptions.alloc().init()
    with pytest.raises(AssertionError, match="fast mathematics"):
        gpu.newLibraryWithSource_options_error_("", options, None)
    options.setFastMathEnabled_(False)
    library, error = gpu.newLibraryWithSource_options_error_("kernel void f() { double x; }", options, None)
    assert library is None
    assert "double" in error.localizedDescription()


def test_the_double_checks_the_table_of_arguments(device: Any, double: Any) -> None:
    kernel = device._queue.launch(generated(), 2)
    buffers = [double.MTLBuffer(64) for _ in range(2)]
    commands = double.MTLCreateSystemDefaultDevice().newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(kernel.pipeline)
    encoder.setBuffer_offset_atIndex_(buffers[0], 0, 0)
    with pytest.raises(AssertionError, match=r"nothing is bound to device float\* b0"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(*kernel._grid)
    encoder.setBytes_length_atIndex_(b"1234", 4, 1)
    with pytest.raises(AssertionError, match="the wrong thing"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(*kernel._grid)
    with pytest.raises(AssertionError, match="no place 31"):
        encoder.setBuffer_offset_atIndex_(buffers[1], 0, 31)
    with pytest.raises(AssertionError, match="an encoder is open"):
        commands.commit()


def generated() -> Generated:
    """A kernel that copies 16 numbers."""
    from yosegi.codegen.c.dialect import Target
    from yosegi.codegen.c.kernel_source import Inputs
    from yosegi.codegen.c.loop_kernels import loop
    from yosegi.devices.metal.dialect import MSL

    (region,) = regions(ys.asarray(numbers(float32, 16)) + 1)
    return loop(region, Inputs.of(region), MSL, Target(group=64, cooperating=64, units=2))
