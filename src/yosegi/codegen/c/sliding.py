"""Windows without a product, in one kernel: folded, written out side by side, or scattered back to their places.

    max_pool           the largest element of each window
    max_pool_gradient  for each element, its shares of the gradients of the windows in which it is the largest
    windowed           the windows as dimensions of their own
    overlapped         windows added up where they overlap: an element's place in a window tells which window, if any

Each thread makes one result, and goes through the places that are folded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

from ..._graph.graph import Graph
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Call, Shape
from ...errors import Unsupported
from ...ops.pool import windows_of
from ...ops.windows import Windows
from ..scalar.folds import Fold
from ..scalar.value import Value
from .contractions import MergedAxes, Output, merged
from .dialect import Dialect, Target
from .expressions import Expression, Read, View, Walker, Windowed, forms_in
from .frames import Frame, Indices, inputs_of
from .kernel_source import Kernel
from .packets import element_at
from .spaces import SMALL, sliding


@dataclass(frozen=True, slots=True)
class Slide:
    """An op on windows: at each place of its result, a fold of elements, or one element."""

    reads: tuple[Expression, ...]
    outputs: tuple[Output, ...]
    """One."""
    results: tuple[MergedAxes, ...]
    folded: tuple[tuple[MergedAxes, ...], ...]
    """The places of windows, for each loop over them."""
    value: Callable[[Frame, Slide, Indices], Value]
    """Writes the value at a place of the result."""


@dataclass(frozen=True, slots=True)
class _SlideForm:
    """How such an op looks at its inputs, over a space of these sizes, those of its result first."""

    sizes: Shape
    result: View
    given: tuple[View, ...]
    value: Callable[[Frame, Slide, Indices], Value]
    beyond: Any = 0
    """The value of elements outside of the array."""
    loops: int = 1
    """Loops over the places of a window."""


def slides(call: Call) -> bool:
    """True if a call is such an op."""
    return call.op.name in _FORMS


def slide_of(graph: Graph, entry: int) -> Slide:
    """The op on windows that is an entry of a graph."""
    call, args = graph.calls[entry], graph.args[entry]
    form = _FORMS[call.op.name](call)
    walker = Walker(graph, form.sizes, known=frozenset(args), beyond=form.beyond)
    reads = tuple([walker.at(a, view) for a, view in zip((*args, *args)[: len(form.given)], form.given, strict=True)])
    output = Output(entry, reads[0], walker.strides(call.spec.shape, form.result))
    strides = [output.strides, *[strides for read in reads for strides in forms_in(read)]]
    rank = len(form.result)
    kernel = range(rank, len(form.sizes))
    fixed = frozenset(axis for axis in kernel if form.sizes[axis] <= SMALL)
    each = len(kernel) // form.loops
    loops = [range(first, first + each) for first in range(rank, rank + form.loops * each, each or 1)]
    results, *folded = (merged(axes, form.sizes, strides, fixed) for axes in (range(rank), *loops))
    return Slide(reads, (output,), results, tuple(folded), form.value)


def slide_kernel(graph: Graph, slide: Slide, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of an op on windows whose result has elements."""
    inputs = inputs_of(graph, slide.reads)
    items = prod(run.size for run in slide.results)
    frame = Frame(dialect, inputs, slide.outputs, max([items, *map(prod, inputs.shapes)]) + target.group)
    k, ctype = frame.k, frame.ctype
    item = k.let(ctype, f"({ctype})({dialect.global_id})")
    k.say(f"if ({item} >= {frame.size('items', items)}) return")
    at = frame.indices("results", slide.results, item)
    value = slide.value(frame, slide, at)
    frame.put(k, value, "b0", frame.place(("b", 0), slide.outputs[0].strides, at))
    return frame.kernel(items, target.group)


# Values


def _single(frame: Frame, slide: Slide, at: Indices) -> Value:
    return frame.value(frame.k, slide.reads[0], frame.reader(frame.k, at))


def _folded(fold: Fold, frame: Frame, slide: Slide, at: Indices) -> Value:
    k, (places,) = frame.k, slide.folded
    total = k.variable(k.literal(fold.start, fold.accumulated))
    with k.block(f"for (int step = 0; step < {frame.total('folded', places)}; step++)"):
        here = {**at, **frame.indices("folded", places, "step")}
        element = fold.begin(k, frame.value(k, slide.reads[0], frame.reader(k, here)))
        k.assign(total, fold.combine(k, total, element))
    return fold.end(k, total)


