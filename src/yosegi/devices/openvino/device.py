"""A device that OpenVINO has a plugin for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from ..._place.speed import compiler_prior
from ..._run.device import Device, Kernel, Limits, host_device
from ..._run.drivers import Driver
from ..._run.memory import HOST
from ..._schedule.fuse import Region
from ..._tensor.op import REGISTRY, OpKind
from ..._tensor.precision import Precision
from .blobs import machine
from .library import REDUCED, threads
from .models import Models
from .op_row import DTYPES
from .ops import NATIVES, ROWS
from .translate import why_not

_KINDS: Final = frozenset({OpKind.SOURCE, *[REGISTRY[name].kind for name in ROWS]})
_PRIOR: Final = compiler_prior(launch=1e-4, weighted=1.5)
"""A call costs what ten of the host's kernels do, and of all it computes, models with constant weights gain."""


class OpenVINO:
    """One plugin of OpenVINO, as a compiler of whole subgraphs. It works in the host's memory."""

    space = HOST
    is_volatile = False
    coalesces = True

    def __init__(
        self, plugin: str, number: int, description: str, wrong: Mapping[str, str], against: Mapping[str, str],
        driver: Driver | None = None,
    ) -> None:  # fmt: skip
        """`wrong` has the rows or dtypes ("op dtype") that failed its qualification, with their mistakes; `against` has
        the reasons against lower precisions, by their names. Without a `driver`, as in child processes, everything is
        compiled in this process."""
        self.name = f"openvino:{number}"
        self.rank = 200 + number
        self.is_gpu = plugin.startswith("GPU")
        self._what = f"{plugin}: {description}"
        self.description = "; ".join([self._what, *[f"no {p}: {why}" for p, why in against.items()]])
        precisions = frozenset(p for p in REDUCED if p.value not in against)
        self.limits = Limits(DTYPES, _KINDS, NATIVES, compiles_slowly=True, prior=_PRIOR, precisions=precisions)
        self._wrong = wrong
        self._against = against
        self.models = Models(self.name, plugin, driver)

    @property
    def identity(self) -> str:
        """The processor, OpenVINO's version and this folder's, the plugin with its device, what it computes in, and the
        threads. Not what was measured when it was tried, which is another figure every time."""
        return "\n".join([machine(), self._what, *sorted(p.value for p in self.limits.precisions), str(threads())])

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""
        if region.precision is not Precision.FULL and region.precision not in self.limits.precisions:
            name = region.precision.value
            return f"no {name}: {self._against.get(name, 'it has no such precision')}"
        for call in region.calls if self._wrong else ():
            for dtype in {s.dtype.name for s in call.inputs}:
                told = self._wrong.get(f"{call.op.name} {dtype}") or self._wrong.get(dtype)
                if told is not None:
                    return f"its {call.op.name} of {dtype} was wrong when it was tried here: {told}"
        return why_not(region)

    def compile(self, region: Region) -> Kernel:
        """The region as one model."""
        return self.models.get(region)

    def from_host(self, array: Any) -> Any:
        """The array itself: the memory is the host's."""
        return array

    def to_host(self, data: Any) -> Any:
        """The array itself: the memory is the host's."""
        return data

    def link_from(self, source: Device) -> None:
        """Nothing comes directly: it works in the host's memory."""

    def synchronize(self) -> None:
        """Nothing to wait for: its models return when they are done."""

    def statistics(self) -> dict[str, int | None]:
        """The statistics of the pool of results."""
        return asdict(self.models.pool.statistics())

    def memory(self) -> tuple[int, int]:
        """The host's."""
        return host_device().memory()

    def trim(self) -> int:
        """Return the free memory of the pool to the system."""
        return self.models.pool.trim()

    def __repr__(self) -> str:
        return self.name
