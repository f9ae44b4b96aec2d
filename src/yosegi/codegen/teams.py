"""Teams: the items of a group fold what each of them has, in a tree in shared memory."""

from __future__ import annotations

from collections.abc import Callable

from .c import CBuilder
from .folds import Fold
from .value import Value


def fold_in_team(k: CBuilder, fold: Fold, total: Value, team: int, store: Callable[[Value], None]) -> list[str]:
    """Fold what the items of a team have, whose number is a power of two; the first of them stores it. Returns the
    declarations that this needs."""
    d, scalar = k.dialect, k.dialect.types[fold.accumulated]
    names = ["shared", *(["shared_imag"] if fold.accumulated.is_complex else [])]
    mine = k.let("int", d.local_id)

    def at(place: str) -> Value:
        texts = [k.let(scalar, f"{name}[{place}]") for name in names]
        return Value(fold.accumulated, texts[0], texts[1] if texts[1:] else "")

    def put(value: Value) -> None:
        for name, text in zip(names, (value.text, value.imag), strict=False):
            k.lines.append(f"{name}[{mine}] = {text};")

    put(total)
    k.lines.append(f"{d.barrier};")
    with k.block(f"for (int span = {team // 2}; span > 0; span /= 2)"):
        with k.block(f"if ({mine} < span)"):
            put(fold.combine(k, at(mine), at(f"{mine} + span")))
        k.lines.append(f"{d.barrier};")
    with k.block(f"if ({mine} == 0)"):
        store(at("0"))
    return [d.local_array.format(type=scalar, name=name, size=team) + ";" for name in names]
