"""Products in reduced precision, on a machine that has a unit for them and for those who asked.

Whether it has one is found out when somebody looks: the unit is tried first.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._run.forks import in_forked_child
from ..._run.trace import log
from ..._schedule.fuse import Region, is_constant
from ..._tensor.dtype import float32
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction
from ..._tune.projection import Projected
from .bfloat16_support import Found, find
from .half_calls import HalfProducts, is_worth
from .native_groups import Natives
from .results import Results


class Reduced:
    """The precisions below float32 in which this processor computes products, and the products."""

    def __init__(self, natives: Natives, results: Results) -> None:
        self._natives = natives
        self._results = results
        self._found: Found | None = None
        self._products: HalfProducts | None = None
        self._lock = Lock()
        in_forked_child(self._after_fork)

    def _after_fork(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not there."""
        self._lock = Lock()

    @property
    def products(self) -> HalfProducts | None:
        """The products in this precision, or `None`."""
        self._find()
        return self._products

    def _find(self) -> Found:
        with self._lock:
            if self._found is None:
                try:
                    self._found = self._looked()
                except Exception as error:  # whatever it is, products can be computed in full
                    self._found = Found(None, f"looking for a unit failed: {type(error).__name__}: {error}")
                log.info("%s", str(self._found))
            return self._found

    def _looked(self) -> Found:
        runtime = self._natives.runtime
        if runtime is None:
            return Found(None, "there are no native kernels")
        found = find(runtime.compiler.machine)
        if found.unit is not None:
            self._products = HalfProducts(runtime, found.unit, self._results)
        return found

    def __str__(self) -> str:
        return str(self._find())

    @property
    def precisions(self) -> frozenset[Precision]:
        """Those in which this processor computes products."""
        return frozenset() if self.products is None else self.products.precisions

    # The products

    def refusal(self, region: Region) -> str | None:
        """Why no product of a region is computed at the region's precision, or `None`."""
        if region.precision not in self.precisions:
            return f"it has no {region.precision.value}"
        if not any(_reduces(region.graph, entry) for entry in region.nodes):
            return f"no product that it would compute in {region.precision.value}"
        return None

    def body(self, region: Region, entry: int) -> Callable[..., Any]:
        """The function that computes an entry: a product at the region's precision, or its reference body."""
        graph, reference = region.graph, bind(region.graph.calls[entry])
        products = self.computing(graph, entry, region.precision)
        if products is None:
            return reference
        return products.product(region.precision, reference, is_kept=_has_constant(graph, entry))

    def projected(self, region: Region, vectors: int, draw: Callable[[int], Any]) -> Projected | None:
        """A region that is one product, at its precision and with its projections, or `None`."""
        graph, (*_, entry) = region.graph, region.nodes
        if len(region.nodes) > 1 or graph.args[entry] != region.inputs:
            return None
        products = self.computing(graph, entry, region.precision)
        return None if products is None else products.projected(region.precision, vectors, draw)

    def computing(self, graph: Graph, entry: int, precision: Precision) -> HalfProducts | None:
        """The function that computes an entry at a precision below its own, or `None`."""
        if precision is Precision.FULL or precision not in self.precisions or not _reduces(graph, entry):
            return None
        return self.products


def _reduces(graph: Graph, entry: int) -> bool:
    """Whether an entry is a product that is worth it."""
    call = graph.calls[entry]
    if call.op.role is not Contraction.MATRICES or call.spec.dtype is not float32:
        return False
    left, right = call.inputs
    return is_worth(left.shape, right.shape, kept=_has_constant(graph, entry))


def _has_constant(graph: Graph, entry: int) -> bool:
    """Whether the right operand of a product is one matrix, the same in every run."""
    right = graph.args[entry][1]
    return is_constant(graph, right) and graph.calls[right].spec.ndim == 2
