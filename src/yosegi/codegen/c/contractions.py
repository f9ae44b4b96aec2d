"""A product with what is elementwise before and behind it, as one piece of work over a space of indices.

The axes of the space are those of the product's result, then those that are summed over. An axis of the result along
which both operands change numbers a stack of products; one of the left operand alone is among the rows, one of the
right alone among the columns. So stacks, transposes, products by labels and convolutions are all the same: strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..._graph.graph import Graph
from ..._schedule.fuse import is_exact_conversion
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Call, Shape
from ...errors import Unsupported
from .expressions import Apply, Axis, Expression, Folded, Read, Strides, Walker, Window, Windowed, forms_in, parts_of
from .spaces import Space, space_of


@dataclass(frozen=True, slots=True)
class Output:
    """A result: the entry, its value at each place, and where it goes."""

    entry: int
    expression: Expression
    strides: Strides


@dataclass(frozen=True, slots=True)
class MergedAxes:
    """Axes that are walked as one; strides along it are those of the innermost."""

    size: int
    axis: int
    is_fixed: bool = False
    """True if its size may be part of the program's text: dividing by it is cheap then."""


@dataclass(frozen=True, slots=True)
class OperandRuns:
    """An operand's own way: as few runs as there can be for it alone, over the same places in the same order."""

    lines: tuple[MergedAxes, ...]
    """The rows of the left operand, the columns of the right one."""
    depth: tuple[MergedAxes, ...]


@dataclass(frozen=True, slots=True)
class FusedContraction:
    """One product. `left` and `right` are what is multiplied, at each place of the space."""

    left: Expression
    right: Expression
    outputs: tuple[Output, ...]
    total: Expression | None
    """The product's value, as it stands in the outputs; `None` if none has it."""
    result: DType
    """The dtype that the product is rounded to."""
    summed: DType
    """The dtype it is summed up in."""
    batch: tuple[MergedAxes, ...]
    rows: tuple[MergedAxes, ...]
    columns: tuple[MergedAxes, ...]
    depth: tuple[MergedAxes, ...]
    left_runs: OperandRuns
    right_runs: OperandRuns
    result_columns: tuple[MergedAxes, ...]
    """The columns, in as few runs as there can be for the outputs alone."""

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All there are."""
        return (self.left, self.right, *[o.expression for o in self.outputs])

    @property
    def extents(self) -> tuple[int, int, int]:
        """Rows, columns and the length of the sum."""
        m, n, k = (prod(r.size for r in runs) for runs in (self.rows, self.columns, self.depth))
        return m, n, k

    @property
    def has_neighbours(self) -> bool:
        """True if results of neighbouring columns lie side by side, all the way."""
        columns = self.result_columns
        return len(columns) == 1 and all(o.strides[columns[0].axis] == 1 for o in self.outputs)

    @property
    def has_windows(self) -> bool:
        """True if its right operand is looked at through windows that reach beyond it."""
        return isinstance(self.right, Windowed)

    @property
    def slides(self) -> bool:
        """True if windows slide over its right operand: finding an element is worth being done once for many rows."""
        return self.has_windows or any(run.is_fixed for run in self.right_runs.depth)

    @property
    def prepares(self) -> bool:
        """True if a prologue computes its operands, once for each tile of the result."""
        return not all(isinstance(operand, (Read, Windowed)) for operand in (self.left, self.right))

    @property
    def row_values(self) -> tuple[Folded, ...]:
        """The reductions over the left operand's rows that the product needs, in an order in which they can run."""
        return tuple(p for p in parts_of(self.left) if isinstance(p, Folded))


