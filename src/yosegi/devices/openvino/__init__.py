"""OpenVINO: a compiler of whole subgraphs, for the CPU, and for Intel's GPUs and NPUs where they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from ..._graph import decode
from ..._run.child import attempt
from ..._run.device import Absent, Device, Found, found
from ..._run.drivers import Driver, remembered
from ..model.device import tried
from .compiler import machine
from .device import OpenVINO
from .library import REDUCED
from .ops import TABLE

_PROBE: Final = "yosegi.devices.openvino.probe"


def discover() -> Iterable[Found]:
    """A device for each plugin. OpenVINO itself is loaded when it first compiles.

    Its plugins are listed in a child process, and qualified there: every row of the op table on special values, and
    every lower precision.
    """
    if find_spec("openvino") is None:
        return (Absent("openvino:0", "openvino is not installed; install yosegi[openvino]"),)
    outcome = remembered("openvino-list", machine(), lambda: attempt(f"{_PROBE}:present"), _plugins)
    if outcome.failure is not None:
        again = "`yosegi devices --forget openvino` tries again"
        return (Absent("openvino:0", f"listing its plugins in a child process failed: {outcome.failure}; {again}"),)
    listed = [_found(number, plugin, description) for number, (plugin, description) in enumerate(outcome.result)]
    return listed or (Absent("openvino:0", "none of its plugins finds a device"),)


def _plugins(data: Any, place: str) -> None:
    for n, pair in enumerate(decode.each(data, place, partial(decode.each, read=decode.text))):
        decode.items(pair, f"{place}[{n}]", 2, least=2)


def _found(number: int, plugin: str, description: str) -> Found:
    driver = Driver(f"openvino:{number}", f"{machine()}\n{plugin}: {description}", keeps=("against",))

    def made() -> Device:
        assert driver.verdict is not None
        return OpenVINO(plugin, number, description, driver.verdict.refused, driver.verdict.more["against"], driver)

    what = f"OpenVINO, {plugin}: {description}"
    qualify = partial(tried, probe=_PROBE, child=(plugin,), table=TABLE, reduced=REDUCED)
    return found(driver, what, qualify, made, is_gpu=plugin.startswith("GPU"))
