"""Optimisers, with the names and the defaults of PyTorch's arguments. Each is a rule for one parameter, and a chain.

A rule takes the number of the step, from 1 on, a gradient, and the tensors that it keeps for a parameter.
"""

from __future__ import annotations

from functools import partial
from math import log
from typing import Final

from .._tensor.dtype import float32
from .._tensor.tensor import Tensor
from ..errors import ArgumentError
from ..ops.creation import full_like, ones, zeros_like
from ..ops.elementwise import abs, expm1, maximum, sign, sqrt, where
from ..ops.linalg import matmul
from ..ops.rules import described
from .pieces import Mask, decay_weights, global_norm, momentum, scale_by_learning_rate
from .schedules import Rate
from .transform import Transform, chain, per_parameter

Betas = tuple[float, float]

_PARAMETERS: Final = {
    "lr": ("float, tensor or schedule", "The learning rate."),
    "momentum": ("float", "The part of the sum of gradients that stays at each step."),
    "nesterov": ("bool", "True: Nesterov's momentum."),
    "weight_decay": ("float", "The factor of the parameters that is added to their gradients."),
    "mask": ("callable, optional", "A function of path and parameter that returns True for parameters that decay."),
    "betas": ("tuple of float", "The parts of the mean and of the mean square that stay at each step."),
    "eps": ("float", "A number that is added to the denominator."),
    "momentum_decay": ("float", "The speed at which the momentum approaches its final value."),
    "alpha": ("float", "The part of the mean square that stays at each step."),
    "centered": ("bool", "True: the variance in place of the mean square."),
    "initial_accumulator_value": ("float", "The first value of the sums."),
    "ns_steps": ("int", "The steps of the iteration of Newton and Schulz."),
}
_DECOUPLED: Final = "The part of the parameters, times the learning rate, that is taken away."
_optimiser = partial(described, _PARAMETERS, ("Transform", "The optimiser."))


def _mixed(beta: float, old: Tensor, new: Tensor) -> Tensor:
    return beta * old + (1 - beta) * new


def _missing(beta: float, t: Tensor) -> Tensor:
    """1 - beta**t, without cancellation: the weight that a mean from zero has after t steps."""
    return -expm1(t.astype(float32) * (log(beta) if beta else -1e9))


def _coupled(rule: Transform, lr: Rate, weight_decay: float, mask: Mask | None) -> Transform:
    """Weight decay as a part of the gradient."""
    decay = [decay_weights(weight_decay, mask)] if weight_decay else []
    return chain(*decay, rule, scale_by_learning_rate(lr))


def _decoupled(rule: Transform, lr: Rate, weight_decay: float, mask: Mask | None) -> Transform:
    """Weight decay beside the rule."""
    decay = [decay_weights(weight_decay, mask)] if weight_decay else []
    return chain(rule, *decay, scale_by_learning_rate(lr))


@_optimiser()
def sgd(
    lr: Rate = 1e-3, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0, mask: Mask | None = None
) -> Transform:
    """Stochastic gradient descent.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([1.0])
    >>> rule = ys.optim.sgd(0.1)
    >>> rule.update(p, rule.init(p), p)[0].tolist()
    [-0.1]
    """
    return _coupled(_momentum(momentum, nesterov) if momentum else chain(), lr, weight_decay, mask)


_momentum = momentum


