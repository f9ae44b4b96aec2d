"""What is new to this machine is tried in a child process first, and only what came out right there is used.

OpenVINO can end the process it runs in (with its own choice of precision it does so on machines that announce more
than they can do), and the same op is another kernel on another processor. So the child computes every row of the op
table on special values, and compares with the reference; others try the lower precisions, and measure what they are
worth (`precisions`). The verdict is kept, for this processor, OpenVINO and table.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from ...dtype import float_info
from ...errors import DeviceFailure
from ...node import Node
from ...reference import bind
from ...store import cache_folder, written
from ...trial import attempt
from .blobs import machine
from .device import OpenVINO
from .library import REDUCED, core
from .ops import ROWS
from .rows import DTYPES
from .specimens import region_of, specimens

_HERE: Final = "yosegi.devices.openvino.probe"
_PRECISIONS: Final = "yosegi.devices.openvino.precisions"
_ADDED: Final = 4.0  # times the error that an op may have, where many roundings add up
_FAILED_FOR: Final = 3600.0  # seconds until a failure is tried again: the machine may only have been too busy


def verdict() -> dict[str, Any]:
    """What this machine has: `failure` if nothing, else `plugins`, each with its name, what was
    wrong there, and what speaks against lower precisions."""
    path = cache_folder() / f"openvino-trial-{hashlib.sha256(machine().encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError):
        known = json.loads(path.read_text(encoding="utf-8"))
        found = {"failure": known["failure"], "plugins": known["plugins"]}
        failed = any(told["failure"] is not None for told in (found, *found["plugins"]))
        if not failed or time.time() - path.stat().st_mtime < _FAILED_FOR:
            return found
    found = _tried()
    written(path, json.dumps(found).encode())
    return found


def _tried() -> dict[str, Any]:
    present = attempt(f"{_HERE}:present")
    if present.failure is not None:
        return {"failure": present.failure, "plugins": []}
    plugins = []
    for plugin, description in present.result:
        outcome = attempt(f"{_HERE}:wrong_rows", plugin)
        told = {"plugin": plugin, "description": description, "failure": outcome.failure, "wrong": outcome.result}
        against = {} if outcome.failure is not None else {p.value: _against(plugin, p.value) for p in REDUCED}
        plugins.append({**told, "against": {name: reason for name, reason in against.items() if reason is not None}})
    return {"failure": None, "plugins": plugins}


def _against(plugin: str, precision: str) -> str | None:
    """Why a precision is not to be used on a plugin: each has a child process to itself, for it may end it."""
    outcome = attempt(f"{_PRECISIONS}:reason_against", plugin, precision)
    return outcome.result if outcome.failure is None else f"a trial in a child process failed: {outcome.failure}"


def present() -> list[tuple[str, str]]:
    """The plugins that find a device, and what they call it. Called in a child."""
    return [(plugin, core().get_property(plugin, "FULL_DEVICE_NAME")) for plugin in core().available_devices]


def wrong_rows(plugin: str) -> dict[str, str]:
    """The rows of the op table that a plugin computes wrongly, "op dtype", and how. Called in a child."""
    device = OpenVINO(plugin, 0, "on trial", {}, {})
    wrong: dict[str, str] = {}
    for dtype in sorted(DTYPES, key=lambda d: d.name):
        nodes = [n for n in specimens(dtype) if device.supports(region_of([n])[0]) is None]
        for node, got in zip(nodes, _computed(device, nodes), strict=True):
            told = got if isinstance(got, str) else _difference(node, got)
            if told is not None:
                wrong[f"{node.call.op.name} {dtype.name}"] = told
    return wrong


def _computed(device: OpenVINO, nodes: Sequence[Node]) -> list[Any]:
    """The values of some calls, by one model; where that fails, each by its own, and for those that fail, why."""
    try:
        region, data = region_of(nodes)
        return list(device.compile(region)(*data))
    except DeviceFailure as failure:
        return [str(failure)] if len(nodes) == 1 else [made for n in nodes for made in _computed(device, [n])]


def _difference(node: Node, got: Any) -> str | None:
    """How a result differs from the reference's, if it does by more than the op may."""
    given = [i.buffer.data for i in node.inputs if i.buffer is not None]
    with np.errstate(all="ignore"):
        wanted = np.asarray(bind(node.call)(*given)).astype(node.spec.dtype.numpy)
        if not node.spec.dtype.is_float:
            right = got == wanted
        else:
            info = float_info(node.spec.dtype)
            a, b = got.astype(np.float64), wanted.astype(np.float64)
            adds = ROWS[node.call.op.name].sums
            scale = _ADDED * np.max(np.abs(b[np.isfinite(b)]), initial=0) if adds else np.abs(b)
            allowed = node.call.op.tolerance.ulps * info.eps * scale + info.smallest_normal
            right = (a == b) | (np.isnan(a) & np.isnan(b)) | ((np.abs(a - b) <= allowed) & np.isfinite(b))
    if right.all():
        return None
    at = tuple(np.argwhere(~right)[0])
    return f"{got[at]!s} instead of {wanted[at]!s}"
