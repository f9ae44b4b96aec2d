"""The table by which the languages of the C family differ.

Kernels are written once; a `Dialect` holds the words. Its rows live with the devices that speak them. Arithmetic is on
single elements; several are loaded and stored at once, as packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..._tensor.dtype import DType, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from .matrix_unit import MatrixUnit

INTEGERS: Final[dict[DType, str]] = {
    int8: "char", int16: "short", int32: "int", int64: "long",
    uint8: "uchar", uint16: "ushort", uint32: "uint", uint64: "ulong",
}  # fmt: skip
"""The integers of languages whose `long` has 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One language. Texts in braces are filled in by `str.format`."""

    header: str
    """The first lines of every source."""
    kernel: str
    """The words before a kernel's name."""
    global_pointer: str
    """A parameter that points to device memory: {const}, {type}, {name}."""
    local_array: str
    """An array that a block shares: {type}, {name}, {size}."""
    local_pointer: str = ""
    """The type of a pointer into one, where a matrix unit needs it: {type}."""
    global_id: str
    local_id: str
    group_id: str
    barrier: str
    """Waits for the block, and makes what it wrote to shared memory seen."""

    types: Mapping[DType, str]
    """The type of an element in a computation; for complex dtypes, of each part."""
    stored: Mapping[DType, str]
    """The type of an element in memory; for complex dtypes, of each part."""

    convert: str
    """A value converted by C's rules: {type}, {x}."""
    reinterpret: str
    """The bits of a value as another type: {type}, {x}."""

    packet: str
    """Declares the type of a packet of neighbours (see `packets`), aligned so that it is read and written at once:
    {name}, {type}, {n}, {align}."""
    load_packet: str
    """A packet from memory that is aligned to it: {name}, {pointer}, {at}."""
    store_packet: str
    """The store of a packet, with {value}."""
    half_bits: Mapping[DType, str]
    """The 16-bit floats that the language has words for, float16 always: a float, rounded, as an unsigned integer of
    16 bits: {x}."""
    from_half_bits: str
    """The other way round, for float16: {x}."""
    rounded: Mapping[DType, str] = field(default_factory=dict)
    """Those of them for which there is a shorter word for both, there and back: {x}."""
    atomic_max: str
    """The larger of an int in device memory and another, put there as one step: {pointer}, {at}, {value}."""
    atomic_add: str
    """Adds to an int in device memory as one step, and gives what was there before: {pointer}, {at}, {value}."""
    atomic_sums: Mapping[DType, str] = field(default_factory=dict)
    """The floats that the language adds to memory as one step, in whatever order: {pointer}, {at}, {value}."""
    unrolled: str
    """The pragma of a loop that is unrolled: {n} iterations at a time."""
    unrolled_whole: str
    """The pragma of a loop that is unrolled completely."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """Functions whose name is not the usual one: {suffix} is what the language puts behind names for this type."""
    written_out: frozenset[str] = frozenset({"tanh"})
    """Functions of floats that are computed by formulas of ours, because the language's own take longer."""
    size_table: str = ""
    """The one parameter with all sizes, called `sizes`, where a language allows few parameters: {type}."""
    parameter_place: str = ""
    """The suffix of a kernel's parameter that states its position: {n}."""
    built_in: tuple[str, ...] = ()
    """Parameters that every kernel has behind its own, where a language passes a thread its numbers by such."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """The suffix of a function's name for a type, such as `f` for `float`."""
    bounds: str = ""
    """The attribute of a kernel that leaves registers for several blocks side by side: {items}, {blocks}."""
    matrix_units: tuple[MatrixUnit, ...] = ()
    """The functions of matrix units that the language has, each for its own dtypes."""

    def matrix_unit(self, dtype: DType) -> MatrixUnit | None:
        """The matrix unit that multiplies elements of a dtype, or `None`."""
        return next((unit for unit in self.matrix_units if dtype in unit.names), None)

    def function(self, name: str, scalar: str) -> str:
        """A function's name for arguments of a type."""
        suffix = self.suffixes.get(scalar, "")
        return self.functions.get(name, "{name}{suffix}").format(name=name, suffix=suffix)


@dataclass(frozen=True, slots=True)
class Target:
    """The properties of a device that decide the shape of its kernels."""

    group: int
    """Threads in a block."""
    cooperating: int
    """Threads in a block that reduces together: a power of two."""
    units: int
    """Blocks that run side by side."""
