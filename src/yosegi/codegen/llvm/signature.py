"""Signatures of kernels: a short key by which a kernel is found again without writing its text.

The text follows from the group and from this package. A group is identified by its calls and their wiring, the package
by its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..._graph.reference import bind
from ..._schedule.fuse import is_constant
from ..._schedule.groups import Group
from ..._tensor.node import Call
from ..._tune.store import package_digest
from .nest import Strides

_KNOWN: Final = (__name__.partition(".")[0], f"{__name__.partition('.')[0]}.ops")
"""Where scalar rules are whose changes are seen."""


def signature(group: Group, strides: Strides, streams: bool) -> str | None:
    """The words for a kernel; `None` if an op of it is defined elsewhere: it might change unseen."""
    graph = group.graph
    wiring = _wiring(group, group.inputs, group.outputs, lambda call: f"{call!r}: {call.spec!r}")
    if wiring is None:
        return None
    words = [package_digest(), repr(group.space), repr(group.axes), repr(streams)]
    words += [f"{graph.calls[e].spec!r} {strides.get(e, '')}" for e in group.inputs]
    return "\n".join([*words, *wiring])


def elementwise_signature(group: Group, reads: Sequence[int], outputs: Sequence[int]) -> str | None:
    """The signature of a group's work on single elements, for all shapes: from what it `reads` to its `outputs`."""
    calls = group.graph.calls
    wiring = _wiring(group, reads, outputs, lambda call: f"{call!r}: {call.spec.dtype.name}")
    if wiring is None:
        return None
    return "\n".join([" ".join(calls[e].spec.dtype.name for e in reads), *wiring])


def _wiring(
    group: Group, reads: Sequence[int], outputs: Sequence[int], shown: Callable[[Call], str]
) -> list[str] | None:
    """The calls of a group and what they read, numbers by their bits."""
    graph = group.graph
    names = {e: f"i{n}" for n, e in enumerate(reads)} | {e: f"n{n}" for n, e in enumerate(group.nodes)}
    words = []
    for entry in group.nodes:
        call = graph.calls[entry]
        if call.op.scalar is not None and call.op.scalar.__module__.rpartition(".")[0] not in _KNOWN:
            return None
        for a in graph.args[entry]:
            if a not in names:
                assert is_constant(graph, a)
                number = np.asarray(bind(graph.calls[a])())
                names[a] = f"{number.dtype} {number.tobytes().hex()}"
        words.append(f"{shown(call)} of {', '.join(names[a] for a in graph.args[entry])}")
    return [*words, " ".join(names[e] for e in outputs)]
