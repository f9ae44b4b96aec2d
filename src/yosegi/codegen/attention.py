"""Attention in one kernel: tiles of scores that are never in memory as a whole.

A group takes a block of queries and goes through the keys, a block at a time. It keeps, for each query, the largest
score so far, the sum of exponentials relative to it, and the weighted sum of values; when a larger score comes, both
sums shrink by the same factor. What is hidden by a mask has weight 0, and a query that sees nothing becomes 0.
"""

from __future__ import annotations

from math import prod
from typing import Final

from ..dtype import bfloat16, bool_, float16, float32
from ..node import Call, Shape
from .c import CBuilder
from .contractions import Output, merged
from .dialect import Dialect, Target
from .expressions import Strides, Sum
from .frames import Frame, multiplied
from .kernels import Inputs, Kernel
from .value import Value

_BLOCK: Final = 32
_ACROSS: Final = 8
_OWN: Final = _BLOCK // _ACROSS
"""A group is 8 items by 8: each has so many queries, and every eighth key and feature."""
_ITEMS: Final = _ACROSS * _ACROSS
_SHARED: Final = 32 << 10
"""Bytes that a group of any GPU may share."""


def attention_refusal(call: Call) -> str | None:
    """Why a call is not computed by this kernel, or `None`."""
    if call.op.name != "scaled_dot_product_attention":
        return "it is no attention"
    q, k, v = call.inputs[:3]
    if any(s.dtype not in (float16, bfloat16, float32) for s in (q, k, v)) or len({q.dtype, k.dtype, v.dtype}) > 1:
        return f"attention in {q.dtype.name}, {k.dtype.name} and {v.dtype.name}"
    across = -(-v.shape[-1] // _ACROSS) * _ACROSS
    if 4 * _BLOCK * (2 * (q.shape[-1] + 1) + across + _BLOCK + 1) > _SHARED:
        return f"{q.shape[-1]} and {v.shape[-1]} features are more than a group has memory for"
    return None


def attention_kernel(call: Call, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of a call that is not refused, whose result has elements."""
    return _Writer(call, dialect, target).written()


class _Writer:
    """Writes one kernel."""

    def __init__(self, call: Call, dialect: Dialect, target: Target) -> None:
        self.call, self.dialect = call, dialect
        shape = call.spec.shape
        self.batch: Shape = shape[:-2]
        self.features, self.values = call.inputs[0].shape[-1], shape[-1]
        specs = call.inputs
        inputs = Inputs(tuple(range(len(specs))), tuple(s.shape for s in specs), tuple(s.dtype for s in specs), ())
        self.strides = [self._stack_strides(s.shape) for s in (*specs, call.spec)]
        output = Output(len(specs), Sum(call.spec.dtype), self.strides[-1])
        elements = max(prod(s.shape) for s in (*specs, call.spec)) + _BLOCK * _BLOCK
        self.frame = Frame(dialect, target, inputs, (output,), elements)
        self.ctype = self.frame.ctype
        self.columns = -(-self.values // _ACROSS)
        self.exp = dialect.function("exp", "float")

    def _stack_strides(self, shape: Shape) -> Strides:
        """Elements from one matrix to the next along each dimension of the result's stack, 0 where it is repeated."""
        stack = (1,) * (len(self.batch) + 2 - len(shape)) + shape[:-2]
        strides = [0 if n == 1 else prod((*stack[i + 1 :], *shape[-2:])) for i, n in enumerate(stack)]
        return tuple(strides)

    def written(self) -> Kernel:
        """The whole kernel."""
        frame, k = self.frame, self.frame.k
        queries, keys = self.call.spec.shape[-2], self.call.inputs[1].shape[-2]
        self.queries, self.keys = frame.size("queries", queries), frame.size("keys", keys)
        blocks = -(-queries // _BLOCK)
        for name, size in (("q_tile", _BLOCK * (self.features + 1)), ("k_tile", _BLOCK * (self.features + 1)),
                           ("v_tile", _BLOCK * self.columns * _ACROSS), ("p_tile", _BLOCK * (_BLOCK + 1))):  # fmt: skip
            frame.shared("float", name, size)
        self.item = k.let("int", f"(int)({self.dialect.local_id})")
        group = k.let(self.ctype, f"({self.ctype})({self.dialect.group_id})")
        high = frame.size("blocks", blocks)
        stack = k.let(self.ctype, f"{group} / {high}")
        self.first = k.let(self.ctype, f"({group} - {stack} * {high}) * {_BLOCK}")
        runs = merged(range(len(self.batch)), self.batch, self.strides)
        at = frame.indices("batch", runs, stack)
        self.starts = [k.let(self.ctype, frame.place(("start", n), s, at)) for n, s in enumerate(self.strides)]
        self.row = k.let("int", f"{self.item} / {_ACROSS} * {_OWN}")
        self.column = k.let("int", f"{self.item} % {_ACROSS}")
        self._write_tile("q_tile", 0, self.features, self.features + 1, self.first, self.queries)
        k.lines += [f"float out[{_OWN * self.columns}];", f"float top[{_OWN}];", f"float total[{_OWN}];"]
        with k.block(frame.unrolled("i", _OWN)):
            k.lines += ["top[i] = -INFINITY;", "total[i] = 0.0f;"]
            with k.block(frame.unrolled("j", self.columns)):
                k.lines.append(f"out[i * {self.columns} + j] = 0.0f;")
        stop = self.keys
        if self.call.attrs["is_causal"]:
            stop = k.let(self.ctype, f"({self.first} + {_BLOCK} < {self.keys}) ? {self.first} + {_BLOCK} : {self.keys}")
        with k.block(f"for ({self.ctype} begin = 0; begin < {stop}; begin += {_BLOCK})"):
            self._write_tile("k_tile", 1, self.features, self.features + 1, "begin", self.keys)
            self._write_tile("v_tile", 2, self.values, self.columns * _ACROSS, "begin", self.keys)
            frame.barrier()
            self._write_scores()
            self._write_weights()
            self._write_sums()
        self._write_results()
        return frame.kernel(prod(self.batch) * blocks * _ITEMS, _ITEMS)

    def _write_tile(self, tile: str, operand: int, width: int, step: str | int, first: str, end: str) -> None:
        """A block of rows to shared memory; zeros beyond the end."""
        frame, k = self.frame, self.frame.k
        with k.block(f"for (int n = {self.item}; n < {_BLOCK * width}; n += {_ITEMS})"):
            row, column = k.let("int", f"n / {width}"), k.let("int", f"n % {width}")
            k.lines.append("float made = 0.0f;")
            with k.block(f"if ({first} + {row} < {end})"):
                at = k.let(self.ctype, f"{self.starts[operand]} + ({first} + {row}) * {width} + {column}")
                value = frame.element(k, self.call.inputs[operand].dtype, f"a{operand}", at)
                k.lines.append(f"made = {value.text};")
            k.lines.append(f"{tile}[{row} * {step} + {column}] = made;")

    def _write_scores(self) -> None:
        frame, k, step = self.frame, self.frame.k, self.features + 1
        with k.block(""):
            k.lines.append(f"float score[{_OWN * _OWN}];")
            with k.block(frame.unrolled("i", _OWN * _OWN)):
                k.lines.append("score[i] = 0.0f;")
            with k.block(f"for (int e = 0; e < {self.features}; e++)"):
                k.lines.append(f"float a[{_OWN}], b[{_OWN}];")
                with k.block(frame.unrolled("i", _OWN)):
                    k.lines.append(f"a[i] = q_tile[({self.row} + i) * {step} + e];")
                    k.lines.append(f"b[i] = k_tile[({self.column} + i * {_ACROSS}) * {step} + e];")
                with k.block(frame.unrolled("i", _OWN)), k.block(frame.unrolled("j", _OWN)):
                    self._add(f"score[i * {_OWN} + j]", "a[i]", "b[j]")
            with k.block(frame.unrolled("i", _OWN)), k.block(frame.unrolled("j", _OWN)):
                row = k.let(self.ctype, f"{self.first} + {self.row} + i")
                column = k.let(self.ctype, f"begin + {self.column} + j * {_ACROSS}")
                k.lines.append("float made = -INFINITY;")
                causal = f" && {column} <= {row}" if self.call.attrs["is_causal"] else ""
                with k.block(f"if ({row} < {self.queries} && {column} < {self.keys}{causal})"):
                    scale = k.literal(self.call.attrs["scale"], float32)
                    scaled = k.mul(Value(float32, f"score[i * {_OWN} + j]"), scale)
                    k.lines.append(f"made = {self._masked(k, scaled, row, column).text};")
                k.lines.append(f"p_tile[({self.row} + i) * {_BLOCK + 1} + {self.column} + j * {_ACROSS}] = made;")
        frame.barrier()

    def _masked(self, k: CBuilder, score: Value, row: str, column: str) -> Value:
        if len(self.call.inputs) < 4:
            return score
        spec = self.call.inputs[3]
        rows, columns = ((1, 1) + spec.shape)[-2:]
        terms = [self.starts[3]]
        if rows > 1:
            terms.append(f"{row} * {self.frame.size('mask rows', columns)}")
        if columns > 1:
            terms.append(column)
        mask = self.frame.element(k, spec.dtype, "a3", k.let(self.ctype, " + ".join(terms)))
        if spec.dtype is bool_:
            return k.select(mask, score, k.literal(float("-inf"), float32))
        return k.add(score, k.convert(mask, float32))

    def _write_weights(self) -> None:
        """Scores become weights, relative to the largest so far."""
        frame, k = self.frame, self.frame.k
        with k.block(""):
            k.lines.append(f"float above[{_OWN}];")
            with k.block(frame.unrolled("i", _OWN)):
                k.lines.append("above[i] = top[i];")
                with k.block(f"for (int c = 0; c < {_BLOCK}; c++)"):
                    k.lines.append(f"const float x = p_tile[({self.row} + i) * {_BLOCK + 1} + c];")
                    k.lines.append("above[i] = x > above[i] ? x : above[i];")
            frame.barrier()
            with k.block(frame.unrolled("i", _OWN)):
                k.lines.append("const float base = above[i] == -INFINITY ? 0.0f : above[i];")
                k.lines.append(f"const float shrunk = {self.exp}(top[i] - base);")
                k.lines += ["top[i] = above[i];", "total[i] *= shrunk;"]
                with k.block(frame.unrolled("j", self.columns)):
                    k.lines.append(f"out[i * {self.columns} + j] *= shrunk;")
                with k.block(frame.unrolled("j", _OWN)):
                    at = f"({self.row} + i) * {_BLOCK + 1} + {self.column} + j * {_ACROSS}"
                    k.lines.append(f"p_tile[{at}] = {self.exp}(p_tile[{at}] - base);")
        frame.barrier()

    def _write_sums(self) -> None:
        frame, k = self.frame, self.frame.k
        with k.block(f"for (int c = 0; c < {_BLOCK}; c++)"):
            k.lines.append(f"float weight[{_OWN}];")
            with k.block(frame.unrolled("i", _OWN)):
                k.lines.append(f"weight[i] = p_tile[({self.row} + i) * {_BLOCK + 1} + c];")
                k.lines.append("total[i] += weight[i];")
            with k.block(frame.unrolled("j", self.columns)):
                at = f"c * {self.columns * _ACROSS} + {self.column} + j * {_ACROSS}"
                k.lines.append(f"const float value = v_tile[{at}];")
                with k.block(frame.unrolled("i", _OWN)):
                    self._add(f"out[i * {self.columns} + j]", "weight[i]", "value")
        frame.barrier()

    def _add(self, onto: str, a: str, b: str) -> None:
        k = self.frame.k
        k.lines.append(f"{onto} = {multiplied(k, Value(float32, a), Value(float32, b), Value(float32, onto)).text};")

    def _write_results(self) -> None:
        frame, k = self.frame, self.frame.k
        hides = len(self.call.inputs) > 3 and self.call.inputs[3].dtype is bool_
        with k.block(frame.unrolled("i", _OWN)):
            row = k.let(self.ctype, f"{self.first} + {self.row} + i")
            with k.block(f"if ({row} < {self.queries})"), k.block(frame.unrolled("j", self.columns)):
                column = k.let("int", f"{self.column} + j * {_ACROSS}")
                with k.block(f"if ({column} < {self.values})"):
                    value = f"out[i * {self.columns} + j] / total[i]"
                    made = k.number(float32, f"total[i] == 0.0f ? 0.0f : {value}" if hides else value)
                    stored = k.rounded(k.convert(made, self.call.spec.dtype))
                    frame.put(k, stored, "b0", f"{self.starts[-1]} + {row} * {self.values} + {column}")
