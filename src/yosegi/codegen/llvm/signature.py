"""What tells one kernel from another, in few words: by these a kernel is found again without writing its text.

The text follows from the group and from the files that write it. A group is told by its calls and their wiring, the
files by when they were changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from ..._graph.reference import bind
from ..._schedule.fuse import is_constant
from ..._tensor.node import Call
from .groups import Group
from .nest import Strides

_PACKAGE: Final = Path(__file__).parents[2]
_KNOWN: Final = (__name__.partition(".")[0], f"{__name__.partition('.')[0]}.ops")
"""Where scalar rules are whose changes are seen."""
_WRITERS: Final = (_PACKAGE, _PACKAGE / "ops", _PACKAGE / "codegen", _PACKAGE / "codegen" / "llvm")


def signature(group: Group, strides: Strides, streams: bool) -> str | None:
    """The words for a kernel; `None` if an op of it is defined elsewhere: it might change unseen."""
    graph = group.graph
    wiring = _wiring(group, group.inputs, group.outputs, lambda call: f"{call!r}: {call.spec!r}")
    if wiring is None:
        return None
    words = [writers(), repr(group.space), repr(group.axes), repr(streams)]
    words += [f"{graph.calls[e].spec!r} {strides.get(e, '')}" for e in group.inputs]
    return "\n".join([*words, *wiring])


def elementwise_signature(group: Group, reads: Sequence[int], outputs: Sequence[int]) -> str | None:
    """The same for what a group does to single elements, whatever the shapes: from what it `reads` to its `outputs`."""
    calls = group.graph.calls
    wiring = _wiring(group, reads, outputs, lambda call: f"{call!r}: {call.spec.dtype.name}")
    if wiring is None:
        return None
    return "\n".join([" ".join(calls[e].spec.dtype.name for e in reads), *wiring])


def _wiring(
    group: Group, reads: Sequence[int], outputs: Sequence[int], told: Callable[[Call], str]
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
        words.append(f"{told(call)} of {', '.join(names[a] for a in graph.args[entry])}")
    return [*words, " ".join(names[e] for e in outputs)]


@cache
def writers() -> str:
    """The files that have a say in a kernel's text, with the times of their last changes."""
    found = []
    for folder in _WRITERS:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    known = entry.stat()
                    found.append(f"{entry.name} {known.st_size} {known.st_mtime_ns}")
    return "; ".join(sorted(found))
