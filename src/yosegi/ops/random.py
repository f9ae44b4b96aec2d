"""Random numbers, reproducible everywhere: `ys.random`.

A generator is a seed and a count of draws. Each draw takes the next number at the call, so what a draw gives is
settled there, whenever and wherever it is computed (see `philox`). In a jitted function every replay draws afresh,
and gives what the function would give without `jit`.
"""

from __future__ import annotations

import secrets
from math import pi, prod
from threading import Lock
from typing import Any, Final

import numpy as np

from .._tensor.dtype import (
    DEFAULT_INT,
    DType,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    int64,
    int_info,
    uint32,
    uint64,
)
from .._tensor.node import Shape
from .._tensor.op import from_array
from .._tensor.tensor import Array, Tensor
from .._trace.tracing import fed, is_tracing
from ..errors import ArgumentError, DTypeError, ShapeError, TraceError
from . import draws, rules
from .activation import erf
from .creation import DTypeLike, asarray
from .decompositions import cholesky, floating
from .distributions import binomial as binomial_of
from .distributions import gamma as gamma_of
from .distributions import inverse_erf
from .distributions import poisson as poisson_of
from .draws import Real, ShapeLike
from .elementwise import cos, log, maximum, minimum, sqrt, where
from .index import gather
from .philox import philox
from .products import matmul
from .reduce import cumulative_sum
from .shape import broadcast_to, moveaxis, reshape
from .sort import argmax, argsort, searchsorted

_DIGITS: Final = {float16: 11, bfloat16: 8, float32: 24}
"""The bits that a number in [0, 1) can have so that it is exact in the dtype, and never rounds up to 1."""


