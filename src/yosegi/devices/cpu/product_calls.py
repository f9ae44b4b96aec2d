"""Generated matrix products as calls, for arrays of certain shapes and strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..._tensor.dtype import DType
from ..._tune.store import package_digest
from ...codegen.llvm.blocking import ProductSizes, WorkSplit, cut
from ...codegen.llvm.fused_stages import finish_source, lines_source
from ...codegen.llvm.nest import VectorTarget
from ...codegen.llvm.packing import lie_of, panel_source
from ...codegen.llvm.product import PLAN, FusedStage, Product, Words
from ...codegen.llvm.product_kernels import product_source
from ...codegen.llvm.register_tiles import TileShape, tile_name, tile_shape, tile_source
from .caches import caches
from .callables import ALIGNED, Call, Runtime
from .compiler import Code, Part
from .operand_layout import Arrays, OperandLayout, laid
from .results import lined_up

_LETS_GO: Final = 1 << 17
"""Products of elements from which other Python threads may run meanwhile."""


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A product of arrays of certain shapes and strides.

    >>> bound.call(left, *fed, right, *sides, *outs, workspace)  # doctest: +SKIP
    """

    call: Call
    workspace: int
    """The bytes that a call needs beside its arrays."""


class Objects:
    """The objects of which kernels of products are made, for one machine; each is made when it is first needed."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.target: VectorTarget = runtime.compiler.machine.target

    def part(self, words: tuple[Any, ...], write: Callable[[], str], *functions: str) -> Part:
        """A part of a kernel, by the words that tell it from any other."""
        return Part(f"{package_digest()}\n{words}", write, functions)

    def made(self, parts: Mapping[Any, Part]) -> dict[Any, Code]:
        """The code of some parts. Raises `CompileFailure`."""
        return dict(zip(parts, self.runtime.compiler.load_all(list(parts.values())), strict=True))

    def lines(self, product: Product) -> Part:
        """The kernel that packs a left operand."""
        return self._stage(product, product.before, lambda: lines_source(product, self.target), "lines")

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
        places = len(product.fed), [dtype.name for dtype in product.results]
        return self.part((function, product.dtype.name, words, *places), write, function)

    def call(
        self, product: Product, where: OperandLayout, plan: dict[str, int], more: list[int], kernel: int,
        codes: list[Code], needs: int, fallback: Callable[..., Any],
    ) -> Call:  # fmt: skip
        """A kernel as a callable; `more` are the words that come behind those of the plan, `codes` what it needs."""
        words, holder, sizes = Words(product), product.holder or 0, where.sizes
        plan = {
            "spread": self.runtime.code["spread"], "batches": sizes.batches, "m": sizes.m, "n": sizes.n, "k": sizes.k,
            "a_m": sizes.a_m, "a_k": sizes.a_k, "b_k": sizes.b_k, "b_n": sizes.b_n,
            "arrays": product.arrays, "right": product.right, "out": product.first_out + holder,
            "out_row": where.rows[len(product.sides) + holder], "out_item": product.results[holder].itemsize,
            "finishes": int(product.after is not None), "tiles": words.end, "offsets": words.end + len(more),
        } | plan  # fmt: skip
        numbers = [*[plan.get(name, 0) for name in PLAN], *where.fed, *where.rows, *more, *where.offsets]
        return self.runtime.call(
            Code({"kernel": kernel}, codes), product.arrays + 1, numbers, count=1, chunk=1,
            lets_go=sizes.batches * sizes.work >= _LETS_GO, needs=needs, fallback=fallback,
        )  # fmt: skip


class GeneratedProducts:
    """Generated products, for one machine."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._runtime = objects.runtime

    def shape(self, dtype: DType) -> TileShape:
        """The tiles of products of a dtype."""
        return tile_shape(self._objects.target, dtype)

    def bound(
        self, product: Product, arrays: Arrays, *, kept: bool = False, threads: int | None = None,
        needs: int = ALIGNED, fallback: Callable[..., Any],
    ) -> ProductCall:  # fmt: skip
        """A product of arrays such as these, which must have some flags; others go to `fallback`. Raises
        `CompileFailure`.

        If `kept`, what is given for the right operand comes from `packed`.
        """
        where = laid(arrays)
        sizes, dtype, shape = where.sizes, product.dtype, self.shape(product.dtype)
        made = cut(product, shape, sizes, caches(), threads or self._runtime.threads, kept=kept)
        heights, widths = _shares(sizes.m, shape.rows), _shares(-(-sizes.n // shape.lanes), shape.vectors)
        sizes_of_tiles = [(h, w) for h in heights for w in widths]
        parts: dict[Any, Part] = {"order": self._order(dtype)} | {s: self._tile(dtype, *s) for s in sizes_of_tiles}
        if product.after is not None or sizes.n % shape.lanes:
            parts["finish"] = self._objects.finish(product)
        if made.copies_b or sizes.n % shape.lanes:
            parts["panel"] = self._panel(dtype, sizes, made)
        if made.copies_a:
            parts["lines"] = self._objects.lines(product)
        codes = self._objects.made(parts)
        stages = [name for name in ("finish", "panel", "lines") if name in parts]
        plan = self._plan(made, kept=kept) | {name: codes[name][name] for name in stages}
        addresses = [0] * shape.count
        for size in sizes_of_tiles:
            addresses[shape.number(*size)] = codes[size][tile_name(*size)]
        kernel, needed = codes["order"]["kernel"], list(codes.values())
        call = self._objects.call(product, where, plan, addresses, kernel, needed, needs, fallback)
        return ProductCall(call, made.workspace)

    def packed(self, product: Product, right: Any) -> Any:
        """A right operand, a matrix, copied as products with `kept` want it."""
        k, n = right.shape
        shape = self.shape(product.dtype)
        sizes = ProductSizes(1, 0, n, k, 0, 0, *right.strides)
        made = cut(product, shape, sizes, caches(), 1)
        parts = {"panel": self._panel(product.dtype, sizes, made), "order": self._order(product.dtype)}
        panel, order = self._objects.made(parts).values()
        plan = self._plan(made, kept=False) | {
            "n": n,
            "k": k,
            "b_k": sizes.b_k,
            "b_n": sizes.b_n,
            "panel": panel["panel"],
        }
        to = lined_up(-(-n // shape.lanes) * shape.lanes * k * right.dtype.itemsize).view(right.dtype)
        pack = Code({"kernel": order["pack"]}, (order, panel))
        words = [plan.get(name, 0) for name in PLAN]
        self._runtime.call(pack, 2, words, count=1, chunk=1, needs=ALIGNED, fallback=_not_aligned)(right, to)
        return to

    def _plan(self, made: WorkSplit, *, kept: bool) -> dict[str, int]:
        return {
            "pool": self._runtime.pool if made.threads > 1 else 0, "by_batch": made.by_batch, "slot": made.slot,
            "depth": made.depth, "blocks": made.blocks, "down": made.down, "across": made.across,
            "in_panels": int(made.in_panels), "copies_a": int(made.copies_a), "copies_b": int(made.copies_b),
            "kept_b": int(kept), "slots": made.slots, "room": made.room,
        }  # fmt: skip

    def _order(self, dtype: DType) -> Part:
        """The order of the work."""
        target = self._objects.target
        return self._objects.part(("order", dtype.name), lambda: product_source(target, dtype), "kernel", "pack")

    def _tile(self, dtype: DType, rows: int, vectors: int) -> Part:
        """One size of tile."""
        target = self._objects.target
        name = tile_name(rows, vectors)
        return self._objects.part((name, dtype.name), lambda: tile_source(target, dtype, rows, vectors), name)

    def _panel(self, dtype: DType, sizes: ProductSizes, made: WorkSplit) -> Part:
        """The kernel that packs a right operand."""
        target = self._objects.target
        shortest = sizes.k - made.depth * (made.blocks - 1)
        lie = lie_of(sizes.b_k, sizes.b_n, shortest, self.shape(dtype).lanes, dtype.itemsize)
        return self._objects.part(("panel", dtype.name, lie.name), lambda: panel_source(target, dtype, lie), "panel")


def _shares(whole: int, most: int) -> set[int]:
    """The sizes of the parts, if a whole is dealt out evenly to as few as there can be."""
    parts = -(-whole // most)
    return {whole // parts, -(-whole // parts)} if parts else set()


def _not_aligned(*arrays: Any) -> None:
    raise ValueError("expected arrays that are aligned to their elements")
