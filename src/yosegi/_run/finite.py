"""`options(check_nan=True)`: the values of single nodes, searched for the op that first made a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from .._graph.graph import Graph
from .._graph.reference import computed, interpret
from .._tensor.node import Call, Node, fetch
from .._tensor.op import OpKind
from .._tensor.origins import Origin, origin_of
from .._tensor.role import Control
from ..errors import NotFinite

_PASSED_ON: Final = (OpKind.SOURCE, OpKind.MOVEMENT)
"""Kinds of op that make no number of their own: they give a NaN only if they are given one."""


def check_finite(node: Node, inputs: Sequence[Node]) -> None:
    """Raise `NotFinite` if a node that was made of these inputs has a NaN, or an infinity, and none of them has."""
    _check(node.call, [fetch(i) for i in inputs], fetch(node), origin_of(node))


def _check(call: Call, arguments: Sequence[Any], made: Any, origin: Origin) -> None:
    given = _numbers(arguments)
    for is_bad in (np.isnan, np.isinf):
        found = next((n for n in _numbers([made]) if is_bad(n).any()), None)
        if call.op.kind in _PASSED_ON or found is None or any(is_bad(n).any() for n in given):
            continue
        if isinstance(call.op.role, Control):
            call.op.role.drive(partial(_checking, origin), *arguments, **call.attrs)
        index = tuple(np.argwhere(is_bad(found))[0].tolist())
        finite = np.concatenate([n[np.isfinite(n)].real.ravel() for n in given] or [np.zeros(0)])
        span = f"; its inputs lie between {finite.min():.4g} and {finite.max():.4g}" if finite.size else ""
        raise NotFinite(f"[{call.op.name}] expected finite values, got {found[index]} at index {index} {origin}{span}")


def _numbers(values: Sequence[Any]) -> list[Any]:
    """The arrays among values, some of several parts, that can have a NaN: the others are integers."""
    parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    arrays = [np.asarray(part) for part in parts]
    return [a.astype(np.float32) if a.dtype.kind == "V" else a for a in arrays if a.dtype.kind in "fcV"]


def _checking(origin: Origin, body: Graph) -> Callable[..., list[Any]]:
    """The body of a loop or a branch, as a function that raises `NotFinite` for the op in it."""

    def compute(call: Call, arguments: Sequence[Any]) -> Any:
        made = computed(call, arguments)
        _check(call, arguments, made, origin)
        return made

    def run(*arrays: Any) -> list[Any]:
        entries = [n for n in range(len(body.calls)) if n not in body.inputs]
        with np.errstate(all="ignore"):
            values = interpret(body.calls, body.args, entries, dict(zip(body.inputs, arrays, strict=True)), compute)
        return [values[o] for o in body.outputs]

    return run
