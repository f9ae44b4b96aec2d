"""Graph → a smaller graph with the same values. `_run/evaluate.py` calls `simplify` for every new structure.

A walk from inputs to outputs applies, at each entry, the rules below, constant folding and common subexpressions; then
entries that no output needs are left out. Transposed products, whose rule depends on their readers, have a second walk.
Only identities that hold for every number are used: `x + 0` is not `x` when x is -0.0, and stays. Three rules may
change bits: `x**2` becomes `x * x`, which is correctly rounded; a transposed product becomes the product of its
transposed operands, whose sums have the same terms in the order of its kernel; and a sum of windows in zeros becomes a
concatenation, which keeps the sign of -0.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from .._tensor.node import Call
from .._tensor.op import REGISTRY, OpKind, constant, embedded, leaf, pick, pick_call
from .._tensor.role import Contraction, Control, Overwrite, Passed, View
from .graph import Graph
from .reference import bind

_FOLD_LIMIT: Final = 4096  # elements; a larger constant costs more memory than it saves time
"""Ops whose elements are those of what they read."""


class GraphRewriter:
    """The graph being written."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.args: list[tuple[int, ...]] = []
        self.known: dict[tuple[Call, tuple[int, ...]], int] = {}
        self.values: dict[int, Any] = {}
        self.numbers: dict[int, Any] = {}
        """The number that all elements of an entry are known to be."""
        self.windows: dict[int, PaddedValues] = {}
        """The windows of entries that are zeros elsewhere."""
        self.origins: list[str] = []
        self.users: Counter[int] = Counter()
        """How often entries are read, outputs counted in; in a first walk, that is not known."""

    def put(self, call: Call, args: tuple[int, ...], origin: str = "") -> int:
        """The entry of this call: an equal earlier one, a simpler one, or a new one."""
        if call.op is not leaf:
            same = self.known.get((call, args))
            if same is not None:
                return same
            if isinstance(call.op.role, Passed) and len(call.outputs) == 1:
                return args[0]
            rule = RULES.get(call.op.name)
            simpler = rule(self, call, args) if rule is not None else None
            if simpler is not None:
                self.known[call, args] = simpler
                return simpler
        return self.added(call, args, origin)

    def added(self, call: Call, args: tuple[int, ...], origin: str = "") -> int:
        """A new entry of a call."""
        at = len(self.calls)
        if call.op is not leaf:
            self.known[call, args] = at
            call, args = self._folded(at, call, args)
        self.calls.append(call)
        self.args.append(args)
        self.origins.append(origin)
        return at

    def _folded(self, at: int, call: Call, args: tuple[int, ...]) -> tuple[Call, tuple[int, ...]]:
        if call.op is constant:
            self.values[at] = constant.body(**call.attrs)
            self.numbers[at] = call.attrs["value"]
            return call, args
        if isinstance(call.op.role, View) and args[0] in self.numbers:
            self.numbers[at] = self.numbers[args[0]]
        is_small = len(call.outputs) == 1 and call.spec.size <= _FOLD_LIMIT
        is_pure = call.op.kind is not OpKind.DISTRIBUTED and not isinstance(call.op.role, Control)
        if is_small and is_pure and all(a in self.values for a in args):
            with np.errstate(all="ignore"):
                array = np.array(bind(call)(*[self.values[a] for a in args]), call.spec.dtype.numpy)
            array.flags.writeable = False
            self.values[at] = array
            return Call(embedded, {"array": array}, (), call.outputs), ()
        return call, args

    def again(self, name: str, at: int, **attrs: Any) -> int:
        """Add an op on an entry, and return the entry of its value."""
        made = REGISTRY[name].call(self.calls[at].outputs, attrs)
        return self.put(made, (at,))

    def as_it_is(self, name: str, at: int, **attrs: Any) -> int:
        """Add an op on an entry without applying rules, which could recurse as deeply as the graph."""
        made = REGISTRY[name].call(self.calls[at].outputs, attrs)
        same = self.known.get((made, (at,)))
        return self.added(made, (at,)) if same is None else same


@dataclass(frozen=True, slots=True)
class PaddedValues:
    """Values that stand one after the other along an axis, with zeros between them."""

    axis: int
    values: tuple[tuple[int, int, int], ...]
    """The first index of each, its length, and the entry."""


Rule = Callable[[GraphRewriter, Call, tuple[int, ...]], int | None]


