"""Plan: the steps by which a graph is computed, each on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .device import Kernel
from .fuse import Region
from .graph import Graph


@dataclass(frozen=True, slots=True)
class Step:
    """One region on one device."""

    region: Region
    device: str
    kernel: Kernel
    frees: tuple[int, ...]
    """The values that no later step needs."""
    refused: tuple[tuple[str, str], ...] = ()
    """The devices asked before this one, and why they could not."""


class Plan:
    """Steps in order. `kernel` takes the data of the graph's inputs and gives that of its outputs."""

    __slots__ = ("graph", "kernel", "steps")

    def __init__(self, graph: Graph, steps: Sequence[Step]) -> None:
        self.graph = graph
        self.steps = tuple(steps)
        # A plan of one step that takes and gives exactly what the plan does is its kernel: nothing to shuffle.
        whole = len(steps) == 1 and steps[0].region.inputs == graph.inputs and steps[0].region.outputs == graph.outputs
        self.kernel: Kernel = steps[0].kernel if whole else self._run_steps

    def _run_steps(self, *data: Any) -> tuple[Any, ...]:
        values: dict[int, Any] = dict(zip(self.graph.inputs, data, strict=True))
        for step in self.steps:
            made = step.kernel(*[values[i] for i in step.region.inputs])
            values.update(zip(step.region.outputs, made, strict=True))
            for entry in step.frees:
                del values[entry]
        return tuple([values[o] for o in self.graph.outputs])

    def explain(self) -> Explanation:
        """What will run where, and why not elsewhere."""
        return Explanation(self)

    def __repr__(self) -> str:
        return f"<plan of {len(self.steps)} steps for {len(self.graph.calls)} values>"


class Explanation:
    """A plan in words. `print` it, or take `to_json()`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def to_json(self) -> dict[str, Any]:
        """The steps as plain data."""
        calls = self._plan.graph.calls
        return {
            "steps": [
                {
                    "device": step.device,
                    "ops": [calls[n].op.name for n in step.region.nodes],
                    "inputs": [repr(calls[n].spec) for n in step.region.inputs],
                    "outputs": [repr(calls[n].spec) for n in step.region.outputs],
                    "refused": [{"device": d, "reason": r} for d, r in step.refused],
                }
                for step in self._plan.steps
            ]
        }

    def __str__(self) -> str:
        lines = []
        for i, step in enumerate(self.to_json()["steps"]):
            ops: list[str] = step["ops"]
            shown = " ".join(ops) if len(ops) <= 12 else f"{' '.join(ops[:11])} … ({len(ops)} ops)"
            lines.append(f"step {i} on {step['device']}: {shown}")
            lines.append(f"  {', '.join(step['inputs']) or 'nothing'} → {', '.join(step['outputs'])}")
            lines += [f"  not on {r['device']}: {r['reason']}" for r in step["refused"]]
        return "\n".join(lines) or "nothing to compute: the values are there"

    __repr__ = __str__
