"""Loops and branches as native programs: no Python runs between iterations.

A body becomes kernels, one for each group of ops, and a program that calls them; see `codegen.llvm.control`. Its values
lie in one workspace. A carry has two places, read and written in turn; what the body makes for a row is written there.
A body with an op that has no kernel raises `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.expand import expand
from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._graph.simplify import simplify
from ..._run.memory.pool import ALIGNMENT
from ..._schedule.fuse import Region, RegionKind, is_constant
from ..._schedule.groups import Group, RowLimits, grouped
from ..._tensor.dtype import DType, float32, float64
from ..._tensor.node import Call, Shape, Spec
from ..._tensor.op import leaf, pick
from ..._tensor.role import Contraction, Control, Flow, Indexing, View
from ...codegen.c.copies import strides_of
from ...codegen.llvm.control import (
    ABSOLUTE,
    Choose,
    Instruction,
    Lists,
    Place,
    Repeat,
    Slot,
    control_text,
    words_of,
)
from ...codegen.llvm.einsum_products import expanded
from ...codegen.llvm.indexing import IndexSizes
from ...codegen.llvm.moving import copy_source, move_source, runs_of
from ...codegen.llvm.product import Product
from ...codegen.llvm.small_products import MOST_PRODUCTS, product_source
from ...errors import Unsupported
from .callables import Call as NativeCall
from .callables import Runtime
from .compiler import Code
from .indexing import Indexed
from .native_groups import Natives
from .operand_layout import Arrays, layout_like
from .product_calls import GeneratedProducts, Objects
from .results import lined_up

_ZERO: Final = np.zeros(2, np.complex128)
"""A zero of every dtype."""


class Loops:
    """Compiles loops and branches into native programs."""

    def __init__(self, natives: Natives) -> None:
        self.natives = natives

    @property
    def runtime(self) -> Runtime:
        """The compiler and the threads."""
        assert self.natives.runtime is not None
        return self.natives.runtime

    def body(self, call: Call) -> Callable[..., Any]:
        """A call of control flow as a function of its inputs' arrays. Raises `Unsupported`."""
        program = _Program(self, call)
        launch = self.runtime.call(
            program.code, program.arrays, program.words, count=1, chunk=1, fallback=_in_order(program)
        )
        program.launch = launch
        return program.run

    @cached_property
    def control(self) -> Code:
        """The code of loops and branches."""
        return self.runtime.compiler.load(control_text(self._attributes), ("repeat", "choose"))

    @cached_property
    def copy(self) -> Code:
        """The code of a copy."""
        return self.runtime.compiler.load(copy_source(self._attributes), ("kernel",))

    def move(self, itemsize: int) -> Code:
        """The code that moves elements of a size."""
        return self.runtime.compiler.load(move_source(itemsize, self._attributes), ("kernel",))

    @cached_property
    def indexed(self) -> Indexed:
        """The code that reads or writes elements at places that are data."""
        return Indexed(self.runtime, self.natives.results)

    @cached_property
    def products(self) -> GeneratedProducts:
        """Products that are worth packing and threads."""
        return GeneratedProducts(Objects(self.runtime))

    def small_product(self, spec: Spec) -> Code:
        """The code of a small product."""
        return self.runtime.compiler.load(product_source(spec.dtype, self.runtime.compiler.machine.target), ("kernel",))

    @property
    def _attributes(self) -> str:
        return self.runtime.compiler.machine.attributes


def _in_order(program: _Program) -> Callable[..., None]:
    def call(*arrays: Any) -> None:
        assert program.launch is not None
        program.launch(*[np.require(a, requirements="CA") for a in arrays])

    return call


class _Program:
    """One call of control flow, as a kernel of its inputs, its outputs and a workspace."""

    def __init__(self, loops: Loops, call: Call) -> None:
        role = call.op.role
        assert isinstance(role, Control)
        if any(s.size == 0 for s in (*call.inputs, *call.outputs)):
            raise Unsupported("arrays without elements")
        self.call = call
        self.launch: NativeCall | None = None
        self.arrays = len(call.inputs) + len(call.outputs) + 2
        self._writer = _LevelProgram(loops, self.arrays - 1)
        write = {Flow.REPEAT: _repeat, Flow.WHILE: _while, Flow.BRANCH: _branch}[role.flow]
        name, words = write(self._writer, call)
        self.words = words_of(words)
        self.code = Code({"kernel": loops.control[name]}, loops.control)
        self.workspace = self._writer.used

    def run(self, *inputs: Any) -> Any:
        """The outputs for these inputs."""
        assert self.launch is not None
        made = [np.empty(s.shape, s.dtype.numpy) for s in self.call.outputs]
        wrong = np.zeros(1, np.uint8)
        self.launch(*inputs, *made, lined_up(max(self.workspace, 1)), wrong)
        if wrong[0]:
            return bind(self.call)(*inputs)  # which raises the mistake where it is made
        return tuple(made) if len(made) > 1 else made[0]


