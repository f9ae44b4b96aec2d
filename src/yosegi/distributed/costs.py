"""The time of collectives: a cost model of the network, with two numbers that are measured at start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from typing import Final

import numpy as np

from .communicator import Combine, Communicator

_Cost = Callable[[int, float], tuple[float, float]]


def _ring(rounds: int, nbytes: float) -> tuple[float, float]:
    return rounds, rounds * nbytes


def _tree(n: int, nbytes: float) -> tuple[float, float]:
    return ceil(log2(n)), ceil(log2(n)) * nbytes


_ALGORITHMS: Final[dict[str, tuple[_Cost, ...]]] = {
    "all_reduce": (lambda n, b: _ring(2 * (n - 1), b / n), _tree),
    "all_gather": (lambda n, b: _ring(n - 1, b), lambda n, b: (ceil(log2(n)), (n - 1) * b)),
    "reduce_scatter": (lambda n, b: _ring(n - 1, b / n), lambda n, b: (ceil(log2(n)), (n - 1) / n * b)),
    "all_to_all": (lambda n, b: _ring(n - 1, b / n),),
    "broadcast": (_tree, lambda n, b: (ceil(log2(n)) + n - 1, 2 * (n - 1) / n * b)),
    "barrier": (_tree,),
    "send": (lambda n, b: (1, b),),
}
"""Messages, and bytes one after another, of each algorithm for n ranks. `b` is the bytes that one rank gives."""

_SIZES: Final = (8, 1 << 20)
_ROUNDS: Final = 20


@dataclass(frozen=True)
class Network:
    """The time of a message between two ranks: `alpha` seconds, and `beta` seconds for each byte."""

    alpha: float
    beta: float

    def seconds(self, name: str, ranks: int, nbytes: float) -> float:
        """The predicted time of a collective, by the best algorithm, for the bytes that each rank gives.

        >>> network = Network(alpha=1e-6, beta=1e-9)
        >>> round(network.seconds("all_reduce", 4, 4_000_000), 6)
        0.006006
        >>> network.seconds("all_reduce", 1, 4_000_000)
        0.0
        """
        if ranks == 1:
            return 0.0
        counts = [algorithm(ranks, nbytes) for algorithm in _ALGORITHMS[name]]
        return min(messages * self.alpha + sent * self.beta for messages, sent in counts)


def measured(ranks: Communicator) -> Network:
    """Measure the network of a group, whose ranks pass an array on. All of them get the same numbers.

    >>> from .fake import run_ranks
    >>> all(network.alpha > 0 for network in run_ranks(2, measured))
    True
    """
    if ranks.size == 1:
        return Network(0.0, 0.0)
    small, large = (_passing(ranks, np.zeros(nbytes, np.uint8)) for nbytes in _SIZES)
    beta = max(0.0, large - small) / (_SIZES[1] - _SIZES[0])
    return Network(small, beta)


def _passing(ranks: Communicator, array: np.ndarray) -> float:
    """Seconds in which all ranks pass an array on: the least of several rounds, on the slowest rank."""
    best = float("inf")
    for _ in range(_ROUNDS):
        ranks.barrier()
        began = time.perf_counter()
        ranks.send(array, (ranks.rank + 1) % ranks.size)
        ranks.receive((ranks.rank - 1) % ranks.size)
        best = min(best, time.perf_counter() - began)
    return float(ranks.all_reduce(np.asarray(best), Combine.MAX))
