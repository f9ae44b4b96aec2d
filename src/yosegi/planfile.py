"""Plans as files of JSON: what runs where, in which precision and with which kernels, for which devices as they were.

A file is plain data, and belongs to the machine that it was written on: devices are told by their identities, the code
that makes their kernels by its own. Whatever has changed is a reason not to run it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from .device import Device
from .errors import ArgumentError, PlanRefused
from .fuse import RegionKind
from .graph import Graph
from .portable import graph_as_plain, graph_of_plain
from .precision import Precision
from .store import package_digest, written

FORMAT: Final = "yosegi-plan"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A step as it is in a file."""

    device: str
    precision: str
    kind: str
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as it is in a file."""

    graph: Graph
    steps: tuple[Kept, ...]
    devices: Mapping[str, str]
    """The identity of each device that runs a step."""
    kernels: Mapping[str, str]
    """Which kernels were chosen, of those that did the same work."""

    def write(self, path: str | PathLike[str]) -> None:
        """Put it in a file."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "sources": package_digest(),
            "devices": dict(self.devices),
            "kernels": dict(self.kernels),
            "graph": graph_as_plain(self.graph),
            "steps": [asdict(step) for step in self.steps],
        }
        failure = written(Path(fspath(path)), json.dumps(content, indent=1).encode())
        if failure is not None:
            raise ArgumentError(f"[save] expected a file that can be written, got {fspath(path)}: {failure}")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> PlanFile:
        """What is in a file. Raises `ArgumentError` if that is no plan, `PlanRefused` if it is another version's."""
        name = fspath(path)
        try:
            data = json.loads(Path(name).read_bytes())
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            if (data["version"], data["sources"]) != (VERSION, package_digest()):
                raise PlanRefused(f"[load_plan] {name} was written by another version of Yosegi; make the plan again")
            graph = graph_of_plain(data["graph"])
            steps = tuple([_kept(step, len(graph.calls)) for step in data["steps"]])
            return cls(graph, steps, _texts(data["devices"]), _texts(data["kernels"]))
        except PlanRefused:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ArgumentError) as error:
            raise ArgumentError(f"[load_plan] expected a plan, got {name}: {type(error).__name__}: {error}") from error

    def check(self, present: Mapping[str, Device]) -> None:
        """Raise `PlanRefused` unless the devices are those that it was made for."""
        for name, identity in self.devices.items():
            if name not in present:
                raise PlanRefused(f"[load_plan] the plan needs {name}, which is not there")
            if present[name].identity != identity:
                changes = _changes(identity, present[name].identity)
                raise PlanRefused(f"[load_plan] {name} is not what the plan was made for: {changes}")


def _kept(data: Any, entries: int) -> Kept:
    lists = {name: tuple([_entry(e, entries) for e in data[name]]) for name in ("nodes", "inputs", "outputs", "frees")}
    kind, precision = RegionKind(data["kind"]).value, Precision(data["precision"]).value
    return Kept(str(data["device"]), precision, kind, **lists)


def _entry(value: Any, entries: int) -> int:
    if type(value) is not int or not 0 <= value < entries:
        raise ValueError(f"{value!r} is no entry of its graph")
    return value


def _texts(data: Any) -> dict[str, str]:
    if not all(type(text) is str for pair in data.items() for text in pair):
        raise ValueError(f"expected texts, got {data!r}")
    return dict(data)


def _changes(before: str, now: str) -> str:
    """The lines of an identity that are others now."""
    old, new = before.splitlines(), now.splitlines()
    gone, came = [line for line in old if line not in new], [line for line in new if line not in old]
    return f"{'; '.join(gone) or 'nothing'} before, {'; '.join(came) or 'nothing'} now"
