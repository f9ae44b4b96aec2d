"""Functions for child processes, which list and qualify OpenCL drivers and compile for those that are not trusted.
Some drivers end the process that loads them, or that calls their compilers.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache, partial
from typing import Any, Final

from ..._graph.portable import Plain
from ..._schedule.portable_region import region_of_plain
from ...errors import LaunchFailure
from ..kernel.device import checked
from ..kernel.qualification import difference_of, inputs_for
from .device import OpenCL
from .library import flattened, identity_of, opencl

_CHEAP: Final = 1 << 26
"""Bytes of a region's inputs and outputs up to which it is run once before it is handed over."""


def listing() -> list[dict[str, Any]]:
    """The devices of all platforms in order, with what is to be known of them before they are loaded elsewhere."""
    cl = opencl()
    return [
        {
            "description": f"{device.name.strip()}, {device.platform.name} {device.driver_version}",
            "identity": identity_of(cl, device),
            "is_gpu": bool(device.type & cl.device_type.GPU),
            "has_doubles": "cl_khr_fp64" in device.extensions.split(),
        }
        for device in flattened(cl)
    ]


@cache
def _device(number: int) -> OpenCL:
    cl = opencl()
    device = OpenCL(cl, flattened(cl)[number], number)
    device.fill_with_garbage()  # a kernel that leaves something out shows it
    return device


_given: Final[set[str]] = set()
"""The sources of programs that this process has handed over."""


def check(number: int, family: str) -> dict[str, str]:
    """The family of kernels, if a device gets it wrong, and how."""
    return checked(_device(number), family)


def prove(number: int, plain: Plain) -> list[tuple[str, str]]:
    """Compile a region and run it once; the sources and binaries of the programs that ran. Raises if the result is
    wrong. What is too large to be run here is handed over as it was built."""
    device, region = _device(number), region_of_plain(plain)
    queue = device.queue
    queue.launched = ran = set[str]()  # of this region alone: what a failed one has launched is not to be used
    device.compile(region)
    if region.nbytes <= _CHEAP:
        # A wrong value need not show in the results of the whole region: parts are compared too.
        for part, make in device.parts(region) + [(region, partial(device.compile, region))]:
            wrong = difference_of(device, part, inputs_for(part), {"": make})
            if wrong is not None:
                raise LaunchFailure(wrong)
        device.synchronize()
    else:
        ran.update(queue.programs.sources())
    made = [source for source in ran if source not in _given]
    _given.update(made)
    return [(source, b64encode(queue.programs.binary(source)).decode()) for source in made]
