"""Random numbers, reproducible everywhere: `ys.random`.

A generator is a seed and a count of draws. Each draw takes the next number at the call, so what a draw gives is
settled there, whenever and wherever it is computed (see `philox`). In a jitted function every replay draws afresh,
and gives what the function would give without `jit`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from math import pi, prod
from threading import Lock
from typing import Any, Final

import numpy as np

from .._tensor.dtype import (
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DType,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    int64,
    int_info,
    number_type,
    uint32,
    uint64,
)
from .._tensor.node import Shape
from .._tensor.op import from_array
from .._tensor.tensor import Array, Tensor
from .._trace.tracing import fed, is_tracing
from ..errors import ArgumentError, DTypeError, ShapeError, TraceError
from . import rules
from .creation import DTypeLike, asarray
from .elementwise import cos, log, sqrt
from .index import gather
from .philox import philox
from .reduce import cumulative_sum
from .shape import reshape
from .sort import argsort, searchsorted

ShapeLike = int | Sequence[int]
Real = Tensor | float

_DIGITS: Final = {float16: 11, bfloat16: 8, float32: 24}
"""The bits that a number in [0, 1) can have so that it is exact in the dtype, and never rounds up to 1."""


class Generator:
    """A stream of random draws. Safe to share between threads; a pickled one goes on where the original stood.

    >>> import yosegi as ys
    >>> ys.random.default_rng(0).integers(0, 10, (4,)).shape
    (4,)
    """

    __slots__ = ("_draws", "_is_traced", "_lock", "_seed")

    def __init__(self, seed: int | None = None) -> None:
        self._lock = Lock()
        self._reset(seed)

    def _reset(self, seed: int | None) -> None:
        if seed is not None and not (isinstance(seed, (int, np.integer)) and 0 <= seed < 1 << 64):
            raise ArgumentError(f"[Generator] expected an integer from 0 to 2**64 - 1 as seed, got {seed!r}")
        with self._lock:
            self._seed = secrets.randbits(64) if seed is None else int(seed)
            self._draws = 0
            # Made from a fixed seed by a function being traced, it would be made again at every call of that function.
            self._is_traced = seed is not None and is_tracing()

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, draws={self._draws})"

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            return _restored, (self._seed, self._draws)

    @rules.named
    def split(self, n: int, /) -> list[Generator]:
        """Independent generators, whose streams have nothing to do with each other's or with this one's."""
        if is_tracing() and not self._is_traced:
            raise TraceError("[split] expected a call outside of a traced function; split before it, pass the parts in")
        seeds = philox.body(self._take(), shape=rules.normal_shape((n,)), words=2).astype(np.uint64)
        return [Generator(low | high << 32) for low, high in zip(*seeds.tolist(), strict=True)]

    def _take(self) -> Array:
        """The next draw's state."""
        with self._lock:
            draw = self._draws
            self._draws += 1
            seed = self._seed
        words = (seed & 0xFFFFFFFF, seed >> 32, draw & 0xFFFFFFFF, draw >> 32)
        return np.array(words, np.uint32)

    def draw(self) -> Tensor:
        """The state of the next draw, for ops that make random words of it themselves (see `philox`)."""
        return from_array(self._take()) if self._is_traced and is_tracing() else fed(self._take, (4,), uint32)

    def _words(self, shape: ShapeLike, count: int) -> list[Tensor]:
        planes = philox(self.draw(), shape=rules.normal_shape(shape), words=count)
        return [planes[i] for i in range(count)]

    def _long_words(self, shape: ShapeLike, count: int) -> list[Tensor]:
        words = [w.astype(uint64) for w in self._words(shape, 2 * count)]
        return [high << 32 | low for high, low in zip(words[::2], words[1::2], strict=True)]

    # Real numbers

    @rules.named
    def uniform(
        self, shape: ShapeLike = (), *, low: Real = 0.0, high: Real = 1.0, dtype: DTypeLike = DEFAULT_FLOAT
    ) -> Tensor:
        """Evenly distributed numbers from `low` to below `high`, on a grid as fine as the dtype has just below 1.

        For bounds other than 0 and 1, rounding may give `high` itself.
        """
        result, low, high = _floating(dtype), _real(low, "low"), _real(high, "high")
        if result is float64:
            unit = _unit_double(*self._words(shape, 2))
        else:
            digits = _DIGITS[result]
            unit = (self._words(shape, 1)[0] >> (32 - digits)).astype(float32) * 2.0**-digits
        return _affine(unit, high - low, low).astype(result)

    @rules.named
    def random(self, shape: ShapeLike = (), *, dtype: DTypeLike = DEFAULT_FLOAT) -> Tensor:
        """Evenly distributed numbers from 0 to below 1."""
        return self.uniform(shape, dtype=dtype)

    @rules.named
    def normal(
        self, shape: ShapeLike = (), *, mean: Real = 0.0, std: Real = 1.0, dtype: DTypeLike = DEFAULT_FLOAT
    ) -> Tensor:
        """Normally distributed numbers.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).normal((3, 4)).shape
        (3, 4)
        """
        result, mean, std = _floating(dtype), _real(mean, "mean"), _real(std, "std")
        if result is float64:
            words = self._words(shape, 4)
            length, turn = _unit_double(*words[:2]) + 2.0**-53, _unit_double(*words[2:])
        else:
            first, second = self._words(shape, 2)
            length, turn = _above_zero(first), second.astype(float32) * 2.0**-32
        # Box and Muller: a point of the plane, from its squared distance and its angle.
        return _affine(sqrt(log(length) * -2.0) * cos(turn * (2 * pi)), std, mean).astype(result)

    @rules.named
    def exponential(self, shape: ShapeLike = (), *, scale: Real = 1.0, dtype: DTypeLike = DEFAULT_FLOAT) -> Tensor:
        """Exponentially distributed numbers; `scale` is their mean."""
        result, scale = _floating(dtype), _real(scale, "scale")
        return _affine(-log(self._positive(shape, result)), scale, 0.0).astype(result)

    def _positive(self, shape: ShapeLike, dtype: DType) -> Tensor:
        """Evenly distributed numbers above 0, up to 1."""
        if dtype is float64:
            return _unit_double(*self._words(shape, 2)) + 2.0**-53
        return _above_zero(self._words(shape, 1)[0])

    # Whole numbers and choices

    @rules.named
    def integers(
        self,
        low: int,
        high: int | None = None,
        shape: ShapeLike = (),
        *,
        dtype: DTypeLike = DEFAULT_INT,
        endpoint: bool = False,
    ) -> Tensor:
        """Evenly distributed integers from `low` to below `high`, or from 0 to below `low`. `endpoint` adds the end.

        An integer's probability is off by less than one part in 2**32, or in 2**64 where there are more than 2**32.
        """
        start, stop = (rules.as_index(bound, "a bound") for bound in ((0, low) if high is None else (low, high)))
        count = stop - start + bool(endpoint)
        result = as_dtype(dtype)
        if not result.is_integer:
            raise DTypeError(f"expected an integer dtype, got {result.name}; cast the result with astype")
        info = int_info(result)
        if count <= 0:
            raise ArgumentError(f"expected low below high, got {start} and {stop}")
        if start < info.min or start + count - 1 > info.max:
            raise ArgumentError(f"expected bounds that fit {result.name}, got {start} and {stop}")
        made = self._below(count, shape)
        # Adding modulo 2**64 is right for negative numbers too.
        shifted = made + start % (1 << 64) if start else made
        return shifted if result is uint64 else shifted.astype(int64).astype(result)

    def _below(self, count: int, shape: ShapeLike) -> Tensor:
        """Integers below `count` as uint64: random bits, read as a fraction, times `count`."""
        if count <= 1 << 32:
            high, low = (w.astype(uint64) for w in self._words(shape, 2))
            return high * count + (low * count >> 32) >> 32
        high, low = self._long_words(shape, 2)
        if count == 1 << 64:
            return high
        product = high * count
        carry = (product + _high_product(low, count) < product).astype(uint64)
        return _high_product(high, count) + carry

    @rules.named
    def bernoulli(self, p: Real, shape: ShapeLike | None = None) -> Tensor:
        """True with probability `p`, to within 2**-24; by default one for each element of `p`."""
        p = _real(p, "a probability")
        if not isinstance(p, Tensor) and not 0 <= p <= 1:
            raise ArgumentError(f"expected a probability from 0 to 1, got {p}")
        own: Shape = p.shape if isinstance(p, Tensor) else ()
        return self.uniform(own if shape is None else shape, dtype=float32) < p

    @rules.named
    def permutation(self, x: int | Tensor, /, *, axis: int = 0) -> Tensor:
        """The integers below `x`, or the slices of the tensor `x` along an axis, in random order."""
        x = _pool(x)
        if not isinstance(x, Tensor):
            return argsort(self._long_words(x, 1)[0])
        dim = rules.normal_axis(axis, x.ndim)
        return gather(x, self.permutation(x.shape[dim]), axes=(dim,), at=dim)

    @rules.named
    def choice(
        self, a: int | Tensor, shape: ShapeLike = (), *, replace: bool = True, p: Any = None, axis: int = 0
    ) -> Tensor:
        """Random elements of the integers below `a`, or slices of the tensor `a` along an axis.

        `p` are their probabilities, even by default. Without replacement none is chosen twice.
        """
        a, lengths = _pool(a), rules.normal_shape(shape)
        dim = rules.normal_axis(axis, a.ndim) if isinstance(a, Tensor) else 0
        n = a.shape[dim] if isinstance(a, Tensor) else a
        if n <= 0 < prod(lengths):
            raise ArgumentError(f"expected at least one element to choose from, got {n}")
        if not replace and prod(lengths) > n:
            raise ArgumentError(f"expected at most {n} choices without replacement, got {prod(lengths)}")
        weights = None if p is None else _checked_weights(p, n, 1 if replace else prod(lengths))
        if not replace:
            # Independent exponential waiting times: in order of arrival, each next one is a choice among those left.
            order = self.permutation(n) if weights is None else argsort(self.exponential(n) / weights)
            places = reshape(order[: prod(lengths)], lengths)
        elif weights is None:
            places = self._below(n, lengths).astype(int64)
        else:
            bounds = cumulative_sum(weights)
            places = searchsorted(bounds, self._positive(lengths, float64) * bounds[-1])
        return gather(a, places, axes=(dim,), at=dim) if isinstance(a, Tensor) else places


