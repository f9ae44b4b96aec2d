"""Functions for child processes, which list and qualify plugins and compile for those that are not trusted.

OpenVINO ends the process with its own choice of precision on machines that announce more than they can do.
"""

from __future__ import annotations

from functools import cache

from ..._graph.portable import Plain
from ..model import precisions, probe
from .device import OpenVINO
from .library import core


@cache
def _device(plugin: str) -> OpenVINO:
    return OpenVINO(plugin, 0, "in a child process", {}, {})


def present() -> list[tuple[str, str]]:
    """The plugins that find a device, and what they call it."""
    return [(plugin, core().get_property(plugin, "FULL_DEVICE_NAME")) for plugin in core().available_devices]


def wrong_rows(plugin: str, dtype: str) -> dict[str, str]:
    """The rows of the op table that a plugin computes wrongly for a dtype, and how."""
    return probe.wrong_rows(_device(plugin), dtype)


def prove(plugin: str, plain: Plain, place: str) -> None:
    """Compile a region, run it once, and leave the compiled model in a file. Raises if the result is wrong."""
    probe.prove(_device(plugin), plain, place)


def reason_against(plugin: str, precision: str) -> str | None:
    """Why a precision, by its name, is not to be used, or `None` if it is right and faster."""
    return precisions.reason_against(_device(plugin), precision)