_HALF_ROOT: Final = 0.5**0.5


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
        return _restored, self.state

    @property
    def state(self) -> tuple[int, int]:
        """The seed and the number of draws so far. It can be assigned."""
        with self._lock:
            return self._seed, self._draws

    @state.setter
    def state(self, value: tuple[int, int]) -> None:
        with self._lock:
            self._seed, self._draws = value

    @rules.named
    def split(self, n: int, /) -> list[Generator]:
        """Independent generators, whose streams have nothing to do with each other's or with this one's."""
        if is_tracing() and not self._is_traced:
            raise TraceError("[split] expected a call outside of a traced function; split before it, pass the parts in")
        seeds = philox.body(self._take(), shape=rules.normal_shape((n,)), words=2).astype(np.uint64)
        return [Generator(low | high << 32) for low, high in zip(*seeds.tolist(), strict=True)]

    spawn = split

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

    # Real numbers. The arguments are NumPy's; a tuple in the first place is the shape.

    @rules.named
    def uniform(
        self,
        first: Any = None,
        /,
        high: Real = 1.0,
        size: ShapeLike | None = None,
        *,
        low: Real = 0.0,
        shape: ShapeLike | None = None,
        dtype: DTypeLike = None,
    ) -> Tensor:
        """Evenly distributed numbers from `low` to below `high`, on a grid as fine as the dtype has just below 1.

        Called as NumPy's, `uniform(low, high, size)`, or with the shape first. For bounds other than 0 and 1, rounding
        may give `high` itself.

        >>> import yosegi as ys
        >>> rng = ys.random.default_rng(0)
        >>> rng.uniform((2, 3)).shape, rng.uniform(-1.0, 1.0, size=5).shape
        ((2, 3), (5,))
        """
        low, lengths = draws.first_parameter(first, low, size, shape)
        result, low, high = (
            draws.result_dtype(dtype),
            draws.real_parameter(low, "low"),
            draws.real_parameter(high, "high"),
        )
        return draws.affine(self._unit(draws.shape_of_draw(lengths, low, high), result), high - low, low).astype(result)

    def _unit(self, shape: ShapeLike, dtype: DType) -> Tensor:
        """Evenly distributed numbers from 0 to below 1, in at least float32."""
        if dtype is float64:
            return draws.unit_double(*self._words(shape, 2))
        digits = _DIGITS[dtype]
        return (self._words(shape, 1)[0] >> (32 - digits)).astype(float32) * 2.0**-digits

    @rules.named
    def random(
        self, size: ShapeLike | None = None, dtype: DTypeLike = None, *, shape: ShapeLike | None = None
    ) -> Tensor:
        """Evenly distributed numbers from 0 to below 1."""
        result = draws.result_dtype(dtype)
        return self._unit(draws.shape_of_draw(draws.given_shape(size, shape)), result).astype(result)

    @rules.named
    def normal(
        self,
        first: Any = None,
        /,
        scale: Real = 1.0,
        size: ShapeLike | None = None,
        *,
        loc: Real = 0.0,
        shape: ShapeLike | None = None,
        mean: Real | None = None,
        std: Real | None = None,
        dtype: DTypeLike = None,
    ) -> Tensor:
        """Normally distributed numbers of a mean `loc` and a standard deviation `scale`, also called `mean` and `std`.

        Called as NumPy's, `normal(loc, scale, size)`, or with the shape first.

        >>> import yosegi as ys
        >>> rng = ys.random.default_rng(0)
        >>> rng.normal((3, 4)).shape, rng.normal(5.0, 2.0, size=10).shape
        ((3, 4), (10,))
        """
        loc, lengths = draws.first_parameter(first, loc if mean is None else mean, size, shape)
        scale = scale if std is None else std
        result = draws.result_dtype(dtype)
        loc, scale = (
            draws.real_parameter(loc, "loc" if mean is None else "mean"),
            draws.real_parameter(scale, "scale" if std is None else "std"),
        )
        return draws.affine(self._standard(draws.shape_of_draw(lengths, loc, scale), result), scale, loc).astype(result)

    def _standard(self, shape: ShapeLike, dtype: DType) -> Tensor:
        """Standard normal numbers, in at least float32."""
        if dtype is float64:
            words = self._words(shape, 4)
            length, turn = draws.unit_double(*words[:2]) + 2.0**-53, draws.unit_double(*words[2:])
        else:
            first, second = self._words(shape, 2)
            length, turn = draws.above_zero(first), second.astype(float32) * 2.0**-32
        # Box and Muller: a point of the plane, from its squared distance and its angle.
        return sqrt(log(length) * -2.0) * cos(turn * (2 * pi))

    @rules.named
    def standard_normal(self, size: ShapeLike | None = None, dtype: DTypeLike = None) -> Tensor:
        """Normally distributed numbers of mean 0 and standard deviation 1.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).standard_normal(3).shape
        (3,)
        """
        result = draws.result_dtype(dtype)
        return self._standard(draws.shape_of_draw(size), result).astype(result)

    @rules.named
    def exponential(
        self,
        first: Any = None,
        /,
        size: ShapeLike | None = None,
        *,
        scale: Real = 1.0,
        shape: ShapeLike | None = None,
        dtype: DTypeLike = None,
    ) -> Tensor:
        """Exponentially distributed numbers; `scale` is their mean. Called as NumPy's, or with the shape first.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).exponential(2.0, size=3).shape
        (3,)
        """
        scale, lengths = draws.first_parameter(first, scale, size, shape)
        result, scale = draws.result_dtype(dtype), draws.real_parameter(scale, "scale")
        return draws.affine(-log(self._positive(draws.shape_of_draw(lengths, scale), result)), scale, 0.0).astype(
            result
        )

    @rules.named
    def laplace(
        self, loc: Real = 0.0, scale: Real = 1.0, size: ShapeLike | None = None, *, dtype: DTypeLike = None
    ) -> Tensor:
        """Numbers of the Laplace distribution: exponential on both sides of `loc`.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).laplace(size=(2, 2)).shape
        (2, 2)
        """
        result, loc, scale = (
            draws.result_dtype(dtype),
            draws.real_parameter(loc, "loc"),
            draws.real_parameter(scale, "scale"),
        )
        lengths = draws.shape_of_draw(size, loc, scale)
        side = where(self._words(lengths, 1)[0] < 1 << 31, -1.0, 1.0).astype(draws.dtype_of_draw(result))
        return draws.affine(-log(self._positive(lengths, result)) * side, scale, loc).astype(result)

    @rules.named
    def gumbel(
        self, loc: Real = 0.0, scale: Real = 1.0, size: ShapeLike | None = None, *, dtype: DTypeLike = None
    ) -> Tensor:
        """Numbers of the Gumbel distribution of maxima.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).gumbel(size=3).shape
        (3,)
        """
        result, loc, scale = (
            draws.result_dtype(dtype),
            draws.real_parameter(loc, "loc"),
            draws.real_parameter(scale, "scale"),
        )
        lengths = draws.shape_of_draw(size, loc, scale)
        return draws.affine(-log(self._waiting(lengths, result)), scale, loc).astype(result)

    def _waiting(self, shape: ShapeLike, dtype: DType) -> Tensor:
        """Exponential numbers that are never 0."""
        return -log(self._positive(shape, dtype) * (1 - 2.0**-30))

    @rules.named
    def truncated_normal(
        self, low: Real, high: Real, size: ShapeLike | None = None, *, dtype: DTypeLike = None
    ) -> Tensor:
        """Standard normal numbers between two bounds, none outside.

        >>> import yosegi as ys
        >>> x = ys.random.default_rng(0).truncated_normal(-1.0, 1.0, size=100)
        >>> bool(ys.all(abs(x) <= 1))
        True
        """
        result, low, high = (
            draws.result_dtype(dtype),
            draws.real_parameter(low, "low"),
            draws.real_parameter(high, "high"),
        )
        kind = draws.dtype_of_draw(result)
        lower, upper = (asarray(bound).astype(kind) for bound in (low, high))
        lengths = draws.shape_of_draw(size, low, high)
        below, above = erf(lower * _HALF_ROOT), erf(upper * _HALF_ROOT)
        made = inverse_erf(below + (above - below) * self._positive(lengths, result)) * (1 / _HALF_ROOT)
        return minimum(maximum(made, lower), upper).astype(result)

    @rules.named
    def gamma(
        self, shape: Real, scale: Real = 1.0, size: ShapeLike | None = None, *, dtype: DTypeLike = None
    ) -> Tensor:
        """Gamma-distributed numbers; `shape` times `scale` is their mean. Gradients by `scale` are exact, by `shape`
        they hold the accepted proposals fixed.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).gamma(2.0, size=3).shape
        (3,)
        """
        result, shape, scale = (
            draws.result_dtype(dtype),
            draws.real_parameter(shape, "shape"),
            draws.real_parameter(scale, "scale"),
        )
        lengths = draws.shape_of_draw(size, shape, scale)
        return draws.affine(self._gamma(shape, lengths, result), scale, 0.0).astype(result)

    def _gamma(self, shape: Real, lengths: Shape, dtype: DType) -> Tensor:
        wide = broadcast_to(asarray(shape).astype(draws.dtype_of_draw(dtype)), lengths)
        return gamma_of(wide, lambda: self._standard(lengths, dtype), lambda: self._positive(lengths, dtype))

    @rules.named
    def beta(self, a: Real, b: Real, size: ShapeLike | None = None, *, dtype: DTypeLike = None) -> Tensor:
        """Beta-distributed numbers from 0 to 1; `a / (a + b)` is their mean.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).beta(2.0, 3.0, size=3).shape
        (3,)
        """
        result, a, b = draws.result_dtype(dtype), draws.real_parameter(a, "a"), draws.real_parameter(b, "b")
        lengths = draws.shape_of_draw(size, a, b)
        first, second = self._gamma(a, lengths, result), self._gamma(b, lengths, result)
        return (first / (first + second)).astype(result)

    @rules.named
    def multivariate_normal(
        self, mean: Tensor, cov: Tensor, size: ShapeLike | None = None, *, dtype: DTypeLike = None
    ) -> Tensor:
        """Vectors of normally distributed numbers of a mean and a covariance, which must be positive definite.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).multivariate_normal(ys.zeros((2,)), ys.eye(2), size=5).shape
        (5, 2)
        """
        result = draws.result_dtype(dtype)
        centre, spread = asarray(mean).astype(result), asarray(cov).astype(result)
        if centre.ndim != 1 or spread.shape != centre.shape * 2:
            raise ShapeError(
                f"expected a vector and a matrix of as many rows and columns, got {centre.shape} and {spread.shape}"
            )
        standard = self._standard((*draws.shape_of_draw(size), centre.shape[0]), result).astype(result)
        return centre + matmul(standard, cholesky(spread).mT)

    def _positive(self, shape: ShapeLike, dtype: DType) -> Tensor:
        """Evenly distributed numbers above 0, up to 1."""
        if dtype is float64:
            return draws.unit_double(*self._words(shape, 2)) + 2.0**-53
        return draws.above_zero(self._words(shape, 1)[0])

    # Whole numbers and choices

    @rules.named
    def integers(
        self,
        low: int,
        high: int | None = None,
        size: ShapeLike | None = None,
        dtype: DTypeLike = DEFAULT_INT,
        endpoint: bool = False,
        *,
        shape: ShapeLike | None = None,
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
        made = self._below(count, draws.shape_of_draw(draws.given_shape(size, shape)))
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
        carry = (product + draws.high_product(low, count) < product).astype(uint64)
        return draws.high_product(high, count) + carry

    @rules.named
    def bernoulli(self, p: Real, size: ShapeLike | None = None, *, shape: ShapeLike | None = None) -> Tensor:
        """True with probability `p`, to within 2**-24; by default one for each element of `p`."""
        p = draws.real_parameter(p, "a probability")
        if not isinstance(p, Tensor) and not 0 <= p <= 1:
            raise ArgumentError(f"expected a probability from 0 to 1, got {p}")
        return self._unit(draws.shape_of_draw(draws.given_shape(size, shape), p), float32) < p

    @rules.named
    def poisson(self, lam: Real = 1.0, size: ShapeLike | None = None, *, dtype: DTypeLike = DEFAULT_INT) -> Tensor:
        """Counts of the Poisson distribution, whose mean is `lam`.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).poisson(3.0, size=4).shape
        (4,)
        """
        lam = draws.real_parameter(lam, "lam")
        lengths = draws.shape_of_draw(size, lam)
        mean = broadcast_to(asarray(lam).astype(float64), lengths)
        return poisson_of(mean, lambda: self._positive(lengths, float64)).astype(dtype)

    @rules.named
    def binomial(self, n: Any, p: Real, size: ShapeLike | None = None, *, dtype: DTypeLike = DEFAULT_INT) -> Tensor:
        """How many of n trials succeed, each with probability `p`.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).binomial(10, 0.5, size=4).shape
        (4,)
        """
        n, p = draws.real_parameter(n, "n"), draws.real_parameter(p, "a probability")
        if not isinstance(p, Tensor) and not 0 <= p <= 1:
            raise ArgumentError(f"expected a probability from 0 to 1, got {p}")
        lengths = draws.shape_of_draw(size, n, p)
        trials, chance = (broadcast_to(asarray(v).astype(float64), lengths) for v in (n, p))
        return binomial_of(trials, chance, lambda: self._positive(lengths, float64)).astype(dtype)

    @rules.named
    def categorical(self, logits: Tensor, size: ShapeLike | None = None, *, axis: int = -1) -> Tensor:
        """The numbers of classes, chosen with probabilities whose logarithms, up to a constant, are along an axis.

        - `size`: the shape of the result; by default that of `logits` without the axis, to which it must broadcast.

        >>> import yosegi as ys
        >>> ys.random.default_rng(0).categorical(ys.asarray([0.0, -ys.inf]), size=3).tolist()
        [0, 0, 0]
        """
        scores = moveaxis(floating(rules.as_tensor(logits)), axis, -1)
        lengths = scores.shape[:-1] if size is None else draws.shape_of_draw(size)
        noise = self._waiting((*lengths, scores.shape[-1]), float64 if scores.dtype is float64 else float32)
        return argmax(scores - log(noise).astype(scores.dtype), axis=-1)

    @rules.named
    def shuffle(self, x: Tensor, /, axis: int = 0) -> Tensor:
        """The slices of a tensor along an axis in random order. It is returned, where NumPy's writes in place: tensors
        are values.

        >>> import yosegi as ys
        >>> sorted(ys.random.default_rng(0).shuffle(ys.arange(4)).tolist())
        [0, 1, 2, 3]
        """
        return self.permutation(rules.as_tensor(x), axis=axis)

    @rules.named
    def permutation(self, x: int | Tensor, /, axis: int = 0) -> Tensor:
        """The integers below `x`, or the slices of the tensor `x` along an axis, in random order."""
        x = draws.population(x)
        if not isinstance(x, Tensor):
            return argsort(self._long_words(x, 1)[0])
        dim = rules.normal_axis(axis, x.ndim)
        return gather(x, self.permutation(x.shape[dim]), axes=(dim,), at=dim)

    @rules.named
    def choice(
        self,
        a: int | Tensor,
        size: ShapeLike | None = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        *,
        shape: ShapeLike | None = None,
    ) -> Tensor:
        """Random elements of the integers below `a`, or slices of the tensor `a` along an axis.

        `p` are their probabilities, even by default. Without replacement none is chosen twice.
        """
        a, lengths = draws.population(a), draws.shape_of_draw(draws.given_shape(size, shape))
        dim = rules.normal_axis(axis, a.ndim) if isinstance(a, Tensor) else 0
        n = a.shape[dim] if isinstance(a, Tensor) else a
        if n <= 0 < prod(lengths):
            raise ArgumentError(f"expected at least one element to choose from, got {n}")
        if not replace and prod(lengths) > n:
            raise ArgumentError(f"expected at most {n} choices without replacement, got {prod(lengths)}")
        weights = None if p is None else draws.checked_weights(p, n, 1 if replace else prod(lengths))
        if not replace:
            # Independent exponential waiting times: in order of arrival, each next one is a choice among those left.
            order = self.permutation(n) if weights is None else argsort(-log(self._positive(n, float64)) / weights)
            places = reshape(order[: prod(lengths)], lengths)
        elif weights is None:
            places = self._below(n, lengths).astype(int64)
        else:
            bounds = cumulative_sum(weights)
            places = searchsorted(bounds, self._positive(lengths, float64) * bounds[-1])
        return gather(a, places, axes=(dim,), at=dim) if isinstance(a, Tensor) else places


def _restored(seed: int, draws: int) -> Generator:
    generator = Generator(seed)
    generator.state = seed, draws
    return generator


# The global generator


@rules.named
def default_rng(seed: int | Generator | None = None) -> Generator:
    """A generator for a seed; for none, one that nobody can predict."""
    return seed if isinstance(seed, Generator) else Generator(seed)


_default: Final = Generator()


def generator_of(rng: int | Generator | None) -> Generator:
    """The generator that an argument `rng` names: the global one for `None`."""
    return _default if rng is None else default_rng(rng)


@rules.named
def seed(n: int | None, /) -> None:
    """Start the global generator, which the functions of this module draw from, anew."""
    if is_tracing():
        raise TraceError("[seed] expected a call outside of a traced function; use default_rng inside")
    _default._reset(n)


draw = _default.draw
bernoulli = _default.bernoulli
beta = _default.beta
binomial = _default.binomial
categorical = _default.categorical
choice = _default.choice
exponential = _default.exponential
gamma = _default.gamma
gumbel = _default.gumbel
integers = _default.integers
laplace = _default.laplace
multivariate_normal = _default.multivariate_normal
normal = _default.normal
permutation = _default.permutation
poisson = _default.poisson
random = _default.random
shuffle = _default.shuffle
standard_normal = _default.standard_normal
truncated_normal = _default.truncated_normal
uniform = _default.uniform