def _restored(seed: int, draws: int) -> Generator:
    generator = Generator(seed)
    generator._draws = draws
    return generator


# Bits to numbers. Every step but the last rounding is exact, so that it is the same on every device.


def _unit_double(high: Tensor, low: Tensor) -> Tensor:
    """A float64 in [0, 1) of 53 random bits."""
    return ((high >> 5).astype(float64) * 2.0**26 + (low >> 6).astype(float64)) * 2.0**-53


def _above_zero(word: Tensor) -> Tensor:
    """A float32 in (0, 1], fine near 0, where a logarithm needs it."""
    return word.astype(float32) * 2.0**-32 + 2.0**-33


def _affine(x: Tensor, scale: Real, offset: Real) -> Tensor:
    if isinstance(scale, Tensor) or scale != 1:
        x = x * scale
    return x if not isinstance(offset, Tensor) and offset == 0 else x + offset


def _high_product(a: Tensor, n: int) -> Tensor:
    """The upper 64 bits of the product with a number below 2**64, by the halves of both."""
    high, low = a >> 32, a & 0xFFFFFFFF
    n_high, n_low = n >> 32, n & 0xFFFFFFFF
    middle = high * n_low + (low * n_low >> 32)
    return high * n_high + (middle >> 32) + (low * n_high + (middle & 0xFFFFFFFF) >> 32)


