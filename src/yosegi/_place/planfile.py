"""Plans as files of JSON: what runs where, in which precision and with which kernels, for which devices as they were.

A file is plain data, and belongs to the machine that it was written on: devices are known by their identities, the code
that makes their kernels by its own. Whatever has changed is a reason not to run it, and so is any change of the file:
its graph goes through the ops' own rules, its steps through `fuse`, all of it through a digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from .._graph import decode
from .._graph.decode import Malformed
from .._graph.graph import Graph
from .._graph.portable import entries, graph_as_plain, graph_of_plain
from .._run.device import Device, host_device
from .._schedule.fuse import Region, RegionKind, fuse, is_constant, join
from .._tensor.composite import decomposed
from .._tensor.node import Call
from .._tensor.precision import Precision
from .._tune.store import package_digest, written
from ..errors import ArgumentError, PlanRefused
from ..ops.windows import padded_nbytes

FORMAT: Final = "yosegi-plan"
VERSION: Final = 2


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
    """The kernel that was chosen for each piece of work with several variants."""
    tolerance: float | None = None
    """The tolerance of its products, if they carry certificates."""

    def write(self, path: str | PathLike[str]) -> None:
        """Put it in a file."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "sources": package_digest(),
            "devices": dict(self.devices),
            "kernels": dict(self.kernels),
            "tolerance": self.tolerance,
            "graph": graph_as_plain(self.graph),
            "steps": [{f.name: _plain(getattr(step, f.name)) for f in fields(step)} for step in self.steps],
        }
        content["digest"] = digest_of_plan(content)
        failure = written(Path(fspath(path)), json.dumps(content, indent=1).encode())
        if failure is not None:
            raise ArgumentError(f"[save] expected a file that can be written, got {fspath(path)}: {failure}")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> PlanFile:
        """The plan in a file. Raises `ArgumentError` if there is no file, and `PlanRefused` with the place in it if it
        is not what was written, or was written by another version."""
        name = fspath(path)
        try:
            content = Path(name).read_bytes()
        except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
            raise ArgumentError(f"[load_plan] expected a plan, got {name}: {type(error).__name__}: {error}") from error
        try:
            return cls._of(decode.mapping(decode.loads(content), ""), name)
        except Malformed as error:
            raise PlanRefused(f"[load_plan] {error} of {name}; save the plan again") from None
        except RecursionError:
            raise PlanRefused(f"[load_plan] expected a plan, got lists in lists in {name}; save it again") from None

    @classmethod
    def _of(cls, data: dict[str, Any], name: str) -> PlanFile:
        decode.one_of(data.get("format"), "format", (FORMAT,))
        if (data.get("version"), data.get("sources")) != (VERSION, package_digest()):
            raise PlanRefused(f"[load_plan] {name} was written by another version of Yosegi; make the plan again")
        digest, devices, kernels, tolerance, graph, steps = decode.record(
            {key: value for key, value in data.items() if key not in ("format", "version", "sources")}, "",
            "digest", "devices", "kernels", "tolerance", "graph", "steps",
        )  # fmt: skip
        within = None if tolerance is None else decode.number(tolerance, "tolerance", 5e-324, 1.8e308)
        program, users = graph_of_plain(graph), decode.texts(devices, "devices")
        kept = decode.each(steps, "steps", partial(_kept, graph=program, devices=users))
        _check_order(program, kept)
        file = cls(program, tuple(kept), users, decode.texts(kernels, "kernels"), within)
        if decode.text(digest, "digest") != digest_of_plan(data):
            raise Malformed("the digest of an unchanged file", digest, "digest")
        return file

    def check(self, present: Mapping[str, Device]) -> None:
        """Raise `PlanRefused` unless the devices are those that it was made for, and could hold its values."""
        for name, identity in self.devices.items():
            if name not in present:
                raise PlanRefused(f"[load_plan] the plan needs {name}, which is not there")
            if present[name].identity != identity:
                changes = _changes(identity, present[name].identity)
                raise PlanRefused(f"[load_plan] {name} is not what the plan was made for: {changes}")
        memory = max([host_device().memory()[1], *[device.memory()[1] for device in present.values()]])
        for n, call in enumerate(self.graph.calls):
            if memory and _nbytes(call) > memory:
                raise PlanRefused(
                    f"[load_plan] expected values of at most {memory} bytes, the largest memory here, got "
                    f"{list(call.outputs)} at graph.calls[{n}].outputs; save a plan for smaller inputs"
                )


