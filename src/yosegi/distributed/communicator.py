"""`Communicator`: the collectives of a group of ranks, on NumPy arrays.

Every engine (MPI, NCCL, ranks inside one process) implements this interface once. Ops, layouts and schedules above it
know no engine.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
from ml_dtypes import bfloat16

from .._tensor.environment import setting
from ..errors import ArgumentError, DTypeError, YosegiError
from .costs import PRIOR

Array: TypeAlias = np.ndarray[Any, Any]
_RUNS: Final = 6
"""Runs of a collective that is timed."""
_KNOWN: Final = 1 << 12
"""Descriptions that are remembered."""


class Combine(Enum):
    """How a reduction combines the values of the ranks.

    Examples
    --------
    >>> import yosegi as ys
    >>> [combine.value for combine in ys.distributed.Combine]
    ['sum', 'max', 'min', 'mean']
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"


class RankLost(YosegiError):
    """A rank died, or missed the deadline of a collective. The message names the rank.

    Ranks have the numbers that the launcher gave them, in smaller groups too.

    Parameters
    ----------
    ranks : sequence of int
        The ranks that are lost.
    message : str
        The text of the error.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.RankLost([2], "[all_reduce] rank 2 is gone").ranks
    (2,)
    """

    def __init__(self, ranks: Sequence[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return RankLost, (self.ranks, str(self))


class Communicator(ABC):
    """A group of ranks that call the same collectives in the same order.

    Each collective compares what the ranks call: another collective, combination, root, dtype or, where arrays are
    combined, shape raises `ArgumentError` on all of them. Results are new contiguous arrays. Those of one call may be
    parts of one allocation. A rank that dies, or stays away longer than the deadline, raises `RankLost` on the others.
    After that, `shrink` is the only call that the group still answers.

    Examples
    --------
    >>> import yosegi as ys
    >>> ranks = ys.distributed.init()
    >>> ranks.rank, ranks.size
    (0, 1)
    """

    rank: int
    size: int
    members: tuple[int, ...]
    """The number that the launcher gave to each rank of the group."""
    deadline: float
    """The seconds that a collective waits for a rank."""
    is_new: bool = False
    """True on a rank that takes the place of a lost one, until it has the state of the others."""

    @abstractmethod
    def all_reduce(self, array: Array, combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the arrays of all ranks. In a fixed order, the sum has the same bits for the same ranks."""

    @abstractmethod
    def all_gather(self, array: Array) -> list[Array]:
        """The arrays of all ranks, which may differ in shape, in the order of ranks."""

    @abstractmethod
    def reduce_scatter(self, parts: Sequence[Array], combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the part with this rank's index over all ranks."""

    @abstractmethod
    def all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        """Send part i to rank i, and receive one part from each rank."""

    @abstractmethod
    def broadcast(self, array: Array | None, root: int) -> Array:
        """The array of the root."""

    @abstractmethod
    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Send a copy of an array to one rank, without waiting for it."""

    @abstractmethod
    def receive(self, source: int, tag: int = 0) -> Array:
        """The next array that a rank sent under this tag."""

    @abstractmethod
    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks. Errors have the name of the collective that needs it."""

    def find_missing(self, name: str) -> NoReturn:
        """Raise `RankLost` with the ranks that do not come to a barrier: a collective of a device did not end."""
        self.barrier(name)
        raise RankLost([], f"[{name}] expected an end within {self.deadline:g} s, got none, though all ranks are there")

    @abstractmethod
    def split(self, color: int, key: int) -> Communicator:
        """The group of the ranks with the same color, ordered by key."""

    @abstractmethod
    def shrink(self) -> Communicator:
        """The group of the ranks that live, in the same order. All of them call it, once one has raised `RankLost`."""

    def grow(self) -> Communicator:
        """The group with the ranks that wait to join it behind its own; this group, if there are none. All call it."""
        return self

    def seconds(self, name: str, nbytes: int) -> float:
        """The time of a collective in which each rank gives so many bytes: the least of several runs. All call it.

        In a "send" each rank passes an array on to the next. A "handover" is that of a thread that takes over and ends.
        """
        if not setting("YOSEGI_CALIBRATE", True):
            return PRIOR.seconds(name, self.size, nbytes)
        array = np.ones(nbytes // 4, np.float32)  # zeros would be pages without memory
        parts = np.array_split(array, self.size)
        run: Callable[[], Any] = {
            "all_reduce": lambda: self.all_reduce(array, Combine.SUM),
            "all_gather": lambda: self.all_gather(array),
            "reduce_scatter": lambda: self.reduce_scatter(parts, Combine.SUM),
            "all_to_all": lambda: self.all_to_all(parts),
            "broadcast": lambda: self.broadcast(array, 0),
            "send": lambda: self._pass_on(array),
            "handover": _handover,
        }[name]
        best = float("inf")
        for _ in range(_RUNS):
            self.barrier()
            began = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - began)
        return best

    def _pass_on(self, array: Array) -> None:
        self.send(array, (self.rank + 1) % self.size)
        self.receive((self.rank - 1) % self.size)


def _handover() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


class _Background(threading.local):
    """A thread that communicates while its rank computes."""

    is_computing: Callable[[], bool] = staticmethod(lambda: False)
    """True as long as the rank needs the processor for other work than this communication."""


BACKGROUND: Final = _Background()

CURRENT: Final[ContextVar[Communicator | None]] = ContextVar("communicator", default=None)
"""The communicator of a thread that is a rank of its own."""

_FOLDS: Final = {Combine.SUM: np.add, Combine.MEAN: np.add, Combine.MAX: np.maximum, Combine.MIN: np.minimum}
_HALVES: Final = (np.dtype(np.float16), np.dtype(bfloat16))


def combined(arrays: Sequence[Array], combine: Combine, out: Array | None = None) -> Array:
    """Combine arrays in their order, as a new array or into `out`. Sums of 16-bit floats are rounded once, at the end.

    >>> combined([np.asarray([1.0, 2.0]), np.asarray([3.0, np.nan])], Combine.MAX)
    array([ 3., nan])
    """
    dtype, fold = arrays[0].dtype, _FOLDS[combine]
    result = np.empty(arrays[0].shape, dtype) if out is None else out
    with np.errstate(all="ignore"):
        if dtype in _HALVES or len(arrays) == 1:
            total, others = arrays[0].astype(np.float32 if dtype in _HALVES else dtype), arrays[1:]
        else:  # without a copy of the first
            total, others = fold(arrays[0], arrays[1], out=result), arrays[2:]
        for array in others:
            fold(total, array, out=total)
        if combine is Combine.MEAN:
            total /= len(arrays)
        if total is not result:
            result[...] = total
    return result


@lru_cache(_KNOWN)
def described(name: str, details: str, dtype: np.dtype[Any], *shapes: tuple[int, ...]) -> str:
    """The description of a call that all ranks have to make alike.

    >>> described("all_reduce", "sum", np.dtype("float32"), (4,))
    'all_reduce sum of float32[4]'
    """
    arrays = ", ".join([f"{dtype}{list(shape)}" for shape in shapes]) or str(dtype)
    return f"{name}{details and ' '}{details} of {arrays}"


@lru_cache(_KNOWN)
def reduction(name: str, combine: Combine, fixed_order: bool, dtype: np.dtype[Any], *shapes: tuple[int, ...]) -> str:
    """The description of a reduction. Raises `DTypeError` if there is none for the dtype."""
    check_combine(name, dtype, combine)
    return described(name, f"{combine.value} in order" if fixed_order else combine.value, dtype, *shapes)


def disagreement(name: str, calls: Mapping[int, str]) -> ArgumentError:
    """The error of ranks that call different things. `calls` has the description of each rank's call.

    >>> print(disagreement("barrier", {0: "barrier", 1: "broadcast from 0"}))
    [barrier] expected the same call on all ranks, got barrier on 0, broadcast from 0 on 1; correct the program
    """
    shown = ", ".join([f"{call} on {rank}" for rank, call in sorted(calls.items())])
    return ArgumentError(f"[{name}] expected the same call on all ranks, got {shown}; correct the program")


def check_combine(name: str, dtype: np.dtype[Any], combine: Combine) -> None:
    """Raise `DTypeError` if a dtype has no such reduction: complex numbers no order, integers no mean."""
    if combine is Combine.MEAN and dtype.kind in "biu":
        raise DTypeError(f"[{name}] expected a floating-point array for a mean, got {dtype}; convert it first")
    if combine in (Combine.MAX, Combine.MIN) and dtype.kind == "c":
        raise DTypeError(f"[{name}] expected a real array for {combine.value}, got {dtype}")


def lost(name: str, ranks: Sequence[int], reason: str) -> RankLost:
    """The error of a collective that misses ranks.

    >>> lost("barrier", [1, 3], "died")
    RankLost('[barrier] ranks 1, 3 died')
    """
    word = "rank" if len(ranks) == 1 else "ranks"
    return RankLost(ranks, f"[{name}] {word} {', '.join(map(str, ranks))} {reason}")
