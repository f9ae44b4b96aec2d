"""Code that seldom runs, written to be short.

It costs as much to compile as code that always runs. Cases that only few arguments need are therefore written for
narrow vectors, in a loop over the parts of the usual vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..._tensor.dtype import DType, bool_
from ..scalar.value import Value
from .number import Number, select

Rule = Callable[..., Sequence[Number]]


def where_seldom(
    condition: Number, usual: Sequence[Number], given: Sequence[Number], rule: Rule, width: int
) -> list[Number]:
    """The result of a rule where a condition holds, and the usual values elsewhere.

    The rule is written for `width` lanes. It runs if the condition holds in some lane, then on all of them.
    """
    k = condition.k
    with k.code.when(_any_lane(condition), [(k.type(u.dtype), u.value.text) for u in usual]) as branch:
        made = rule(*given) if k.width <= width else _in_pieces(given, [u.dtype for u in usual], rule, width)
        branch.give(*[select(condition, there, here).value.text for there, here in zip(made, usual, strict=True)])
    return [Number(k, Value(u.dtype, text)) for u, text in zip(usual, branch.values, strict=True)]


def library(name: str) -> Rule:
    """A function of the C library as a rule, for one lane."""
    return lambda *given: [Number(given[0].k, given[0].k.library(name, *[g.value for g in given]))]


def _any_lane(condition: Number) -> str:
    """An i1: whether a truth value holds in some lane."""
    k, text = condition.k, condition.value.text
    if k.width == 1:
        return text
    return k.code.pure_call("i1", f"llvm.vector.reduce.or.v{k.width}i1", [k.type(bool_)], [text])


def _in_pieces(given: Sequence[Number], results: Sequence[DType], rule: Rule, width: int) -> list[Number]:
    """A rule on so many lanes after another. Wide vectors lie in memory meanwhile."""
    k = given[0].k
    code, narrow = k.code, k.at_width(width)
    read = [code.slot(k.type(g.dtype)) for g in given]
    written = [code.slot(k.type(dtype)) for dtype in results]

    def at(slot: str, dtype: DType) -> str:
        place = code.pure(f"getelementptr {k.element(dtype)}, ptr {slot}, i64 {piece.index}")
        return f"ptr {place}, align {dtype.itemsize}"

    for number, slot in zip(given, read, strict=True):
        code.do(f"store {k.type(number.dtype)} {number.value.text}, ptr {slot}")
    with code.loop(0, k.width, width) as piece:
        pieces = [
            Number(narrow, Value(g.dtype, code.let(f"load {narrow.type(g.dtype)}, {at(slot, g.dtype)}")))
            for g, slot in zip(given, read, strict=True)
        ]
        for number, slot in zip(rule(*pieces), written, strict=True):
            code.do(f"store {narrow.type(number.dtype)} {number.value.text}, {at(slot, number.dtype)}")
    return [
        Number(k, Value(dtype, code.let(f"load {k.type(dtype)}, ptr {slot}")))
        for dtype, slot in zip(results, written, strict=True)
    ]
