"""The variants of a product with its prologue and epilogue, of which the fastest is chosen by measurement.

Generated code for all of it; a generated product between separate loops, which read and write large arrays faster than
a product does that has other things to wait for; NumPy's BLAS on our threads, with generated code before and after on
the same rows; or the same BLAS between separate loops. Where NumPy's BLAS cannot be held to one thread, NumPy itself is
a candidate, with its threads beside ours. In a reduced precision: a product by the processor's unit for it with all
that is around it, or between separate loops.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from ..._run.trace import log, trace
from ..._schedule.fuse import Region, RegionKind, is_constant
from ..._schedule.groups import Group
from ..._tensor.precision import Precision
from ..._tune.autotune import Kernel, TrialSetup
from ..._tune.records import TuningRecords, size_class
from ...codegen.llvm.fused_product import Cluster
from ...errors import CompileFailure, LaunchFailure
from .blas import numpy_blas
from .blas_calls import Library
from .clusters import ClusterOperands, fused, is_keepable
from .control import Loops
from .half_calls import PARTS
from .kernel import Native, Step, mixed_function
from .native_groups import Natives
from .product_calls import GeneratedProducts, Objects
from .reduced import Reduced
from .results import Results
from .sampling import reference, roundings, samples

GENERATED: Final = "generated"
GENERATED_APART: Final = "generated, loops apart"
LIBRARY: Final = "BLAS on our threads"
APART: Final = "BLAS on our threads, loops apart"
NUMPY: Final = "NumPy, loops apart"
IN_ONE: Final = "all in one call"
ONE_APART: Final = "one loop apart"
LOOPS_APART: Final = "loops apart"
_SETTLE: Final = 0.03
"""Seconds in which the threads of a library stop looking for work."""
_Variant = Callable[[ClusterOperands], list[Step]]


class Variants:
    """Chooses variants for one machine."""

    def __init__(self, natives: Natives, results: Results, reduced: Reduced | None = None) -> None:
        """`reduced` has the products in reduced precisions, if there are any."""
        self.natives = natives
        self.results = results
        self._reduced = reduced

    @cached_property
    def loops(self) -> Loops:
        """The compiler of loops and branches."""
        return Loops(self.natives)

    @cached_property
    def _objects(self) -> Objects:
        assert self.natives.runtime is not None
        return Objects(self.natives.runtime)

    @cached_property
    def _products(self) -> GeneratedProducts:
        return GeneratedProducts(self._objects)

    @cached_property
    def _library(self) -> Library | None:
        blas = numpy_blas()
        return None if blas is None else Library(self._objects, blas)

    @cached_property
    def _records(self) -> TuningRecords:
        runtime, blas = self._objects.runtime, numpy_blas()
        versions = [platform.python_version(), np.__version__, blas.config if blas is not None else ""]
        return TuningRecords("\n".join([runtime.compiler.machine.identity, str(runtime.threads), *versions]))

    def steps(self, cluster: Cluster, precision: Precision = Precision.FULL) -> list[Step]:
        """A cluster as the steps that are fastest, its product at a precision, if it is computed so on this machine."""
        operands = ClusterOperands(cluster)
        reduced = self._reduced
        halves = None if reduced is None else reduced.computing(cluster.graph, cluster.entry, precision)
        region = _region(operands)
        made: dict[str, list[Step]] = {}

        def make(name: str, steps: _Variant) -> Kernel:
            made[name] = steps(operands)
            return mixed_function(region, [*_views(cluster, region), *made[name]], self.results)

        if halves is None:
            kind, parts, found = _kind(operands), 0, self._candidates(operands)
        else:
            kind = f"{precision.value} on {halves.identity}\n{_kind(operands)}"
            parts, found = PARTS[precision], self._in_halves(operands, precision, halves.generated)
        candidates = {n: lambda n=n, s=s: make(n, s) for n, s in found.items()}
        chosen = self._records.best(kind, candidates, self._trial(cluster, region, parts))
        verdict = chosen.verdict
        for name, refusal in verdict.refused.items():
            trace.failed(f"{cluster} ({name})", "cpu", LaunchFailure(refusal.reason))
        log.info("%s: %s, of %s", cluster, verdict.winner or "NumPy", verdict.seconds or "one")
        if verdict.winner is None:
            return self.apart(cluster, [cluster.entry])
        *steps, last = made[verdict.winner]
        return [*steps, replace(last, call=chosen.watched(last.call)) if isinstance(last, Native) else last]

    def apart(self, cluster: Cluster, product: list[Step]) -> list[Step]:
        """A cluster with separate loops before and after its product."""
        steps: list[Step] = []
        for part in (cluster.before, product, cluster.after):
            if isinstance(part, Group):
                made = self.natives.native(part)
                steps += part.nodes if made is None else [made]
            elif part is not None:
                steps += part
        return steps

    def _candidates(self, operands: ClusterOperands) -> dict[str, _Variant]:
        cluster = operands.cluster
        found: dict[str, _Variant] = {GENERATED: self._generated}
        if _is_fused(cluster):
            found[GENERATED_APART] = lambda o: self.apart(o.cluster, self._generated(_alone(o)))
        if self._library is None or not self._library.reads(cluster.product, operands.sizes):
            return found | {NUMPY: lambda o: self.apart(o.cluster, [o.cluster.entry])}
        found[LIBRARY] = self._by_library
        if _is_fused(cluster):
            found[APART] = lambda o: self.apart(o.cluster, self._by_library(_alone(o)))
        return found

    def _in_halves(
        self, operands: ClusterOperands, precision: Precision, products: GeneratedProducts
    ) -> dict[str, _Variant]:
        found: dict[str, _Variant] = {}
        name, cluster = precision.value, operands.cluster
        native = partial(self._generated, products=products, parts=PARTS[precision])
        inner = _fitting(cluster)
        if inner is cluster:
            found[f"in {name}, {IN_ONE}"] = native
        elif _is_fused(inner):
            outer = replace(cluster, before=None) if inner.after is None else replace(cluster, after=None)
            found[f"in {name}, {ONE_APART}"] = lambda o: self.apart(outer, native(ClusterOperands(inner)))
        if _is_fused(cluster):
            found[f"in {name}, {LOOPS_APART}"] = lambda o: self.apart(o.cluster, native(_alone(o)))
        return found

    def _generated(
        self, operands: ClusterOperands, products: GeneratedProducts | None = None, parts: int = 0
    ) -> list[Step]:
        """A generated product; in so many bfloat16 parts by other products than the usual ones."""
        products = products or self._products
        product = replace(operands.cluster.product, parts=parts)
        kept = is_keepable(operands.cluster)
        made = fused(
            operands,
            lambda arrays, needs, others: products.bound(product, arrays, kept=kept, needs=needs, fallback=others),
            (lambda right: products.packed(product, right)) if kept else None,
        )
        assert made is not None
        return [made]

    def _by_library(self, operands: ClusterOperands) -> list[Step]:
        product, library = operands.cluster.product, self._library
        assert library is not None
        made = fused(
            operands, lambda arrays, needs, others: library.bound(product, arrays, needs=needs, fallback=others)
        )
        if made is None:
            raise CompileFailure("the library cannot read operands that lie so")
        return [made]

    def _trial(self, cluster: Cluster, region: Region, parts: int) -> TrialSetup:
        library = self._library

        def by_numpy(*arrays: Any) -> Sequence[Any]:
            # Its threads would look for more work while the candidates are timed.
            with nullcontext() if library is None else library.held(cluster.dtype):
                return reference(region, cluster, parts)(*arrays)

        settle = _SETTLE if library is None else 0.0
        return TrialSetup(lambda: samples(cluster, region.inputs), by_numpy, roundings(cluster, parts), settle)


def _is_fused(cluster: Cluster) -> bool:
    """Whether there is anything beside the product."""
    return cluster.before is not None or cluster.after is not None


def _fitting(cluster: Cluster) -> Cluster:
    """The part of a cluster that is one call in reduced precision: without a prologue that reads several arrays, and
    without an epilogue none of whose results can hold sums."""
    if cluster.fed:
        cluster = replace(cluster, before=None)
    return cluster if cluster.product.holder is not None else replace(cluster, after=None, outputs=(cluster.entry,))


def _alone(operands: ClusterOperands) -> ClusterOperands:
    """A cluster's product by itself."""
    cluster = operands.cluster
    return ClusterOperands(replace(cluster, before=None, after=None, outputs=(cluster.entry,)))