def contraction(
    graph: Graph,
    entry: int,
    outputs: Sequence[int],
    known: frozenset[int] = frozenset(),
    *,
    of_halves: bool = False,
) -> FusedContraction:
    """The product that is an entry of the graph, up to entries of its shape that are wanted.

    `known` entries are read from memory. With `of_halves`, a product of float32 numbers that are converted from 16 bits
    becomes one of the 16-bit numbers. Raises `Unsupported` if there is more to it than one kernel does.
    """
    call = graph.calls[entry]
    space = space_of(call)
    if call.spec.dtype.is_complex or not (call.spec.dtype.is_float or call.spec.dtype.is_integer):
        raise Unsupported(f"no product of {call.spec.dtype.name}")
    shape, sizes = call.spec.shape, space.sizes
    first, second = (graph.args[entry][n] for n in space.operands)
    along = space.summed[0] if len(space.summed) == 1 else None
    left = Walker(graph, sizes, along, known, converts=of_halves).at(first, space.left)
    right = Walker(graph, sizes, None, known, converts=of_halves).at(second, space.right)
    if of_halves and (halves := _before_conversions(left, right)) is not None:
        left, right = halves
    walker = Walker(graph, sizes, None, known, total=entry, total_view=space.result)
    made = []
    for wanted in outputs:
        if graph.calls[wanted].spec.shape != shape:
            raise Unsupported(f"{graph.calls[wanted].op.name} changes the shape of a product")
        made.append(Output(wanted, walker.at(wanted, space.result), walker.strides(shape, space.result)))
    axes = _roles(call, space)
    forms = {"left": forms_in(left), "right": forms_in(right)}
    forms["results"] = [f for o in made for f in (o.strides, *forms_in(o.expression))]

    def runs(role: str, *parts: str) -> tuple[MergedAxes, ...]:
        return merged(axes[role], sizes, [f for part in parts for f in forms[part]], space.fixed)

    dtype = call.spec.dtype
    return FusedContraction(
        left, right, tuple(made), walker.at(entry, space.result), dtype, float32 if dtype.is_half else dtype,
        **{role: runs(role, *forms) for role in axes},
        left_runs=OperandRuns(runs("rows", "left"), runs("depth", "left")),
        right_runs=OperandRuns(runs("columns", "right"), runs("depth", "right")),
        result_columns=runs("columns", "results"),
    )  # fmt: skip


def _before_conversions(left: Expression, right: Expression) -> tuple[Expression, Expression] | None:
    """The 16-bit arrays that both operands are converted from."""
    sources = [e.operands[0] for e in (left, right) if isinstance(e, Apply) and is_exact_conversion(e.call)]
    if len(sources) < 2 or not all(isinstance(e, (Read, Windowed)) for e in sources):
        return None
    return (sources[0], sources[1]) if sources[0].dtype is sources[1].dtype else None


def merged(
    axes: Sequence[int], sizes: Shape, strides: Sequence[Strides], fixed: frozenset[int] = frozenset()
) -> tuple[MergedAxes, ...]:
    """Axes as few runs as possible, outermost first."""
    made: list[MergedAxes] = []
    for axis in axes:
        if sizes[axis] == 1:
            continue
        is_fixed = axis in fixed
        if made and all(s[made[-1].axis] == s[axis] * sizes[axis] for s in strides):
            made[-1] = MergedAxes(made[-1].size * sizes[axis], axis, made[-1].is_fixed and is_fixed)
        else:
            made.append(MergedAxes(sizes[axis], axis, is_fixed))
    return tuple(made)


def _roles(call: Call, space: Space) -> dict[str, list[int]]:
    """The role of each axis of the space in the product."""
    changing = [{a for axis, n in zip(view, call.inputs[operand].shape, strict=True) for a in _axes(axis, n)}
                for view, operand in zip((space.left, space.right), space.operands, strict=True)]  # fmt: skip
    left, right = changing
    own = [a for a in range(len(space.sizes)) if a not in space.summed]
    stack = {a for a in own if a in space.stacked or (a in left and a in right)}
    return {
        "batch": [a for a in own if a in stack],
        "rows": [a for a in own if a in left and a not in stack],
        "columns": [a for a in own if a in right and a not in stack],
        "depth": list(space.summed),
    }


def _axes(axis: Axis, n: int) -> Sequence[int]:
    """The axes along which an operand changes with a dimension of so many elements."""
    if isinstance(axis, Window):
        return [a for a, step in enumerate(axis.strides) if step]
    if axis is None or n == 1:
        return ()
    return (axis,) if isinstance(axis, int) else axis
