"""A product with what is elementwise before and behind it, as one piece of work over a space of indices.

The axes of the space are those of the product's result, then those that are summed over. An axis of the result along
which both operands change numbers a stack of products; one of the left operand alone is among the rows, one of the
right alone among the columns. So stacks, transposes and products by labels are all the same: strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..dtype import DType, float32
from ..errors import Unsupported
from ..graph import Graph
from ..node import Call, Shape
from .expressions import Counted, Expression, Folded, Read, Strides, View, Walker, Word, parts_of


@dataclass(frozen=True, slots=True)
class Output:
    """A result: the entry, its value at each place, and where it goes."""

    entry: int
    expression: Expression
    strides: Strides


@dataclass(frozen=True, slots=True)
class Run:
    """Axes that are walked as one; strides along it are those of the innermost."""

    size: int
    axis: int


@dataclass(frozen=True, slots=True)
class Contraction:
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
    batch: tuple[Run, ...]
    rows: tuple[Run, ...]
    columns: tuple[Run, ...]
    depth: tuple[Run, ...]

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
        """Whether results of neighbouring columns lie side by side, all the way."""
        return len(self.columns) == 1 and all(o.strides[self.columns[0].axis] == 1 for o in self.outputs)

    @property
    def prepares(self) -> bool:
        """Whether its operands are computed on their way: for each tile of the result anew."""
        return not (isinstance(self.left, Read) and isinstance(self.right, Read))

    @property
    def row_values(self) -> tuple[Folded, ...]:
        """What has to be known of the left operand's rows before the product, in an order in which it can be made."""
        return tuple(p for p in parts_of(self.left) if isinstance(p, Folded))


def contraction(graph: Graph, entry: int, outputs: Sequence[int], known: frozenset[int] = frozenset()) -> Contraction:
    """The product that is an entry of the graph, up to entries of its shape that are wanted.

    `known` entries are read from memory. Raises `Unsupported` if there is more to it than one kernel does.
    """
    call = graph.calls[entry]
    left_view, right_view, shape, summed = _views(call)
    sizes = (*call.spec.shape, *summed)
    if call.spec.dtype.is_complex or not (call.spec.dtype.is_float or call.spec.dtype.is_integer):
        raise Unsupported(f"no product of {call.spec.dtype.name}")
    args = graph.args[entry]
    along = len(shape) if len(summed) == 1 else None
    left = Walker(graph, sizes, along, known).at(args[0], left_view)
    right = Walker(graph, sizes, None, known).at(args[1], right_view)
    natural = tuple(range(len(shape)))
    walker = Walker(graph, sizes, None, known, total=entry, total_view=natural)
    made = []
    for wanted in outputs:
        if graph.calls[wanted].spec.shape != shape:
            raise Unsupported(f"{graph.calls[wanted].op.name} changes the shape of a product")
        expression = walker.at(wanted, natural)
        made.append(Output(wanted, expression, (*_contiguous(shape), *[0] * len(summed))))
    strides = [s for e in (left, right, *[o.expression for o in made]) for s in _strides_in(e)]
    strides += [o.strides for o in made]
    own = [[a in view for a in natural] for view in (_wide(call, 0, left_view), _wide(call, 1, right_view))]
    axes = {
        "batch": [a for a in natural if own[0][a] and own[1][a]],
        "rows": [a for a in natural if own[0][a] and not own[1][a]],
        "columns": [a for a in natural if own[1][a] and not own[0][a]],
        "depth": list(range(len(shape), len(sizes))),
    }
    runs = {role: merged(chosen, sizes, strides) for role, chosen in axes.items()}
    total = walker.at(entry, natural)
    dtype = call.spec.dtype
    return Contraction(left, right, tuple(made), total, dtype, float32 if dtype.is_half else dtype, **runs)


def merged(axes: Sequence[int], sizes: Shape, strides: Sequence[Strides]) -> tuple[Run, ...]:
    """Axes as few runs as possible, outermost first."""
    made: list[Run] = []
    for axis in axes:
        if sizes[axis] == 1:
            continue
        if made and all(s[made[-1].axis] == s[axis] * sizes[axis] for s in strides):
            made[-1] = Run(made[-1].size * sizes[axis], axis)
        else:
            made.append(Run(sizes[axis], axis))
    return tuple(made)


def _strides_in(expression: Expression) -> list[Strides]:
    return [p.strides for p in parts_of(expression) if isinstance(p, (Read, Word, Counted))]


def _wide(call: Call, operand: int, view: View) -> set[int | None]:
    """The axes along which an operand changes."""
    return {a for a, n in zip(view, call.inputs[operand].shape, strict=True) if n != 1}


def _contiguous(shape: Shape) -> Strides:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _views(call: Call) -> tuple[View, View, Shape, Shape]:
    """How a product looks at its operands; the shape of its result, and the sizes that are summed over."""
    shape = call.spec.shape
    if call.op.name == "matmul":
        a, b = (s.ndim for s in call.inputs)
        stack = len(shape) - (a > 1) - (b > 1)
        depth = len(shape)
        left = (*range(stack - max(a - 2, 0), stack), *([stack] if a > 1 else []), depth)
        right = (*range(stack - max(b - 2, 0), stack), depth, *([depth - 1] if b > 1 else []))
        return left, right, shape, call.inputs[0].shape[-1:]
    if call.op.name != "einsum":
        raise Unsupported(f"no kernel for {call.op.name}")
    given, _, wanted = call.attrs["subscripts"].replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != 2 or "." in given:
        raise Unsupported(f"the indices {call.attrs['subscripts']} are more than a product of two")
    summed = [x for x in dict.fromkeys("".join(terms)) if x not in wanted]
    axis = {x: n for n, x in enumerate([*wanted, *summed])}
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, call.inputs, strict=True):
        for label, n in zip(term, spec.shape, strict=True):
            sizes[label] = max(n, sizes.get(label, 1)) if n else 0
    left, right = (tuple(axis[x] for x in term) for term in terms)
    return left, right, shape, tuple(sizes[x] for x in summed)