# Arguments


def _floating(dtype: DTypeLike) -> DType:
    result = as_dtype(dtype)
    if not result.is_float:
        raise DTypeError(f"expected a real floating dtype, got {result.name}; cast the result with astype")
    return result


def _real(value: Any, what: str) -> Real:
    """A parameter of a distribution: a Python number as it is, anything else as a tensor."""
    if number_type(value) in (bool, int, float):
        return value  # type: ignore[no-any-return]
    x = rules.as_tensor(value)
    rules.expect(x.dtype, f"{what} of a real dtype", lambda d: not d.is_complex)
    return x


def _pool(a: Any) -> int | Tensor:
    """What to choose from: the slices of a tensor, or the integers below a number."""
    return rules.as_tensor(a) if isinstance(a, (Tensor, np.ndarray)) else rules.as_index(a, "a tensor or a count")


def _checked_weights(p: Any, n: int, needed: int) -> Tensor:
    weights = asarray(p, dtype=float64)
    if weights.shape != (n,):
        raise ShapeError(f"expected {n} probabilities, got shape {weights.shape}")
    if weights._node.buffer is not None or not is_tracing():
        values = weights.numpy()
        if not (values >= 0).all() or abs(values.sum() - 1) > 1e-6:
            raise ArgumentError(f"expected probabilities that add up to 1, got a sum of {values.sum()}")
        if np.count_nonzero(values) < needed:
            raise ArgumentError(f"expected at least {needed} probabilities above 0 to choose without replacement")
    return weights


# The global generator


@rules.named
def default_rng(seed: int | Generator | None = None) -> Generator:
    """A generator for a seed; for none, one that nobody can predict."""
    return seed if isinstance(seed, Generator) else Generator(seed)


_default: Final = Generator()


@rules.named
def seed(n: int | None, /) -> None:
    """Start the global generator, which the functions of this module draw from, anew."""
    if is_tracing():
        raise TraceError("[seed] expected a call outside of a traced function; use default_rng inside")
    _default._reset(n)


draw = _default.draw
uniform = _default.uniform
random = _default.random
normal = _default.normal
exponential = _default.exponential
integers = _default.integers
bernoulli = _default.bernoulli
permutation = _default.permutation
choice = _default.choice
