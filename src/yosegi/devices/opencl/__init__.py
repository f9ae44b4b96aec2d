"""OpenCL through pyopencl: every device of every platform that the system's loader knows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from ...device import Absent, Device
from .device import OpenCL
from .probe import verdict


def discover() -> Iterable[Device | Absent]:
    """The devices of all platforms in order; why there are none, otherwise. Never raises."""
    try:
        import pyopencl as cl
    except Exception as error:  # a broken installation raises more than ImportError
        return (Absent("opencl:0", f"pyopencl cannot be imported ({error}); install yosegi[opencl]"),)
    failure = verdict()
    if failure is not None:
        return (Absent("opencl:0", f"a trial in a child process failed: {failure}"),)
    # Drivers that have something to say about a program that they built say it here.
    warnings.filterwarnings("ignore", category=cl.CompilerWarning)
    found: list[Device | Absent] = []
    try:
        platforms = cl.get_platforms()
    except Exception as error:
        return (Absent("opencl:0", f"no OpenCL platform ({error})"),)
    for platform in platforms:
        try:
            devices = platform.get_devices()
        except Exception as error:
            found.append(Absent(f"opencl:{len(found)}", f"platform {platform.name} has no device ({error})"))
            continue
        for device in devices:
            try:
                found.append(OpenCL(cl, device, len(found)))
            except Exception as error:
                found.append(Absent(f"opencl:{len(found)}", f"{device.name.strip()} does not work ({error})"))
    return found or (Absent("opencl:0", "no OpenCL platform is installed"),)
