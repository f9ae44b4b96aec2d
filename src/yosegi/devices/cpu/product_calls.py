"""Generated matrix products as calls, for arrays of certain shapes and strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..._tune.store import package_digest
from ...codegen.llvm.bfloat16_units import BFloat16Unit, unit_shape, unit_tile_source
from ...codegen.llvm.blocking import BlockingPolicy, ProductSizes, WorkSplit, cut
from ...codegen.llvm.fused_stages import finish_source, lines_source
from ...codegen.llvm.half_packing import unit_lines_source, unit_panel_source
from ...codegen.llvm.nest import VectorTarget
from ...codegen.llvm.packing import order_of, panel_source
from ...codegen.llvm.product import PLAN, FusedStage, Product, Words
from ...codegen.llvm.product_kernels import product_source
from ...codegen.llvm.register_tiles import TileShape, tile_name, tile_shape, tile_source
from .caches import caches
from .callables import ALIGNED, RELEASING_PRODUCTS, Call, Runtime, not_aligned
from .compiler import Code, Compiler, Part
from .operand_layout import Arrays, OperandLayout, laid
from .results import lined_up


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A product of arrays of certain shapes and strides.

    >>> bound.call(left, *fed, right, *sides, *outs, workspace)  # doctest: +SKIP
    """

    call: Call
    workspace: int
    """The bytes that a call needs beside its arrays."""


@dataclass(frozen=True, slots=True)
class ProductKernel:
    """A kernel for arrays of certain shapes and strides, before it is a callable: a loop can call it as it is."""

    code: Code
    arrays: int
    """The arrays, with the workspace."""
    words: list[int]
    workspace: int
    """Bytes."""
    work: int
    """Products of elements."""


class Objects:
    """The objects of which kernels of products are made, for one machine; each is made when it is first needed."""

    def __init__(self, runtime: Runtime, compiler: Compiler | None = None) -> None:
        """By the compiler of the runtime, if no other is given."""
        self.runtime = runtime
        self.compiler = compiler or runtime.compiler
        self.target: VectorTarget = self.compiler.machine.target

    def part(self, words: tuple[Any, ...], write: Callable[[], str], *functions: str) -> Part:
        """A part of a kernel, by the words that tell it from any other."""
        return Part(f"{package_digest()}\n{words}", write, functions)

    def made(self, parts: Mapping[Any, Part]) -> dict[Any, Code]:
        """The code of some parts. Raises `CompileFailure`."""
        return dict(zip(parts, self.compiler.load_all(list(parts.values())), strict=True))

    def lines(self, product: Product) -> Part:
        """The kernel that packs a left operand."""
        write = unit_lines_source if product.parts else lines_source
        return self._stage(product, product.before, lambda: write(product, self.target), "lines")

    def finish(self, product: Product) -> Part:
        """The kernel that writes sums to the outputs."""
        return self._stage(product, product.after, lambda: finish_source(product, self.target), "finish")

    def _stage(self, product: Product, stage: FusedStage | None, write: Callable[[], str], function: str) -> Part:
        words = "nothing"
        if stage is not None:
            if stage.identity is None:
                source = write()
                return Part(source, lambda: source, (function,))
            words = stage.identity
        places = len(product.fed), [dtype.name for dtype in product.results], product.parts, product.projections
        return self.part((function, product.dtype.name, words, *places), write, function)

    def call(self, kernel: ProductKernel, needs: int, fallback: Callable[..., Any]) -> ProductCall:
        """A kernel as a callable."""
        call = self.runtime.call(
            kernel.code, kernel.arrays, kernel.words, count=1, chunk=1, lets_go=kernel.work >= RELEASING_PRODUCTS,
            needs=needs, fallback=fallback,
        )  # fmt: skip
        return ProductCall(call, kernel.workspace)

    def kernel(
        self, product: Product, where: OperandLayout, plan: dict[str, int], more: list[int], kernel: int,
        codes: list[Code], workspace: int,
    ) -> ProductKernel:  # fmt: skip
        """A kernel with its words: those of the plan, then `more`. The kernel needs `codes`."""
        words, holder, sizes = Words(product), product.holder or 0, where.sizes
        plan = {
            "spread": self.runtime.code["spread"], "batches": sizes.batches, "m": sizes.m, "n": sizes.n, "k": sizes.k,
            "a_m": sizes.a_m, "a_k": sizes.a_k, "b_k": sizes.b_k, "b_n": sizes.b_n,
            "arrays": product.arrays, "right": product.right, "out": product.first_out + holder,
            "out_row": where.rows[len(product.sides) + holder], "out_item": product.results[holder].itemsize,
            "finishes": int(product.after is not None), "tiles": words.end, "offsets": words.end + len(more),
            "random": product.random,
        } | plan  # fmt: skip
        numbers = [*[plan.get(name, 0) for name in PLAN], *where.fed, *where.rows, *more, *where.offsets]
        numbers += [0] * (2 * bool(product.projections))  # the random vectors and the sums: there is one matrix
        code = Code({"kernel": kernel}, codes)
        return ProductKernel(code, product.arrays + 1, numbers, workspace, sizes.batches * sizes.work)


