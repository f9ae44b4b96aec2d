"""Trials of a compiler in child processes: every row of its table on special values, compared with the reference.

A compiler can end the process it runs in, and the same op is another kernel on another processor. Lower precisions are
tried in `precisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..._graph.portable import Plain
from ..._graph.reference import bind
from ..._schedule.portable_region import region_of_plain
from ..._tensor.dtype import as_dtype, float_info
from ..._tensor.node import Node
from ..._tensor.precision import Precision
from ..._tune.comparison import largest, wrong_elements
from ...errors import DeviceFailure, LaunchFailure
from ..kernel.qualification import difference_of, inputs_for
from .device import ModelDevice
from .specimens import region_of, specimens

_ADDED: Final = 4.0  # times the error that an op may have, where many roundings add up
_CHEAP: Final = 1 << 26
"""Bytes of a region's inputs and outputs up to which it is run once before it is handed over."""


def wrong_rows(device: ModelDevice, dtype: str) -> dict[str, str]:
    """The rows of the op table that a device computes wrongly for a dtype, "op dtype", and how."""
    wrong: dict[str, str] = {}
    found = specimens(device.table, as_dtype(dtype))
    nodes = [n for n in found if device.supports(region_of([n])[0]) is None]
    for node, got in zip(nodes, _computed(device, nodes), strict=True):
        told = got if isinstance(got, str) else _difference(device, node, got)
        if told is not None:
            wrong[f"{node.call.op.name} {dtype}"] = told
    return wrong


def prove(device: ModelDevice, plain: Plain, place: str) -> None:
    """Compile a region, run it once, and leave the compiled model in a place. Raises if the result is wrong."""
    region = region_of_plain(plain)
    kernel = device.compile(region)
    if region.nbytes <= _CHEAP and region.precision is Precision.FULL:
        wrong = difference_of(device, region, inputs_for(region), {"": lambda: kernel})
        if wrong is not None:
            raise LaunchFailure(wrong)
    device.models.export(region, Path(place))


def _computed(device: ModelDevice, nodes: Sequence[Node]) -> list[Any]:
    """The values of some calls, by one model; where that fails, each by its own, and for those that fail, why."""
    try:
        region, data = region_of(nodes)
        return list(device.compile(region)(*data))
    except DeviceFailure as failure:
        return [str(failure)] if len(nodes) == 1 else [made for n in nodes for made in _computed(device, [n])]


def _difference(device: ModelDevice, node: Node, got: Any) -> str | None:
    """How a result differs from the reference's, if it does by more than the op may."""
    given = [i.buffer.data for i in node.inputs if i.buffer is not None]
    with np.errstate(all="ignore"):
        wanted = np.asarray(bind(node.call)(*given)).astype(node.spec.dtype.numpy)
        allowed: Any = 0
        if node.spec.dtype.is_float:
            info = float_info(node.spec.dtype)
            adds = device.table.rows[node.call.op.name].sums
            scale = _ADDED * largest(wanted) if adds else np.abs(wanted.astype(np.float64))
            allowed = node.call.op.tolerance.ulps * info.eps * scale + info.smallest_normal
        wrong = wrong_elements(got, wanted, allowed)
    if not wrong.any():
        return None
    at = tuple(np.argwhere(wrong)[0])
    return f"{got[at]!s} instead of {wanted[at]!s}"
