"""Links: the connections of devices, over which ranks exchange values without the host.

All ranks of a group connect at one moment, when they make a mesh. A device says over which engine, or why not; then the
values go through the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from .._run.device import Connection, Connects, Device, chain_named
from .._run.trace import log
from .._tensor.options import current as options
from ..errors import DeviceFailure
from .communicator import Communicator


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of a group of ranks on a device, or the reason why there is none."""

    connection: Connection | None = None
    reason: str = ""


_links: Final[WeakKeyDictionary[Communicator, dict[str, Link]]] = WeakKeyDictionary()
"""The links of each group, by the device's name."""
_NONE: Final = Link()


def _named_device() -> Device | None:
    """The device that the options name. On "auto", ranks may place work differently: values go through the host."""
    name = options().device
    return None if name == "auto" else chain_named(name)[0]


def connect(group: Communicator) -> Link:
    """Connect a group on the device that the options name, once. All its ranks call it."""
    device = _named_device()
    if not isinstance(device, Connects):
        return _NONE
    known = _links.setdefault(group, {})
    if device.name not in known:
        try:
            known[device.name] = Link(device.connected(group))
        except DeviceFailure as failure:
            known[device.name] = Link(reason=str(failure))
            log.info("ranks %s exchange values of %s through the host: %s", group.members, device.name, failure)
    return known[device.name]


def link_of(group: Communicator) -> Link:
    """The link of a group on the device that the options name. Nothing is connected."""
    device = _named_device()
    return _NONE if device is None else _links.get(group, {}).get(device.name, _NONE)
