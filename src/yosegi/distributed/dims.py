"""Dimensions that can be sharded: the structure of an op by labels, as `einsum` writes it.

Dimensions of inputs and outputs with the same label are split alike: each rank then computes its part of the outputs
from its parts of the inputs. A label that no output has is combined over the ranks. The labels follow from the op's
role; an op without a rule gets its inputs whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from .._tensor.batch import Along, merged
from .._tensor.node import Shape, Spec
from .._tensor.op import Op
from .._tensor.role import (
    Arithmetic,
    Contraction,
    Cut,
    Extremum,
    Indexing,
    Overwrite,
    Reduction,
    Scan,
    Triangle,
    View,
)
from .communicator import Combine

Label: TypeAlias = int | str
Labels: TypeAlias = tuple[Label | None, ...]
Attrs: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dims:
    """The labels of all dimensions; `None` for a dimension that every rank needs whole."""

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    combined: Mapping[Label, Combine] = field(default_factory=dict)
    """How the parts along labels that no output has are combined."""
    multiples: Mapping[Label, Shape] = field(default_factory=dict)
    """Lengths that the number of parts must divide, for labels whose dimensions have several lengths."""
    added: frozenset[int] = frozenset()
    """The inputs that are added to a combination as they are, so that one rank alone may have them."""


_COMBINES: Final = {"sum": Combine.SUM, "max": Combine.MAX, "min": Combine.MIN}


def dims_of(op: Op[Any], inputs: Sequence[Spec], attrs: Attrs, outputs: Sequence[Spec]) -> Dims | None:
    """The labels of a call; `None` if the op has no rule."""
    rule = _BY_ROLE.get(type(op.role))
    if rule is not None:
        return rule(op.role, [s.shape for s in inputs], attrs, outputs[0].shape)
    if op.scalar is not None:
        return _elementwise(op.role, [s.shape for s in inputs], attrs, outputs[0].shape)
    shapes = [s.shape for s in (*inputs, *outputs)]
    if isinstance(op.batch, Along) and len({len(shape) for shape in shapes}) == 1:
        gone = {axis for name in op.batch.names for axis in _axes(attrs[name])}
        return _independent(shapes, len(inputs), gone)
    if op.batch is merged:
        return _independent(shapes, len(inputs), set(range(1, max(map(len, shapes)))))
    return None


def linear_groups(op: Op[Any]) -> tuple[tuple[int, ...], ...]:
    """The groups of inputs of which the op is a linear function, with the other inputs fixed."""
    match op.role:
        case Arithmetic.PLUS:
            return ((0, 1),)
        case Arithmetic.TIMES | Contraction():
            return ((0,), (1,))
        case View() | Triangle() | Reduction("sum") | Scan("sum") | Indexing.READ:
            return ((0,),)
        case Indexing.ADD | Overwrite():
            return ((0, 1),)
    return op.linear


def local_attrs(op: Op[Any], attrs: Attrs, inputs: Sequence[Shape], output: Shape) -> dict[str, Any]:
    """The attributes of the call on this rank's parts: shapes and whole windows are those of the parts."""
    if isinstance(op.role, View) and "shape" in attrs:
        return {**attrs, "shape": output}
    if isinstance(op.role, (Cut, Overwrite)):
        lengths = iter(inputs[0])
        key = [item if item is None else _part(item, next(lengths)) for item in attrs["key"]]
        return {**attrs, "key": tuple(key)}
    return dict(attrs)


def _part(item: int | tuple[int, int, int], length: int) -> int | tuple[int, int, int]:
    """The window of a part; only whole dimensions are split."""
    is_whole = not isinstance(item, int) and item[0] == 0 and item[2] == 1 and item[1] > length
    return (0, length, 1) if is_whole else item


