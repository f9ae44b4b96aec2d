"""Products with bfloat16 numbers inside, with their prologue and epilogue, as native calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..._tensor.precision import Precision
from ...codegen.llvm.fused_product import Cluster
from ...codegen.llvm.half_words import HalfProduct
from .clusters import ClusterOperands, fused, is_keepable
from .half_calls import PARTS, HalfProducts
from .kernel import Native
from .operand_layout import Arrays
from .product_calls import ProductCall


@dataclass(frozen=True, slots=True)
class HalfClusters:
    """Compiles these calls for one precision."""

    products: HalfProducts
    precision: Precision

    @property
    def parts(self) -> int:
        """How many bfloat16 numbers stand for one of an operand."""
        return PARTS[self.precision]

    @property
    def kind(self) -> str:
        """The settings on which times depend, apart from the work."""
        return f"{self.precision.value} on {self.products.identity}"

    def native(self, operands: ClusterOperands) -> Native:
        """A cluster that fits as one call. Raises `CompileFailure`."""
        cluster, products = operands.cluster, self.products
        product = HalfProduct.of(cluster.product, self.parts)
        kept = is_keepable(cluster)

        def bound(arrays: Arrays, needs: int, others: Any) -> ProductCall:
            made = products.bound(product, arrays, kept=kept, needs=needs, fallback=others)
            return ProductCall(made.call, made.plan.workspace)

        made = fused(operands, bound, (lambda right: products.packed(product, right)) if kept else None)
        assert made is not None
        return made


def fitting(cluster: Cluster) -> Cluster:
    """A cluster without what is too much for one call: what comes before the product, if that reads several arrays, and
    what comes after it, if there are several results."""
    if cluster.fed:
        cluster = replace(cluster, before=None)
    return replace(cluster, after=None, outputs=(cluster.entry,)) if len(cluster.outputs) > 1 else cluster
