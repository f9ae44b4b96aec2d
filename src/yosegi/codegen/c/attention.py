"""Attention in one kernel: tiles of scores that are never in memory as a whole.

A group takes a block of queries and goes through the keys, a block at a time. It keeps, for each query, the largest
score so far, the sum of exponentials relative to it, and the weighted sum of values; when a larger score comes, both
sums shrink by the same factor. What is hidden by a mask has weight 0, and a query that sees nothing becomes 0.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import float32
from ..._tensor.node import Call
from ..scalar.value import Value
from .attention_call import Attending, attention_refusal
from .dialect import Dialect
from .frames import multiplied
from .kernel_source import Kernel
from .packets import element_at

_BLOCK: Final = 32
_ACROSS: Final = 8
_OWN: Final = _BLOCK // _ACROSS
"""A group is 8 items by 8: each has so many queries, and every eighth key and feature."""
_ITEMS: Final = _ACROSS * _ACROSS
_SHARED: Final = 32 << 10
"""Bytes that a group of any GPU may share."""


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
                    frame.put(k, stored, "b0", f"{self.starts[-1]} + {row} * {self.values} + {column}")
