"""Graphs as plain data, for files: nothing in them is code, and whatever does not fit together is refused.

Ops go by name. A call is made anew from its inputs' specs and its attributes when it is read, by the op's own rule,
and must come out with the outputs that it had when it was written.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import numpy as np

from .dtype import DType, as_dtype
from .errors import ArgumentError, YosegiError
from .graph import Graph, leaf_in
from .memory import HOST
from .node import Call, Spec, spec
from .op import REGISTRY, embedded, leaf, pick, pick_call
from .ops.windows import Windows

Plain = Any
"""What JSON can hold."""


def graph_as_plain(graph: Graph) -> Plain:
    """A graph as plain data."""
    calls = [
        {
            "op": call.op.name,
            "attrs": {name: as_plain(value) for name, value in call.attrs.items()},
            "args": list(args),
            "outputs": [_spec_as_plain(s) for s in call.outputs],
        }
        for call, args in zip(graph.calls, graph.args, strict=True)
    ]
    return {"calls": calls, "outputs": list(graph.outputs), "origins": list(graph.origins)}


def graph_of_plain(data: Plain) -> Graph:
    """The graph that plain data describes. Raises `ArgumentError` if it describes none."""
    try:
        calls: list[Call] = []
        args: list[tuple[int, ...]] = []
        for at, item in enumerate(data["calls"]):
            own = tuple(item["args"])
            if any(not 0 <= a < at for a in own):
                raise ValueError(f"entry {at} reads entries that do not come before it")
            calls.append(_call_of_plain(item, [calls[a] for a in own]))
            args.append(own)
        outputs = tuple(data["outputs"])
        if any(not 0 <= o < len(calls) for o in outputs):
            raise ValueError("an output is no entry")
        return Graph(tuple(calls), tuple(args), outputs, tuple(data["origins"]))
    except (KeyError, TypeError, ValueError, IndexError, YosegiError) as error:
        raise ArgumentError(f"expected a graph, got something else: {type(error).__name__}: {error}") from error


def _call_of_plain(item: Plain, given: list[Call]) -> Call:
    name, outputs = item["op"], tuple([_spec_of_plain(s) for s in item["outputs"]])
    attrs = {key: of_plain(value) for key, value in item["attrs"].items()}
    if name not in REGISTRY:
        raise ValueError(f"there is no op {name!r} in this version")
    op = REGISTRY[name]
    if op is leaf:
        return leaf_in(attrs.get("space", HOST), outputs, is_pinned=attrs.get("pinned", False))
    if op is pick:
        return pick_call(given[0].outputs, attrs["index"])
    if op is embedded:
        return Call(embedded, attrs, (), outputs)
    call = op.call(tuple([c.spec for c in given]), attrs)
    if call.outputs != outputs:
        raise ValueError(f"{name} gives {call.outputs!r} in this version, not {outputs!r}")
    return call


def _spec_as_plain(s: Spec) -> Plain:
    return [list(s.shape), s.dtype.name, s.weak]


def _spec_of_plain(data: Plain) -> Spec:
    shape, dtype, weak = data
    return spec(tuple(map(int, shape)), as_dtype(dtype), bool(weak))


# Attributes


def as_plain(value: Any) -> Plain:
    """An attribute as plain data."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is complex:
        return {"complex": repr(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if type(value) is tuple:
        return [as_plain(v) for v in value]
    if isinstance(value, Windows):
        return {"windows": [as_plain(getattr(value, f.name)) for f in fields(Windows)]}
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value)
        return {"array": b64encode(raw.tobytes()).decode(), "dtype": as_dtype(raw.dtype).name, "shape": raw.shape}
    raise ArgumentError(f"expected attributes that a file can hold, got {type(value).__name__}")


def of_plain(data: Plain) -> Any:
    """The attribute that plain data describes."""
    if isinstance(data, list):
        return tuple([of_plain(d) for d in data])
    if not isinstance(data, dict):
        return data
    if "array" in data:
        # Of bytes, and so not to be written to.
        return np.frombuffer(b64decode(data["array"]), as_dtype(data["dtype"]).numpy).reshape(data["shape"])
    ((kind, content),) = data.items()
    return _KINDS[kind](content)


_KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float.fromhex,
    "complex": complex,
    "dtype": as_dtype,
    "windows": lambda items: Windows(*[of_plain(i) for i in items]),
}
