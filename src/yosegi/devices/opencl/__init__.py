"""OpenCL through pyopencl: every device of every platform that the system's loader knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from math import inf
from typing import Any, Final

from ..._graph import decode
from ..._run.background import Job
from ..._run.child import attempt
from ..._run.device import Absent, Device, Found, Pending
from ..._run.drivers import Driver, remembered
from ..._tensor.dtype import ALL, complex128, float64
from ..kernel.qualification import families
from .device import OpenCL
from .library import FRESH_CACHES, flattened, opencl, registered

_PROBE: Final = "yosegi.devices.opencl.probe"


def discover() -> Iterable[Found]:
    """The devices of all platforms in order; why there are none, otherwise. Never raises.

    Drivers are listed in a child process first, and qualified there: see `drivers`.
    """
    if find_spec("pyopencl") is None:
        return (Absent("opencl:0", "pyopencl is not installed; install yosegi[opencl]"),)
    outcome = remembered(
        "opencl-list", registered(), lambda: attempt(f"{_PROBE}:listing"), partial(decode.each, read=_entry)
    )
    if outcome.failure is not None:
        again = "`yosegi devices --forget opencl` tries again"
        return (Absent("opencl:0", f"listing the drivers in a child process failed: {outcome.failure}; {again}"),)
    found = [_found(number, entry) for number, entry in enumerate(outcome.result)]
    return found or (Absent("opencl:0", "no OpenCL platform is installed"),)


def _entry(data: Any, place: str) -> None:
    description, identity, is_gpu, has_doubles = decode.record(
        data, place, "description", "identity", "is_gpu", "has_doubles"
    )
    decode.text(description, f"{place}.description")
    decode.text(identity, f"{place}.identity")
    decode.flag(is_gpu, f"{place}.is_gpu")
    decode.flag(has_doubles, f"{place}.has_doubles")


def _found(number: int, entry: dict[str, Any]) -> Found:
    name = f"opencl:{number}"
    driver = Driver(name, f"{entry['identity']}\n{registered()}", FRESH_CACHES)
    if driver.verdict is not None:
        return _device(number, driver)
    return Pending(name, entry["description"], entry["is_gpu"], Job(partial(_qualified, number, entry, driver), inf))


def _qualified(number: int, entry: dict[str, Any], driver: Driver) -> Device | Absent:
    missing = set() if entry["has_doubles"] else {float64, complex128}
    tried = families(frozenset(ALL) - missing)
    driver.qualified(lambda driver: driver.tried(f"{_PROBE}:check", [number], tried))
    return _device(number, driver)


def _device(number: int, driver: Driver) -> Device | Absent:
    if driver.absence is not None:
        return Absent(driver.name, driver.absence)
    try:
        cl = opencl()
        device = flattened(cl)[number]
        return OpenCL(cl, device, number, driver)
    except Exception as error:  # a broken installation raises whatever it likes
        return Absent(driver.name, f"it does not work: {type(error).__name__}: {error}")
