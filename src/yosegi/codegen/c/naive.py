"""Products without tiles: each item sums up one result, or a vector of neighbours, straight from memory."""

from __future__ import annotations

from math import prod

from ..._graph.graph import Graph
from ..scalar.value import Value
from .contractions import FusedContraction
from .dialect import Dialect, Target
from .frames import Frame, inputs_of, multiplied, splat
from .kernel_source import Kernel


def naive_product(graph: Graph, product: FusedContraction, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of a product whose result has elements."""
    inputs = inputs_of(graph, product.expressions)
    stacks, rows, columns = (prod(r.size for r in runs) for runs in (product.batch, product.rows, product.columns))
    elements = max([stacks * rows * columns, *[prod(s) for s in inputs.shapes]]) + target.group
    width = 1
    if target.blocked and product.has_neighbours and product.right_has_neighbours:
        width = next((w for w in dialect.widths if w <= min(target.width, columns)), 1)
    frame = Frame(dialect, target, inputs, product.outputs, elements)
    k, ctype = frame.k, frame.ctype
    chunks = -(-columns // width)
    items = stacks * rows * chunks
    item = k.let(ctype, f"({ctype})({dialect.global_id})")
    k.lines.append(f"if ({item} >= {frame.size('items', items)}) return;")
    across, down = frame.size("chunks", chunks), frame.total("rows", product.rows)
    above = k.let(ctype, f"{item} / {across}")
    column = k.let(ctype, f"{item} - {above} * {across}")
    if width > 1:  # the last vector begins early enough to fit
        column = k.let(ctype, f"min({column} * {width}, {frame.total('columns', product.columns)} - {width})")
    stack = k.let(ctype, f"{above} / {down}")
    row = k.let(ctype, f"{above} - {stack} * {down}")
    base = frame.indices("batch", product.batch, stack)
    at_row = base | frame.indices("rows", product.rows, row)
    at_right = base | frame.indices("columns", product.right_runs.lines, column)
    at_column = frame.indices("columns", product.result_columns, column)
    along = product.result_columns[-1].axis if product.result_columns else None
    depth = frame.total("depth", product.depth)
    known: dict[int, Value] = {}
    for value in product.row_values:
        total = k.variable(k.literal(value.fold.start, value.fold.accumulated))
        with k.block(f"for ({ctype} step = 0; step < {depth}; step++)"):
            at = at_row | frame.indices("depth of rows", product.left_runs.depth, "step")
            element = frame.value(k, value.operand, frame.reader(k, at, known=known))
            k.assign(total, value.fold.combine(k, total, value.fold.begin(k, element)))
        known[id(value)] = value.fold.end(k, total)
    wide = k.at_width(width)
    sums = wide.variable(wide.literal(0, product.summed))
    with k.block(f"for ({ctype} step = 0; step < {depth}; step++)"):
        inner = k.at_width(width)
        at_left = at_row | frame.indices("depth of rows", product.left_runs.depth, "step")
        left = k.convert(frame.value(k, product.left, frame.reader(k, at_left, known=known)), product.summed)
        at = at_right | frame.indices("depth of columns", product.right_runs.depth, "step")
        places = frame.reader(inner, at, along)
        right = inner.convert(frame.value(inner, product.right, places), product.summed)
        k.lines.append(f"{sums.text} = {multiplied(inner, splat(inner, left), right, sums).text};")
    where = at_row | at_column
    total = wide.rounded(wide.convert(sums, product.result))
    places = frame.reader(wide, where, along, {id(product.total): total})
    for n, output in enumerate(product.outputs):
        result = frame.value(wide, output.expression, places)
        frame.put(wide, result, f"b{n}", frame.place(("b", n), output.strides, where))
    return frame.kernel(items, target.group)
