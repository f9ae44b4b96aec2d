"""Attention with many heads: grouped queries, rotary positions, and a cache of keys and values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, final

from ..._tensor.dtype import float32, int32
from ..._tensor.tensor import Tensor
from ...errors import ArgumentError, ShapeError
from ...ops import rules
from ...ops.attention import rotary_embedding, scaled_dot_product_attention
from ...ops.creation import DTypeLike, arange, zeros
from ...ops.linear import linear
from ...ops.random import generator_of
from ...ops.shape import expand_dims, moveaxis, repeat, reshape
from ...ops.updates import At
from ..init import Rng, xavier_uniform
from ..module import Module
from .linear import Linear


class KVCache(NamedTuple):
    """The keys and values of the positions that an attention has seen. `MultiHeadAttention.cache` makes an empty one.

    The memory is of a fixed length, so that a jitted step is traced once.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.MultiHeadAttention(8, 2).cache(batch=1, length=16).keys.shape
    (1, 2, 16, 4)
    """

    keys: Any
    """The keys, of shape (batch, heads, length, features)."""
    values: Any
    """The values, of the shape of the keys."""
    used: Any
    """How many positions are used, an int32 scalar."""

    def extended(self, keys: Tensor, values: Tensor) -> KVCache:
        """The cache with further positions. Positions beyond its length are lost."""
        places = self.used + arange(keys.shape[2], dtype=int32)
        at = slice(None), slice(None), places
        return KVCache(At(self.keys)[at].set(keys), At(self.values)[at].set(values), self.used + keys.shape[2])


@final
class MultiHeadAttention(Module):
    """Attention with many heads, on sequences (batch, length, features).

    The parameters are named as those of PyTorch's `MultiheadAttention`: the weights of queries, keys and values are the
    rows of `in_proj_weight`.

    Parameters
    ----------
    embed_dim : int
        The features of the input and of the output.
    num_heads : int
        The number of heads of the queries; it divides `embed_dim`.
    num_kv_heads : int, optional
        The number of heads of the keys and values; it divides `num_heads`, which it is by default. With fewer, several
        heads of the queries share one.
    bias : bool
        False: no biases.
    rotary_base : float, optional
        The base of rotary positions, such as 10000.0; none by default.
    rng : Generator or int, optional
        The generator of the initial values.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> attention = ys.nn.MultiHeadAttention(8, 4, num_kv_heads=2, rotary_base=10000.0, rng=0)
    >>> x = ys.random.default_rng(0).normal((1, 6, 8))
    >>> y = attention(x, is_causal=True)
    >>> cache, rows = attention.cache(batch=1, length=6), []
    >>> for n in range(6):
    ...     row, cache = attention(x[:, n : n + 1], cache=cache)
    ...     rows.append(row)
    >>> bool(ys.allclose(ys.concat(rows, axis=1), y, atol=1e-5))
    True
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        bias: bool = True,
        *,
        rotary_base: float | None = None,
        rng: Rng = None,
        dtype: DTypeLike = float32,
    ) -> None:
        shared = num_heads if num_kv_heads is None else num_kv_heads
        rules.counts("MultiHeadAttention", 1, embed_dim=embed_dim, num_heads=num_heads, num_kv_heads=shared)
        if num_heads < 1 or embed_dim % num_heads or shared < 1 or num_heads % shared:
            raise ArgumentError(
                f"[MultiHeadAttention] expected heads that divide {embed_dim} features, and a number of key and value "
                f"heads that divides them, got {num_heads} and {shared}"
            )
        rng = generator_of(rng)
        self.embed_dim, self.num_heads, self.num_kv_heads, self.rotary_base = embed_dim, num_heads, shared, rotary_base
        self.head_dim = embed_dim // num_heads
        rows = embed_dim + 2 * shared * self.head_dim
        self.in_proj_weight = xavier_uniform((rows, embed_dim), rng=rng, dtype=dtype)
        self.in_proj_bias = zeros((rows,), dtype=dtype) if bias else None
        out_proj = Linear(embed_dim, embed_dim, bias, rng=rng, dtype=dtype)
        self.out_proj = out_proj.replace(bias=zeros((embed_dim,), dtype=dtype)) if bias else out_proj

    def cache(self, batch: int, length: int, dtype: DTypeLike = float32) -> KVCache:
        """Return an empty cache for sequences of at most this length."""
        shape = (batch, self.num_kv_heads, length, self.head_dim)
        return KVCache(zeros(shape, dtype=dtype), zeros(shape, dtype=dtype), zeros((), dtype=int32))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
    ) -> Any:
        """Compute the attention of queries to keys, which are the queries by default, as the values are the keys.

        A bool mask is True where a query may attend to a key, and broadcasts to (batch, heads, queries, keys). With a
        cache, the keys are those of the cache and the new ones, each query attends to the positions up to its own, and
        the result is the pair (output, new cache).
        """
        key = query if key is None else key
        value = key if value is None else value
        if query.ndim != 3:
            raise ShapeError(f"[MultiHeadAttention] expected a query (batch, length, features), got {query.shape}")
        q, k, v = self._projected(query, key, value)
        start = 0 if cache is None else cache.used
        if self.rotary_base is not None:
            q, k = (rotary_embedding(t, start + arange(t.shape[2]), base=self.rotary_base) for t in (q, k))
        if cache is not None:
            if mask is not None or key is not query:
                raise ArgumentError(
                    "[MultiHeadAttention] expected a query alone with a cache, got a mask or a key, too"
                )
            cache = cache.extended(k, v)
            k, v, is_causal = cache.keys, cache.values, False
            mask = expand_dims(start + arange(q.shape[2]), axis=1) >= arange(k.shape[2])
        times = self.num_heads // self.num_kv_heads
        if times > 1:
            k, v = (repeat(t, times, axis=1) for t in (k, v))
        made = scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        out = self.out_proj(reshape(moveaxis(made, 1, 2), (*query.shape[:2], self.embed_dim)))
        return out if cache is None else (out, cache)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """The queries, keys and values of all heads, of shape (batch, heads, length, features)."""
        shared = self.num_kv_heads * self.head_dim
        ends = (0, self.embed_dim, self.embed_dim + shared, self.embed_dim + 2 * shared)
        rows = [slice(start, end) for start, end in pairwise(ends)]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if key is query and value is query:  # one product in place of three
            whole = linear(query, weight, bias)
            made = [whole[..., r] for r in rows]
        else:
            inputs = zip((query, key, value), rows, strict=True)
            made = [linear(x, weight[r], None if bias is None else bias[r]) for x, r in inputs]
        return [moveaxis(reshape(x, (*x.shape[:2], -1, self.head_dim)), 2, 1) for x in made]
