"""Checked decoding of files.

Each function takes a value and its place in the file, and returns the value or raises `Malformed`. A bool is not an
integer, NaN and infinities are not numbers, and everything has a bound: whatever reads a file with these functions gets
the types and ranges that it asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from math import inf
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R")
Read: TypeAlias = Callable[[Any, str], R]
"""Takes a value and its place in the file, and returns the decoded value or raises `Malformed`."""

LONGEST_TEXT: Final = 1 << 20
MOST_ITEMS: Final = 1 << 20
LONGEST_TIME: Final = 1e6
"""Seconds that anything measured may have taken."""
SHORTEST_TIME: Final = 1e-12
HIGHEST_RATE: Final = 1e24
"""Bytes or operations a second."""
_SHOWN: Final = 60  # characters of a wrong value that an error shows
_PLAIN: Final[dict[type, str]] = {
    NoneType: "null", bool: "true or false", int: "an integer", float: "a number", complex: "a number", str: "a text",
    list: "a list", dict: "an object", tuple: "a list",
}  # fmt: skip


class Malformed(ValueError):
    """A value of a file that is not what belongs there. The text reads `expected …, got … at <place>`."""

    def __init__(self, expected: str, got: Any, place: str) -> None:
        where = place.encode("ascii", "backslashreplace").decode() or "the top"
        super().__init__(f"expected {expected}, got {shown(got)} at {where}")


def shown(value: Any) -> str:
    """A value as an error shows it: short, whatever it is.

    >>> shown([1, 2, 3])
    '[1, 2, 3]'
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a list of too many levels
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def loads(text: bytes) -> Any:
    """The data of a JSON file. No key may stand twice in an object, and NaN and infinities are not JSON.

    >>> loads(b'{"a": 1}')
    {'a': 1}
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed("JSON", str(error), "") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise Malformed("each key once", twice, "")
    return made


def _refuse(constant: str) -> None:
    raise Malformed("finite numbers", constant, "")


def integer(value: Any, place: str, low: int, high: int) -> int:
    """An integer from `low` to `high`.

    >>> integer(3, "steps[0]", 0, 9)
    3
    """
    if type(value) is not int or not low <= value <= high:
        raise Malformed(f"an integer from {low} to {high}", value, place)
    return value


def number(value: Any, place: str, low: float, high: float) -> float:
    """A finite number from `low` to `high`, as a float."""
    if type(value) not in (int, float) or not (low <= value <= high and -inf < value < inf):
        raise Malformed(f"a number from {low:g} to {high:g}", value, place)
    return float(value)


def text(value: Any, place: str, longest: int = LONGEST_TEXT) -> str:
    """A text."""
    if type(value) is not str or len(value) > longest:
        raise Malformed(f"a text of at most {longest} characters", value, place)
    return value


def flag(value: Any, place: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Malformed("true or false", value, place)
    return value


def one_of(value: Any, place: str, choices: Iterable[str]) -> str:
    """The value, if it is one of the `choices`. Raises `Malformed`."""
    known = tuple(choices)
    if type(value) is not str or value not in known:
        raise Malformed(f"one of {', '.join(map(shown, known))}", value, place)
    return value


def items(value: Any, place: str, most: int = MOST_ITEMS, *, least: int = 0) -> list[Any]:
    """A list of `least` to `most` items."""
    if type(value) is not list or not least <= len(value) <= most:
        length = f"{least}" if least == most else f"{least} to {most}"
        raise Malformed(f"a list of {length} items", value, place)
    return value


def mapping(value: Any, place: str, most: int = MOST_ITEMS) -> dict[str, Any]:
    """An object with any keys."""
    if type(value) is not dict or len(value) > most:
        raise Malformed(f"an object of at most {most} keys", value, place)
    return value


def record(value: Any, place: str, *keys: str) -> list[Any]:
    """The values of an object that has exactly these keys, in this order."""
    found = mapping(value, place)
    if found.keys() != set(keys):
        raise Malformed(f"an object with the keys {', '.join(keys)}", sorted(found), place)
    return [found[key] for key in keys]


def each(value: Any, place: str, read: Read[R], *, least: int = 0) -> list[R]:
    """The items of a list, each decoded by `read`.

    >>> each(["a", "b"], "names", text)
    ['a', 'b']
    """
    return [read(item, f"{place}[{n}]") for n, item in enumerate(items(value, place, least=least))]


def table(value: Any, place: str, read: Read[R], keys: Iterable[str] | None = None) -> dict[str, R]:
    """The values of an object, each decoded by `read`. The keys are any texts, or some of `keys`."""
    found = mapping(value, place)
    if keys is not None:
        known = tuple(keys)
        for key in found:
            one_of(key, place, known)
    return {key: read(item, f"{place}.{key}") for key, item in found.items()}


def texts(value: Any, place: str) -> dict[str, str]:
    """An object whose values are texts."""
    return table(value, place, text)


def seconds(value: Any, place: str) -> float:
    """A time that was measured."""
    return number(value, place, SHORTEST_TIME, LONGEST_TIME)


# Types


def typed(value: Any, hint: Any, place: str) -> None:
    """Raise unless a value is of an annotated type, through tuples, unions and frozen dataclasses. As in annotations,
    an integer is a float and a float is complex.

    >>> typed((1, (0, 2, 1)), tuple[int | tuple[int, int, int], ...], "key")
    """
    origin = get_origin(hint)
    if hint is Any:
        return
    if origin in (Union, UnionType):
        _any_of(value, get_args(hint), place)
    elif origin is Literal:
        one_of(value, place, get_args(hint))
    elif origin is tuple:
        _tuple(value, get_args(hint), place)
    elif is_dataclass(hint):
        _instance(value, hint, place)
        hints = get_type_hints(hint)
        for field in fields(hint):
            typed(getattr(value, field.name), hints[field.name], f"{place}.{field.name}")
    else:
        _instance(value, hint, place)


_WIDER: Final[dict[Any, tuple[type, ...]]] = {float: (int, float), complex: (int, float, complex)}


def _instance(value: Any, hint: Any, place: str) -> None:
    exactly = _WIDER.get(hint, (hint,))
    if type(value) not in exactly and (hint in _PLAIN or not isinstance(value, hint)):
        raise Malformed(_PLAIN.get(hint, getattr(hint, "__name__", str(hint))), value, place)


def _tuple(value: Any, of: tuple[Any, ...], place: str) -> None:
    if type(value) is not tuple:
        raise Malformed("a list", value, place)
    hints = of[:1] * len(value) if len(of) == 2 and of[1] is Ellipsis else of
    if len(hints) != len(value):
        raise Malformed(f"a list of {len(hints)} items", value, place)
    for n, (item, hint) in enumerate(zip(value, hints, strict=True)):
        typed(item, hint, f"{place}[{n}]")


def _any_of(value: Any, hints: tuple[Any, ...], place: str) -> None:
    if Any in hints:
        return
    fits = [h for h in hints if (get_origin(h) or h) is type(value) or type(value) in _WIDER.get(h, ())]
    if len(fits) == 1:
        typed(value, fits[0], place)  # its error names the place inside
    elif not any(_is_typed(value, hint) for hint in hints):
        names = [_PLAIN.get(get_origin(h) or h, getattr(h, "__name__", str(h))) for h in hints]
        raise Malformed(" or ".join(names), value, place)


def _is_typed(value: Any, hint: Any) -> bool:
    try:
        typed(value, hint, "")
    except Malformed:
        return False
    return True
