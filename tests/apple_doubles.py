"""The Metal and Core ML devices over the doubles of `fakes/apple`, on a machine without them; and the table in which
macOS describes its machine."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import emulation
from yosegi.devices.coreml.device import CoreML
from yosegi.devices.coreml.library import core_ml
from yosegi.devices.metal.commands import foundation, metal
from yosegi.devices.metal.convolutions import _package as _graph_package
from yosegi.devices.metal.device import MetalDevice
from yosegi.devices.metal.library import _package

FOLDER = Path(__file__).parent / "fakes" / "apple"
NO_METAL = None if emulation.COMPILER is not None else "there is no g++"
"""Why there is no double of Metal, or `None`."""
NO_CORE_ML = None if find_spec("coremltools") is not None else "coremltools is not installed"
"""Why there is no double of Core ML, or `None`."""


@cache
def _loaded() -> tuple[Any, Any]:
    """The modules `Metal` and `CoreML`, for the devices alone: no other test finds them."""
    sys.path.append(str(FOLDER))
    try:
        _package(), _graph_package(), foundation()
        return metal()[0], core_ml()[0] if NO_CORE_ML is None else None
    finally:
        sys.path.remove(str(FOLDER))
        for name in (
            "Metal",
            "MetalPerformanceShaders",
            "MetalPerformanceShadersGraph",
            "CoreML",
            "Foundation",
            "objc",
        ):
            sys.modules.pop(name, None)


def metal_double() -> Any:
    """The module `Metal`."""
    return _loaded()[0]


def shaders_double() -> Any:
    """The module `MetalPerformanceShaders`."""
    _loaded()
    return _package()


def graph_double() -> Any:
    """The module `MetalPerformanceShadersGraph`."""
    _loaded()
    return _graph_package()


def core_ml_double() -> Any:
    """The module `CoreML`."""
    return _loaded()[1]


def metal_device(*, garbage: bool = True) -> Any:
    """A Metal device of its own, whose pool hands out blocks full of garbage."""
    _loaded()
    made = MetalDevice(0)
    if garbage:
        made.fill_with_garbage()
    return made


def core_ml_device() -> Any:
    """A Core ML device of its own, whose pool hands out memory full of ones."""
    _loaded()
    made = CoreML()
    made.models.pool.on_take = lambda memory, nbytes: memory.raw.fill(255)
    return made


def sysctl_double(monkeypatch: pytest.MonkeyPatch, values: dict[str, int | str]) -> None:
    """Have `sysctlbyname` answer as on macOS: numbers of 8 bytes, texts with a zero behind them."""

    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, length: ctypes.c_size_t) -> int:
        found = values.get(name.decode())
        if found is None:
            return -1
        content = found.encode() + b"\0" if isinstance(found, str) else found.to_bytes(8, "little")
        if value is not None:
            ctypes.memmove(value, content, min(len(content), size._obj.value))
        size._obj.value = len(content)
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
