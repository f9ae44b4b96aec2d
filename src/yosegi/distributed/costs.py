"""The time of collectives by the algorithms and two numbers of a network, for ranks that are not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from typing import Final

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
    "handover": (lambda n, b: (1, 0),),
}
"""Messages, and bytes one after another, of each algorithm for n ranks. `b` is the bytes that one rank gives."""


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


PRIOR: Final = Network(alpha=1e-5, beta=2e-10)
"""The network of ranks in one process, and of all ranks as long as nothing is measured."""
