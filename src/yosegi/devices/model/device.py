"""A device that compiles whole subgraphs, and works in the host's memory."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ..._place.cost_model import Speed
from ..._run.device import Device, Kernel, Limits, host_device
from ..._run.drivers import Driver, Verdict
from ..._run.memory import HOST
from ..._schedule.fuse import Region
from ..._tensor.precision import Precision
from .models import Compiler, Models
from .op_row import OpTable


class ModelDevice(ABC):
    """A compiler of whole subgraphs as a device. It works in the host's memory."""

    space = HOST
    is_volatile = False
    coalesces = True
    rank: int
    is_gpu: bool
    identity: str

    def __init__(
        self, name: str, what: str, table: OpTable, compiler: Compiler, prior: Speed, reduced: Iterable[Precision],
        wrong: Mapping[str, str], against: Mapping[str, str], driver: Driver | None,
    ) -> None:  # fmt: skip
        """`wrong` has the rows or dtypes ("op dtype") that failed its qualification, with their mistakes; `against` has
        the reasons against the `reduced` precisions, by their names. Without a `driver`, as in child processes,
        everything is compiled in this process."""
        self.name = name
        self.table = table
        self._what = what
        self.description = "; ".join([what, *[f"no {p}: {why}" for p, why in against.items()]])
        precisions = frozenset(p for p in reduced if p.value not in against)
        self.limits = Limits(
            table.dtypes, table.kinds, table.natives, compiles_slowly=True, prior=prior, precisions=precisions
        )
        self._wrong = wrong
        self._against = against
        self.models = Models(name, compiler, driver)

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
        return self.table.why_not(region)

    def compile(self, region: Region) -> Kernel:
        """The region as one model."""
        return self.models.get(region)

    def from_host(self, array: Any) -> Any:
        """The array itself: the memory is the host's."""
        return array

    def to_host(self, data: Any) -> Any:
        """The array itself: the memory is the host's."""
        return data

    def link_from(self, source: Device) -> None:  # noqa: B027  # it needs no link
        """Nothing comes directly: it works in the host's memory."""

    def synchronize(self) -> None:  # noqa: B027  # it has no queue
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


def tried(driver: Driver, probe: str, child: tuple[str, ...], table: OpTable, reduced: Iterable[Precision]) -> Verdict:
    """The verdict on a driver, by functions of child processes that get `child` first: `wrong_rows` for every row of
    the table, by dtypes, and `reason_against` for every lower precision. One that ends the process is not used, and
    says nothing of the others."""
    verdict = driver.tried(f"{probe}:wrong_rows", child, sorted(d.name for d in table.dtypes))
    against: dict[str, str] = {}
    for precision in reduced if verdict.failure is None else ():
        outcome = driver.attempt(f"{probe}:reason_against", *child, precision.value)
        reason = outcome.result if outcome.failure is None else f"a trial in a child process failed: {outcome.failure}"
        if reason is not None:
            against[precision.value] = reason
    return replace(verdict, more={"against": against})
