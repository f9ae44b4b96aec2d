"""Metal through pyobjc: the GPUs of Apple's computers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

from ..._run.device import Absent, Found, found
from ..._run.drivers import Driver
from ..kernel.device import tried
from .commands import metal
from .device import DTYPES, MetalDevice, check, identity_of


def discover() -> Iterable[Found]:
    """The GPUs in order; why there are none, otherwise. Never raises."""
    if find_spec("Metal") is None:
        is_apple = sys.platform == "darwin"
        reason = "pyobjc-framework-Metal is not installed; install yosegi[metal]" if is_apple else "only macOS has it"
        return (Absent("metal:0", reason),)
    try:
        listed = [_found(number, device) for number, device in enumerate(metal()[0].MTLCopyAllDevices())]
    except Exception as error:  # a broken installation raises whatever it likes
        return (Absent("metal:0", f"it does not work: {type(error).__name__}: {error}"),)
    return listed or (Absent("metal:0", "Metal finds no GPU"),)


def _found(number: int, device: Any) -> Found:
    driver = Driver(f"metal:{number}", identity_of(device))
    qualify = partial(tried, check=f"{check.__module__}:{check.__name__}", number=number, dtypes=DTYPES)
    return found(driver, str(device.name()), qualify, partial(MetalDevice, number, driver), is_gpu=True)
