"""CUDA is tried in a child process first: a driver that does not match its libraries may end the process.

The verdict is kept beside the programs, by the version of CuPy and of the driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ..._run.child import attempt
from ..._tune import store

_DRIVER: Final = Path("/proc/driver/nvidia/version")
_KERNEL: Final = 'extern "C" __global__ void kernel_(int *x) { x[threadIdx.x] += 1; }'


def verdict(version: str) -> str | None:
    """Why CUDA must not be touched in this process, or `None` if it survived a trial."""
    return store.verdict("cuda", f"{version}\n{_driver()}", _attempt)


def _attempt() -> str | None:
    outcome = attempt("yosegi.devices.cuda.probe:probe")
    return outcome.failure or outcome.result or None


def _driver() -> str:
    """The identity of the installation: the verdict holds as long as this does not change."""
    try:
        return _DRIVER.read_text(encoding="utf-8")
    except OSError:
        return "no driver that the system shows"


def probe() -> str:
    """Compile and run a small kernel on every device; why that cannot be, "" if it can. Called in the child."""
    import cupy

    reason = mismatch(cupy)
    if reason:
        return reason
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        _run(cupy, number)
    return ""


def mismatch(cupy: Any) -> str:
    """The incompatible versions, as a text; "" if all are compatible."""
    runtime = cupy.cuda.runtime
    driver, library = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not driver:
        return "no NVIDIA driver is loaded"
    if driver // 1000 < library // 1000:
        return (
            f"the driver serves CUDA {_shown(driver)}, CuPy {cupy.__version__} is built for CUDA {_shown(library)}; "
            f"install cupy-cuda{driver // 1000}x, or a newer driver"
        )
    return ""


def _shown(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _run(cupy: Any, number: int) -> None:
    cuda = cupy.cuda
    cuda.runtime.setDevice(number)
    program = cuda.nvrtc.createProgram(_KERNEL, "probe.cu", (), ())
    cuda.nvrtc.compileProgram(program, (f"-arch=sm_{cuda.Device(number).compute_capability}",))
    module = cuda.function.Module()
    module.load(cuda.nvrtc.getCUBIN(program))
    x = cupy.zeros(16, cupy.int32)
    module.get_function("kernel_")((1,), (16,), (x,))
    assert int(x[3]) == 1, "a kernel's result did not arrive"
