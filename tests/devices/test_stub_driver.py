"""The OpenCL driver of the tests: it computes right results, and each of its faults does what it says."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stub_driver import COMPILER, build, counter, environment, set_faults, source_hash

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler, or this is not Linux"),
    pytest.mark.skipif(find_spec("pyopencl") is None, reason="pyopencl is not installed"),
]

SETUP = """
import sys
import numpy as np
import pyopencl as cl
(platform,) = cl.get_platforms()
(device,) = platform.get_devices()
context = cl.Context([device])
queue = cl.CommandQueue(context)
flags = cl.mem_flags
def on_device(array):
    return cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=array)
def on_host(buffer, shape, dtype):
    array = np.empty(shape, dtype)
    cl.enqueue_copy(queue, array, buffer)
    return array
"""
ADD_ONE = (
    "__kernel void add_one(__global const float* a, __global float* b) { int i = get_global_id(0); b[i] = a[i] + 1; }"
)
BUILD = f"""
SOURCE = {ADD_ONE!r}
def run(program):
    b = on_device(np.zeros(64, np.float32))
    program.add_one(queue, (64,), (16,), on_device(np.arange(64, dtype=np.float32)), b)
    return on_host(b, 64, np.float32)
EXPECTED = np.arange(64, dtype=np.float32) + 1
print("before the build", flush=True)
program = cl.Program(context, SOURCE).build()
print("before the launch", flush=True)
"""
ONCE = SETUP + BUILD + "sys.exit(0 if (run(program) == EXPECTED).all() else 7)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def run(program: str, variables: dict[str, str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A program in a child process that has this driver only."""
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=timeout, check=False
    )


