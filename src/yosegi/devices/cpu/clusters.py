"""Products with their prologue and epilogue, as native calls.

A call is made for arrays whose elements lie in order, and reads operands that are views of them by their strides.
Arrays that lie otherwise get a call for theirs when they come, or are copied, if they come with ever new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..._graph.reference import bind
from ..._run.trace import trace
from ..._schedule.fuse import is_constant
from ...codegen.llvm.blocking import ProductSizes
from ...codegen.llvm.fused_product import Cluster, view_of
from ...errors import DeviceFailure
from .callables import ALIGNED, IN_ORDER, Call
from .kernel import Native
from .operand_layout import Arrays, laid
from .product_calls import ProductCall

_MOST_LAYOUTS: Final = 8
"""Calls of one cluster for arrays that are not in order."""

Binder = Callable[[Arrays, int, Callable[..., Any]], ProductCall | None]
"""Makes a call for arrays such as these, if it can: they must have certain flags, and others go to a function."""


def is_keepable(cluster: Cluster) -> bool:
    """Whether the right operand is one matrix that never changes."""
    is_matrix = cluster.graph.calls[cluster.right].spec.ndim == 2
    return is_matrix and is_constant(cluster.graph, view_of(cluster.graph, cluster.right).entry)


def fused(operands: ClusterOperands, binder: Binder, keep: Callable[[Any], Any] | None = None) -> Native | None:
    """A cluster as one call, if there can be one. `keep` copies a right operand that is a constant, once for all."""
    cluster = operands.cluster
    reads: list[Any] = [view.entry for view in operands.views]
    if keep is not None:
        view = operands.views[operands.right]
        array = np.require(bind(cluster.graph.calls[view.entry])(), requirements="CA")
        reads[operands.right] = keep(view.of(cluster.graph, array))
    others = _OtherLayouts(operands, binder, is_kept=keep is not None)
    bound = binder(operands.in_order(), IN_ORDER, others)
    if bound is None:
        return None
    others.call = bound.call
    return Native(bound.call, tuple(reads), cluster.outputs, bound.workspace)


class ClusterOperands:
    """The inputs of a cluster, in the order of its kernel's arrays."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        graph = cluster.graph
        self.right = 1 + len(cluster.fed)
        """The place of the right operand."""
        entries = (cluster.left, *cluster.fed, cluster.right, *cluster.sides)
        self.views = [view_of(graph, e, in_rows=n > self.right) for n, e in enumerate(entries)]
        self._dtypes = [graph.calls[e].spec.dtype.numpy for e in entries]

    @cached_property
    def sizes(self) -> ProductSizes:
        """The product's sizes and strides, where all that the operands are views of is in order."""
        return laid(self.in_order()).sizes

    def in_order(self) -> Arrays:
        """Arrays that lie as the operands do, where all that they are views of is in order. Nobody may touch them."""
        made = [
            np.lib.stride_tricks.as_strided(np.empty(1, dtype), view.shape, view.strides, writeable=False)
            for view, dtype in zip(self.views, self._dtypes, strict=True)
        ]
        return self.arranged(made, [view.offset for view in self.views])

    def arranged(self, operands: Sequence[Any], starts: Sequence[int] = ()) -> Arrays:
        """Operands in their places in a product, with outputs like those that it will write."""
        specs = [self.cluster.graph.calls[o].spec for o in self.cluster.outputs]
        left, right = np.atleast_2d(operands[0]), operands[self.right]
        right = right[:, None] if right.ndim == 1 else right
        stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        outs = [np.empty((*stack, left.shape[-2], right.shape[-1]), s.dtype.numpy) for s in specs]
        fed, sides = (
            [np.atleast_2d(x) for x in part] for part in (operands[1 : self.right], operands[self.right + 1 :])
        )
        return Arrays(left, right, fed, sides, outs, starts)


class _OtherLayouts:
    """Arrays that do not all have their elements one behind the other."""

    def __init__(self, operands: ClusterOperands, binder: Binder, *, is_kept: bool) -> None:
        self._operands = operands
        self._binder = binder
        self._is_kept = is_kept
        self._known: dict[tuple[Any, ...], ProductCall | None] = {}
        self.call: Call | None = None

    def __call__(self, *arrays: Any) -> None:
        views, graph = self._operands.views, self._operands.cluster.graph
        given = [np.asarray(a) for a in arrays[: len(views)]]
        operands = [
            x if self._is_fixed(n) else _side_by_side(view.of(graph, x), n > self._operands.right)
            for n, (view, x) in enumerate(zip(views, given, strict=True))
        ]
        bound = self._for_strides(operands)
        if bound is not None:
            *outs, _ = arrays[len(views) :]
            bound.call(*operands, *outs, np.empty(bound.workspace, np.uint8))
            return
        assert self.call is not None
        self.call(*[np.require(x, requirements="CA") for x in given], *arrays[len(views) :])

    def _is_fixed(self, number: int) -> bool:
        return self._is_kept and number == self._operands.right

    def _for_strides(self, operands: list[Any]) -> ProductCall | None:
        key = tuple([x.strides for x in operands])
        if key not in self._known:
            if len(self._known) >= _MOST_LAYOUTS:
                return None
            try:
                in_place = list(operands)
                if self._is_kept:
                    in_place[self._operands.right] = self._operands.in_order().right
                self._known[key] = self._binder(self._operands.arranged(in_place), ALIGNED, self)
            except DeviceFailure as failure:
                trace.failed(str(self._operands.cluster), "cpu", failure)
                self._known[key] = None
        return self._known[key]


def _side_by_side(operand: Any, is_side: bool) -> Any:
    """An operand whose elements are aligned; of a side of what comes after, those of a row side by side, too."""
    if is_side and operand.ndim and operand.shape[-1] > 1 and operand.strides[-1] != operand.itemsize:
        return np.require(operand, requirements="CA")
    return np.require(operand, requirements="A")