def _shares(fold: Fold, frame: Frame, slide: Slide, at: Indices) -> Value:
    """The shares of an element. Windows that do not have it as a largest element skip the count of those."""
    k, (places, others) = frame.k, slide.folded
    own, out, slope, other = slide.reads

    def read(part: Expression, place: str) -> Value:
        assert isinstance(part, (Read, Windowed))
        return fold.begin(k, element_at(k, part.dtype, frame.pointer(part.entry), place))

    def is_largest(element: Value, largest: Value) -> Value:
        return k.not_(k.lt(element, largest))

    element = fold.begin(k, frame.value(k, own, frame.reader(k, at)))
    total = k.variable(k.literal(0, fold.accumulated))
    with k.block(f"for (int step = 0; step < {frame.total('folded', places)}; step++)"):
        here = {**at, **frame.indices("folded", places, "step")}
        assert isinstance(out, (Read, Windowed))
        assert isinstance(other, (Read, Windowed))
        there, place = frame.guarded(k, out, here)
        largest = read(out, place)
        with k.block(f"if ({k.and_(there, is_largest(element, largest)).text})"):
            count = k.variable(k.literal(0, fold.accumulated))
            with k.block(f"for (int next = 0; next < {frame.total('others', others)}; next++)"):
                inside, beside = frame.guarded(k, other, {**here, **frame.indices("others", others, "next")})
                counts = k.and_(inside, is_largest(read(other, beside), largest))
                k.assign(count, k.add(count, k.convert(counts, fold.accumulated)))
            k.assign(total, k.add(total, k.div(read(slope, place), count)))
    return fold.end(k, total)


# Forms


def _over(sizes: Shape, windows: Windows, lengths: Shape) -> View:
    """The view of an input by windows, whose places are the space's last axes and which stand along those before."""
    rank = len(lengths)
    return tuple([
        sliding(sizes, {2 + n: windows.stride[n], 2 + rank + n: windows.dilation[n]}, windows.padding[n][0],
                windows.spread[n], lengths[n])
        for n in range(rank)
    ])  # fmt: skip


def _back(sizes: Shape, windows: Windows, counts: Shape) -> View:
    """The view of windows by the elements under them, at each place of a window; its axes are behind the elements'."""
    rank = len(counts)
    return tuple([
        sliding(sizes, {2 + n: 1, 2 + rank + n: -windows.dilation[n]}, -windows.padding[n][0], windows.stride[n],
                counts[n])
        for n in range(rank)
    ])  # fmt: skip


def _fold(name: str, dtype: DType) -> Fold:
    return Fold(name, False, float32 if dtype.is_half else dtype, dtype, 0)


def _lowest(dtype: DType) -> Any:
    return _fold("max", dtype).start


def _largest(call: Call) -> _SlideForm:
    windows, shape, dtype = windows_of(call), call.inputs[0].shape, call.spec.dtype
    sizes = (*call.spec.shape, *windows.kernel)
    given = (0, 1, *_over(sizes, windows, shape[2:]))
    return _SlideForm(sizes, tuple(range(len(shape))), (given,), partial(_folded, _fold("max", dtype)), _lowest(dtype))


def _share_of_largest(call: Call) -> _SlideForm:
    windows, shape, counts = windows_of(call), call.spec.shape, call.inputs[1].shape[2:]
    rank = len(windows.kernel)
    sizes = (*shape, *windows.kernel, *windows.kernel)
    result = tuple(range(2 + rank))
    back = (0, 1, *_back(sizes, windows, counts))
    beside = [
        sliding(sizes, {2 + n: 1, 2 + rank + n: -d, 2 + 2 * rank + n: d}, 0, 1, shape[2 + n])
        for n, d in enumerate(windows.dilation)
    ]
    return _SlideForm(
        sizes, result, (result, back, back, (0, 1, *beside)), partial(_shares, _fold("sum", call.spec.dtype)), loops=2
    )


def _written_out(call: Call) -> _SlideForm:
    windows, sizes, beyond = call.attrs["windows"], call.spec.shape, 0
    if call.attrs["lowest"]:
        beyond = _lowest(call.spec.dtype)
    given = (0, 1, *_over(sizes, windows, call.inputs[0].shape[2:]))
    return _SlideForm(sizes, tuple(range(len(sizes))), (given,), _single, beyond=beyond)


def _laid_back(call: Call) -> _SlideForm:
    windows, shape = call.attrs["windows"], call.spec.shape
    rank = len(windows.kernel)
    if any(s != 1 for s in windows.spread):
        raise Unsupported("windows over elements that are spread")
    sizes = (*shape, *windows.kernel)
    own = tuple(range(2 + rank, 2 + 2 * rank))
    back = _back(sizes, windows, call.inputs[0].shape[2 : 2 + rank])
    return _SlideForm(
        sizes, tuple(range(2 + rank)), ((0, 1, *back, *own),), partial(_folded, _fold("sum", call.spec.dtype))
    )


_FORMS: Final[dict[str, Callable[[Call], _SlideForm]]] = {
    "max_pool": _largest, "max_pool_gradient": _share_of_largest, "windowed": _written_out, "overlapped": _laid_back,
}  # fmt: skip