def passes(program: str, variables: dict[str, str]) -> str:
    done = run(SETUP + program, variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Right results ------------------------------------------------------------------------------------------------------


def test_it_is_the_only_driver_and_can_be_another(library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library, name=" B", version="2.5", is_unified=False)
    names = "print(platform.name, device.name, device.driver_version, device.host_unified_memory, sep='|')"
    assert passes(names, variables).strip() == "Stub OpenCL B|Stub GPU B|2.5|0"
    assert passes(names, environment(tmp_path, library)).strip() == "Stub OpenCL|Stub GPU|1.0|1"


def test_memory_and_events(library: Path, tmp_path: Path) -> None:
    passes(
        """
data = np.arange(100, dtype=np.int32)
shared = cl.Buffer(context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=data)
own = cl.Buffer(context, flags.READ_WRITE, data.nbytes)
cl.enqueue_copy(queue, own, shared)
assert (on_host(own, 100, np.int32) == data).all()
source = "__kernel void f(__global int* x, int n, long m) { x[get_global_id(0)] *= n + m; }"
program = cl.Program(context, source).build()
event = program.f(queue, (100,), None, shared, np.int32(2), np.int64(5))
event.wait()
assert event.command_execution_status == cl.command_execution_status.COMPLETE
mapped, _ = cl.enqueue_map_buffer(queue, shared, cl.map_flags.READ, 0, (100,), np.int32, is_blocking=True)
assert (mapped == 7 * np.arange(100)).all() and mapped.ctypes.data == data.ctypes.data
mapped.base.release(queue)
cl.enqueue_fill_buffer(queue, own, np.int32(-3), 40, 80)
queue.finish()
assert (on_host(own, 100, np.int32)[[9, 10, 29, 30]] == [9, -3, -3, 30]).all()
kernel = cl.Kernel(program, "f")
assert kernel.num_args == 3 and program.kernel_names == "f"
for wrong in (lambda: kernel.set_arg(3, np.int32(1)), lambda: kernel.set_arg(1, np.int64(1)),
              lambda: cl.enqueue_nd_range_kernel(queue, kernel, (8,), (3,)), lambda: cl.UserEvent(context)):
    try:
        wrong()
    except cl.Error:
        continue
    raise AssertionError("it should have failed")
""",
        environment(tmp_path, library),
    )


BARRIERS = """
__kernel void folded(__global const float* a, __global float* b) {
    __local float shared[128];
    int item = get_local_id(0);
    shared[item] = a[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int span = 64; span; span /= 2) {
        if (item < span) shared[item] += shared[item + span];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0) b[get_group_id(0)] = shared[0];
}
__kernel void parted(__global float* b) { if (get_local_id(0)) barrier(CLK_LOCAL_MEM_FENCE); }
"""


def test_barriers(library: Path, tmp_path: Path) -> None:
    passes(
        f"""
a = np.random.default_rng(1).integers(0, 99, (300, 128)).astype(np.float32)
b = on_device(np.zeros(300, np.float32))
program = cl.Program(context, {BARRIERS!r}).build()
folded, parted = cl.Kernel(program, "folded"), cl.Kernel(program, "parted")
for groups in (2, 300):  # one thread, several
    folded(queue, (128 * groups,), (128,), on_device(a), b)
    assert (on_host(b, 300, np.float32)[:groups] == a.sum(axis=1)[:groups]).all()
parted(queue, (8,), (8,), b)
try:
    queue.finish()
except cl.Error:
    folded(queue, (128 * 300,), (128,), on_device(a), b)
    assert (on_host(b, 300, np.float32) == a.sum(axis=1)).all()
else:
    raise AssertionError("items that leave the others at a barrier should fail")
""",
        environment(tmp_path, library),
    )


def test_halves_are_rounded_as_numpy_rounds_them(library: Path, tmp_path: Path) -> None:
    passes(
        """
program = cl.Program(context, '''
__kernel void load(__global const half* a, __global float* b) { size_t i = get_global_id(0); b[i] = vload_half(i, a); }
__kernel void store(__global const float* a, __global half* b) {
    size_t i = get_global_id(0);
    vstore_half_rte(a[i], i, b);
}''').build()
load, store = cl.Kernel(program, "load"), cl.Kernel(program, "store")
halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
b = on_device(np.zeros(2**16, np.float32))
load(queue, (2**16,), None, on_device(halves), b)
floats = on_host(b, 2**16, np.float32)
np.testing.assert_array_equal(floats, halves.astype(np.float32))
with np.errstate(all="ignore"):
    near = np.nextafter(np.float32(0.5) * (floats + np.roll(floats, -1)), np.float32([[-np.inf], [0], [np.inf]]))
    given = np.concatenate([floats, near.reshape(-1), floats * np.float32(1.0003), floats * np.float32(1e-8)])
    expected = given.astype(np.float16)
b = on_device(np.zeros(given.size, np.float16))
store(queue, (given.size,), None, on_device(given), b)
made = on_host(b, given.size, np.float16)
np.testing.assert_array_equal(made, expected)
assert (np.signbit(made) == np.signbit(expected))[~np.isnan(expected)].all()
""",
        environment(tmp_path, library),
    )


def test_a_program_becomes_a_binary_and_a_program_again(library: Path, tmp_path: Path) -> None:
    program = (
        BUILD
        + """
(binary,) = program.get_info(cl.program_info.BINARIES)
assert (run(cl.Program(context, [device], [binary]).build()) == EXPECTED).all()
for damaged in (binary[:-7], binary[:40], b"", binary.replace(b"add_one", b"add_two")):
    try:
        cl.Program(context, [device], [damaged]).build()
    except cl.Error as error:
        continue
    raise AssertionError("a damaged binary should be refused")
"""
    )
    passes(program, environment(tmp_path, library))


def test_what_does_not_compile_has_the_compiler_s_words(library: Path, tmp_path: Path) -> None:
    program = """
try:
    cl.Program(context, "__kernel void f() {\\n no_such_thing; }").build()
except cl.Error as error:
    assert error.code == cl.status_code.BUILD_PROGRAM_FAILURE
    assert "no_such_thing" in str(error) and "program.cl:2" in str(error)
else:
    raise AssertionError("it should not compile")
"""
    passes(program, environment(tmp_path, library))


# Faults -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "status"), [("segfault", -11), ("abort", -6), ("exit", 3)])
@pytest.mark.parametrize("where", ["build", "run"])
def test_faults_that_end_the_process(where: str, what: str, status: int, library: Path, tmp_path: Path) -> None:
    done = run(ONCE, environment(tmp_path, library, **{where: f"{what} every 1"}))
    assert done.returncode == status
    assert done.stdout.splitlines()[-1] == f"before the {'build' if where == 'build' else 'launch'}"


def test_memory_is_taken_up_to_the_limit(library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library, run="memory every 1")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
    # A thread of OpenBLAS takes tens of megabytes before NumPy is imported.
    done = run(limit + ONCE, variables | {"OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == -6
    assert "bad_alloc" in done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 1 << 19  # in KiB


@pytest.mark.parametrize("where", ["build", "run"])
def test_a_hang_lasts(where: str, library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library, **{where: "hang every 1"})
    with subprocess.Popen([sys.executable, "-c", ONCE], env=os.environ | variables, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(1 if where == "build" else 2):
            child.stdout.readline()
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(timeout=2)
        finally:
            child.kill()


def test_errors(library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library)
    control = Path(variables["STUB_ICD_FAULTS"])
    program = SETUP + BUILD.replace("program = ", "pass; program = ") + "run(program)"
    caught = f"import sys\ntry:\n    exec({program!r}, {{}})\nexcept Exception as error:\n    print(error.code)"
    for line, code in {
        "build error every 1": -11,
        "build error:-6 every 1": -6,
        "run error every 1": -59,
        "run error:-5 every 1": -5,
    }.items():
        set_faults(control, [line])
        assert run(caught, variables).stdout.splitlines()[-1] == str(code)


def test_wrong_results(library: Path, tmp_path: Path) -> None:
    program = (
        BUILD
        + """
(binary,) = program.get_info(cl.program_info.BINARIES)
for made in (program, cl.Program(context, [device], [binary]).build()):
    result = run(made)
    assert result[0] == EXPECTED[0] + 1 and (result[1:] == EXPECTED[1:]).all()
"""
    )
    passes(program, environment(tmp_path, library, run="wrong every 1"))
    passes(program, environment(tmp_path, library, build="wrong every 1"))
    passes(BUILD + "assert (run(program) == EXPECTED).all()", environment(tmp_path, library))


def test_every_counts_over_processes(library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library, run="exit every 3", build="segfault every 100")
    assert [run(ONCE, variables).returncode for _ in range(4)] == [0, 0, 3, 0]
    control = Path(variables["STUB_ICD_FAULTS"])
    assert [counter(control, where).stat().st_size for where in ("build", "run")] == [4, 4]
    set_faults(control, ["run exit every 2"])
    assert [run(ONCE, variables).returncode for _ in range(2)] == [0, 3]


def test_a_program_fails_by_its_source_also_as_a_binary(library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library)
    control = Path(variables["STUB_ICD_FAULTS"])
    passes(f"open({str(tmp_path / 'binary')!r}, 'wb').write("
           f"cl.Program(context, {ADD_ONE!r}).build().get_info(cl.program_info.BINARIES)[0])", variables)  # fmt: skip
    loaded = f"cl.Program(context, [device], [open({str(tmp_path / 'binary')!r}, 'rb').read()])"
    again = ONCE.replace("cl.Program(context, SOURCE)", loaded)
    assert loaded in again
    hashed = source_hash(ADD_ONE)
    divisor = next(n for n in range(2, 100) if hashed % n == 0)
    other = next(n for n in range(2, 100) if hashed % n)
    for which, fails in [(f"hash {divisor}", True), (f"hash {other}", False), ("containing add_one(__global", True),
                         ("containing add_two", False)]:  # fmt: skip
        set_faults(control, [f"build abort {which}", f"run exit {which}"])
        assert run(again, variables).returncode == (3 if fails else 0)
    set_faults(control, [f"build exit hash {divisor}"])
    assert run(ONCE, variables).returncode == 3


def test_faults_change_while_a_process_runs(library: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path, library)
    program = SETUP + BUILD + "print((run(program) == EXPECTED).all(), flush=True); sys.stdin.readline(); run(program)"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert [child.stdout.readline().strip() for _ in range(3)][-1] == "True"
        set_faults(Path(variables["STUB_ICD_FAULTS"]), ["run abort containing add_one"])
        child.communicate("go\n", timeout=60)
    assert child.returncode == -6


@pytest.mark.parametrize("line", ["run explode every 1", "run abort", "launch abort every 1", "run abort every 0"])
def test_a_line_that_is_no_fault_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        set_faults(tmp_path / "faults", [line])
