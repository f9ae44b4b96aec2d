"""OpenVINO: a compiler of whole subgraphs, for the CPU, and for Intel's GPUs and NPUs where they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import inf
from typing import Any, Final

from ..._graph import decode
from ..._run.background import Job
from ..._run.child import attempt
from ..._run.device import Absent, Device, Found, Pending
from ..._run.drivers import Driver, Verdict, remembered
from .blobs import machine
from .device import OpenVINO
from .library import REDUCED
from .op_row import DTYPES

_PROBE: Final = "yosegi.devices.openvino.probe"
_PRECISIONS: Final = "yosegi.devices.openvino.precisions"


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
    found = [_found(number, plugin, description) for number, (plugin, description) in enumerate(outcome.result)]
    return found or (Absent("openvino:0", "none of its plugins finds a device"),)


def _plugins(data: Any, place: str) -> None:
    for n, pair in enumerate(decode.each(data, place, partial(decode.each, read=decode.text))):
        decode.items(pair, f"{place}[{n}]", 2, least=2)


def _found(number: int, plugin: str, description: str) -> Found:
    name = f"openvino:{number}"
    driver = Driver(name, f"{machine()}\n{plugin}: {description}", keeps=("against",))
    made = partial(_device, plugin, number, description, driver)
    if driver.verdict is not None:
        return made()

    def qualified() -> Device | Absent:
        driver.qualified(partial(_verdict, plugin))
        return made()

    return Pending(name, f"OpenVINO, {plugin}: {description}", plugin.startswith("GPU"), Job(qualified, inf))


def _verdict(plugin: str, driver: Driver) -> Verdict:
    """Every row of the table, by dtypes, and every lower precision: one that ends the process is not used, and says
    nothing of the others."""
    verdict = driver.tried(f"{_PROBE}:wrong_rows", [plugin], sorted(d.name for d in DTYPES))
    against: dict[str, str] = {}
    for precision in REDUCED if verdict.failure is None else ():
        outcome = driver.attempt(f"{_PRECISIONS}:reason_against", plugin, precision.value)
        reason = outcome.result if outcome.failure is None else f"a trial in a child process failed: {outcome.failure}"
        if reason is not None:
            against[precision.value] = reason
    return replace(verdict, more={"against": against})


def _device(plugin: str, number: int, description: str, driver: Driver) -> Device | Absent:
    if driver.absence is not None:
        return Absent(driver.name, f"{plugin}: {driver.absence}")
    assert driver.verdict is not None
    return OpenVINO(plugin, number, description, driver.verdict.refused, driver.verdict.more["against"], driver)