def _kind(operands: ClusterOperands) -> str:
    """The key of a kind of work: the computation, the layout of the operands, and their sizes."""
    cluster, sizes = operands.cluster, operands.sizes
    product = cluster.product
    item = product.dtype.itemsize
    lies = [["apart", "side by side"][s == item] for s in (sizes.a_m, sizes.a_k, sizes.b_k, sizes.b_n)]
    kept = "kept" if is_keepable(cluster) else "given"
    stages = [s.words if s is not None else "nothing" for s in (product.before, product.after)]
    classes = size_class(sizes.batches, sizes.m, sizes.n, sizes.k)
    return "\n".join([product.dtype.name, *map(str, stages), *lies, kept, classes])


def _region(operands: ClusterOperands) -> Region:
    """A cluster as a region of its own, with the views that it reads arrays through."""
    cluster = operands.cluster
    graph = cluster.graph
    views = {e for view in operands.views for e in view.through}
    nodes = (*sorted(views), *cluster.nodes)
    read = (a for n in nodes for a in graph.args[n] if a not in nodes and not is_constant(graph, a))
    return Region(graph, RegionKind.SEQUENCE, nodes, tuple(dict.fromkeys(read)), cluster.outputs)


def _views(cluster: Cluster, region: Region) -> list[Step]:
    """The views of a cluster's region."""
    return [n for n in region.nodes if n not in cluster.nodes]
