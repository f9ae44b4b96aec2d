"""Recurrent layers over `scan`: one operation in the graph for each layer and direction, whatever the length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import sqrt
from typing import Any, ClassVar, final

from ..._tensor.dtype import float32
from ..._tensor.tensor import Tensor
from ..._trace.control.scans import scan
from ...errors import ShapeError
from ...ops import rules
from ...ops.activation import sigmoid
from ...ops.creation import DTypeLike, zeros
from ...ops.elementwise import tanh
from ...ops.linear import linear
from ...ops.random import generator_of
from ...ops.shape import concat, moveaxis, stack
from ..init import Rng, uniform
from ..module import Module


class _Recurrent(Module, ABC):
    """Layers of cells, in one or both directions, on sequences (batch, length, features)."""

    gates: ClassVar[int]
    """The rows of a weight for each hidden feature."""
    states: ClassVar[int] = 1
    """The tensors that a cell hands on."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        bidirectional: bool = False,
        *,
        rng: Rng = None,
        dtype: DTypeLike = float32,
    ) -> None:
        op = type(self).__name__
        rules.counts(op, input_size=input_size)
        rules.counts(op, 1, hidden_size=hidden_size, num_layers=num_layers)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bidirectional = bidirectional
        rng, bound = generator_of(rng), 1 / sqrt(hidden_size)
        for layer in range(num_layers):
            inputs = hidden_size * (1 + bidirectional) if layer else input_size
            for name in self._names(layer):
                for kind, columns in (("ih", inputs), ("hh", hidden_size)):
                    shape = (self.gates * hidden_size, columns)
                    setattr(self, f"weight_{kind}_{name}", uniform(shape, -bound, bound, rng=rng, dtype=dtype))
                for kind in ("ih", "hh"):
                    made = uniform(shape[:1], -bound, bound, rng=rng, dtype=dtype) if bias else None
                    setattr(self, f"bias_{kind}_{name}", made)

    def _names(self, layer: int) -> tuple[str, ...]:
        return (f"l{layer}", f"l{layer}_reverse") if self.bidirectional else (f"l{layer}",)

    @abstractmethod
    def cell(self, given: Tensor, state: tuple[Tensor, ...], recurrent: Callable[[Tensor], Tensor]) -> Any:
        """The next state from the products of the input, the state, and the product with its first tensor."""

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the outputs of the last layer, and the last state of each layer and direction, stacked."""
        if x.ndim != 3 or x.shape[2] != self.input_size:
            raise ShapeError(f"[{type(self).__name__}] expected x (batch, length, {self.input_size}), got {x.shape}")
        given = (state,) if isinstance(state, Tensor) else state
        lasts: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for name in self._names(layer):
                first = tuple(t[len(lasts)] for t in given) if given is not None else self._nothing(x)
                output, last = self._run(x, first, name)
                outputs.append(output)
                lasts.append(last)
            x = concat(outputs, axis=-1) if self.bidirectional else outputs[0]
        ends = tuple(stack([last[n] for last in lasts]) for n in range(self.states))
        return x, ends if self.states > 1 else ends[0]

    def _nothing(self, x: Tensor) -> tuple[Tensor, ...]:
        return (zeros((x.shape[0], self.hidden_size), dtype=x.dtype),) * self.states

    def _run(self, x: Tensor, first: tuple[Tensor, ...], name: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction."""
        own = {kind: getattr(self, f"{kind}_{name}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}

        def step(state: tuple[Tensor, ...], row: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            new = self.cell(row, state, lambda h: linear(h, own["weight_hh"], own["bias_hh"]))
            return new, new[0]

        # The products of all rows of the input at once: only those of the state must wait for each other.
        rows = moveaxis(linear(x, own["weight_ih"], own["bias_ih"]), 1, 0)
        first = tuple(t.astype(rows.dtype) for t in first)
        last, outputs = scan(step, first, rows, reverse=name.endswith("_reverse"))
        return moveaxis(outputs, 0, 1), last

    def _parts(self, x: Tensor) -> list[Tensor]:
        """The gates of a product, one beside another."""
        size = self.hidden_size
        return [x[:, n * size : (n + 1) * size] for n in range(self.gates)]


_DOC = """{summary}

    Parameters
    ----------
    input_size : int
        The features of the input, of shape (batch, length, features).
    hidden_size : int
        The features of a state.
    num_layers : int
        The number of layers, each on the outputs of the one before.
    bias : bool
        False: no biases.
    bidirectional : bool
        True: each layer runs in both directions, and its outputs stand side by side.
    rng : Generator or int, optional
        The generator of the initial values.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> y, last = ys.nn.{name}(3, 4, num_layers=2, bidirectional=True)(ys.ones((2, 5, 3)))
    >>> y.shape, ys.tree_leaves(last)[0].shape
    ((2, 5, 8), (4, 2, 4))
    """


@final
class RNN(_Recurrent):
    __doc__ = _DOC.format(summary="Recurrent layers with the cell h = tanh(W x + b + U h + c).", name="RNN")
    gates = 1

    def cell(self, given: Tensor, state: tuple[Tensor, ...], recurrent: Callable[[Tensor], Tensor]) -> Any:
        """The next state."""
        return (tanh(given + recurrent(state[0])),)


@final
class LSTM(_Recurrent):
    __doc__ = _DOC.format(summary="Recurrent layers of long short-term memory. A state is a pair (h, c).", name="LSTM")
    gates, states = 4, 2

    def cell(self, given: Tensor, state: tuple[Tensor, ...], recurrent: Callable[[Tensor], Tensor]) -> Any:
        """The next state and memory."""
        i, f, g, o = self._parts(given + recurrent(state[0]))
        memory = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(memory), memory


@final
class GRU(_Recurrent):
    __doc__ = _DOC.format(summary="Recurrent layers of gated recurrent units.", name="GRU")
    gates = 3

    def cell(self, given: Tensor, state: tuple[Tensor, ...], recurrent: Callable[[Tensor], Tensor]) -> Any:
        """The next state."""
        (r, z, n), (rh, zh, nh) = self._parts(given), self._parts(recurrent(state[0]))
        update = sigmoid(z + zh)
        return ((1 - update) * tanh(n + sigmoid(r + rh) * nh) + update * state[0],)
