"""Plan: the steps by which a graph is computed, each on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import groupby
from typing import Any, Final

from .background import Job
from .device import Device, Kernel, host_device
from .errors import NotReady
from .fuse import Region
from .graph import Graph
from .precision import Precision
from .trace import Record

_LINE: Final = 12  # ops that a line of an explanation shows


@dataclass(slots=True)
class Step:
    """One region, the devices that may run it, best first, and what is compiled of it."""

    region: Region
    candidates: tuple[Device, ...]
    refused: tuple[tuple[str, str], ...]
    """The devices asked before the first candidate, and why they could not."""
    frees: tuple[int, ...]
    """The values that no later step needs."""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    jobs: dict[str, Job[Kernel]] = field(default_factory=dict)
    """The kernels that are being compiled in the background."""
    last: Record | None = None
    """How it ran the last time."""

    @property
    def device(self) -> Device:
        """The device it is planned on."""
        return self.candidates[0]

    def kernel_on(self, device: Device, *, wait: bool = True) -> Kernel:
        """The region, compiled for a device, once. Without `wait`, a slow compiler works in the background: `NotReady`
        is raised until it is done."""
        kernel = self.kernels.get(device.name)
        if kernel is None:
            kernel = self.kernels.setdefault(device.name, self._compiled(device, wait))
        return kernel

    def _compiled(self, device: Device, wait: bool) -> Kernel:
        if not device.limits.compiles_slowly:
            return device.compile(self.region)
        job = self.jobs.get(device.name)
        if job is None:
            job = self.jobs.setdefault(device.name, Job(partial(device.compile, self.region)))
        try:
            return job.result() if wait else job.result_if_ready()
        finally:
            if job.is_done:  # the kernel is kept elsewhere; after a failure, the next attempt is a new job
                self.jobs.pop(device.name, None)


class Plan:
    """Steps in order, for the inputs and outputs of a graph."""

    __slots__ = ("graph", "host_kernel", "inputs", "sole_step", "steps")

    def __init__(self, graph: Graph, steps: Sequence[Step]) -> None:
        self.graph = graph
        self.inputs = graph.inputs
        self.steps = tuple(steps)
        self.sole_step = self._sole_step()
        """The step that is all of the plan, from its inputs to its outputs, for the plans that are no more than one."""
        self.host_kernel = self._host_kernel()
        """The whole plan as one kernel on host arrays, for the plans that are no more than that."""

    def _sole_step(self) -> Step | None:
        if len(self.steps) != 1:
            return None
        region = self.steps[0].region
        return self.steps[0] if (region.inputs, region.outputs) == (self.inputs, self.graph.outputs) else None

    def _host_kernel(self) -> Kernel | None:
        step = self.sole_step
        if step is None or step.device is not host_device():
            return None
        on_host = all("space" not in self.graph.calls[i].attrs for i in self.inputs)
        return step.kernel_on(step.device) if on_host else None

    @property
    def nbytes(self) -> int:
        """The bytes of the constants it holds."""
        return sum(c.spec.nbytes for c in self.graph.calls if "array" in c.attrs)

    def explain(self) -> Explanation:
        """What will run where, and why not elsewhere; and how it ran, if it did."""
        return Explanation(self)

    def __repr__(self) -> str:
        return f"<plan of {len(self.steps)} steps for {len(self.graph.calls)} values>"


class Explanation:
    """A plan in words. `print` it, look at it in a notebook, or take `to_json()`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def to_json(self) -> dict[str, Any]:
        """The steps as plain data."""
        calls = self._plan.graph.calls
        made = {value: n for n, step in enumerate(self._plan.steps) for value in step.region.outputs}
        return {
            "steps": [
                {
                    "device": step.device.name,
                    "ops": [call.op.name for call in step.region.calls],
                    "composites": step.region.origins,
                    "precision": step.region.precision.value,
                    "inputs": [repr(calls[n].spec) for n in step.region.inputs],
                    "outputs": [repr(calls[n].spec) for n in step.region.outputs],
                    "reads": sorted({made[n] for n in step.region.inputs if n in made}),
                    "refused": [{"device": d, "reason": r} for d, r in step.refused],
                    "actual": None if step.last is None else step.last.to_json(),
                }
                for step in self._plan.steps
            ]
        }

    def __str__(self) -> str:
        lines = []
        for i, step in enumerate(self.to_json()["steps"]):
            lines.append(f"step {i} on {step['device']}: {_shown(step['ops'], step['composites'])}")
            lines.append(f"  {', '.join(step['inputs']) or 'nothing'} → {', '.join(step['outputs'])}")
            if step["precision"] != Precision.FULL.value:
                lines.append(f"  products in {step['precision']}")
            lines += [f"  not on {r['device']}: {r['reason']}" for r in step["refused"]]
            if step["actual"] is not None:
                lines += _actual_lines(step["actual"])
        return "\n".join(lines) or "nothing to compute: the values are there"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names = ("step", "device", "ops", "in → out", "products", "not on", "ran")
        head = f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"
        rows = []
        for i, step in enumerate(self.to_json()["steps"]):
            flow = f"{', '.join(step['inputs'])} → {', '.join(step['outputs'])}"
            refused = "; ".join(f"{r['device']}: {r['reason']}" for r in step["refused"])
            ran = "" if step["actual"] is None else "; ".join(line.strip() for line in _actual_lines(step["actual"]))
            ops = _shown(step["ops"], step["composites"])
            cells = (str(i), step["device"], ops, flow, step["precision"], refused, ran)
            rows.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
        return f"<table>{head}{''.join(rows)}</table>"


def _shown(ops: list[str], composites: list[str]) -> str:
    """The ops in a line, those of a composite behind its name; where there are many, its name alone."""
    short = len(ops) > _LINE
    words: list[str] = []
    for composite, group in groupby(zip(ops, composites, strict=True), key=lambda pair: pair[1]):
        names = [name for name, _ in group]
        words += names if not composite else [composite] if short else [f"{composite}({' '.join(names)})"]
    text = " ".join(words if len(words) <= _LINE else [*words[: _LINE - 1], "…"])
    return f"{text} ({len(ops)} ops)" if short else text


def _actual_lines(actual: dict[str, Any]) -> list[str]:
    lines = [
        f"  not yet on {f['device']}: {f['message']}"
        if f["kind"] == NotReady.__name__
        else f"  failed on {f['device']}: {f['kind']}: {f['message']}"
        for f in actual["failures"]
    ]
    moved = f", {actual['bytes_moved']:,} bytes moved" if actual["bytes_moved"] else ""
    return [*lines, f"  ran on {actual['device']} in {actual['milliseconds']:.3f} ms{moved}"]
