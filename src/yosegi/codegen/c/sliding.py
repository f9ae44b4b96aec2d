"""Windows without a product, in one kernel: folded, written out side by side, or scattered back to their places.

    max_pool      the largest element of each window
    windowed      the windows as dimensions of their own
    overlapped    windows added up where they overlap: an element's place in a window tells which window, if any

Each thread makes one result, and goes through the places that are folded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from ..._graph.graph import Graph
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Call, Shape
from ...errors import Unsupported
from ...ops.windows import Windows
from ..scalar.folds import Fold
from .contractions import MergedAxes, Output, merged
from .dialect import Dialect, Target
from .expressions import Expression, View, Walker, forms_in
from .frames import Frame, inputs_of
from .kernel_source import Kernel
from .spaces import SMALL, sliding


@dataclass(frozen=True, slots=True)
class Slide:
    """An op on windows: at each place of its result, a fold of elements, or one element."""

    element: Expression
    outputs: tuple[Output, ...]
    """One."""
    results: tuple[MergedAxes, ...]
    folded: tuple[MergedAxes, ...]
    fold: Fold | None


@dataclass(frozen=True, slots=True)
class _Form:
    """How such an op looks at its input, over a space of these sizes, those of its result first."""

    sizes: Shape
    result: View
    given: View
    fold: Fold | None = None
    beyond: Any = 0
    """The value of elements outside of the array."""


def slides(call: Call) -> bool:
    """Whether a call is such an op."""
    return call.op.name in _FORMS


def slide_of(graph: Graph, entry: int) -> Slide:
    """The op on windows that is an entry of a graph."""
    call, (given,) = graph.calls[entry], graph.args[entry]
    form = _FORMS[call.op.name](call)
    walker = Walker(graph, form.sizes, known=frozenset({given}), beyond=form.beyond)
    output = Output(entry, walker.at(given, form.given), walker.strides(call.spec.shape, form.result))
    strides = [output.strides, *forms_in(output.expression)]
    rank = len(form.result)
    kernel = range(rank, len(form.sizes))
    fixed = frozenset(axis for axis in kernel if form.sizes[axis] <= SMALL)
    results, folded = (merged(axes, form.sizes, strides, fixed) for axes in (range(rank), kernel))
    return Slide(output.expression, (output,), results, folded, form.fold)


def slide_kernel(graph: Graph, slide: Slide, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of an op on windows whose result has elements."""
    inputs = inputs_of(graph, [slide.element])
    items = prod(run.size for run in slide.results)
    frame = Frame(dialect, inputs, slide.outputs, max([items, *map(prod, inputs.shapes)]) + target.group)
    k, ctype = frame.k, frame.ctype
    item = k.let(ctype, f"({ctype})({dialect.global_id})")
    k.say(f"if ({item} >= {frame.size('items', items)}) return")
    at = frame.indices("results", slide.results, item)
    fold = slide.fold
    if fold is None:
        value = frame.value(k, slide.element, frame.reader(k, at))
    else:
        total = k.variable(k.literal(fold.start, fold.accumulated))
        with k.block(f"for (int step = 0; step < {frame.total('folded', slide.folded)}; step++)"):
            here = at | frame.indices("folded", slide.folded, "step")
            element = fold.begin(k, frame.value(k, slide.element, frame.reader(k, here)))
            k.assign(total, fold.combine(k, total, element))
        value = fold.end(k, total)
    frame.put(k, value, "b0", frame.place(("b", 0), slide.outputs[0].strides, at))
    return frame.kernel(items, target.group)


# Forms


def _over(sizes: Shape, windows: Windows, lengths: Shape) -> View:
    """The view of an input by windows, whose places are the space's last axes and which stand along those before."""
    rank = len(lengths)
    return tuple([
        sliding(sizes, {2 + n: windows.stride[n], 2 + rank + n: windows.dilation[n]}, windows.padding[n][0],
                windows.spread[n], lengths[n])
        for n in range(rank)
    ])  # fmt: skip


def _fold(name: str, dtype: DType) -> Fold:
    return Fold(name, False, float32 if dtype.is_half else dtype, dtype, 0)


def _lowest(dtype: DType) -> Any:
    return _fold("max", dtype).start


def _largest(call: Call) -> _Form:
    a, shape, dtype = call.attrs, call.inputs[0].shape, call.spec.dtype
    windows = Windows(a["kernel_size"], a["stride"], a["padding"], a["dilation"], (1,) * (len(shape) - 2))
    sizes = (*call.spec.shape, *windows.kernel)
    given = (0, 1, *_over(sizes, windows, shape[2:]))
    return _Form(sizes, tuple(range(len(shape))), given, _fold("max", dtype), _lowest(dtype))


def _written_out(call: Call) -> _Form:
    windows, sizes, beyond = call.attrs["windows"], call.spec.shape, 0
    if call.attrs["lowest"]:
        beyond = _lowest(call.spec.dtype)
    given = (0, 1, *_over(sizes, windows, call.inputs[0].shape[2:]))
    return _Form(sizes, tuple(range(len(sizes))), given, beyond=beyond)


def _laid_back(call: Call) -> _Form:
    windows, shape = call.attrs["windows"], call.spec.shape
    rank = len(windows.kernel)
    if any(s != 1 for s in windows.spread):
        raise Unsupported("windows over elements that are spread")
    sizes = (*shape, *windows.kernel)
    own = tuple(range(2 + rank, 2 + 2 * rank))
    back = [
        sliding(sizes, {2 + n: 1, own[n]: -windows.dilation[n]}, -windows.padding[n][0], windows.stride[n],
                call.inputs[0].shape[2 + n])
        for n in range(rank)
    ]  # fmt: skip
    return _Form(sizes, tuple(range(2 + rank)), (0, 1, *back, *own), _fold("sum", call.spec.dtype))


_FORMS: Final[dict[str, Callable[[Call], _Form]]] = {
    "max_pool": _largest, "windowed": _written_out, "overlapped": _laid_back,
}  # fmt: skip