class GeneratedProducts:
    """Generated products, for one machine."""

    def __init__(
        self, objects: Objects, unit: BFloat16Unit | None = None, policy: BlockingPolicy | None = None
    ) -> None:
        """`unit` multiplies products in bfloat16. With a policy, work is cut by it and no other."""
        self.unit, self.policy = unit, policy
        self._objects = objects
        self._runtime = objects.runtime

    def shape(self, product: Product) -> TileShape:
        """The tiles of a product."""
        return unit_shape(product.parts) if product.parts else tile_shape(self._objects.target, product.dtype)

    def bound(
        self, product: Product, arrays: Arrays, *, kept: bool = False, threads: int | None = None,
        needs: int = ALIGNED, fallback: Callable[..., Any] = not_aligned,
    ) -> ProductCall:  # fmt: skip
        """A product of arrays such as these, which must have some flags; others go to `fallback`. Raises
        `CompileFailure`.

        If `kept`, what is given for the right operand comes from `packed`.
        """
        return self._objects.call(self.kernel(product, arrays, kept=kept, threads=threads), needs, fallback)

    def kernel(
        self, product: Product, arrays: Arrays, *, kept: bool = False, threads: int | None = None
    ) -> ProductKernel:
        """The kernel of `bound`. Raises `CompileFailure`."""
        where = laid(arrays)
        sizes, shape = where.sizes, self.shape(product)
        made = self._cut(product, sizes, threads or self._runtime.threads, kept=kept)
        heights = _shares(-(-sizes.m // shape.lines), shape.rows)
        widths = _shares(-(-sizes.n // shape.lanes), shape.vectors)
        sizes_of_tiles = [(h, w) for h in heights for w in widths]
        parts: dict[Any, Part] = {"order": self._order(product)} | {s: self._tile(product, *s) for s in sizes_of_tiles}
        if product.after is not None or sizes.n % shape.lanes or sizes.m % shape.lines:
            parts["finish"] = self._objects.finish(product)
        if made.copies_b or sizes.n % shape.lanes:
            parts["panel"] = self._panel(product, sizes, made)
        if made.copies_a:
            parts["lines"] = self._objects.lines(product)
        codes = self._objects.made(parts)
        stages = [name for name in ("finish", "panel", "lines") if name in parts]
        plan = self._plan(made, kept=kept) | {name: codes[name][name] for name in stages}
        addresses = [0] * shape.count
        for size in sizes_of_tiles:
            addresses[shape.number(*size)] = codes[size][tile_name(*size)]
        kernel, needed = codes["order"]["kernel"], list(codes.values())
        return self._objects.kernel(product, where, plan, addresses, kernel, needed, made.workspace)

    def packed(self, product: Product, right: Any) -> Any:
        """A right operand, a matrix, copied as products with `kept` want it."""
        made = self.packing(product, right)
        to = lined_up(made.workspace)
        self._runtime.call(made.code, 2, made.words, count=1, chunk=1, needs=ALIGNED)(right, to)
        return to

    def packing(self, product: Product, right: Any) -> ProductKernel:
        """The kernel that copies such a matrix as products with `kept` want it, to as many bytes as its workspace."""
        k, n = right.shape
        shape = self.shape(product)
        sizes = ProductSizes(1, 0, n, k, 0, 0, *right.strides)
        made = self._cut(product, sizes, 1, kept=False)
        parts = {"panel": self._panel(product, sizes, made), "order": self._order(product)}
        panel, order = self._objects.made(parts).values()
        plan = self._plan(made, kept=False) | {
            "n": n,
            "k": k,
            "b_k": sizes.b_k,
            "b_n": sizes.b_n,
            "panel": panel["panel"],
        }
        size = -(-n // shape.lanes) * shape.lanes * -(-k // shape.step) * shape.step_bytes
        code = Code({"kernel": order["pack"]}, (order, panel))
        return ProductKernel(code, 2, [plan.get(name, 0) for name in PLAN], size, n * k)

    def _plan(self, made: WorkSplit, *, kept: bool) -> dict[str, int]:
        return {
            "pool": self._runtime.pool if made.threads > 1 else 0, "by_batch": made.by_batch, "slot": made.slot,
            "depth": made.depth, "blocks": made.blocks, "down": made.down, "across": made.across,
            "in_panels": int(made.in_panels), "copies_a": int(made.copies_a), "copies_b": int(made.copies_b),
            "kept_b": int(kept), "slots": made.slots, "room": made.room, "folded": made.folded, "seen": made.seen,
            "fold_parts": made.fold_parts, "fold_chunk": made.fold_chunk,
        }  # fmt: skip

    def _cut(self, product: Product, sizes: ProductSizes, threads: int, *, kept: bool) -> WorkSplit:
        return cut(product, self.shape(product), sizes, caches(), threads, kept=kept, policy=self.policy)

    def _part(self, product: Product, words: tuple[Any, ...], write: Callable[[], str], *functions: str) -> Part:
        """A part of the kernels of all products of the same dtype, in the same number of parts."""
        unit = self.unit.name if self.unit is not None and product.parts else ""
        return self._objects.part((*words, product.dtype.name, unit, product.parts), write, *functions)

    def _order(self, product: Product) -> Part:
        """The order of the work."""
        target, unit = self._objects.target, self.unit if product.parts else None
        projections = product.projections
        source = partial(product_source, target, product.dtype, self.shape(product), unit, projections=projections)
        return self._part(product, ("order", projections), source, "kernel", "pack")

    def _tile(self, product: Product, rows: int, vectors: int) -> Part:
        """One size of tile."""
        target, name = self._objects.target, tile_name(rows, vectors)
        source = partial(tile_source, target, product.dtype, rows, vectors)
        if product.parts:
            assert self.unit is not None
            source = partial(
                unit_tile_source, self.unit, product.parts, rows, vectors, target.attributes,
                projections=product.projections,
            )  # fmt: skip
        return self._part(product, (name, product.projections), source, name)

    def _panel(self, product: Product, sizes: ProductSizes, made: WorkSplit) -> Part:
        """The kernel that packs a right operand."""
        target, dtype = self._objects.target, product.dtype
        if product.parts:
            source = partial(unit_panel_source, product, target)
            return self._part(product, ("panel", product.projections), source, "panel")
        shortest = sizes.k - made.depth * (made.blocks - 1)
        order = order_of(sizes.b_k, sizes.b_n, shortest, self.shape(product).lanes, dtype.itemsize)
        return self._part(product, ("panel", order.name), partial(panel_source, target, dtype, order), "panel")


def _shares(whole: int, most: int) -> set[int]:
    """The sizes of the parts, if a whole is dealt out evenly to as few as there can be."""
    parts = -(-whole // most)
    return {whole // parts, -(-whole // parts)} if parts else set()
