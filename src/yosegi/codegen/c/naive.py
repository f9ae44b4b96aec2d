"""Products without tiles: each thread sums up one result, straight from memory."""

from __future__ import annotations

from math import prod

from ..._graph.graph import Graph
from ..scalar.value import Value
from .contractions import FusedContraction
from .dialect import Dialect, Target
from .frames import Frame, inputs_of, multiplied
from .kernel_source import Kernel


def naive_product(graph: Graph, product: FusedContraction, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of a product whose result has elements."""
    inputs = inputs_of(graph, product.expressions)
    stacks, rows, columns = (prod(r.size for r in runs) for runs in (product.batch, product.rows, product.columns))
    elements = max([stacks * rows * columns, *[prod(s) for s in inputs.shapes]]) + target.group
    frame = Frame(dialect, inputs, product.outputs, elements)
    k, ctype = frame.k, frame.ctype
    items = stacks * rows * columns
    item = k.let(ctype, f"({ctype})({dialect.global_id})")
    k.say(f"if ({item} >= {frame.size('items', items)}) return")
    across, down = frame.size("chunks", columns), frame.total("rows", product.rows)
    above = k.let(ctype, f"{item} / {across}")
    column = k.let(ctype, f"{item} - {above} * {across}")
    stack = k.let(ctype, f"{above} / {down}")
    row = k.let(ctype, f"{above} - {stack} * {down}")
    base = frame.indices("batch", product.batch, stack)
    at_row = base | frame.indices("rows", product.rows, row)
    at_right = base | frame.indices("columns", product.right_runs.lines, column)
    at_column = frame.indices("columns", product.result_columns, column)
    depth = frame.total("depth", product.depth)
    known: dict[int, Value] = {}
    for value in product.row_values:
        total = k.variable(k.literal(value.fold.start, value.fold.accumulated))
        with k.block(f"for ({ctype} step = 0; step < {depth}; step++)"):
            at = at_row | frame.indices("depth of rows", product.left_runs.depth, "step")
            element = frame.value(k, value.operand, frame.reader(k, at, known=known))
            k.assign(total, value.fold.combine(k, total, value.fold.begin(k, element)))
        known[id(value)] = value.fold.end(k, total)
    sums = k.variable(k.literal(0, product.summed))
    with k.block(f"for ({ctype} step = 0; step < {depth}; step++)"):
        at_left = at_row | frame.indices("depth of rows", product.left_runs.depth, "step")
        left = k.convert(frame.value(k, product.left, frame.reader(k, at_left, known=known)), product.summed)
        at = at_right | frame.indices("depth of columns", product.right_runs.depth, "step")
        right = k.convert(frame.value(k, product.right, frame.reader(k, at)), product.summed)
        k.assign(sums, multiplied(k, left, right, sums))
    where = at_row | at_column
    total = k.rounded(k.convert(sums, product.result))
    places = frame.reader(k, where, {id(product.total): total})
    for n, output in enumerate(product.outputs):
        result = frame.value(k, output.expression, places)
        frame.put(k, result, f"b{n}", frame.place(("b", n), output.strides, where))
    return frame.kernel(items, target.group)
