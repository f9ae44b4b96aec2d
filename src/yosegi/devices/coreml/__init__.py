"""Core ML: a compiler of whole subgraphs, for the CPU, the GPU and the Neural Engine of Apple's computers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Final

from ..._run.device import Absent, Device, Found, found
from ..._run.drivers import Driver
from ..model.device import tried
from .device import REDUCED, CoreML
from .library import machine
from .ops import TABLE

_PROBE: Final = "yosegi.devices.coreml.probe"
_NEEDED: Final = {"CoreML": "pyobjc-framework-CoreML", "coremltools": "coremltools"}


def discover() -> Iterable[Found]:
    """One device; why there is none, otherwise. Never raises."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing and sys.platform != "darwin":
        return (Absent("coreml:0", "only macOS has it"),)
    if missing:
        return (Absent("coreml:0", f"{' and '.join(missing)} not installed; install yosegi[coreml]"),)
    driver = Driver("coreml:0", machine(), keeps=("against",))

    def made() -> Device:
        assert driver.verdict is not None
        return CoreML(driver.verdict.refused, driver.verdict.more["against"], driver)

    qualify = partial(tried, probe=_PROBE, child=(), table=TABLE, reduced=REDUCED)
    return (found(driver, "Core ML", qualify, made, is_gpu=False),)
