"""Attention in one kernel: tiles of scores that are never in memory as a whole.

A block takes a tile of queries and goes through the keys, a tile at a time. It keeps, for each query, the largest
score so far, the sum of exponentials relative to it, and the weighted sum of values; when a larger score comes, both
sums shrink by the same factor. What is hidden by a mask has weight 0, and a query that sees nothing becomes 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from ..._tensor.dtype import bfloat16, bool_, float16, float32
from ..._tensor.node import Call, Shape, Spec
from ..._tensor.role import Attention
from ..scalar.value import Value
from .builder import CBuilder
from .contractions import Output, merged
from .dialect import Dialect
from .expressions import Strides, Sum
from .frames import Frame, multiplied
from .kernel_source import Inputs, Kernel
from .packets import element_at


def attention_refusal(call: Call) -> str | None:
    """Why a call is computed by no kernel of attention, or `None`."""
    if not isinstance(call.op.role, Attention):
        return "it is no attention"
    return operands_refusal(call)


def operands_refusal(call: Call) -> str | None:
    """Why no kernel reads the operands of attention, or of its gradient, or `None`."""
    dtypes = dict.fromkeys(s.dtype for s in call.inputs[: len(call.inputs) - len(call.attrs["given"])])
    if len(dtypes) > 1 or not dtypes.keys() <= {float16, bfloat16, float32}:
        return f"attention in {' and '.join(d.name for d in dtypes)}"
    return None


class Attending:
    """A kernel of attention, or of its gradient, while it is written. A block takes a tile of a matrix of queries, or
    of keys."""

    def __init__(
        self, call: Call, dialect: Dialect, block: int,
        reads: Sequence[Spec] = (), writes: Sequence[Spec] = (), *, by_keys: bool = False,
    ) -> None:  # fmt: skip
        """The kernel reads and writes the arrays of the call, or others; if there is a mask, it is the last that is
        read."""
        self.call, self.dialect, self.block, self.by_keys = call, dialect, block, by_keys
        specs, results = reads or call.inputs, writes or call.outputs
        q, keys, v = call.inputs[:3]
        self.batch: Shape = call.spec.shape[:-2]
        self.features, self.values = q.shape[-1], v.shape[-1]
        inputs = Inputs(tuple(range(len(specs))), tuple(s.shape for s in specs), tuple(s.dtype for s in specs), ())
        self._strides = [self._stack_strides(s.shape) for s in (*specs, *results)]
        self._reads = len(specs)
        outputs = [Output(n, Sum(s.dtype), self._strides[n]) for n, s in enumerate(results, len(specs))]
        elements = max(prod(s.shape) for s in (*specs, *results)) + block * block
        self.frame = Frame(dialect, inputs, outputs, elements)
        self.ctype = self.frame.ctype
        self.is_causal: bool = call.attrs["is_causal"]
        self.has_mask = "mask" in call.attrs["given"]
        self.hides = self.has_mask and specs[-1].dtype is bool_
        """True if there may be queries that see nothing, which become 0."""
        self.adds = self.has_mask and not self.hides
        """True if numbers are added to the scores."""
        self.blocks = -(-(keys if by_keys else q).shape[-2] // block)
        self.queries = self.frame.size("queries", q.shape[-2])
        self.keys = self.frame.size("keys", keys.shape[-2])

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
        """Which thread of which block this is, and where its matrices begin."""
        frame, k = self.frame, self.frame.k
        self.item = k.let("int", f"(int)({self.dialect.local_id})")
        group = k.let(self.ctype, f"({self.ctype})({self.dialect.group_id})")
        high = frame.size("blocks", self.blocks)
        stack = k.let(self.ctype, f"{group} / {high}")
        # The last queries of a causal call see the most keys: their blocks begin first.
        is_reversed = self.is_causal and not self.by_keys
        place = f"{high} - 1 - ({group} - {stack} * {high})" if is_reversed else f"{group} - {stack} * {high}"
        self.first = k.let(self.ctype, f"({place}) * {self.block}")
        """The block's first query, or key."""
        runs = merged(range(len(self.batch)), self.batch, self._strides)
        at = frame.indices("batch", runs, stack)
        starts = [k.let(self.ctype, frame.place(("start", n), s, at)) for n, s in enumerate(self._strides)]
        self.starts, self.results = starts[: self._reads], starts[self._reads :]
        """Where the matrices that are read, and those that are written, begin."""
        self.stop = self.queries if self.by_keys else self.keys
        """Where the keys end that the block has to look at; of a block of keys, the queries."""
        if self.is_causal and not self.by_keys:
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
        spec = self.call.inputs[-1]
        rows, columns = ((1, 1) + spec.shape)[-2:]
        terms = [self.starts[-1]]
        if rows > 1:
            terms.append(f"{row} * {self.frame.size('mask rows', columns)}")
        if columns > 1:
            terms.append(column)
        mask = element_at(k, spec.dtype, f"a{self._reads - 1}", k.let(self.ctype, " + ".join(terms)))
        if self.hides:
            return k.select(mask, score, k.literal(float("-inf"), float32))
        return k.add(score, k.convert(mask, float32))