@dataclass(slots=True)
class _LevelProgram:
    """The program of one level: its instructions' memory, and its workspace."""

    loops: Loops
    base: int
    """The number of the workspace among the arrays; behind it is the flag of a mistake."""
    used: int = 0
    repeats: bool = True
    """True if `before` runs once for many runs of the instructions."""
    before: list[Instruction] = field(default_factory=list)
    """Instructions that run before the first iteration."""
    lists: Lists = field(default_factory=Lists)
    kept: list[Any] = field(default_factory=list)

    def new(self, spec: Spec) -> Place:
        """A place in the workspace."""
        return Place.always(self.base, self.room(spec.nbytes))

    def room(self, nbytes: int) -> int:
        """Bytes of the workspace, by their offset."""
        at = self.used
        self.used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return at

    @property
    def flag(self) -> Place:
        """The address where a kernel records an index out of range."""
        return Place.always(self.base + 1)

    def constant(self, array: Any) -> Place:
        """An array of the program's own."""
        return Place.always(ABSOLUTE, self.lists.keep(np.require(array, requirements="CA")))

    def kernel(self, code: Code, sizes: Sequence[int], arrays: Sequence[Place], units: int = 1) -> Instruction:
        """A kernel whose units of work are done by one thread."""
        self.kept.append(code)
        packed = self.loops.runtime.packed(code, len(arrays), sizes, count=units, chunk=units)
        return Instruction(packed, tuple(arrays))

    def copied(self, spec: Spec, source: Place, target: Place) -> Instruction:
        """An array put somewhere else."""
        return self.kernel(self.loops.copy, [spec.nbytes], [source, target])

    def graph(self, graph: Graph, inputs: Sequence[Place], wanted: Sequence[Place]) -> list[Instruction]:
        """The instructions that compute a graph's outputs where they are wanted."""
        return _GraphInstructions(self, graph, inputs, wanted).instructions


def _repeat(writer: _LevelProgram, call: Call) -> tuple[str, Repeat]:
    attrs = call.attrs
    body, carries, rows, length = attrs["body"], attrs["carries"], attrs["rows"], attrs["length"]
    fixed = len(call.inputs) - rows
    carry = call.inputs[fixed - carries : fixed]
    now, following = _in_turn(writer, carry)
    columns = [_row(1 + n, call.inputs[n], length, attrs["reverse"]) for n in range(fixed, len(call.inputs))]
    first = 1 + len(call.inputs)
    made = [_row(first + n, s, length, attrs["reverse"]) for n, s in enumerate(call.outputs) if n >= carries]
    closure = [Place.always(1 + n) for n in range(fixed - carries)]
    run = writer.graph(body, [*closure, *now, *columns], [*following, *made])
    return "repeat", _looped(writer, carry, fixed - carries, first, now, run, [], length, None)


def _while(writer: _LevelProgram, call: Call) -> tuple[str, Repeat]:
    condition, body = call.attrs["condition"], call.attrs["body"]
    closed = len(call.inputs) - len(call.outputs)
    carry = call.inputs[closed:]
    now, following = _in_turn(writer, carry)
    given = [*[Place.always(1 + n) for n in range(closed)], *now]
    flag = writer.new(condition.calls[condition.outputs[0]].spec)
    test, run = writer.graph(condition, given, [flag]), writer.graph(body, given, following)
    return "repeat", _looped(writer, carry, closed, 1 + len(call.inputs), now, run, test, 0, flag)


def _looped(
    writer: _LevelProgram, carry: Sequence[Spec], closed: int, first: int, now: Sequence[Place],
    run: Sequence[Instruction], test: Sequence[Instruction], length: int, flag: Place | None,
) -> Repeat:  # fmt: skip
    """A loop: the first carry is put where it is read, and the last one where the outputs are."""
    before = [writer.copied(s, Place.always(1 + closed + n), now[n]) for n, s in enumerate(carry)] + writer.before
    after = [writer.copied(s, now[n], Place.always(first + n)) for n, s in enumerate(carry)]
    lists = [writer.lists.put(each) for each in (before, test, run, after)]
    slot = Slot(0) if flag is None else flag.even
    launcher, wrong = writer.loops.runtime.code["launch"], writer.flag.even.base
    return Repeat(launcher, writer.lists.most, wrong, length, slot.base, slot.offset, *lists)