@_optimiser()
def adam(
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Transform:
    """Adam: steps by the mean gradient over the root of its mean square.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.adam(0.1)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.1]
    """
    return _coupled(_adam(betas, eps), lr, weight_decay, mask)


def _adam(betas: Betas, eps: float) -> Transform:
    def rule(t: Tensor, g: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, ...]:
        mean, square = _mixed(betas[0], mean, g), _mixed(betas[1], square, g * g)
        return mean / _missing(betas[0], t) / (sqrt(square / _missing(betas[1], t)) + eps), mean, square

    return per_parameter(rule, mean=zeros_like, square=zeros_like)


@_optimiser(weight_decay=_DECOUPLED)
def adamw(
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    mask: Mask | None = None,
) -> Transform:
    """Adam with weight decay that is no part of the gradient.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.adamw(0.1, weight_decay=0.5)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.2]
    """
    return _decoupled(_adam(betas, eps), lr, weight_decay, mask)


@_optimiser()
def nadam(
    lr: Rate = 2e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
    mask: Mask | None = None,
) -> Transform:
    """Adam with Nesterov's momentum.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.nadam(0.1)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.1056]
    """

    def beta(t: Tensor) -> Tensor:
        return betas[0] * (1 - 0.5 * 0.96 ** (t.astype(float32) * momentum_decay))

    def rule(t: Tensor, g: Tensor, mean: Tensor, square: Tensor, product: Tensor) -> tuple[Tensor, ...]:
        mean, square = _mixed(betas[0], mean, g), _mixed(betas[1], square, g * g)
        now, ahead = beta(t), beta(t + 1)
        product = product * now
        step = g * (1 - now) / (1 - product) + mean * ahead / (1 - product * ahead)
        return step / (sqrt(square / _missing(betas[1], t)) + eps), mean, square, product

    made = per_parameter(rule, mean=zeros_like, square=zeros_like, product=lambda p: ones((), dtype=float32))
    return _coupled(made, lr, weight_decay, mask)


@_optimiser()
def radam(
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Transform:
    """Adam whose first steps, before the mean square is reliable, follow the mean gradient alone.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.radam(0.1)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.2]
    """
    longest = 2 / (1 - betas[1]) - 1

    def rule(t: Tensor, g: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, ...]:
        mean, square = _mixed(betas[0], mean, g), _mixed(betas[1], square, g * g)
        missing = _missing(betas[1], t)
        length = longest - 2 * t.astype(float32) * (1 - missing) / missing
        far = maximum(length, 5.0)
        ratio = (far - 4) * (far - 2) * longest / ((longest - 4) * (longest - 2) * far)
        adaptive = sqrt(ratio) * sqrt(missing) / (sqrt(square) + eps)
        return mean / _missing(betas[0], t) * where(length > 5, adaptive, 1.0), mean, square

    return _coupled(per_parameter(rule, mean=zeros_like, square=zeros_like), lr, weight_decay, mask)


@_optimiser(
    betas="The parts of the mean and of the largest gradient that stay at each step.",
    eps="A number that is added to the absolute gradients.",
)
def adamax(
    lr: Rate = 2e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Transform:
    """Adam with the largest recent gradient in place of the mean square.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.adamax(0.1)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.1]
    """

    def rule(t: Tensor, g: Tensor, mean: Tensor, largest: Tensor) -> tuple[Tensor, ...]:
        mean, largest = _mixed(betas[0], mean, g), maximum(betas[1] * largest, abs(g) + eps)
        return mean / _missing(betas[0], t) / largest, mean, largest

    return _coupled(per_parameter(rule, mean=zeros_like, largest=zeros_like), lr, weight_decay, mask)


@_optimiser(momentum="The part of the sum of steps that stays at each step.")
def rmsprop(
    lr: Rate = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    mask: Mask | None = None,
) -> Transform:
    """RMSprop: gradients over the root of their mean square.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.rmsprop(0.1, alpha=0.75)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.2]
    """

    def plain(t: Tensor, g: Tensor, square: Tensor) -> tuple[Tensor, ...]:
        square = _mixed(alpha, square, g * g)
        return g / (sqrt(square) + eps), square

    def central(t: Tensor, g: Tensor, square: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        square, mean = _mixed(alpha, square, g * g), _mixed(alpha, mean, g)
        return g / (sqrt(square - mean * mean) + eps), square, mean

    rule = (
        per_parameter(central, square=zeros_like, mean=zeros_like)
        if centered
        else per_parameter(plain, square=zeros_like)
    )
    return _coupled(chain(rule, _momentum(momentum)) if momentum else rule, lr, weight_decay, mask)


@_optimiser()
def adagrad(
    lr: Rate = 1e-2,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    mask: Mask | None = None,
) -> Transform:
    """Adagrad: gradients over the root of the sum of their squares.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0])
    >>> rule = ys.optim.adagrad(0.1)
    >>> [round(u, 4) for u in rule.update(p, rule.init(p), p)[0].tolist()]
    [-0.1]
    """

    def rule(t: Tensor, g: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        total = total + g * g
        return g / (sqrt(total) + eps), total

    return _coupled(per_parameter(rule, sum=lambda p: full_like(p, initial_accumulator_value)), lr, weight_decay, mask)


@_optimiser(betas="The part of the mean in a step, and the part of it that stays.", weight_decay=_DECOUPLED)
def lion(lr: Rate = 1e-4, betas: Betas = (0.9, 0.99), weight_decay: float = 0.0, mask: Mask | None = None) -> Transform:
    """Lion: the sign of a mean of gradients.

    Examples
    --------
    >>> import yosegi as ys
    >>> p = ys.asarray([2.0, -3.0])
    >>> rule = ys.optim.lion(0.1)
    >>> rule.update(p, rule.init(p), p)[0].tolist()
    [-0.1, 0.1]
    """

    def rule(t: Tensor, g: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        return sign(_mixed(betas[0], mean, g)), _mixed(betas[1], mean, g)

    return _decoupled(per_parameter(rule, mean=zeros_like), lr, weight_decay, mask)


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of the polynomial that brings singular values near 1, by Keller Jordan."""


@_optimiser(
    weight_decay=_DECOUPLED,
    momentum="The part of the mean that stays at each step.",
    eps="The smallest norm that a gradient is divided by.",
)
def muon(
    lr: Rate = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    eps: float = 1e-7,
    ns_steps: int = 5,
    mask: Mask | None = None,
) -> Transform:
    """Muon: mean gradients of matrices with all singular values brought near 1.

    Give parameters that are no matrices to another optimiser with `groups`.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.groups(
    ...     {"matrix": ys.optim.muon(0.1), "other": ys.optim.adamw(1e-3)},
    ...     lambda path, p: "matrix" if p.ndim == 2 else "other",
    ... )
    >>> params = {"weight": ys.eye(2), "bias": ys.ones((2,))}
    >>> updates, _ = rule.update(params, rule.init(params), params)
    >>> updates["weight"].shape
    (2, 2)
    """

    def rule(t: Tensor, g: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        if g.ndim != 2:
            raise ArgumentError(f"[muon] expected matrices, got shape {g.shape}; use groups for other parameters")
        mean = _mixed(momentum, mean, g)
        step = _mixed(momentum, mean, g) if nesterov else mean
        rows, columns = g.shape
        return _orthogonal(step, eps, ns_steps) * max(1, rows / columns) ** 0.5, mean

    return _decoupled(per_parameter(rule, mean=zeros_like), lr, weight_decay, mask)


def _orthogonal(x: Tensor, eps: float, steps: int) -> Tensor:
    """The matrix with its singular values brought near 1."""
    if x.shape[0] > x.shape[1]:
        return _orthogonal(x.mT, eps, steps).mT
    a, b, c = _NEWTON_SCHULZ
    x = x / maximum(global_norm(x), eps).astype(x.dtype)
    for _ in range(steps):
        gram = matmul(x, x.mT)
        x = a * x + matmul(b * gram + c * matmul(gram, gram), x)
    return x
