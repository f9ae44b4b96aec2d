"""Teams: the items of a group fold what each of them has, in a tree in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..scalar.folds import Fold
from ..scalar.value import Value
from .builder import CBuilder


def fold_in_subgroup(
    k: CBuilder,
    fold: Fold,
    totals: Sequence[Value],
    subgroup: int,
    store: Callable[[list[Value]], None],
    across: int = 1,
) -> None:
    """Fold what the items of a team have, whose number is a power of two; the first of them stores it. In a group are
    `across` teams, whose items take turns: the next item of a team is so many items on."""
    scalar = k.dialect.types[fold.accumulated]
    names = ["shared", *(["shared_imag"] if fold.accumulated.is_complex else [])]
    mine = k.let("int", k.dialect.local_id)

    group = subgroup * across

    def at(number: int, place: str) -> Value:
        texts = [k.let(scalar, f"{name}[{place} + {number * group}]") for name in names]
        return Value(fold.accumulated, texts[0], texts[1] if texts[1:] else "")

    def put(number: int, value: Value) -> None:
        for name, text in zip(names, (value.text, value.imag), strict=False):
            k.say(f"{name}[{mine} + {number * group}] = {text}")

    for n, total in enumerate(totals):
        put(n, total)
    k.barrier()
    with k.block(f"for (int span = {group // 2}; span >= {across}; span /= 2)"):
        with k.block(f"if ({mine} < span)"):
            for n in range(len(totals)):
                put(n, fold.combine(k, at(n, mine), at(n, f"{mine} + span")))
        k.barrier()
    with k.block(f"if ({mine} < {across})"):
        store([at(n, mine) for n in range(len(totals))])
    for name in names:
        k.shared(scalar, name, len(totals) * group)