def _branch(writer: _LevelProgram, call: Call) -> tuple[str, Choose]:
    writer.repeats = False
    given = [Place.always(2 + n) for n in range(len(call.inputs) - 1)]
    wanted = [Place.always(1 + len(call.inputs) + n) for n in range(len(call.outputs))]
    lists = [writer.lists.put(writer.graph(call.attrs[name], given, wanted)) for name in ("true", "false")]
    return "choose", Choose(writer.loops.runtime.code["launch"], writer.lists.most, 1, 0, *lists)


def _in_turn(writer: _LevelProgram, carry: Sequence[Spec]) -> tuple[list[Place], list[Place]]:
    """Where a carry is read, and where the next one is written."""
    pairs = [(writer.new(s).even, writer.new(s).even) for s in carry]
    return [Place(a, b) for a, b in pairs], [Place(b, a) for a, b in pairs]


def _row(base: int, spec: Spec, length: int, reverse: bool) -> Place:
    """A row of an array for each iteration."""
    size = spec.nbytes // length
    return Place.always(base, (length - 1) * size, -size) if reverse else Place.always(base, 0, size)


class _GraphInstructions:
    """The instructions of one graph."""

    def __init__(self, writer: _LevelProgram, graph: Graph, inputs: Sequence[Place], wanted: Sequence[Place]) -> None:
        self.writer = writer
        region = _prepared(graph)
        self.calls, self.args = region.graph.calls, region.graph.args
        self.graph = region.graph
        self.places: dict[int, Place] = dict(zip(region.inputs, inputs, strict=True))
        self.several: dict[int, list[Place]] = {}
        self.transposed: dict[int, int] = {}
        """Matrices that products read where they are, by what they are the transposes of."""
        self.instructions: list[Instruction] = []
        self._wanted = dict(reversed(list(zip(region.outputs, wanted, strict=True))))
        for part in grouped(region, RowLimits()):
            if part.kind in (RegionKind.LOOP, RegionKind.REDUCTION):
                self._group(Group.of(part))
            else:
                self._entry(part.nodes[0])
        for output, place in zip(region.outputs, wanted, strict=True):
            found = self._place(output)
            if found != place:
                self.instructions.append(writer.copied(self.calls[output].spec, found, place))

    def _new(self, entry: int) -> Place:
        """Where a value is computed: where it is wanted, if it is."""
        made = self._wanted.get(entry) or self.writer.new(self.calls[entry].spec)
        self.places[entry] = made
        return made

    def _place(self, entry: int) -> Place:
        if entry in self.transposed:  # by now, something but a product reads it
            del self.transposed[entry]
            self._moved(entry, self.calls[entry])
        if entry not in self.places:
            assert is_constant(self.graph, entry)
            value = np.asarray(bind(self.calls[entry])(), self.calls[entry].spec.dtype.numpy)
            self.places[entry] = self.writer.constant(value)
        return self.places[entry]

    def _group(self, group: Group) -> None:
        packed, made, code = self.writer.loops.natives.launch(group)
        self.writer.kept.append(code)
        reads = [self._place(group.inputs[n]) for n in made.reads]
        arrays = [*reads, *[self._new(o) for o in group.outputs]]
        if made.workspace:
            arrays.append(Place.always(self.writer.base, self.writer.room(made.workspace)))
        self.instructions.append(Instruction(packed, tuple(arrays)))

    def _entry(self, entry: int) -> None:
        """An op that is no part of a group."""
        call = self.calls[entry]
        given = self.args[entry]
        if is_constant(self.graph, entry):
            self._place(entry)
        elif call.op is pick:
            self.places[entry] = self.several[given[0]][call.attrs["index"]]
        elif call.op.role is View.RESHAPED:
            self.places[entry] = self._place(given[0])
        elif _transposes(call):
            self.transposed[entry] = given[0]
        elif isinstance(call.op.role, Control):
            self._nested(entry, call)
        elif isinstance(call.op.role, Indexing):
            self._indexed(entry, call, call.op.role)
        elif call.op.role is Contraction.MATRICES:
            self._product(entry, call)
        else:
            self._moved(entry, call)

    def _nested(self, entry: int, call: Call) -> None:
        writer = self.writer
        inner = _Program(writer.loops, call)
        writer.kept.append(inner)
        if len(call.outputs) == 1:
            made = [self._new(entry)]
        else:
            made = self.several[entry] = [writer.new(s) for s in call.outputs]
        space = Place.always(writer.base, writer.room(max(inner.workspace, 1)))
        arrays = [*[self._place(a) for a in self.args[entry]], *made, space, writer.flag]
        self.instructions.append(writer.kernel(inner.code, inner.words, arrays))

    def _product(self, entry: int, call: Call) -> None:
        given = self.args[entry]
        if call.spec.dtype not in (float32, float64) or any(s.dtype is not call.spec.dtype for s in call.inputs):
            raise Unsupported(f"a product of {list(call.inputs)} inside a loop")
        transposed = [a in self.transposed for a in given]
        read = [self._place(self.transposed[a] if t else a) for a, t in zip(given, transposed, strict=True)]
        left, right, out = _matrices(call, *transposed)
        sizes = _small_sizes(left, right, out)
        if sizes is not None:
            code = self.writer.loops.small_product(call.spec)
            self.instructions.append(self.writer.kernel(code, sizes, [*read, self._new(entry)]))
            return
        product, products = Product(call.spec.dtype), self.writer.loops.products
        kept = self.writer.repeats and right.ndim == 2 and read[1].is_fixed and read[1].even.base != self.writer.base
        if kept:
            packing = products.packing(product, right)
            packed = Place.always(self.writer.base, self.writer.room(packing.workspace))
            self.writer.before.append(self.writer.kernel(packing.code, packing.words, [read[1], packed]))
            read[1] = packed
        made = products.kernel(product, Arrays(left, right, (), (), [out]), kept=kept)
        workspace = Place.always(self.writer.base, self.writer.room(made.workspace))
        self.instructions.append(self.writer.kernel(made.code, made.words, [*read, self._new(entry), workspace]))

    def _indexed(self, entry: int, call: Call, does: Indexing) -> None:
        sizes = IndexSizes.of(call)
        if sizes is None or len(call.attrs["axes"]) > 1:
            raise Unsupported(f"{call.op.name} of {list(call.inputs)} inside a loop")
        arrays = [*[self._place(a) for a in self.args[entry]], self.writer.flag, self._new(entry)]
        code = self.writer.loops.indexed.code(call)
        self.instructions.append(self.writer.kernel(code, sizes.words, arrays, sizes.units(does)))

    def _moved(self, entry: int, call: Call) -> None:
        sizes = runs_of(call)
        if sizes is None:
            raise Unsupported(f"{call.op.name} inside a loop")
        arrays = [*[self._place(a) for a in self.args[entry]], self.writer.constant(_ZERO), self._new(entry)]
        code = self.writer.loops.move(call.spec.dtype.itemsize)
        self.instructions.append(self.writer.kernel(code, sizes, arrays))


