"""Layouts of an op's outputs from those of its inputs, when a node is built.

Each axis of the mesh is decided for itself: the candidate whose inputs take the least time to convert is chosen. The
call that is built states the layouts that it needs of its inputs; `lower` converts an input whose layout is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

from .._tensor.node import Spec, spec
from .._tensor.op import Op
from .._tensor.role import Cut, Passed, Reduction, View
from ..errors import ArgumentError, PartialSumError
from .communicator import Combine
from .dims import Attrs, Dims, Label, dims_of, linear_groups
from .layout import REPLICATE, Mesh, Partial, Placement, Replicate, Shard, layout_of

Specs: TypeAlias = tuple[Spec, ...]
_COLLECTIVES: Final = {
    (Shard, Shard): "all_to_all", (Shard, Replicate): "all_gather", (Shard, Partial): "all_gather",
    (Partial, Shard): "reduce_scatter", (Partial, Replicate): "all_reduce", (Partial, Partial): "all_reduce",
}  # fmt: skip
"""The collective of each change of a placement."""
_SUMS: Final = frozenset({Combine.SUM, Combine.MEAN})


def propagate(op: Op[Any], inputs: Specs, attrs: Attrs, outputs: Specs, is_inside: bool = False) -> tuple[Specs, Specs]:
    """The inputs as the call needs them, and its outputs, with their layouts.

    Inside a composite, a value that every rank has may be added to a partial one: one rank alone adds it.
    """
    if isinstance(op.role, Passed):
        return inputs, tuple([_with(o, i.layout) for o, i in zip(outputs, inputs, strict=False)])
    used = _used(op, inputs, outputs)
    if used != inputs:
        needed, made = propagate(op, used, attrs, outputs, is_inside)
        gathered = set().union(*[_gathered_on_use(s) for s in inputs if _is_elementwise(op, s, outputs)])
        return needed, tuple([_on_use(o, gathered) for o in made])
    meshes = {s.layout.mesh for s in inputs if s.layout is not None}
    if not meshes:
        return inputs, outputs
    if len(meshes) > 1:
        shown = " and ".join(map(repr, meshes))
        raise ArgumentError(f"expected tensors on one mesh, got {shown}; gather one with ys.distributed.gather")
    mesh = meshes.pop()
    call = _Call(op, inputs, outputs, attrs, dims_of(op, inputs, attrs, outputs))
    if not is_inside:
        for axis in range(len(mesh.shape)):
            _check_sum(call, mesh, axis)
    chosen = [candidates[0][1] for candidates in _compared(call, mesh)]
    return (
        tuple([_placed(s, mesh, [c.inputs[n] for c in chosen]) for n, s in enumerate(inputs)]),
        tuple([_placed(s, mesh, [c.outputs[n] for c in chosen]) for n, s in enumerate(outputs)]),
    )


def reason(op: Op[Any], inputs: Specs, attrs: Attrs, outputs: Specs, mesh: Mesh) -> str:
    """The layouts in which a call needs its inputs, with the predicted times of the layouts that were rejected."""
    used = _used(op, inputs, outputs)
    call = _Call(op, used, outputs, attrs, dims_of(op, used, attrs, outputs))
    words = [] if used == inputs else [f"on use by {op.name}"]
    for name, (chosen, *others) in zip(mesh.names, _compared(call, mesh), strict=True):
        if chosen[0]:
            words.append(f"for {op.name}({chosen[1]}) along {name}: {chosen[0] * 1e3:.3f} ms")
            words += [f"not ({candidate}): {seconds * 1e3:.3f} ms" for seconds, candidate in others]
    return ", ".join(words)


def _gathered_on_use(s: Spec) -> set[tuple[int, int]]:
    """The axes of the mesh along which a value is gathered on use, with the dimension that each shards."""
    placements = () if s.layout is None else s.layout.placements
    return {(n, p.dim) for n, p in enumerate(placements) if isinstance(p, Shard) and p.on_use}


def _used(op: Op[Any], inputs: Specs, outputs: Specs) -> Specs:
    """The inputs as an op reads them: those that are gathered on use are whole, or parts where parts are enough."""

    def used(s: Spec) -> Spec:
        if s.layout is None or not _gathered_on_use(s):
            return s
        if isinstance(op.role, Reduction) or _is_elementwise(op, s, outputs):
            return _with(s, s.layout.of_parts())
        placements = [REPLICATE if isinstance(p, Shard) and p.on_use else p for p in s.layout.placements]
        return _placed(s, s.layout.mesh, placements)

    return tuple([used(s) for s in inputs])


def _is_elementwise(op: Op[Any], s: Spec, outputs: Specs) -> bool:
    """True if the op reads one element of an input for each that it computes."""
    return op.scalar is not None and s.shape == outputs[0].shape


def _on_use(s: Spec, gathered: set[tuple[int, int]]) -> Spec:
    """The value, gathered on use where it has the parts of values that are."""
    if s.layout is None:
        return s
    placements = [
        Shard(p.dim, on_use=True) if isinstance(p, Shard) and (n, p.dim) in gathered else p
        for n, p in enumerate(s.layout.placements)
    ]
    return _placed(s, s.layout.mesh, placements)


def _with(s: Spec, layout: Any) -> Spec:
    return spec(s.shape, s.dtype, layout=layout)


def _placed(s: Spec, mesh: Mesh, placements: Sequence[Placement]) -> Spec:
    return _with(s, layout_of(mesh, placements, s.shape))


@dataclass(frozen=True, slots=True)
class _Call:
    op: Op[Any]
    inputs: Specs
    outputs: Specs
    attrs: Attrs
    dims: Dims | None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Placements of all inputs and outputs along one axis of the mesh."""

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    label: Label | None = None

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))


