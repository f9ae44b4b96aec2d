"""Nodes → graph: capture, structural key, check, print.

A graph is a program in a list: each entry is a call on earlier entries. `capture` takes the nodes that evaluation wants
and returns their structural key, which looks up a plan, with the nodes at both ends; `graph_of` makes a `Graph` of a
key that has no plan yet. Both are called by `_run/evaluate.py`, and by `jit` for traced functions. Capturing walks the
nodes without recursion, however deep they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, Final

from .._run.memory import HOST, Buffer
from .._tensor.node import Call, Node, Spec
from .._tensor.op import leaf, leaf_call, pick
from .._tensor.role import Control
from .._trace.mistakes import value_needed
from .._trace.tracing import tracing_transform
from ..errors import TraceError

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A program. Entry i is `calls[i]` applied to the entries `args[i]`; leaves are its inputs, in order."""

    calls: tuple[Call, ...]
    args: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    origins: tuple[str, ...] = ()
    """For each entry the composite that it is a part of, "" for none; nothing at all where composites are whole."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The entries that come from outside."""
        return tuple(i for i, call in enumerate(self.calls) if call.op is leaf)

    @property
    def has_composites(self) -> bool:
        """True if a call here, or in the body of a loop or a branch, can be decomposed."""
        return any(
            call.op.decomposition is not None or any(body.has_composites for body in bodies_of(call))
            for call in self.calls
        )

    def __str__(self) -> str:
        lines = []
        for i, (call, args) in enumerate(zip(self.calls, self.args, strict=True)):
            attrs = [f"{k}={v!r}" for k, v in call.attrs.items()]
            shown = ", ".join([f"%{a}" for a in args] + attrs)
            lines.append(f"%{i} = {call.op.name}({shown}): {', '.join(map(repr, call.outputs))}")
        return "\n".join([*lines, "return " + ", ".join(f"%{o}" for o in self.outputs)])


def bodies_of(call: Call) -> Sequence[Graph]:
    """The graphs among a call's attributes: the bodies of a loop or a branch."""
    role = call.op.role
    return [call.attrs[name] for name in role.bodies] if isinstance(role, Control) else ()


# The references that capture itself holds on a node while it counts them: the list of the order, the dict of the
# positions, the loop's variable, and getrefcount's argument.
_OWN_REFERENCES: Final = 4


_LEFT_ITS_TRACE: Final = (
    "[eval] expected a tensor that has a value, got one that was kept from inside a traced function; return it from "
    "the function instead"
)


def capture(roots: Sequence[Node]) -> tuple[Key, list[Node], list[Node]]:
    """The graph below these nodes, down to values that exist: its key, the nodes that feed it, and those it computes.

    Beside the roots, every intermediate that somebody still holds (a live tensor, another expression) becomes an
    output: it is computed anyway, and would be computed again when its holder asks.
    """
    position: dict[Node, int] = {}
    order: list[Node] = []
    uses: list[int] = []
    key: list[Any] = []
    leaves: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in position:
            stack.pop()
            continue
        inputs = node.inputs  # before buffer: see Node
        buffer = node.buffer  # once: another thread may find it lost
        if buffer is not None:
            key.append(_leaf_key(node.call, buffer))
            leaves.append(node)
        else:
            ready = True
            for i in inputs:
                if i not in position:
                    buffer = i.buffer
                    if buffer is None:
                        stack.append(i)
                        ready = False
                    else:
                        position[i] = len(order)
                        order.append(i)
                        uses.append(0)
                        key.append(i.call.outputs if buffer.space is HOST else _leaf_key(i.call, buffer))
                        leaves.append(i)
            if not ready:
                continue
            if not inputs and node.call.op is leaf:
                transform = tracing_transform()
                raise TraceError(_LEFT_ITS_TRACE) if transform is None else value_needed(transform)
            key.append(node.call)
            for i in inputs:
                at = position[i]
                key.append(at)
                uses[at] += 1
        position[node] = len(order)
        order.append(node)
        uses.append(0)
        stack.pop()
    wanted = list(roots)
    key.append("->")
    key += [position[r] for r in roots]
    asked = set(key[-len(wanted) :])
    i = stack = None  # type: ignore[assignment]  # the loop's last node would count as held
    for at in range(len(order)):
        node = order[at]
        if getrefcount(node) - _OWN_REFERENCES > uses[at] and node.buffer is None and node.inputs and at not in asked:
            if len(node.call.outputs) > 1 and node.call.op.decomposition is not None:
                continue  # in parts, there is no value that has all of its outputs
            wanted.append(node)
            key.append(at)
    return tuple(key), leaves, wanted


def _leaf_key(call: Call, buffer: Buffer) -> tuple[Any, ...]:
    return call.outputs if buffer.space is HOST else (buffer.space, buffer.is_pinned, *call.outputs)


def graph_of(key: Key) -> Graph:
    """The graph that a structural key describes."""
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []
    i, end = 0, key.index("->")
    while i < end:
        item = key[i]
        i += 1
        if isinstance(item, Call):
            n = 1 if item.op is pick else len(item.inputs)
            calls.append(item)
            args.append(key[i : i + n])
            i += n
        else:
            if isinstance(item[0], str):
                space, is_pinned, *specs = item
                calls.append(leaf_in(space, tuple(specs), is_pinned=is_pinned))
            else:
                calls.append(leaf_in(HOST, item))
            args.append(())
    return Graph(tuple(calls), tuple(args), key[end + 1 :])


def leaf_in(space: str, specs: tuple[Spec, ...], *, is_pinned: bool = False) -> Call:
    """The call of a leaf that is in a memory."""
    if space == HOST and len(specs) == 1:
        return leaf_call(specs[0])
    return Call(leaf, {"space": space, "pinned": True} if is_pinned else {"space": space}, (), specs)


def check(graph: Graph) -> None:
    """Raise unless the graph is whole: every entry's inputs come before it and have the specs its call was made for,
    and the call's own rule gives the outputs it claims."""
    for i, (call, args) in enumerate(zip(graph.calls, graph.args, strict=True)):
        where = f"entry {i}, {call!r}"
        assert all(0 <= a < i for a in args), f"{where}: reads {args}, which do not come before it"
        given = tuple(s for a in args for s in graph.calls[a].outputs)
        fits = [(s.shape, s.dtype) for s in given] == [(s.shape, s.dtype) for s in call.inputs]
        assert fits, f"{where}: was made for {call.inputs}, gets {given}"
        if call.op is not leaf:
            assert call.op.infers(call), f"{where}: its rule does not give {call.outputs}"
    assert all(0 <= o < len(graph.calls) for o in graph.outputs), f"outputs {graph.outputs} are not entries"