def _nbytes(call: Call) -> int:
    """The bytes of the largest value that computing a call makes."""
    inside = [inner for inner, _ in decomposed(call).steps] if call.op.decomposition is not None else []
    return max([sum(s.nbytes for s in call.outputs), padded_nbytes(call), *map(_nbytes, inside)])


def digest_of_plan(data: Mapping[str, Any]) -> str:
    """The digest of a file's content, arrays included, whatever its layout: an edit that leaves a program that could
    run is found by it."""
    content = {key: value for key, value in data.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _kept(data: Any, place: str, graph: Graph, devices: Mapping[str, str]) -> Kept:
    """A step: a region that `fuse` could have made of its nodes."""
    device, precision, kind, *lists = decode.record(data, place, *[f.name for f in fields(Kept)])
    decode.one_of(device, f"{place}.device", devices)
    decode.one_of(precision, f"{place}.precision", [p.value for p in Precision])
    decode.one_of(kind, f"{place}.kind", [k.value for k in RegionKind])
    nodes, inputs, outputs, frees = [
        _distinct(entries(each, f"{place}.{name}", len(graph.calls)), f"{place}.{name}")
        for name, each in zip(_LISTS, lists, strict=True)
    ]
    made: set[int] = set()
    for n, node in enumerate(nodes):
        missing = [a for a in graph.args[node] if a not in made and a not in inputs and not is_constant(graph, a)]
        if missing:
            raise Malformed("nodes whose arguments come before them", node, f"{place}.nodes[{n}]")
        made.add(node)
    if not nodes or not set(outputs) <= made or set(inputs) & made:
        raise Malformed("nodes, among them all outputs and no input", list(nodes), f"{place}.nodes")
    parts = fuse(graph, Region(graph, RegionKind(kind), nodes, inputs, outputs))
    if {n for part in parts for n in part.nodes} != made:
        raise Malformed("nodes that are computed", list(nodes), f"{place}.nodes")
    whole = join(parts, outputs)
    if kind != RegionKind.SEQUENCE.value and (kind, nodes) != (whole.kind.value, whole.nodes):
        raise Malformed(f"the kind {whole.kind.value!r} of these nodes", kind, f"{place}.kind")
    return Kept(device, precision, kind, nodes, inputs, outputs, frees)


_LISTS: Final = ("nodes", "inputs", "outputs", "frees")


def _distinct(values: tuple[int, ...], place: str) -> tuple[int, ...]:
    if len(set(values)) < len(values):
        raise Malformed("each entry once", list(values), place)
    return values


def _check_order(graph: Graph, steps: Sequence[Kept]) -> None:
    """Raise unless each value is made once, before it is read, and is there for as long as it is needed."""
    there, made = set(graph.inputs), set(graph.inputs)
    for n, step in enumerate(steps):
        absent = [e for e in step.inputs if e not in there]
        if absent:
            raise Malformed("values that are there", absent, f"steps[{n}].inputs")
        if made & set(step.nodes):
            raise Malformed("values that no step before has made", list(step.nodes), f"steps[{n}].nodes")
        made |= set(step.nodes)
        there |= set(step.outputs)
        if not there >= set(step.frees):
            raise Malformed("values that are there", list(step.frees), f"steps[{n}].frees")
        there -= set(step.frees)
    absent = [e for e in graph.outputs if e not in there]
    if absent:
        raise Malformed("outputs that a step leaves", absent, "graph.outputs")


def _plain(value: str | tuple[int, ...]) -> str | list[int]:
    return value if isinstance(value, str) else list(value)


def _changes(before: str, now: str) -> str:
    """The lines of an identity that are others now."""
    old, new = before.splitlines(), now.splitlines()
    gone, came = [line for line in old if line not in new], [line for line in new if line not in old]
    return f"{'; '.join(gone) or 'nothing'} before, {'; '.join(came) or 'nothing'} now"
