"""Layers of transformers, with the parameter names of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from ..._tensor.dtype import float32
from ..._tensor.tensor import Tensor
from ...ops.activation import relu
from ...ops.creation import DTypeLike
from ...ops.random import generator_of
from ..init import Rng
from ..module import Module
from .attention import MultiHeadAttention
from .dropout import Dropout
from .linear import Linear
from .norm import LayerNorm


@final
class TransformerEncoderLayer(Module):
    """Attention of a sequence (batch, length, features) to itself, then two linear maps, each added to its input.

    Parameters
    ----------
    d_model : int
        The features of the sequence.
    nhead : int
        The number of heads.
    dim_feedforward : int
        The features between the two linear maps.
    dropout : float
        The probability of a zero, behind the attention, between the linear maps and behind them.
    activation : callable
        The function between the linear maps.
    layer_norm_eps : float
        Added to the variance by the norms.
    norm_first : bool
        True: the norms stand before the attention and the linear maps, else behind the sums.
    bias : bool
        False: no biases.
    rotary_base : float, optional
        The base of rotary positions; none by default.
    rng : Generator or int, optional
        The generator of the initial values and of the dropouts.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> layer = ys.nn.TransformerEncoderLayer(8, 2, 16).eval()
    >>> layer(ys.ones((1, 5, 8)), is_causal=True).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Callable[[Tensor], Tensor] = relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        rotary_base: float | None = None,
        rng: Rng = None,
        dtype: DTypeLike = float32,
    ) -> None:
        rng, kind = generator_of(rng), {"bias": bias, "dtype": dtype}
        self.self_attn = MultiHeadAttention(d_model, nhead, rotary_base=rotary_base, rng=rng, **kind)
        self.linear1 = Linear(d_model, dim_feedforward, rng=rng, **kind)
        self.dropout = Dropout(dropout, rng=rng)
        self.linear2 = Linear(dim_feedforward, d_model, rng=rng, **kind)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, **kind)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, **kind)
        self.dropout1, self.dropout2 = Dropout(dropout, rng=rng), Dropout(dropout, rng=rng)
        self.activation, self.norm_first = activation, norm_first

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False, *, cache: Any = None) -> Any:
        """Compute the layer; with a cache of `self_attn`, the pair (output, new cache)."""
        given = self.norm1(x) if self.norm_first else x
        seen = self.self_attn(given, mask=mask, is_causal=is_causal, cache=cache)
        seen, cache = seen if cache is not None else (seen, None)
        x = x + self.dropout1(seen)
        x = x if self.norm_first else self.norm1(x)
        x = x + fed_forward(self, self.norm2(x) if self.norm_first else x, self.dropout2)
        x = x if self.norm_first else self.norm2(x)
        return x if cache is None else (x, cache)


def fed_forward(layer: Any, x: Tensor, last: Dropout) -> Tensor:
    """The two linear maps of a layer, with the activation function and dropouts."""
    return last(layer.linear2(layer.dropout(layer.activation(layer.linear1(x)))))  # type: ignore[no-any-return]


@final
class TransformerDecoderLayer(Module):
    """Attention of a sequence to itself, then to another sequence, then two linear maps, each added to its input.

    Parameters
    ----------
    d_model : int
        The features of both sequences.
    nhead : int
        The number of heads.
    dim_feedforward : int
        The features between the two linear maps.
    dropout : float
        The probability of a zero, behind the attentions, between the linear maps and behind them.
    activation : callable
        The function between the linear maps.
    layer_norm_eps : float
        Added to the variance by the norms.
    norm_first : bool
        True: the norms stand before the attentions and the linear maps, else behind the sums.
    bias : bool
        False: no biases.
    rng : Generator or int, optional
        The generator of the initial values and of the dropouts.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> layer = ys.nn.TransformerDecoderLayer(8, 2, 16).eval()
    >>> layer(ys.ones((1, 5, 8)), ys.ones((1, 3, 8)), is_causal=True).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Callable[[Tensor], Tensor] = relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        rng: Rng = None,
        dtype: DTypeLike = float32,
    ) -> None:
        rng, kind = generator_of(rng), {"bias": bias, "dtype": dtype}
        self.self_attn = MultiHeadAttention(d_model, nhead, rng=rng, **kind)
        self.multihead_attn = MultiHeadAttention(d_model, nhead, rng=rng, **kind)
        self.linear1 = Linear(d_model, dim_feedforward, rng=rng, **kind)
        self.dropout = Dropout(dropout, rng=rng)
        self.linear2 = Linear(dim_feedforward, d_model, rng=rng, **kind)
        norms = [LayerNorm(d_model, layer_norm_eps, **kind) for _ in range(3)]
        self.norm1, self.norm2, self.norm3 = norms
        self.dropout1, self.dropout2, self.dropout3 = [Dropout(dropout, rng=rng) for _ in range(3)]
        self.activation, self.norm_first = activation, norm_first

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Compute the layer for a sequence and the memory that it attends to."""
        steps: list[tuple[LayerNorm, Callable[[Tensor], Tensor]]] = [
            (self.norm1, lambda x: self.dropout1(self.self_attn(x, mask=mask, is_causal=is_causal))),
            (self.norm2, lambda x: self.dropout2(self.multihead_attn(x, memory, mask=memory_mask))),
            (self.norm3, lambda x: fed_forward(self, x, self.dropout3)),
        ]
        for norm, step in steps:
            x = x + step(norm(x)) if self.norm_first else norm(x + step(x))
        return x