def placement(s: Spec, axis: int) -> Placement:
    """The placement of a value along an axis of its mesh."""
    return REPLICATE if s.layout is None else s.layout.placements[axis]


def _compared(call: _Call, mesh: Mesh) -> list[list[tuple[float, _Candidate]]]:
    """The candidates along each axis, with the predicted seconds to convert their inputs: the fastest first."""
    found: list[list[tuple[float, _Candidate]]] = []
    for axis in range(len(mesh.shape)):
        have = [placement(s, axis) for s in call.inputs]
        candidates = [_Candidate((REPLICATE,) * len(call.inputs), (REPLICATE,) * len(call.outputs))]
        if any(p != REPLICATE for p in have):
            before = [each[0][1] for each in found]
            candidates = [*_partial(call, have), *_sharded(call, have, mesh, axis, before), *candidates]
        wanted = [zip(call.inputs, have, candidate.inputs, strict=True) for candidate in candidates]
        seconds = [sum([_conversion(s, mesh, axis, a, b) for s, a, b in each]) for each in wanted]
        found.append(sorted(zip(seconds, candidates, strict=True), key=lambda each: each[0]))
    return found


def _conversion(s: Spec, mesh: Mesh, axis: int, have: Placement, want: Placement) -> float:
    """The predicted seconds in which the placement of a value along an axis is changed."""
    if have in (want, REPLICATE):
        return 0.0
    parts = [n for n, p in zip(mesh.shape, s.layout.placements, strict=True) if isinstance(p, Shard)]  # type: ignore[union-attr]  # it is distributed
    return mesh.costs[axis][_COLLECTIVES[type(have), type(want)]].seconds(s.nbytes // prod(parts))


def _check_sum(call: _Call, mesh: Mesh, axis: int) -> None:
    """Raise if a partial sum is added to a value that every rank has: a rank that adds its own would count it again."""
    have = [placement(s, axis) for s in call.inputs]
    everything = tuple(range(len(have)))
    if call.op.scalar is None or len(have) < 2 or everything not in linear_groups(call.op):
        return
    if REPLICATE in have and any(isinstance(p, Partial) and p.combine in _SUMS for p in have):
        shown = " and ".join(map(str, have))
        raise PartialSumError(
            f"expected operands that are both partial along {mesh.names[axis]!r}, or neither, got {shown}; reduce the "
            "partial one first, with ys.distributed.all_reduce"
        )


def _partial(call: _Call, have: Sequence[Placement]) -> Iterator[_Candidate]:
    """The candidate that keeps partial values partial, if the op commutes with their combination."""
    partial = [n for n, p in enumerate(have) if isinstance(p, Partial)]
    kinds = {have[n] for n in partial}
    if len(kinds) != 1:
        return
    kind = kinds.pop()
    assert isinstance(kind, Partial)
    groups = linear_groups(call.op)
    if kind.combine in (Combine.MAX, Combine.MIN):
        role = call.op.role
        is_same = isinstance(role, Reduction) and role.combine == kind.combine.value
        groups = ((0,),) if is_same or isinstance(role, (View, Cut)) else ()
    rounds = any(o.dtype.is_inexact < call.inputs[n].dtype.is_inexact for o in call.outputs for n in partial)
    for group in groups:
        if set(partial) <= set(group) and not rounds:
            wanted = tuple([kind if n in group else REPLICATE for n in range(len(have))])
            yield _Candidate(wanted, (kind,) * len(call.outputs))


def _sharded(
    call: _Call, have: Sequence[Placement], mesh: Mesh, axis: int, before: Sequence[_Candidate]
) -> Iterator[_Candidate]:
    """A candidate for each label along which an input is sharded, and all of the op can be."""
    dims = call.dims
    if dims is None:
        return
    held = [dims.inputs[n][p.dim] for n, p in enumerate(have) if isinstance(p, Shard)]
    for label in dict.fromkeys(held):
        if label is None:
            continue
        count = mesh.shape[axis]
        for other, candidate in enumerate(before):
            count *= mesh.shape[other] if candidate.label == label else 1
        if not _can_split(call, dims, label, count):
            continue
        partial = Partial(dims.combined[label]) if label in dims.combined else None
        inputs: list[Placement] = []
        for n, labels in enumerate(dims.inputs):
            rest = partial if partial is not None and n in dims.added else REPLICATE
            inputs.append(Shard(labels.index(label)) if label in labels else rest)
        outputs = [Shard(o.index(label)) if label in o else partial for o in dims.outputs]
        made = tuple([p for p in outputs if p is not None])
        if len(made) == len(outputs):
            yield _Candidate(tuple(inputs), made, label)


def _can_split(call: _Call, dims: Dims, label: Label, count: int) -> bool:
    """True if all dimensions of the label have the same parts, and a reduction has an element in each part."""
    if any(length % count for length in dims.multiples.get(label, ())):
        return False
    if dims.combined.get(label) in (Combine.MAX, Combine.MIN):
        return call.inputs[0].shape[dims.inputs[0].index(label)] >= count
    return True
