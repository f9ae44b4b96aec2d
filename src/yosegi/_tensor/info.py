"""`__array_namespace_info__`: what this namespace offers, as the Array API standard asks it."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from .._run.api import holds_data
from .._run.device import Device, device_named, devices, host_device
from ..errors import ArgumentError
from . import dtype as dt
from .dtype import DType
from .node import MAX_DIMENSIONS
from .tensor import HOOKS

API_VERSION: Final = "2025.12"
_KNOWN_VERSIONS: Final = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
_STANDARD: Final = {d.name: d for d in dt.ALL if not d.is_half}


class Info:
    """Answers of `__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """The optional features of the standard, all of which are present."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_DIMENSIONS}

    def default_device(self) -> Device:
        """Where tensors are made unless a device is named: the host's."""
        return host_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes that numbers without one become."""
        if device is not None:
            device_named(device)
        return {
            "real floating": dt.default_float(),
            "complex floating": dt.default_complex(),
            "integral": dt.DEFAULT_INT,
            "indexing": dt.DEFAULT_INT,
        }

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, DType]:
        """The standard's dtypes, of a kind, that a device has."""
        on = devices()[-1] if device is None else device_named(device)
        return {n: d for n, d in _STANDARD.items() if d in on.limits.dtypes and (kind is None or dt.is_kind(d, kind))}

    def devices(self) -> list[Device]:
        """The devices that tensors can be on: the host's, and those with a memory of their own.

        `yosegi.devices` also lists devices that compute in the host's memory.
        """
        return [d for d in devices() if holds_data(d)]


def __array_namespace_info__() -> Info:
    """The namespace's answers about itself."""
    return Info()


def namespace(api_version: str | None = None) -> ModuleType:
    """The namespace module, for an API version that it knows."""
    if api_version is not None and api_version not in _KNOWN_VERSIONS:
        raise ArgumentError(f"[__array_namespace__] expected a version among {_KNOWN_VERSIONS}, got {api_version!r}")
    from importlib import import_module

    return import_module("yosegi")


HOOKS.namespace = namespace
