"""What is new to this machine is tried in a child process first, and only what came out right there is used.

OpenVINO can end the process it runs in (with its own choice of precision it does so on machines that announce more
than they can do), and the same op is another kernel on another processor. So the child computes every row of the op
table on special values, and compares with the reference. The verdict is kept, for this processor, OpenVINO and table.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from typing import Any, Final

import numpy as np

from ...dtype import DType, float_info
from ...fuse import Region, RegionKind
from ...graph import capture, graph_of
from ...node import Node
from ...op import REGISTRY, from_array
from ...reference import bind
from ...store import cache_folder, written
from ...trial import attempt
from .blobs import machine
from .device import OpenVINO
from .library import core
from .ops import BINARY, OTHERS, UNARY
from .rows import DTYPES

_HERE: Final = "yosegi.devices.openvino.probe"
_FAILED_FOR: Final = 3600.0  # seconds until a failure is tried again: the machine may only have been too busy


def verdict() -> dict[str, Any]:
    """What this machine has: `failure` if nothing, else `plugins`, each with its name and what was wrong there."""
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
        plugins.append(told)
    return {"failure": None, "plugins": plugins}


def present() -> list[tuple[str, str]]:
    """The plugins that find a device, and what they call it. Called in a child."""
    return [(plugin, core().get_property(plugin, "FULL_DEVICE_NAME")) for plugin in core().available_devices]


def wrong_rows(plugin: str) -> dict[str, str]:
    """The rows of the op table that a plugin computes wrongly, "op dtype", and how. Called in a child."""
    device = OpenVINO(plugin, 0, "on trial", {})
    wrong: dict[str, str] = {}
    for dtype in sorted(DTYPES, key=lambda d: d.name):
        nodes = _calls(dtype)
        if not nodes:
            continue
        key, leaves, _ = capture(nodes)
        graph = graph_of(key)
        inside = tuple(n for n in range(len(graph.calls)) if n not in graph.inputs)
        region = Region(graph, RegionKind.SEQUENCE, inside, graph.inputs, graph.outputs[: len(nodes)])
        made = device.compile(region)(*[leaf.buffer.data for leaf in leaves])  # type: ignore[union-attr]
        for node, got in zip(nodes, made, strict=True):
            told = _difference(node, got)
            if told is not None:
                wrong[f"{node.call.op.name} {dtype.name}"] = told
    return wrong


def _calls(dtype: DType) -> list[Node]:
    """Calls of the rows for a dtype, on values that break things."""
    values = _values(dtype)
    x = from_array(np.resize(values, 64 * 61).reshape(64, 61))
    left, right = np.meshgrid(values, values)
    a, b = from_array(np.ascontiguousarray(left)), from_array(np.ascontiguousarray(right))
    made = [REGISTRY[name](x)._node for name, row in UNARY.items() if dtype in row.dtypes]
    made += [REGISTRY[name](a, b)._node for name, row in BINARY.items() if dtype in row.dtypes]
    for name in ("max", "min", "all", "any"):
        if dtype in OTHERS[name].dtypes:
            made += [REGISTRY[name](x, axis=1)._node]
    if dtype in OTHERS["matmul"].dtypes:
        tame = np.linspace(-2, 3, 64 * 61, dtype=dtype.numpy).reshape(64, 61)
        m, n = from_array(tame), from_array(np.ascontiguousarray(tame.T))
        made += [REGISTRY["sum"](m, axis=1)._node, REGISTRY["mean"](m, axis=0)._node, REGISTRY["matmul"](m, n)._node]
    return made


def _values(dtype: DType) -> Any:
    if dtype.is_float:
        most = float_info(dtype).max
        numbers = [0.0, 1e-3, 0.5, 1.0, 1.5, 2.5, 7.3, 30.25, 0.9 * most, np.inf]
        return np.array([np.nan, *[sign * n for n in numbers for sign in (1, -1)]]).astype(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return np.array([info.min, 0, 1, 7, 100, info.max], dtype.numpy)
    return np.array([False, True])


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
            folds = node.call.inputs[0].shape != node.spec.shape
            scale = np.max(np.abs(b[np.isfinite(b)]), initial=0) if folds else np.abs(b)
            allowed = node.call.op.tolerance.ulps * info.eps * scale + info.smallest_normal
            right = (a == b) | (np.isnan(a) & np.isnan(b)) | ((np.abs(a - b) <= allowed) & np.isfinite(b))
    if right.all():
        return None
    at = tuple(np.argwhere(~right)[0])
    return f"{got[at]!s} instead of {wanted[at]!s}"