_BLOCK: Final = 32
_ACROSS: Final = 8
_OWN: Final = _BLOCK // _ACROSS
"""A block is 8 threads by 8: each has so many queries, and every eighth key and feature."""
_ITEMS: Final = _ACROSS * _ACROSS
_SHARED: Final = 32 << 10
"""Bytes that a block of any GPU may share."""


def plain_refusal(call: Call) -> str | None:
    """Why a call is not computed by this kernel, or `None`."""
    reason = attention_refusal(call)
    if reason is not None:
        return reason
    features, values = call.inputs[0].shape[-1], call.spec.shape[-1]
    across = -(-values // _ACROSS) * _ACROSS
    if 4 * _BLOCK * (2 * (features + 1) + across + _BLOCK + 1) > _SHARED:
        return f"{features} and {values} features are more than a group has memory for"
    return None


def plain_attention(call: Call, dialect: Dialect) -> Kernel:
    """The kernel of a call that is not refused, whose result has elements."""
    return _PlainAttention(Attending(call, dialect, _BLOCK)).written()


class _PlainAttention:
    """Writes one kernel."""

    def __init__(self, own: Attending) -> None:
        self.own, self.call, self.frame, self.ctype = own, own.call, own.frame, own.ctype
        self.features, self.values = own.features, own.values
        self.columns = -(-self.values // _ACROSS)
        self.exp = own.dialect.function("exp", "float")

    def written(self) -> Kernel:
        """The whole kernel."""
        frame, k = self.frame, self.frame.k
        for name, size in (("q_tile", _BLOCK * (self.features + 1)), ("k_tile", _BLOCK * (self.features + 1)),
                           ("v_tile", _BLOCK * self.columns * _ACROSS), ("p_tile", _BLOCK * (_BLOCK + 1))):  # fmt: skip
            k.shared("float", name, size)
        self.own.write_places()
        self.item, self.first, self.starts = self.own.item, self.own.first, self.own.starts
        self.queries, self.keys = self.own.queries, self.own.keys
        self.row = k.let("int", f"{self.item} / {_ACROSS} * {_OWN}")
        self.column = k.let("int", f"{self.item} % {_ACROSS}")
        self._write_tile("q_tile", 0, self.features, self.features + 1, self.first, self.queries)
        k.lines += [f"float out[{_OWN * self.columns}];", f"float top[{_OWN}];", f"float total[{_OWN}];"]
        with k.each("i", _OWN):
            k.lines += ["top[i] = -INFINITY;", "total[i] = 0.0f;"]
            with k.each("j", self.columns):
                k.say(f"out[i * {self.columns} + j] = 0.0f")
        with k.block(f"for ({self.ctype} begin = 0; begin < {self.own.stop}; begin += {_BLOCK})"):
            self._write_tile("k_tile", 1, self.features, self.features + 1, "begin", self.keys)
            self._write_tile("v_tile", 2, self.values, self.columns * _ACROSS, "begin", self.keys)
            k.barrier()
            self._write_scores()
            self._write_weights()
            self._write_sums()
        self._write_results()
        return frame.kernel(self.own.groups * _ITEMS, _ITEMS)

    def _write_tile(self, tile: str, operand: int, width: int, step: str | int, first: str, end: str) -> None:
        """A block of rows to shared memory; zeros beyond the end."""
        k = self.frame.k
        with k.block(f"for (int n = {self.item}; n < {_BLOCK * width}; n += {_ITEMS})"):
            row, column = k.let("int", f"n / {width}"), k.let("int", f"n % {width}")
            k.say("float made = 0.0f")
            with k.block(f"if ({first} + {row} < {end})"):
                at = k.let(self.ctype, f"{self.starts[operand]} + ({first} + {row}) * {width} + {column}")
                value = element_at(k, self.call.inputs[operand].dtype, f"a{operand}", at)
                k.say(f"made = {value.text}")
            k.say(f"{tile}[{row} * {step} + {column}] = made")

    def _write_scores(self) -> None:
        k, step = self.frame.k, self.features + 1
        with k.block(""):
            k.say(f"float score[{_OWN * _OWN}]")
            with k.each("i", _OWN * _OWN):
                k.say("score[i] = 0.0f")
            with k.block(f"for (int e = 0; e < {self.features}; e++)"):
                k.say(f"float a[{_OWN}], b[{_OWN}]")
                with k.each("i", _OWN):
                    k.say(f"a[i] = q_tile[({self.row} + i) * {step} + e]")
                    k.say(f"b[i] = k_tile[({self.column} + i * {_ACROSS}) * {step} + e]")
                with k.each("i", _OWN), k.each("j", _OWN):
                    self._add(f"score[i * {_OWN} + j]", "a[i]", "b[j]")
            with k.each("i", _OWN), k.each("j", _OWN):
                row = k.let(self.ctype, f"{self.first} + {self.row} + i")
                column = k.let(self.ctype, f"begin + {self.column} + j * {_ACROSS}")
                k.say("float made = -INFINITY")
                with k.block(f"if ({self.own.seen(row, column)})"):
                    scaled = k.mul(Value(float32, f"score[i * {_OWN} + j]"), self.own.scale(k))
                    k.say(f"made = {self.own.masked(k, scaled, row, column).text}")
                k.say(f"p_tile[({self.row} + i) * {_BLOCK + 1} + {self.column} + j * {_ACROSS}] = made")
        k.barrier()

    def _write_weights(self) -> None:
        """Scores become weights, relative to the largest so far."""
        k = self.frame.k
        with k.block(""):
            k.say(f"float above[{_OWN}]")
            with k.each("i", _OWN):
                k.say("above[i] = top[i]")
                with k.block(f"for (int c = 0; c < {_BLOCK}; c++)"):
                    k.say(f"const float x = p_tile[({self.row} + i) * {_BLOCK + 1} + c]")
                    k.say("above[i] = x > above[i] ? x : above[i]")
            k.barrier()
            with k.each("i", _OWN):
                k.say("const float base = above[i] == -INFINITY ? 0.0f : above[i]")
                k.say(f"const float shrunk = {self.exp}(top[i] - base)")
                k.lines += ["top[i] = above[i];", "total[i] *= shrunk;"]
                with k.each("j", self.columns):
                    k.say(f"out[i * {self.columns} + j] *= shrunk")
                with k.each("j", _OWN):
                    at = f"({self.row} + i) * {_BLOCK + 1} + {self.column} + j * {_ACROSS}"
                    k.say(f"p_tile[{at}] = {self.exp}(p_tile[{at}] - base)")
        k.barrier()

    def _write_sums(self) -> None:
        k = self.frame.k
        with k.block(f"for (int c = 0; c < {_BLOCK}; c++)"):
            k.say(f"float weight[{_OWN}]")
            with k.each("i", _OWN):
                k.say(f"weight[i] = p_tile[({self.row} + i) * {_BLOCK + 1} + c]")
                k.say("total[i] += weight[i]")
            with k.each("j", self.columns):
                at = f"c * {self.columns * _ACROSS} + {self.column} + j * {_ACROSS}"
                k.say(f"const float value = v_tile[{at}]")
                with k.each("i", _OWN):
                    self._add(f"out[i * {self.columns} + j]", "weight[i]", "value")
        k.barrier()

    def _add(self, onto: str, a: str, b: str) -> None:
        k = self.frame.k
        k.say(f"{onto} = {multiplied(k, Value(float32, a), Value(float32, b), Value(float32, onto)).text}")

    def _write_results(self) -> None:
        frame, k = self.frame, self.frame.k
        with k.each("i", _OWN):
            row = k.let(self.ctype, f"{self.first} + {self.row} + i")
            with k.block(f"if ({row} < {self.queries})"), k.each("j", self.columns):
                column = k.let("int", f"{self.column} + j * {_ACROSS}")
                with k.block(f"if ({column} < {self.values})"):
                    value = f"out[i * {self.columns} + j] / total[i]"
                    made = k.number(float32, f"total[i] == 0.0f ? 0.0f : {value}" if self.own.hides else value)
                    stored = k.rounded(k.convert(made, self.call.spec.dtype))
                    frame.put(k, stored, "b0", f"{self.own.results[0]} + {row} * {self.values} + {column}")
