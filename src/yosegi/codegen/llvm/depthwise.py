"""Sums over windows of each channel by itself: depthwise convolutions.

There is no product of matrices in them: a result is as many products as a kernel has places. Vectors of windows read
the input where it lies, place by place, and what is outside reads as zeros. Windows of some rows are computed together,
because they have elements in common. A channel's weights stay in registers.

    convolve: for each plane: for some rows at a time: for each vector of windows    (all threads)

Sizes and strides are data: there is one object for a dtype, the places of a kernel, and the steps of windows.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType, int32
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, choice, mul, shifted, split, sub
from .ir import Module
from .lanes import brought_apart, counted
from .load_store import lanes_below, load, repeated, store
from .nest import VectorTarget

DEPTHWISE_SIZES: Final = (
    "channels", "x_image", "x_channel", "x_row", "w_channel", "top", "left", "high", "wide",
    "out_high", "out_wide", "out_plane", "out_row",
)  # fmt: skip
"""The words of `convolve`. Its arrays: the input, the weights, the result."""
_ROWS: Final = {1: 4, 2: 2}
"""Rows of windows at a time, by the elements from one to the next."""


def depthwise_source(dtype: DType, kernel: tuple[int, int], steps: tuple[int, int], target: VectorTarget) -> str:
    """The module of `convolve`, for windows that are 1 or 2 elements apart in each dimension."""
    module = Module(converts_halves=target.converts_halves)
    code = module.function("convolve", PARAMETERS)
    words = KernelArguments(code, DEPTHWISE_SIZES)
    size = {name: words[name] for name in DEPTHWISE_SIZES}
    x, w, out = words.arrays(3)
    item, lanes = dtype.itemsize, target.vector_bytes // dtype.itemsize
    k = LlvmBuilder(code, lanes)
    (high, wide), (down, across), rows = kernel, steps, _ROWS[steps[0]]
    columns = k.splat(int32, code.pure(f"trunc i64 {size['wide']} to i32"))
    with code.loop("%low", "%high") as plane:
        image, channel = split(code, plane.index, size["channels"])
        source = shifted(code, x, add(code, mul(code, image, size["x_image"]), mul(code, channel, size["x_channel"])))
        given = shifted(code, w, mul(code, channel, size["w_channel"]))
        weights = [repeated(k, dtype, shifted(code, given, str(n * item))) for n in range(high * wide)]
        made = shifted(code, out, mul(code, plane.index, size["out_plane"]))
        with code.loop(0, size["out_high"], rows) as row, code.loop(0, size["out_wide"], lanes) as column:
            top = sub(code, mul(code, row.index, down), size["top"])
            left = sub(code, mul(code, column.index, across), size["left"])
            masks = {}
            for along in _reads(wide, across, lanes):
                number = counted(k, add(code, left, str(along)), 1, int32)  # below 0, it is large without a sign
                masks[along] = code.pure(f"icmp ult {k.type(int32)} {number.text}, {columns.text}")
            totals = [k.literal(0, dtype)] * rows
            for r in range(high + (rows - 1) * down):
                at = add(code, top, str(r))
                inside = code.pure(f"icmp ult i64 {at}, {size['high']}")
                line = shifted(code, source, add(code, mul(code, at, size["x_row"]), mul(code, left, item)))
                read = {}
                for along, mask in masks.items():
                    there = choice(code, inside, mask, "zeroinitializer", k.vector("i1"))
                    read[along] = load(k, dtype, shifted(code, line, str(along * item)), there)
                places = _places(k, read, wide, across)
                for n in range(rows):
                    if 0 <= (of := r - n * down) < high:
                        for c, value in enumerate(places):
                            totals[n] = k.muladd(weights[of * wide + c], value, totals[n])
            within = lanes_below(k, sub(code, size["out_wide"], column.index))
            for n, total in enumerate(totals):
                at = add(code, row.index, str(n))
                there = add(code, mul(code, at, size["out_row"]), mul(code, column.index, item))
                inside = code.pure(f"icmp ult i64 {at}, {size['out_high']}")
                store(
                    k,
                    total,
                    shifted(code, made, there),
                    choice(code, inside, within, "zeroinitializer", k.vector("i1")),
                )
    code.ret()
    return module.text(target.attributes)


def _reads(wide: int, across: int, lanes: int) -> list[int]:
    """The columns at which vectors are read, from that of the first window on."""
    return [first + n * lanes for first in range(0, wide, across) for n in range(across)]


def _places(k: LlvmBuilder, read: dict[int, Value], wide: int, across: int) -> list[Value]:
    """For each place along a row of a kernel, the elements of all windows."""
    made: list[Value] = []
    for first in range(0, wide, across):
        made += brought_apart(k, [read[first + n * k.width] for n in range(across)])
    return made[:wide]
