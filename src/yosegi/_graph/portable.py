"""Graphs as plain data, for files: nothing in them is code, and whatever does not fit together is refused.

Ops go by name. A call is made anew from its inputs' specs and its attributes when it is read, by the op's own rule. It
must come out with the attributes and the outputs that it had when it was written: a file is checked as strictly as a
program is.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from .._run.memory import HOST
from .._tensor.dtype import ALL, DType, as_dtype, bool_
from .._tensor.node import MAX_DIMENSIONS, Call, Shape, Spec, spec
from .._tensor.op import REGISTRY, Op, embedded, leaf, pick, pick_call
from ..errors import ArgumentError, UserError
from ..ops.windows import Windows
from . import decode
from .decode import Malformed
from .graph import Graph, leaf_in

Plain = Any
"""Plain data, as JSON represents it."""

_INTEGERS: Final = (-(2**63), 2**64 - 1)
"""The least and the largest integer that an attribute may be."""
_LONGEST: Final = 2**63 - 1
_DTYPES: Final = {dtype.name: dtype for dtype in ALL}


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


def graph_of_plain(data: Plain, place: str = "graph") -> Graph:
    """The graph that plain data describes. Raises `Malformed`, with the place in the data, if it describes none."""
    found, outputs, origins = decode.record(data, place, "calls", "outputs", "origins")
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []
    for at, item in enumerate(decode.items(found, f"{place}.calls")):
        here = f"{place}.calls[{at}]"
        name, attrs, own, specs = decode.record(item, here, "op", "attrs", "args", "outputs")
        args.append(entries(own, f"{here}.args", at))
        made = tuple(decode.each(specs, f"{here}.outputs", _spec_of_plain, least=1))
        calls.append(_call_of_plain(name, attrs, [calls[a] for a in args[-1]], made, here))
    names = tuple(decode.each(origins, f"{place}.origins", decode.text))
    if len(names) not in (0, len(calls)):
        raise Malformed(f"an origin for each of the {len(calls)} calls", len(names), f"{place}.origins")
    return Graph(tuple(calls), tuple(args), entries(outputs, f"{place}.outputs", len(calls)), names)


def entries(data: Plain, place: str, end: int) -> tuple[int, ...]:
    """A list of entries of a graph, of those before `end`."""
    return tuple(decode.each(data, place, partial(decode.integer, low=0, high=end - 1)))


def _call_of_plain(name: Plain, data: Plain, given: Sequence[Call], outputs: tuple[Spec, ...], place: str) -> Call:
    op = REGISTRY.get(decode.text(name, f"{place}.op"))
    if op is None:
        raise Malformed("an op of this version", name, f"{place}.op")
    inside = f"{place}.attrs"
    attrs = decode.table(data, inside, of_plain)
    call = _leaf_of_plain(attrs, given, outputs, inside) if op is leaf else _applied(op, attrs, given, place)
    if op is not embedded and _text({name: as_plain(value) for name, value in call.attrs.items()}) != _text(data):
        raise Malformed(f"the attributes {decode.shown(call.attrs)} of {op.name}", attrs, inside)
    if call.outputs != outputs:
        raise Malformed(f"{list(call.outputs)}, which {op.name} gives", list(outputs), f"{place}.outputs")
    return call


def _text(data: Plain) -> str:
    """Plain data as a text that distinguishes 1 from true."""
    return json.dumps(data, sort_keys=True)


def _leaf_of_plain(attrs: dict[str, Any], given: Sequence[Call], outputs: tuple[Spec, ...], place: str) -> Call:
    if given or len(outputs) != 1:
        raise Malformed("one value and no arguments of a leaf", list(outputs), place)
    space = decode.text(attrs.get("space", HOST), f"{place}.space")
    is_pinned = decode.flag(attrs.get("pinned", False), f"{place}.pinned")
    return leaf_in(space, outputs, is_pinned=is_pinned)


def _applied(op: Op[Any], attrs: dict[str, Any], given: Sequence[Call], place: str) -> Call:
    """The call of an op, by its own rule."""
    for name, value in attrs.items():
        if name not in op.attr_types:
            raise Malformed(f"attributes of {op.name}", name, f"{place}.attrs")
        decode.typed(value, op.attr_types[name], f"{place}.attrs.{name}")
    is_pick = op is pick
    if any((len(call.outputs) > 1) is not is_pick for call in given) or not op.takes(
        len(given), attrs.get("given", ())
    ):
        raise Malformed(f"the arguments of {op.name}", [list(c.outputs) for c in given], f"{place}.args")
    specs = tuple([s for call in given for s in call.outputs])
    try:
        if is_pick:
            return pick_call(specs, attrs["index"])
        if op is embedded:
            return Call(embedded, attrs, (), (embedded.infer(**attrs),))
        call = op.call(specs, attrs)
    except UserError as error:
        raise Malformed(f"a call that {op.name} allows", f"{error}", place) from None
    except Exception as error:  # a rule may fail in any way on attributes that no program hands to it
        raise Malformed(f"a call that {op.name} allows", f"{type(error).__name__}: {error}", place) from None
    if [(s.shape, s.dtype) for s in call.inputs] != [(s.shape, s.dtype) for s in specs]:
        raise Malformed(f"arguments {list(call.inputs)} of {op.name}", list(specs), f"{place}.args")
    return call


def _spec_as_plain(s: Spec) -> Plain:
    return [list(s.shape), s.dtype.name, s.weak]


def _spec_of_plain(data: Plain, place: str) -> Spec:
    shape, dtype, weak = decode.items(data, place, 3, least=3)
    lengths, named = _shape_of_plain(shape, f"{place}[0]"), _dtype_of_plain(dtype, f"{place}[1]")
    try:
        return spec(lengths, named, decode.flag(weak, f"{place}[2]"))
    except UserError as error:
        raise Malformed("a shape that memory could hold", str(error), place) from None


def _shape_of_plain(data: Plain, place: str) -> Shape:
    decode.items(data, place, MAX_DIMENSIONS)
    return tuple(decode.each(data, place, partial(decode.integer, low=0, high=_LONGEST)))


def _dtype_of_plain(data: Plain, place: str) -> DType:
    return _DTYPES[decode.one_of(data, place, _DTYPES)]


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
    if isinstance(value, Graph):
        return {"graph": graph_as_plain(value)}
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value)
        shape = list(value.shape)  # `ascontiguousarray` gives a number a dimension
        return {"array": b64encode(raw.tobytes()).decode(), "dtype": as_dtype(raw.dtype).name, "shape": shape}
    raise ArgumentError(f"expected attributes that a file can hold, got {type(value).__name__}")


def of_plain(data: Plain, place: str) -> Any:
    """The attribute that plain data describes. Raises `Malformed` if it describes none."""
    if type(data) is list:
        return tuple(decode.each(data, place, of_plain))
    if type(data) is int:
        return decode.integer(data, place, *_INTEGERS)
    if type(data) is str:
        return decode.text(data, place)
    if data is None or type(data) is bool:
        return data
    for kind, read in _KINDS.items():
        if type(data) is dict and kind in data:
            return read(data, place)
    raise Malformed(f"an attribute, or one of the objects {', '.join(_KINDS)}", data, place)


def _number_of_plain(kind: str, parse: Callable[[str], Any]) -> Callable[[Plain, str], Any]:
    def read(data: Plain, place: str) -> Any:
        (content,) = decode.record(data, place, kind)
        try:
            return parse(decode.text(content, f"{place}.{kind}"))
        except (ValueError, OverflowError):
            raise Malformed(f"a {kind}", content, f"{place}.{kind}") from None

    return read


def _windows_of_plain(data: Plain, place: str) -> Windows:
    (content,) = decode.record(data, place, "windows")
    count = len(fields(Windows))
    decode.items(content, f"{place}.windows", count, least=count)
    return Windows(*decode.each(content, f"{place}.windows", of_plain))


def _array_of_plain(data: Plain, place: str) -> Any:
    content, name, lengths = decode.record(data, place, "array", "dtype", "shape")
    dtype, shape = _dtype_of_plain(name, f"{place}.dtype"), _shape_of_plain(lengths, f"{place}.shape")
    try:
        raw = b64decode(decode.text(content, f"{place}.array", _LONGEST), validate=True)
    except (Base64Error, ValueError):
        raise Malformed("base64", content, f"{place}.array") from None
    if len(raw) != prod(shape) * dtype.itemsize:
        raise Malformed(f"{prod(shape) * dtype.itemsize} bytes of {dtype.name}", len(raw), f"{place}.array")
    if dtype is bool_ and raw.strip(b"\0\1"):
        raise Malformed("bools as bytes of 0 and 1", content, f"{place}.array")
    return np.frombuffer(raw, dtype.numpy).reshape(shape)  # of bytes, and so not to be written to


def _named_dtype(data: Plain, place: str) -> DType:
    (content,) = decode.record(data, place, "dtype")
    return _dtype_of_plain(content, f"{place}.dtype")


def _nested_graph(data: Plain, place: str) -> Graph:
    (content,) = decode.record(data, place, "graph")
    return graph_of_plain(content, f"{place}.graph")


_KINDS: Final[dict[str, Callable[[Plain, str], Any]]] = {
    "array": _array_of_plain,  # before dtype, which it has too
    "float": _number_of_plain("float", float.fromhex),
    "complex": _number_of_plain("complex", complex),
    "dtype": _named_dtype,
    "windows": _windows_of_plain,
    "graph": _nested_graph,
}
