"""Sums over windows, as products that read the input where it lies.

The input is copied once, with its padding, so that all windows of a plane lie one behind the other: element `n` of row
`k` of the right operand, the k-th place of window n, is at `place[k] + n`. With a stride, the elements that windows
step on are brought together first, one plane for each remainder. Between the rows of a plane there are windows that do
not count; they are computed and not stored.

    prepare:  copy each plane of the input    (all threads)
    convolve: for each block of windows of each image: for some outputs at a time: a tile    (all threads)

Sizes, strides and tables are data: there is one object for a dtype and a number of rows of a tile.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import Multiples, add, div, least, most, mul, shifted, sub, word
from .ir import Function, Module
from .load_store import lanes_below, load, store
from .nest import VectorTarget
from .register_tiles import TileShape, step_of_sums, zero_sums

DIMENSIONS: Final = 3
PREPARE_SIZES: Final = (
    "channels", "plane_bytes", "to_batch", "x_batch", "x_channel", "x_0", "x_1", "x_2",
    "to_phase_0", "to_phase_1", "to_phase_2", "to_0", "to_1", "phases_0", "phases_1", "phases_2",
)  # fmt: skip
"""The words of `prepare`. Its arrays: the input, its copy, the runs."""
CONVOLVE_SIZES: Final = (
    "groups", "blocks", "windows", "outputs", "steps", "group_bytes", "w_group", "w_output",
    "row", "plane_row", "wide", "high", "out_group", "out_output", "out_plane", "out_row",
)  # fmt: skip
"""The words of `convolve`. Its arrays: the copy, the kernel, the places, the result."""
RUN: Final = 5
"""Words of a run: how many elements, where it begins and how it goes on, in the input and in the copy."""


_FEW: Final = {8: 1, 4: 2, 2: 4, 1: 6}
"""The most vectors of a tile by its rows, with 16 registers."""
_MANY: Final = {8: 3, 4: 6, 2: 6, 1: 8}
"""With 32 registers, where instructions read weights from memory (AVX-512)."""
_MANY_WITH_WEIGHTS: Final = {8: 2, 4: 5, 2: 8, 1: 8}
"""With 32 registers, some of which hold weights (NEON): one vector more, and LLVM spills."""


def convolution_shape(target: VectorTarget, dtype: DType, outputs: int, windows: int) -> TileShape:
    """The tiles for so many outputs of a group and so many windows: as many rows as there are outputs for, and vectors
    to fill the registers, but few that are not full."""
    lanes = target.vector_bytes // dtype.itemsize
    rows = next(r for r in (8, 4, 2, 1) if outputs >= r)
    many = _MANY if target.vector_bytes > 16 else _MANY_WITH_WEIGHTS
    most = (_FEW if target.registers < 32 else many)[rows]
    vectors = min(range(most, (most + 1) // 2, -1), key=lambda v: -(-windows // (v * lanes)) * v, default=most)
    return TileShape(rows, vectors, lanes, dtype.itemsize)


def convolution_source(dtype: DType, shape: TileShape, target: VectorTarget) -> str:
    """The module of a convolution: `prepare` and `convolve`."""
    module = Module(converts_halves=target.converts_halves)
    _write_prepare(module, dtype)
    _write_convolve(module, dtype, shape)
    return module.text(target.attributes)


# Copies


def _write_prepare(module: Module, dtype: DType) -> None:
    """`prepare`: a unit is a plane."""
    code = module.function("prepare", PARAMETERS)
    words = KernelArguments(code, PREPARE_SIZES)
    with code.loop("%low", "%high") as unit:
        _plane(code, words, dtype, unit.index)
    code.ret()


def _plane(code: Function, words: KernelArguments, dtype: DType, plane: str) -> None:
    """Copy a plane: zeros first, then the elements, phase by phase and row by row."""
    channels, size = words["channels"], words["plane_bytes"]
    batch = div(code, plane, channels)
    channel = sub(code, plane, mul(code, batch, channels))
    source = shifted(code, words.array(0), mul(code, batch, words["x_batch"]))
    source = shifted(code, source, mul(code, channel, words["x_channel"]))
    target = shifted(code, words.array(1), mul(code, batch, words["to_batch"]))
    target = shifted(code, target, mul(code, channel, size))
    types = ["ptr", "i8", "i64", "i1"]
    code.call("void", "llvm.memset.p0.i64", types, [target, "0", size, "false"])
    _runs(code, words, dtype, 0, "0", source, target)


def _runs(
    code: Function, words: KernelArguments, dtype: DType, dimension: int, first: str, source: str, target: str
) -> None:
    """The runs of a dimension, one for each phase, and what they have in the dimensions inside. `first` is the number
    of its first run."""
    phases, step = words[f"phases_{dimension}"], words[f"x_{dimension}"]
    with code.loop(0, phases) as phase:
        run = shifted(code, words.array(2), mul(code, add(code, first, phase.index), RUN * 8))
        count, begin, stride, to, to_stride = (word(code, run, n) for n in range(RUN))
        here = shifted(code, source, mul(code, begin, step))
        there = shifted(code, target, mul(code, phase.index, words[f"to_phase_{dimension}"]))
        if dimension == DIMENSIONS - 1:
            there = shifted(code, there, mul(code, to, dtype.itemsize))
            _line(code, dtype, count, here, mul(code, stride, step), there, mul(code, to_stride, dtype.itemsize))
        else:
            along = words[f"to_{dimension}"]
            there = shifted(code, there, mul(code, to, along))
            steps = mul(code, stride, step), mul(code, to_stride, along)
            with code.loop(0, count, carried=[("ptr", here), ("ptr", there)]) as row:
                _runs(code, words, dtype, dimension + 1, add(code, first, phases), *row.values)
                row.carry(*[shifted(code, at, by) for at, by in zip(row.values, steps, strict=True)])


def _line(code: Function, dtype: DType, count: str, here: str, step: str, there: str, to_step: str) -> None:
    item = str(dtype.itemsize)
    beside = [code.let(f"icmp eq i64 {s}, {item}") for s in (step, to_step)]
    both = code.let(f"and i1 {beside[0]}, {beside[1]}")
    with code.when(both):
        types = ["ptr", "ptr", "i64", "i1"]
        code.call("void", "llvm.memcpy.p0.p0.i64", types, [there, here, mul(code, count, item), "false"])
    with code.when(code.let(f"xor i1 {both}, true")):
        k = LlvmBuilder(code, 1)
        with code.loop(0, count, carried=[("ptr", here), ("ptr", there)]) as loop:
            store(k, load(k, dtype, loop.values[0]), loop.values[1])
            loop.carry(shifted(code, loop.values[0], step), shifted(code, loop.values[1], to_step))


# Tiles


def _write_convolve(module: Module, dtype: DType, shape: TileShape) -> None:
    """`convolve`: a unit is a block of windows of a group of an image, with all outputs."""
    code = module.function("convolve", PARAMETERS)
    words = KernelArguments(code, CONVOLVE_SIZES)
    groups, blocks, outputs = words["groups"], words["blocks"], words["outputs"]
    x, w, places, out = words.arrays(4)
    sums = code.let(f"alloca [{shape.rows * shape.columns * dtype.itemsize} x i8], align 64")
    with code.loop("%low", "%high") as unit:
        image = div(code, unit.index, blocks)
        first = mul(code, sub(code, unit.index, mul(code, image, blocks)), shape.columns)
        group = sub(code, image, mul(code, div(code, image, groups), groups))
        source = shifted(code, x, mul(code, image, words["group_bytes"]))
        source = shifted(code, source, mul(code, first, dtype.itemsize))
        kernel = shifted(code, w, mul(code, group, words["w_group"]))
        target = shifted(code, out, mul(code, image, words["out_group"]))
        with code.loop(0, outputs, shape.rows) as panel:
            # The last rows begin early enough to be all there: some are computed twice.
            row = least(code, panel.index, sub(code, outputs, str(shape.rows)))
            weights = shifted(code, kernel, mul(code, row, words["w_output"]))
            _tile(code, dtype, shape, source, weights, words["w_output"], places, words["steps"], sums)
            _stored(code, words, dtype, shape, sums, first, shifted(code, target, mul(code, row, words["out_output"])))
    code.ret()


def _tile(
    code: Function, dtype: DType, shape: TileShape, source: str, weights: str, apart: str, places: str,
    steps: str, sums: str,
) -> None:  # fmt: skip
    """The sums of a tile, to where they are put in order."""
    k = LlvmBuilder(code, shape.lanes)
    size = shape.lanes * dtype.itemsize
    multiples = Multiples(code, apart, shape.rows)
    zeros = zero_sums(k, dtype, shape.rows, shape.vectors)
    with code.loop(0, steps, carried=[("ptr", weights), *zeros]) as step:
        at, *given = step.values
        place = code.let(f"load i64, ptr {code.pure(f'getelementptr i64, ptr {places}, i64 {step.index}')}")
        line = shifted(code, source, place)
        made = step_of_sums(k, dtype, lambda r: shifted(code, at, multiples[r]), line, given, shape.vectors)
        step.carry(shifted(code, at, str(dtype.itemsize)), *made)
    for n, text in enumerate(step.values[1:]):
        store(k, Value(dtype, text), shifted(code, sums, str(n * size)))


def _stored(
    code: Function, words: KernelArguments, dtype: DType, shape: TileShape, sums: str, first: str, target: str
) -> None:
    """Store the windows of a tile that count to the result, row by row of its planes."""
    k = LlvmBuilder(code, shape.lanes)
    item = dtype.itemsize
    last = least(code, add(code, first, str(shape.columns)), words["windows"])
    row, plane = words["row"], words["plane_row"]
    with code.loop(div(code, first, row), div(code, add(code, last, sub(code, row, "1")), row)) as line:
        begin = mul(code, line.index, row)
        low = most(code, first, begin)
        high = least(code, last, add(code, begin, words["wide"]))
        deep = div(code, line.index, plane)
        down = sub(code, line.index, mul(code, deep, plane))
        inside = code.let(f"icmp slt i64 {down}, {words['high']}")
        there = shifted(code, target, mul(code, deep, words["out_plane"]))
        there = shifted(code, there, mul(code, down, words["out_row"]))
        there = shifted(code, there, mul(code, sub(code, low, begin), item))
        here = shifted(code, sums, mul(code, sub(code, low, first), item))
        with code.when(inside), code.loop(0, shape.rows, carried=[("ptr", here), ("ptr", there)]) as output:
            with code.loop(0, sub(code, high, low), shape.lanes) as lanes:
                offset = mul(code, lanes.index, item)
                mask = lanes_below(k, sub(code, sub(code, high, low), lanes.index))
                value = load(k, dtype, shifted(code, output.values[0], offset), mask)
                store(k, value, shifted(code, output.values[1], offset), mask)
            output.carry(
                shifted(code, output.values[0], str(shape.columns * item)),
                shifted(code, output.values[1], words["out_output"]),
            )