def _neutral(number: int, *, integers_only: bool = False, sides: tuple[int, ...] = (1,)) -> Rule:
    """x <op> number is x."""

    def rule(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
        for side in sides:
            other = args[1 - side]
            # A complex product by 1 is more than a copy: it makes NaN of infinities.
            applies = call.spec.dtype.is_integer if integers_only else not call.spec.dtype.is_complex
            if applies and p.numbers.get(args[side]) == number and p.calls[other].spec is call.spec:
                return other
        return None

    return rule


_plus_zero: Final = _neutral(0, integers_only=True, sides=(0, 1))


def _sum(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    """A sum that adds zero; or one of windows in zeros, as the gradients of slices are: together they may be all of an
    array."""
    simpler = _plus_zero(p, call, args)
    if simpler is not None or any(p.calls[a].spec is not call.spec for a in args):
        return simpler
    first, second = (p.windows.get(a) or _window(p, a) for a in args)
    if first is None or second is None or first.axis != second.axis:
        return None
    axis, values = first.axis, sorted((*first.values, *second.values))
    if any(start + length > after for (start, length, _), (after, _, _) in pairwise(values)):
        return None
    if sum(length for _, length, _ in values) < call.spec.shape[axis]:
        at = p.added(call, args)
        p.windows[at] = PaddedValues(axis, tuple(values))
        return at
    shape = call.spec.shape
    whole = [p.again("reshape", v, shape=(*shape[:axis], n, *shape[axis + 1 :])) for _, n, v in values]
    return p.put(REGISTRY["concatenate"].call(tuple([p.calls[w].spec for w in whole]), {"axis": axis}), tuple(whole))


def _window(p: GraphRewriter, at: int) -> PaddedValues | None:
    """The window of an entry that sets part of one axis of zeros; `None` for anything else."""
    call, args = p.calls[at], p.args[at]
    if not isinstance(call.op.role, Overwrite) or p.numbers.get(args[0]) != 0 or None in call.attrs["key"]:
        return None
    key, shape = call.attrs["key"], call.spec.shape
    cut = [n for n, item in enumerate(key) if item != (0, shape[n], 1)]
    if len(cut) != 1 or p.calls[args[1]].spec.size != prod(i[1] for i in key if isinstance(i, tuple)):
        return None
    start, length, step = item if isinstance(item := key[cut[0]], tuple) else (item, 1, 1)
    return PaddedValues(cut[0], ((start, length, args[1]),)) if step == 1 else None


def _power(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    if p.calls[args[0]].spec is not call.spec or not call.spec.dtype.is_inexact:
        return None
    exponent = None if call.spec.dtype.is_complex else p.numbers.get(args[1])
    return args[0] if exponent == 1 else p.again("square", args[0]) if exponent == 2 else None


def _inverse_of_itself(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    inner = p.calls[args[0]]
    return p.args[args[0]][0] if inner.op is call.op and inner.attrs == call.attrs else None


def _last_wins(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    """Drop a reshape or a broadcast before another, and one that changes nothing."""
    if p.calls[args[0]].spec is call.spec:
        return args[0]
    if p.calls[args[0]].op is call.op:
        return p.again(call.op.name, p.args[args[0]][0], **call.attrs)
    return None


def _permuted(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    axes = call.attrs["axes"]
    if axes == tuple(range(len(axes))):
        return args[0]
    inner = p.calls[args[0]]
    if inner.op is call.op:
        first = inner.attrs["axes"]
        return p.again("permute_dims", p.args[args[0]][0], axes=tuple(first[a] for a in axes))
    return _transposed_product(p, args[0], axes) if inner.op.role is Contraction.MATRICES else None


def _transposed_product(p: GraphRewriter, at: int, axes: tuple[int, ...]) -> int | None:
    """(a b)ᵀ is bᵀ aᵀ. Where an operand is transposed already, as for the gradient of `x @ w.T` by w, this transposes
    less; unless other entries read the product, or the other operand is larger than all that was transposed."""
    ndim = len(axes)
    swapped = (*range(ndim - 2), ndim - 1, ndim - 2)
    operands = p.args[at]
    if axes != swapped or p.users[at] != 1 or any(p.calls[x].spec.ndim != ndim for x in operands):
        return None
    transposed = [x for x in operands if p.calls[x].op.role is View.PERMUTED and p.calls[x].attrs["axes"] == swapped]
    before = p.calls[at].spec.size + sum(p.calls[x].spec.size for x in transposed)
    if not transposed or sum(p.calls[x].spec.size for x in operands if x not in transposed) > before:
        return None
    right, left = (p.args[x][0] if x in transposed else p.as_it_is("permute_dims", x, axes=swapped) for x in operands)
    made = p.calls[at].op.call((p.calls[left].spec, p.calls[right].spec), {})
    return p.put(made, (left, right), p.origins[at])


def _picked(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    passed = isinstance(p.calls[args[0]].op.role, Passed)
    return p.args[args[0]][call.attrs["index"]] if passed else None


def _same_dtype(p: GraphRewriter, call: Call, args: tuple[int, ...]) -> int | None:
    return args[0] if p.calls[args[0]].spec.dtype is call.spec.dtype else None


RULES: Final[dict[str, Rule]] = {
    "add": _sum,
    "subtract": _neutral(0),
    "multiply": _neutral(1, sides=(0, 1)),
    "divide": _neutral(1),
    "pow": _power,
    "negative": _inverse_of_itself,
    "conjugate": _inverse_of_itself,
    "flip": _inverse_of_itself,
    "reshape": _last_wins,
    "broadcast_to": _last_wins,
    "permute_dims": _permuted,
    "convert": _same_dtype,
    "pick": _picked,
}


def simplify(graph: Graph) -> Graph:
    """A smaller graph with the same values and the same inputs, used or not."""
    made, wider = _walked(graph, Counter()), None
    while made is not wider:  # what a narrower loop does not read, another need not make
        made, wider = _narrowed(made), made
    if not any(call.op.role is View.PERMUTED
               and made.calls[args[0]].op.role is Contraction.MATRICES
               for call, args in zip(made.calls, made.args, strict=True)):  # fmt: skip
        return made
    return _walked(made, Counter([*[a for args in made.args for a in args], *made.outputs]))


def _narrowed(graph: Graph) -> Graph:
    """The graph with control flow reduced to the outputs that something reads."""
    read: dict[int, set[int]] = {
        n: set() for n, c in enumerate(graph.calls)
        if isinstance(c.op.role, Control) and len(c.outputs) > 1 and n not in graph.outputs
    }  # fmt: skip
    for call, given in zip(graph.calls, graph.args, strict=True):
        if call.op is pick and given[0] in read:
            read[given[0]].add(call.attrs["index"])
    calls, args = list(graph.calls), list(graph.args)
    left: dict[int, list[int]] = {}
    for entry, used in read.items():
        call = calls[entry]
        assert isinstance(call.op.role, Control)
        inputs, outputs, attrs = call.op.role.narrow(call, used)
        if len(outputs) < len(call.outputs):
            left[entry] = outputs
            calls[entry] = call.op.call(tuple([call.inputs[n] for n in inputs]), attrs)
            args[entry] = tuple([args[entry][n] for n in inputs])
    if not left:
        return graph
    alias: dict[int, int] = {}
    for entry, call in enumerate(graph.calls):
        source = graph.args[entry][0] if call.op is pick else -1
        if source in left and len(left[source]) == 1:
            alias[entry] = source
        elif source in left:
            calls[entry] = pick_call(calls[source].outputs, left[source].index(call.attrs["index"]))
    wired = tuple([tuple([alias.get(a, a) for a in given]) for given in args])
    shown = tuple([alias.get(o, o) for o in graph.outputs])
    return _walked(Graph(tuple(calls), wired, shown, graph.origins), Counter())


def _walked(graph: Graph, users: Counter[int]) -> Graph:
    """`users`: how often entries are read, outputs counted in, where that is known."""
    program = GraphRewriter()
    at: list[int] = []
    origins = graph.origins or ("",) * len(graph.calls)
    for entry, (call, args, origin) in enumerate(zip(graph.calls, graph.args, origins, strict=True)):
        at.append(program.put(call, tuple([at[a] for a in args]), origin))
        program.users[at[entry]] += users[entry]
    return _without_dead(program, tuple(at[o] for o in graph.outputs))


def _without_dead(program: GraphRewriter, outputs: tuple[int, ...]) -> Graph:
    alive = [call.op is leaf or call.op.kind is OpKind.DISTRIBUTED for call in program.calls]  # other ranks wait
    for o in outputs:
        alive[o] = True
    for i in range(len(alive) - 1, -1, -1):
        if alive[i]:
            for a in program.args[i]:
                alive[a] = True
    kept = [i for i, live in enumerate(alive) if live]
    new = {old: i for i, old in enumerate(kept)}
    return Graph(
        tuple([program.calls[i] for i in kept]),
        tuple([tuple([new[a] for a in program.args[i]]) for i in kept]),
        tuple(new[o] for o in outputs),
        tuple([program.origins[i] for i in kept]),
    )