def _axes(axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return axis if isinstance(axis, tuple) else (axis,)


def _independent(shapes: Sequence[Shape], count: int, gone: set[int]) -> Dims:
    """One label for each dimension, in all inputs and outputs; none for some dimensions."""
    labels = tuple([tuple([None if d in gone else d for d in range(len(shape))]) for shape in shapes])
    return Dims(labels[:count], labels[count:])


def _aligned(shape: Shape, output: Shape, labels: Labels | None = None) -> Labels:
    """The labels of an input that broadcasts to an output; a dimension that is repeated has none."""
    given: Labels = tuple(range(len(output))) if labels is None else labels
    lead = len(output) - len(shape)
    return tuple([given[lead + d] if n == output[lead + d] else None for d, n in enumerate(shape)])


def _elementwise(role: Any, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    return Dims(tuple([_aligned(shape, output) for shape in inputs]), (tuple(range(len(output))),))


def _view(role: View, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    if role is View.BROADCAST:
        return _elementwise(role, inputs, attrs, output)
    if role is View.PERMUTED:
        return Dims((tuple(range(len(output))),), (attrs["axes"],))
    return _reshaped(inputs[0], output)


def _reshaped(shape: Shape, output: Shape) -> Dims:
    """Labels for dimensions that begin at the same element, as the rows of a matrix do in the flat vector."""
    before: list[Label | None] = [None] * len(shape)
    after: list[Label | None] = [None] * len(output)
    multiples: dict[Label, Shape] = {}
    if 0 not in shape:
        sources = [d for d, n in enumerate(shape) if n != 1]
        targets = [d for d, n in enumerate(output) if n != 1]
        i = j = 0
        while i < len(sources):
            first, second = sources[i], targets[j]
            label = before[first] = after[second] = first
            if shape[first] != output[second]:
                multiples[label] = (shape[first], output[second])
            a, b, i, j = shape[first], output[second], i + 1, j + 1
            while a != b:
                if a < b:
                    a, i = a * shape[sources[i]], i + 1
                else:
                    b, j = b * output[targets[j]], j + 1
    return Dims((tuple(before),), (tuple(after),), multiples=multiples)


def _reduction(role: Reduction, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    axes, ndim = attrs["axis"], len(inputs[0])
    combine = _COMBINES.get(role.combine)
    labels = tuple([None if combine is None and d in axes else d for d in range(ndim)])
    combined = {} if combine is None else dict.fromkeys(axes, combine)
    return Dims((labels,), (_kept(ndim, axes, attrs["keepdims"]),), combined)


def _kept(ndim: int, axes: Sequence[int], keepdims: bool) -> Labels:
    return tuple([None if d in axes else d for d in range(ndim) if keepdims or d not in axes])


def _extremum(role: Extremum, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    ndim = len(inputs[0])
    axes = range(ndim) if attrs["axis"] is None else (attrs["axis"],)
    return Dims((_kept(ndim, axes, True),), (_kept(ndim, axes, attrs["keepdims"]),))


def _scan(role: Scan, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    return _independent([*inputs, output], 1, set(_axes(attrs["axis"])))


def _triangle(role: Triangle, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    return _independent([*inputs, output], 1, {len(output) - 2, len(output) - 1})


def _contraction(role: Contraction, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    if role is Contraction.LABELS:
        return _einsum(inputs, attrs["subscripts"])
    first, second = inputs
    if role is Contraction.WINDOWS:
        channels: Label | None = "inner" if attrs["groups"] == 1 else None
        outer: Label | None = "outer" if attrs["groups"] == 1 else None
        rest = (None,) * (len(first) - 2)
        combined: dict[Label, Combine] = {} if channels is None else {channels: Combine.SUM}
        return Dims((("batch", channels, *rest), (outer, channels, *rest)), (("batch", outer, *rest),), combined)
    stack = tuple(range(len(output) - (len(first) > 1) - (len(second) > 1)))
    shape = output[: len(stack)]
    left = (*_aligned(first[:-2], shape, stack), *("row", "inner")[-len(first) :])
    right = (*_aligned(second[:-2], shape, stack), *("inner", "column")[: len(second)])
    made: Labels = (*stack, *("row",) * (len(first) > 1), *("column",) * (len(second) > 1))
    return Dims((left, right), (made,), {"inner": Combine.SUM})


def _einsum(inputs: Sequence[Shape], subscripts: str) -> Dims:
    left, _, output = subscripts.partition("->")
    terms = left.split(",")
    lengths: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=True):
        for label, length in zip(term, shape, strict=True):
            lengths[label] = max(length, lengths.get(label, 0))
    diagonals = {label for term in terms for label in term if term.count(label) > 1}
    labels = [
        tuple([None if c in diagonals or n != lengths[c] else c for c, n in zip(term, shape, strict=True)])
        for term, shape in zip(terms, inputs, strict=True)
    ]
    made = tuple([None if c in diagonals else c for c in output])
    return Dims(tuple(labels), (made,), {c: Combine.SUM for c in lengths if c not in output})


def _indexing(role: Indexing, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    axes, at = attrs["axes"], attrs["at"]
    own: Labels = tuple([None if d in axes else d for d in range(len(inputs[0]))])
    indices = inputs[1:] if role is Indexing.READ else inputs[2:]
    width = max(map(len, indices))
    lengths = [1] * width
    for shape in indices:
        for d, n in enumerate(shape, width - len(shape)):
            lengths[d] = n if n != 1 else lengths[d]
    chosen: Labels = tuple([None if role is Indexing.WRITE else f"index {d}" for d in range(width)])
    places = tuple([_aligned(shape, tuple(lengths), chosen) for shape in indices])
    rest = [label for label in own if label is not None]
    region = (*rest[:at], *chosen, *rest[at:])
    if role is Indexing.READ:
        return Dims((own, *places), (region,))
    kept = [n for d, n in enumerate(inputs[0]) if d not in axes]
    value = _aligned(inputs[1], (*kept[:at], *lengths, *kept[at:]), region)
    combined = {label: Combine.SUM for label in chosen if label is not None}
    return Dims((own, value, *places), (own,), combined, added=frozenset({0}) if combined else frozenset())


def _cut(role: Cut | Overwrite, inputs: Sequence[Shape], attrs: Attrs, output: Shape) -> Dims:
    whole: list[Label | None] = []
    window: list[Label | None] = []
    lengths: list[int] = []
    for item in attrs["key"]:
        if item is None:
            window.append(None)
            lengths.append(1)
            continue
        dim = len(whole)
        label = dim if item == (0, inputs[0][dim], 1) else None
        whole.append(label)
        if not isinstance(item, int):
            window.append(label)
            lengths.append(item[1])
    if isinstance(role, Cut):
        return Dims((tuple(whole),), (tuple(window),))
    return Dims((tuple(whole), _aligned(inputs[1], tuple(lengths), tuple(window))), (tuple(whole),))


_BY_ROLE: Final[Mapping[type, Callable[[Any, Sequence[Shape], Attrs, Shape], Dims]]] = {
    View: _view, Reduction: _reduction, Extremum: _extremum, Scan: _scan, Triangle: _triangle,
    Contraction: _contraction, Indexing: _indexing, Cut: _cut, Overwrite: _cut,
}  # fmt: skip
