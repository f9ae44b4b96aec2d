"""Regions as launches on a CUDA stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..._run.device import Kernel
from ..._schedule.fuse import JOINED, Region, RegionKind, connection_of, is_composite
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction
from ..kernel.fused import Fused, is_sliding
from ..kernel.half_operands import HALVES, reads_halves
from ..kernel.regions import compile_generated, compile_loop, generated_refusal, sequence
from .exchange import compile_exchange
from .fourier import compile_transform, is_transform, transform_refusal
from .launch import Queue
from .library_products import LibraryProducts
from .projections import projection


def refusal(region: Region, products: LibraryProducts, fused: Fused) -> str | None:
    """Why there is no kernel for a region, or `None`."""
    for part in region.parts:
        call = part.calls[-1]
        if part.kind is RegionKind.CONTRACTION:
            reason = products.refusal(call)
            if reason is not None and part.precision is Precision.FULL:  # as all that is generated is
                reason = fused.refusal(part)
        elif is_composite(part) or is_sliding(part):
            reason = fused.refusal(part)
        elif is_transform(call):
            reason = transform_refusal(call)
        elif connection_of(call) is not None:
            reason = None  # it is asked for what goes over its own connections alone
        else:
            reason = generated_refusal(part, Queue.language)
        if reason is not None:
            return reason
    return None


def compile_region(region: Region, queue: Queue, products: LibraryProducts, fused: Fused) -> Kernel:
    """The region as a function of its inputs' data."""
    if region.kind is RegionKind.PROJECTION and (made := projection(region, queue, queue.dialect)) is not None:
        return made
    if region.kind in JOINED:
        return sequence(region, fused, lambda part: compile_region(part, queue, products, fused))
    if region.precision in HALVES and _convolves(region) and not reads_halves(region):
        region = replace(region, precision=Precision.FULL)  # cuDNN is given operands as they are
    has_variants = region.precision in (Precision.FULL, Precision.TF32) or reads_halves(region)
    is_product = region.kind is RegionKind.CONTRACTION and has_variants
    if is_composite(region) or (is_product and fused.refusal(region) is None):
        return fused.compiled(region)
    return compile_plain(region, queue, products, fused)


def _convolves(region: Region) -> bool:
    """True for a product over windows."""
    return region.kind is RegionKind.CONTRACTION and region.calls[-1].op.role is Contraction.WINDOWS


def compile_plain(region: Region, queue: Queue, products: LibraryProducts, fused: Fused) -> Kernel:
    """The region as a function, without variants: products are the library's where it has them."""
    if region.kind is RegionKind.CONTRACTION:
        return products.compiled(region) if products.refusal(region.calls[-1]) is None else fused.compiled(region)
    if is_sliding(region):
        return fused.compiled(region)
    if connection_of(region.calls[-1]) is not None:
        return compile_exchange(region, queue)
    if is_transform(region.calls[-1]):
        return compile_transform(region, queue, partial(compile_loop, queue=queue))
    return compile_generated(region, queue)
