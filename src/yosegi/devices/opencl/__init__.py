"""OpenCL through pyopencl: every device of every platform that the system's loader knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from ..._graph import decode
from ..._run.child import attempt
from ..._run.device import Absent, Found, found
from ..._run.drivers import Driver, remembered
from ..kernel.device import tried
from .device import OpenCL, dtypes_of
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
    listed = [_found(number, entry) for number, entry in enumerate(outcome.result)]
    return listed or (Absent("opencl:0", "no OpenCL platform is installed"),)


def _entry(data: Any, place: str) -> None:
    description, identity, is_gpu, has_doubles = decode.record(
        data, place, "description", "identity", "is_gpu", "has_doubles"
    )
    decode.text(description, f"{place}.description")
    decode.text(identity, f"{place}.identity")
    decode.flag(is_gpu, f"{place}.is_gpu")
    decode.flag(has_doubles, f"{place}.has_doubles")


def _found(number: int, entry: dict[str, Any]) -> Found:
    def make() -> OpenCL:
        cl = opencl()
        return OpenCL(cl, flattened(cl)[number], number, driver)

    driver = Driver(f"opencl:{number}", f"{entry['identity']}\n{registered()}", FRESH_CACHES)
    dtypes = dtypes_of(has_doubles=entry["has_doubles"])
    qualify = partial(tried, check=f"{_PROBE}:check", number=number, dtypes=dtypes)
    return found(driver, entry["description"], qualify, make, is_gpu=entry["is_gpu"])
