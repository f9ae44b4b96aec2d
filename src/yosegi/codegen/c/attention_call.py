"""A call of attention, for all of its kernels: its arrays, the addresses of its matrices, and its mask."""

from __future__ import annotations

from math import prod

from ..._tensor.dtype import bfloat16, bool_, float16, float32
from ..._tensor.node import Call, Shape
from ..._tensor.role import Attention
from ..scalar.value import Value
from .builder import CBuilder
from .contractions import Output, merged
from .dialect import Dialect
from .expressions import Strides, Sum
from .frames import Frame
from .kernel_source import Inputs
from .packets import element_at


def attention_refusal(call: Call) -> str | None:
    """Why a call is computed by no kernel of attention, or `None`."""
    if not isinstance(call.op.role, Attention):
        return "it is no attention"
    q, k, v = call.inputs[:3]
    if any(s.dtype not in (float16, bfloat16, float32) for s in (q, k, v)) or len({q.dtype, k.dtype, v.dtype}) > 1:
        return f"attention in {q.dtype.name}, {k.dtype.name} and {v.dtype.name}"
    return None


class Attending:
    """A kernel of attention while it is written. A group takes a block of a matrix of queries."""

    def __init__(self, call: Call, dialect: Dialect, block: int) -> None:
        self.call, self.dialect, self.block = call, dialect, block
        shape, specs = call.spec.shape, call.inputs
        self.batch: Shape = shape[:-2]
        self.features, self.values = specs[0].shape[-1], shape[-1]
        inputs = Inputs(tuple(range(len(specs))), tuple(s.shape for s in specs), tuple(s.dtype for s in specs), ())
        self._strides = [self._stack_strides(s.shape) for s in (*specs, call.spec)]
        output = Output(len(specs), Sum(call.spec.dtype), self._strides[-1])
        elements = max(prod(s.shape) for s in (*specs, call.spec)) + block * block
        self.frame = Frame(dialect, inputs, (output,), elements)
        self.ctype = self.frame.ctype
        self.is_causal: bool = call.attrs["is_causal"]
        self.has_mask = len(specs) > 3
        self.hides = self.has_mask and specs[3].dtype is bool_
        """Whether there may be queries that see nothing, which become 0."""
        self.adds = self.has_mask and not self.hides
        """Whether numbers are added to the scores."""
        self.blocks = -(-shape[-2] // block)
        self.queries = self.frame.size("queries", shape[-2])
        self.keys = self.frame.size("keys", specs[1].shape[-2])

    def _stack_strides(self, shape: Shape) -> Strides:
        """Elements from one matrix to the next along each dimension of the result's stack, 0 where it is repeated."""
        stack = (1,) * (len(self.batch) + 2 - len(shape)) + shape[:-2]
        strides = [0 if n == 1 else prod((*stack[i + 1 :], *shape[-2:])) for i, n in enumerate(stack)]
        return tuple(strides)

    @property
    def groups(self) -> int:
        """How many there are."""
        return prod(self.batch) * self.blocks

    def write_places(self) -> None:
        """Which item of which group this is, and where its matrices begin."""
        frame, k = self.frame, self.frame.k
        self.item = k.let("int", f"(int)({self.dialect.local_id})")
        group = k.let(self.ctype, f"({self.ctype})({self.dialect.group_id})")
        high = frame.size("blocks", self.blocks)
        stack = k.let(self.ctype, f"{group} / {high}")
        # The last blocks of a causal call see the most keys: they begin first.
        place = f"{high} - 1 - ({group} - {stack} * {high})" if self.is_causal else f"{group} - {stack} * {high}"
        self.first = k.let(self.ctype, f"({place}) * {self.block}")
        """The group's first query."""
        runs = merged(range(len(self.batch)), self.batch, self._strides)
        at = frame.indices("batch", runs, stack)
        self.starts = [k.let(self.ctype, frame.place(("start", n), s, at)) for n, s in enumerate(self._strides)]
        """Where the matrices of the inputs and of the result begin."""
        self.stop = self.keys
        """Where the keys end that the group has to look at."""
        if self.is_causal:
            end = k.let(self.ctype, f"{self.first} + {self.block}")
            self.stop = k.let(self.ctype, f"({end} < {self.keys}) ? {end} : {self.keys}")

    def seen(self, row: str, column: str) -> str:
        """The condition that a query and a key are there, and that the one may look at the other."""
        causal = f" && {column} <= {row}" if self.is_causal else ""
        return f"{row} < {self.queries} && {column} < {self.keys}{causal}"

    def scale(self, k: CBuilder) -> Value:
        """The factor of the scores."""
        return k.literal(self.call.attrs["scale"], float32)

    def masked(self, k: CBuilder, score: Value, row: str, column: str) -> Value:
        """A score with the mask's element: hidden, or with its number added."""
        if not self.has_mask:
            return score
        spec = self.call.inputs[3]
        rows, columns = ((1, 1) + spec.shape)[-2:]
        terms = [self.starts[3]]
        if rows > 1:
            terms.append(f"{row} * {self.frame.size('mask rows', columns)}")
        if columns > 1:
            terms.append(column)
        mask = element_at(k, spec.dtype, "a3", k.let(self.ctype, " + ".join(terms)))
        if self.hides:
            return k.select(mask, score, k.literal(float("-inf"), float32))
        return k.add(score, k.convert(mask, float32))