def _prepared(graph: Graph) -> Region:
    """A body in ops that have kernels, as far as they have any."""
    made = simplify(expand(graph, ()))
    outputs = set(made.outputs)
    nodes = [n for n, c in enumerate(made.calls) if c.op is not leaf and (n in outputs or not is_constant(made, n))]
    return expanded(Region(made, RegionKind.SEQUENCE, tuple(nodes), made.inputs, made.outputs))


def _transposes(call: Call) -> bool:
    """True for a transpose of matrices, or of stacks of them."""
    ndim = call.spec.ndim
    return call.op.role is View.PERMUTED and call.attrs["axes"] == (*range(ndim - 2), ndim - 1, ndim - 2)


def _matrices(call: Call, a_transposed: bool, b_transposed: bool) -> tuple[Any, Any, Any]:
    """Arrays that lie as the operands and the result of a product do: stacks of matrices. They have no memory."""
    a, b = call.inputs
    left, right = (_strided(s, t) for s, t in ((a, a_transposed), (b, b_transposed)))
    left = left[None] if a.ndim == 1 else left
    right = right[:, None] if b.ndim == 1 else right
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return left, right, _like((*stack, left.shape[-2], right.shape[-1]), call.spec.dtype)


def _strided(spec: Spec, transposed: bool) -> Any:
    if not transposed:
        return _like(spec.shape, spec.dtype)
    *stack, rows, columns = spec.shape
    return np.swapaxes(_like((*stack, columns, rows), spec.dtype), -1, -2)


def _like(shape: Shape, dtype: DType) -> Any:
    """An array in order."""
    return layout_like(shape, strides_of(shape), dtype.numpy)


def _small_sizes(left: Any, right: Any, out: Any) -> list[int] | None:
    """The sizes of a small product's kernel; `None` if the product is not small, or its stacks broadcast otherwise."""
    (rows, terms), columns = left.shape[-2:], right.shape[-1]
    stacks, of_a, of_b = (prod(x.shape[:-2]) for x in (out, left, right))
    if stacks * rows * columns * terms > MOST_PRODUCTS or not {of_a, of_b} <= {1, stacks}:
        return None
    apart = [x.shape[-2] * x.shape[-1] * x.itemsize * (n > 1) for x, n in ((left, of_a), (right, of_b))]
    # A single column is read as a row of the transposed operand: its terms lie side by side.
    of_right = right.strides[-2:] if columns > 1 else (right.strides[-2], terms * right.itemsize)
    return [stacks, rows, columns, terms, apart[0], *left.strides[-2:], apart[1], *of_right]
