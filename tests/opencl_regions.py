"""The OpenCL device of this machine, driven directly through regions. Its pool hands out blocks full of garbage."""

from __future__ import annotations

from typing import Any

import device_regions
import yosegi as ys
from device_regions import RNG, graph_and_leaves, numbers, regions
from values import Array
from yosegi._run.device import Absent, Pending
from yosegi.devices import opencl

__all__ = ["DEVICE", "RNG", "graph_and_leaves", "make", "numbers", "reduces", "regions", "run"]


def make() -> Any:
    """A device of its own, so that no test sees another's pool."""
    found = [d.resolved() if isinstance(d, Pending) else d for d in opencl.discover()]
    device: Any = next((d for d in found if not isinstance(d, Absent)), found[0])
    if not isinstance(device, Absent):
        device.fill_with_garbage()
    return device


DEVICE: Any = make()


def run(*tensors: ys.Tensor, device: Any = None) -> list[Array]:
    """The tensors' values, all of them computed by the device."""
    return device_regions.run(*tensors, device=device or DEVICE)


def reduces(tensor: ys.Tensor, expected: Array, device: Any = None) -> None:
    """The value is what NumPy has in float64."""
    device_regions.reduces(tensor, expected, device or DEVICE)
