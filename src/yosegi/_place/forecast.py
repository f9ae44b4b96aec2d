"""The predicted time of a plan: compute, conversion and transfer."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Protocol

from .._graph.graph import Graph
from .._run.device import is_linked
from .._run.memory import HOST
from .._schedule.fuse import Region
from .candidates import Candidate
from .cost_model import Work
from .costs import costs


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds."""

    compute: float
    conversion: float
    transfer: float
    is_measured: bool
    """True if all of its units have been measured."""

    @property
    def total(self) -> float:
        """The seconds of compute, conversion and transfer together."""
        return self.compute + self.conversion + self.transfer

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as plain data, in milliseconds."""
        parts = {"compute": self.compute, "conversion": self.conversion, "transfer": self.transfer, "total": self.total}
        return {**{f"{name}_ms": s * 1e3 for name, s in parts.items()}, "is_measured": self.is_measured}


class Compiled(Protocol):
    """A region that is compiled as one unit, and its candidate."""

    @property
    def region(self) -> Region: ...
    @property
    def candidate(self) -> Candidate: ...
    @property
    def works(self) -> tuple[Work, ...]: ...


def space_of(graph: Graph, entry: int) -> str:
    """The memory that a graph's input is in."""
    space: str = graph.calls[entry].attrs.get("space", HOST)
    return space


def comes_from_host(graph: Graph) -> bool:
    """True if all inputs of a program are on the host: then its results are assumed to be needed there too."""
    return all(space_of(graph, i) == HOST for i in graph.inputs)


def forecast_of(graph: Graph, units: Iterable[Compiled], reused: Set[int] = frozenset()) -> Forecast:
    """The time of these units in sequence. `reused` inputs are the same in every run and cost no transfer."""
    compute = conversion = transfer = 0.0
    is_measured = True
    homes = {i: [space_of(graph, i)] for i in graph.inputs}
    for unit in units:
        space = unit.candidate.device.space
        cost = costs.predict(unit.region, unit.works, unit.candidate)
        compute += cost.compute
        conversion += cost.conversion
        is_measured &= cost.is_measured
        for entry in unit.region.inputs:
            if entry not in reused:
                transfer += _moved(graph, entry, homes[entry], space)
        for entry in unit.region.outputs:
            homes[entry] = [space]
    if comes_from_host(graph):
        transfer += sum(_moved(graph, o, homes[o], HOST) for o in set(graph.outputs) if o in homes)
    return Forecast(compute, conversion, transfer, is_measured)


def _moved(graph: Graph, entry: int, homes: list[str], target: str) -> float:
    """The seconds to bring a value to a memory. It stays there, and on the host if it goes through the host."""
    if target in homes:
        return 0.0
    source = HOST if HOST in homes else homes[0]
    homes.append(target)
    if HOST not in homes and not is_linked(source, target):
        homes.append(HOST)
    return costs.transfer(source, target).seconds(graph.calls[entry].spec.nbytes)
