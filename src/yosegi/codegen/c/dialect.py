"""The table by which the languages of the C family differ.

Kernels are written once, in `loops`, `reductions` and `copies`; a `Dialect` holds the words. Its rows live with the
devices that speak them. A language without arithmetic on vectors has `widths == (1,)` there and still loads and
stores several elements at once, as packets.
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
UNSIGNED: Final[Mapping[str, str]] = {name: f"u{name.removeprefix('u')}" for name in INTEGERS.values()}
"""Their names with their unsigned counterparts."""


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
    """An array that a work group shares: {type}, {name}, {size}."""
    global_id: str
    local_id: str
    group_id: str
    barrier: str
    """Waits for the work group, and makes what it wrote to shared memory seen."""

    types: Mapping[DType, str]
    """The type of an element in a computation; for complex dtypes, of each part."""
    stored: Mapping[DType, str]
    """The type of an element in memory; for complex dtypes, of each part."""
    masks: Mapping[int, str]
    """Signed integers by bits: what comparing two vectors gives, all ones for true."""
    unsigned: Mapping[str, str]
    """Integer type names with their unsigned counterparts."""

    widths: tuple[int, ...] = (1,)
    """The widths of vectors that arithmetic can be written for, widest first; 1 is always among them. The words for
    vectors are for languages that have others."""
    vector: str = ""
    """The name of a vector type: {type}, {n}."""
    splat: str = ""
    """A vector of given elements, or of one repeated: {type}, {items}."""
    lane: str = ""
    """One element of a vector: {x}, {i} (a hexadecimal digit)."""
    low: str = ""
    high: str = ""
    """The halves of a vector: {x}."""
    even: str = ""
    odd: str = ""
    """Every other element of a vector: {x}. Both can be assigned to."""
    load: str = ""
    """A vector from memory that is aligned to its elements: {n}, {pointer}, {at}."""
    store: str = ""
    """A vector store: {n}, {pointer}, {at}, {value}."""
    load_half: str
    """A float16 element as a float: {pointer}, {at}."""
    load_halves: str = ""
    store_half: str
    """A float as a float16 element: {pointer}, {at}, {value}."""
    store_halves: str = ""
    """A vector of floats as float16 elements, with {n}."""

    convert: str
    """A value converted by C's rules: {type}, {x}."""
    reinterpret: str
    """The bits of a value as another type: {type}, {x}."""
    select: str = ""
    """Of two vectors, {a} where the vector {mask} is all ones, {b} where it is zero."""
    all_lanes: str = ""
    """Whether a mask holds in every lane: {mask}."""

    packed: Mapping[DType, str]
    """The type of an element in a packet (see `packets`); for complex dtypes, of each part."""
    packet: str
    """Declares the type of a packet of neighbours, aligned so that it is read and written at once: {name}, {type}, {n},
    {align}."""
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
    """Parameters that every kernel has behind its own, where a language tells items their numbers by such."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """The suffix of a function's name for a type, such as `f` for `float`."""
    matrix_unit: MatrixUnit | None = None
    """The functions of a matrix unit, if the language has them."""
    bounded: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Functions of a type that on vectors are only right below some magnitude; beyond, they are called per lane."""

    def vector_type(self, scalar: str, width: int) -> str:
        """The type of so many elements."""
        return scalar if width == 1 else self.vector.format(type=scalar, n=width)

    def function(self, name: str, scalar: str) -> str:
        """A function's name for arguments of a type."""
        suffix = self.suffixes.get(scalar, "")
        return self.functions.get(name, "{name}{suffix}").format(name=name, suffix=suffix)


@dataclass(frozen=True, slots=True)
class Target:
    """The properties of a device that decide the shape of its kernels."""

    width: int
    """How many 4-byte elements one work item computes with at once, where vectors have arithmetic."""
    group: int
    """Work items in a group."""
    cooperating: int
    """Work items in a group that reduces together: a power of two."""
    units: int
    """Groups that run side by side."""
    blocked: bool
    """Whether an item's elements are best next to each other (caches), or next to its neighbours' (coalescing): GPUs
    read packets, and reduce in teams."""
