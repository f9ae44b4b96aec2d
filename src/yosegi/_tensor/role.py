"""Roles: the structure of an op, as fusion, costs and code generation need it.

An op states its role in its block. A pass asks for the role, never for the op's name. A role with a few kinds is an
enum (`role is View.RESHAPED`, `isinstance(role, View)`); every other role is a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class View(Enum):
    """An op whose output has its input's elements under other indices. Nothing is computed."""

    PERMUTED = "permuted"
    """Elements by their indices in another order."""
    BROADCAST = "broadcast"
    """Elements by fewer indices, or by index 0 along some axes."""
    RESHAPED = "reshaped"
    """Elements by their position in row-major order, which stays."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A value that another thread makes: it is read as late as possible, so that other work runs meanwhile."""


class Pattern(Enum):
    """The collective by which ranks exchange values."""

    REDUCE = "all_reduce"
    GATHER = "all_gather"
    SCATTER = "reduce_scatter"
    SWAP = "all_to_all"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of the parts of one dimension, by rank."""

    dim: int
    each: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """A collective of a group of ranks, as one of them calls it."""

    pattern: Pattern
    rank: int
    size: int
    combine: str = ""
    """The combination of values: "sum", "max", "min" or "mean"."""
    is_ordered: bool = False
    """True if sums are in the order of ranks."""
    gathered: Lengths | None = None
    """The parts that come together."""
    scattered: Lengths | None = None
    """The parts that a value is split into."""
    root: int = 0
    """The rank whose value all get."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message between ranks.

    The attribute `via` of a call is the connection of a device whose memory has the values; `None` if the host has.
    """

    cost: Callable[[Any], tuple[float, str]]
    """The predicted seconds of a call, and their source in words."""
    traffic: Callable[[Any], Traffic]
    """The collective of a call."""

    @staticmethod
    def via(call: Any) -> Any:
        """The connection over which a call goes."""
        return call.attrs["via"]


@dataclass(frozen=True, slots=True)
class Nonnegative:
    """An elementwise op whose results are never negative."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Elements along some axes, combined to one."""

    combine: str
    """The operation on two elements: "sum", "prod", "max" or "min"; of truth values, "max" is or, "min" is and."""
    averages: bool = False
    """True if the result is divided by the number of elements."""

    @property
    def selects(self) -> bool:
        """True if the result is one of the elements: nothing is rounded."""
        return self.combine in ("max", "min")


@dataclass(frozen=True, slots=True)
class Extremum:
    """The position of the first largest or smallest element along an axis."""

    is_largest: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """For each element, the reduction of all elements up to it along an axis."""

    combine: str
    """The operation on two elements, by the names that a `Reduction` uses."""


class Contraction(Enum):
    """Sums of products of two operands' elements, by the kind of the operands."""

    MATRICES = "matrices"
    """Rows by columns, as `matmul` does."""
    LABELS = "labels"
    """Labelled axes, as `einsum` does."""
    WINDOWS = "windows"
    """Windows of an image by weights, as a convolution does."""


class Indexing(Enum):
    """Elements at indices that are data, by their use."""

    READ = "read"
    WRITE = "write"
    ADD = "add"


class Arithmetic(Enum):
    """An elementwise sum or product of two operands. Libraries of products compute it with the product."""

    PLUS = "+"
    TIMES = "*"


@dataclass(frozen=True, slots=True)
class Power:
    """An elementwise power."""


@dataclass(frozen=True, slots=True)
class Triangle:
    """Matrices with zeros on one side of a diagonal."""

    is_lower: bool
    """True if the elements below the diagonal stay."""


@dataclass(frozen=True, slots=True)
class Progression:
    """A source of evenly spaced numbers."""

    is_counted: bool
    """True if the step is given, False if the number of elements is."""


class Transform(Enum):
    """A Fourier transform, by the numbers that it reads and writes."""

    COMPLEX = "complex to complex"
    HALF = "real to half of a spectrum"
    FROM_HALF = "half of a spectrum to real"


@dataclass(frozen=True, slots=True)
class RandomWords:
    """Random bits from a state, one word for each element."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of queries to keys and values."""


@dataclass(frozen=True, slots=True)
class AttentionGradient:
    """The gradients of attention with respect to queries, keys and values."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The window `key` of an array."""


@dataclass(frozen=True, slots=True)
class Overwrite:
    """An array with the window `key` of it replaced by another array."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value from outside of the graph."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The outputs are the first inputs as they are. The op concerns transforms alone, and is left out of every plan."""

    is_guarded: bool = False
    """True if no cotangent flows to these inputs."""


class Flow(Enum):
    """How an op runs the graphs among its attributes."""

    REPEAT = "repeat"
    """`body`, a known number of times, with rows of some inputs and a row of some outputs each time."""
    WHILE = "while"
    """`body`, as long as `condition` is true."""
    BRANCH = "branch"
    """`true` or `false`, as the first input says."""


@dataclass(frozen=True, slots=True)
class Control:
    """Graphs among the attributes, each a program of the op's inputs."""

    flow: Flow
    bodies: tuple[str, ...]
    """The attributes that are graphs."""
    drive: Callable[..., Any]
    """The op on arrays, step by step: `drive(compiled, *inputs, **attrs)` with a function from a graph to a function of
    its inputs' arrays, which returns a list."""
    narrow: Callable[..., tuple[list[int], list[int], dict[str, Any]]]
    """The op without the outputs that nothing reads: `narrow(call, read)` gives, by position, the inputs and outputs
    that are left, and the new attributes."""


Role = (
    View | Nonnegative | Reduction | Extremum | Scan | Contraction | Indexing | Arithmetic | Power | Triangle
    | Progression | Transform | RandomWords | Attention | AttentionGradient | Cut | Overwrite | Passed | Control | Leaf
    | Wait | Exchange
)  # fmt: skip
