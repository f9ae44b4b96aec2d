"""`x.at[key]`: updates of parts of a tensor that return a new one; and the functions behind Tensor's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .._tensor.tensor import OPERATORS, Tensor
from . import rules
from .creation import arange
from .elementwise import clip, conj, imag, maximum, minimum, multiply, real, round, where
from .index import add_at, as_value, gather, getitem, scatter, setitem, take
from .layout import diagonal, swapaxes, trace, transpose
from .numeric import divmod
from .ranges import cumprod, cumsum
from .shape import broadcast_to, concat, repeat, reshape, squeeze
from .sort import argsort, nonzero, searchsorted, sort
from .statistics import ptp
from .vectors import dot


class At:
    """The places of a tensor that an index names, of any kind that reads: `x.at[1:, [0, 2]]`."""

    __slots__ = ("_x",)

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __repr__(self) -> str:
        return f"<at of {self._x._node.spec!r}>"

    def __getitem__(self, key: Any) -> Places:
        return Places(self._x, key)


class Places:
    """Some places of a tensor, waiting for an update. Updates of one place named several times all count; `set` keeps
    the last."""

    __slots__ = ("_key", "_x")

    def __init__(self, x: Tensor, key: Any) -> None:
        self._x, self._key = x, key

    def __repr__(self) -> str:
        return f"<places {self._key!r} of {self._x._node.spec!r}>"

    @rules.named
    def set(self, values: Any, /) -> Tensor:
        """The tensor with values at these places.

        >>> import yosegi as ys
        >>> ys.zeros((3,)).at[1:].set([5.0, 6.0]).tolist()
        [0.0, 5.0, 6.0]
        """
        return setitem(self._x, self._key, values)

    @rules.named
    def add(self, values: Any, /) -> Tensor:
        """The tensor with values added at these places.

        >>> import yosegi as ys
        >>> ys.zeros((3,)).at[[1, 1]].add(2.0).tolist()
        [0.0, 4.0, 0.0]
        """
        return add_at(self._x, self._key, as_value(values, self._x.dtype))

    @rules.named
    def multiply(self, values: Any, /) -> Tensor:
        """The tensor multiplied by values at these places.

        >>> import yosegi as ys
        >>> ys.ones((3,)).at[[1, 1]].multiply(3.0).tolist()
        [1.0, 9.0, 1.0]
        """
        return self._combined(values, multiply)

    @rules.named
    def min(self, values: Any, /) -> Tensor:
        """The tensor with the smaller of its element and the value at these places.

        >>> import yosegi as ys
        >>> ys.ones((3,)).at[[0, 0, 1]].min([-1.0, 0.0, 5.0]).tolist()
        [-1.0, 1.0, 1.0]
        """
        return self._combined(values, minimum)

    @rules.named
    def max(self, values: Any, /) -> Tensor:
        """The tensor with the larger of its element and the value at these places.

        >>> import yosegi as ys
        >>> ys.ones((3,)).at[[0, 0, 1]].max([4.0, 3.0, 0.0]).tolist()
        [4.0, 1.0, 1.0]
        """
        return self._combined(values, maximum)

    def _flat(self, values: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The tensor as a vector, the places in it, and the value for each of them."""
        numbers = getitem(reshape(arange(self._x.size), self._x.shape), self._key)
        new = broadcast_to(as_value(values, self._x.dtype), numbers.shape)
        return reshape(self._x, (-1,)), reshape(numbers, (-1,)), reshape(new, (-1,))

    def _combined(self, values: Any, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        flat, places, new = self._flat(values)
        order = argsort(places)
        places, new = _at(places, order), _at(new, order)
        # A running combination of the values for each place: with twice the distance in each step, as places are in
        # order. The last one for a place combines all, and the last is the one that a scatter keeps.
        distance = 1
        while distance < places.shape[0]:
            same = places[distance:] == places[:-distance]
            new = concat([new[:distance], where(same, function(new[distance:], new[:-distance]), new[distance:])])
            distance *= 2
        made = function(_at(flat, places), new)
        return reshape(scatter(flat, made, places, axes=(0,), at=0, of="at"), self._x.shape)


def _at(x: Tensor, places: Tensor) -> Tensor:
    return gather(x, places, axes=(0,), at=0, of="at")


METHODS: Final[dict[str, Callable[..., Any]]] = {
    "argsort": argsort, "at": At, "clip": clip, "conj": conj, "cumprod": cumprod, "cumsum": cumsum,
    "diagonal": diagonal, "divmod": divmod, "dot": dot, "imag": imag, "nonzero": nonzero, "ptp": ptp, "real": real,
    "repeat": repeat, "round": round, "searchsorted": searchsorted, "sort": sort, "squeeze": squeeze,
    "swapaxes": swapaxes, "take": take, "trace": trace, "transpose": transpose,
}  # fmt: skip
"""The functions behind Tensor's methods, by name."""

OPERATORS.update(METHODS)
