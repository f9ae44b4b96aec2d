"""`argmax` and `argmin` as kernels.

A block of threads, or one thread where there is little to search, walks the elements of a result and keeps the best
with its index; a tree in shared memory finds the block's. Where there are few results, each is cut into slices, and a
second launch searches the best ones of these. NaN is better than any number, and of equals the first is best, whatever
the order in which elements are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from ..._tensor.dtype import DType, int64
from ..._tensor.node import Call
from ..._tensor.role import Extremum
from ..scalar.value import Value
from .kernel_source import Kernel
from .packets import element_at
from .stages import KernelProgram, KernelWriter, Setting, Stage

_LEAST: Final = 4
"""Elements for each thread of a block, and for a slice as many blocks: with fewer, fewer threads search."""
_MOST_SLICES: Final = 1024
_UNROLLED: Final = 4


def extreme(call: Call, setting: Setting) -> KernelProgram:
    """The index of the first largest, or smallest, element."""
    x, axis = call.inputs[0], call.attrs["axis"]
    shape = x.shape if axis is not None else (x.size,)
    axis = 0 if axis is None else axis
    inner, n = prod(shape[axis + 1 :]), shape[axis]
    search = _Search(setting, _is_largest(call), x.dtype, prod(shape[:axis]) * inner, n, inner)
    slices = search.slices()
    if slices == 1:
        return KernelProgram((Stage(search.first(1), (0,), (1,)),))
    first = Stage(search.first(slices), (0,), (2,))
    return KernelProgram((first, Stage(search.second(slices), (0, 2), (1,))), (((slices, search.results), int64),))


def _is_largest(call: Call) -> bool:
    assert isinstance(call.op.role, Extremum)
    return call.op.role.is_largest


class _Search:
    """Kernels that search for the best element of each result, among `n` that are `inner` apart."""

    def __init__(self, setting: Setting, largest: bool, dtype: DType, results: int, n: int, inner: int) -> None:
        self.setting, self.sign, self.dtype = setting, ">" if largest else "<", dtype
        self.results, self.n, self.inner = results, n, inner

    def slices(self) -> int:
        """Into how many parts each result is cut, so that every unit of the device has work."""
        target = self.setting.target
        subgroup = self._team(self.n)
        wanted = target.units * (1 if subgroup > 1 else target.group)
        slices = max(1, min(wanted // self.results, self.n // (_LEAST * _LEAST * subgroup), _MOST_SLICES))
        return -(-self.n // -(-self.n // slices))  # none is empty

    def _team(self, count: int) -> int:
        """The threads that search so many elements together. Neighbouring results are searched by neighbouring
        threads."""
        subgroup = self.setting.target.cooperating
        return subgroup if self.inner == 1 and count >= _LEAST * subgroup else 1

    def first(self, slices: int) -> Kernel:
        """The best of each slice, as an index along the axis."""
        per = -(-self.n // slices)
        w = KernelWriter(self.setting, self.results * max(self.n, slices), (self.dtype,), (int64,))
        own, subgroup = self._own(w, self._team(per), slices)
        part, result = "0", own
        if slices > 1:
            part = w.let(f"{own} / {w.sizes(self.results)}")
            result = w.let(f"{own} - {part} * {w.sizes(self.results)}")
        start = w.let(f"{part} * {w.sizes(per)}")
        stop = w.let(f"min({start} + {w.sizes(per)}, {w.sizes(self.n)})")
        self._search(w, subgroup, start, stop, self._base(w, result), lambda at: at, f"b0[{own}]")
        return w.kernel(self.results * slices * subgroup, subgroup if subgroup > 1 else None)

    def second(self, slices: int) -> Kernel:
        """The best of the best of each slice."""
        w = KernelWriter(self.setting, self.results * max(self.n, slices), (self.dtype, int64), (int64,))
        own, subgroup = self._own(w, self._team(slices), 1)
        base = self._base(w, own)
        best = f"a1[{{}} * {w.sizes(self.results)} + {own}]"
        self._search(w, subgroup, "0", w.sizes(slices), base, lambda at: w.let(f"({w.ctype}){best.format(at)}"),
                     f"b0[{own}]")  # fmt: skip
        return w.kernel(self.results * subgroup, subgroup if subgroup > 1 else None)

    def _own(self, w: KernelWriter, subgroup: int, slices: int) -> tuple[str, int]:
        """The number of what a thread, or its block, searches, and how many threads do."""
        return (w.let(w.dialect.group_id) if subgroup > 1 else w.item(self.results * slices)), subgroup

    def _base(self, w: KernelWriter, result: str) -> str:
        """Where the elements of a result begin."""
        outer = w.let(f"{result} / {w.sizes(self.inner)}")
        return w.let(f"{outer} * {w.sizes(self.n * self.inner)} + {result} - {outer} * {w.sizes(self.inner)}")

    def _search(
        self, w: KernelWriter, subgroup: int, start: str, stop: str, base: str, index: Callable[[str], str], result: str
    ) -> None:
        k, ctype = w.k, w.k.ctype(self.dtype)
        mine = k.let("int", w.dialect.local_id) if subgroup > 1 else "0"
        w.k.say(f"{ctype} best = 0")
        w.k.say(f"{w.ctype} where = -1")
        unrolled = w.dialect.unrolled.format(n=_UNROLLED)
        with k.block(f"{unrolled}\nfor ({w.ctype} at = {start} + {mine}; at < {stop}; at += {subgroup})"):
            here = index("at")
            value = element_at(k, self.dtype, "a0", w.let(f"{base} + {here} * {w.sizes(self.inner)}"))
            with k.block(f"if (where < 0 || {self._beats(value, 'best')})"):
                w.k.say(f"best = {value.text}")
                w.k.say(f"where = {here}")
        if subgroup == 1:
            w.k.say(f"{result} = where")
            return
        for kind, name in ((ctype, "values"), (w.ctype, "places")):
            k.shared(kind, name, subgroup)
        w.k.say(f"values[{mine}] = best; places[{mine}] = where")
        w.k.barrier()
        with k.block(f"for (int span = {subgroup // 2}; span; span /= 2)"):
            with k.block(f"if ({mine} < span)"):
                other, there = k.let(ctype, f"values[{mine} + span]"), w.let(f"places[{mine} + span]")
                better = self._beats(Value(self.dtype, other), "best")
                worse = self._beats(Value(self.dtype, "best"), other)
                with k.block(f"if ({there} >= 0 && (where < 0 || {better} || (!({worse}) && {there} < where)))"):
                    w.k.say(f"values[{mine}] = best = {other}; places[{mine}] = where = {there}")
            w.k.barrier()
        w.k.say(f"if ({mine} == 0) {result} = where")

    def _beats(self, value: Value, best: str) -> str:
        """True if a value is better than another."""
        x = value.text
        if not self.dtype.is_float:
            return f"{x} {self.sign} {best}"
        return f"({best} == {best} && ({x} {self.sign} {best} || {x} != {x}))"
