"""The familiar classes: parameters and the state of their optimiser as one immutable value."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Self, final

from .._tensor.options import current
from .._tensor.tensor import Tensor
from .._tensor.tree import register_tree
from ..nn.training import combine, partition, value_and_grad
from . import quasi_newton, rules
from .scaling import scale_loss
from .transform import Transform, Tree, apply_updates, chain, groups


class Optimizer(ABC):
    """Parameters with the state of an optimiser: an immutable tree, which a jitted step takes and returns.

    Parameters
    ----------
    params : module, tree of tensors, or list of dict
        The parameters. The state of modules, such as running statistics, is not trained. A list of dicts, each with a
        tree as "params" and further settings, makes a group of each; `params` of the optimiser is then the list of the
        trees.
    *args, **settings : any
        The arguments of the function of the same name in lower case.

    An optimiser that is made under `ys.options(precision="f16")` scales the loss: see `scale_loss`.

    Examples
    --------
    >>> import yosegi as ys
    >>> @ys.jit
    ... def step(optimizer, x):
    ...     loss, grads = optimizer.value_and_grad(lambda p, x: ys.sum((p["w"] - x) ** 2))(x)
    ...     return optimizer.step(grads), loss
    >>> optimizer = ys.optim.Adam({"w": ys.zeros((2,))}, lr=0.1)
    >>> for _ in range(100):
    ...     optimizer, loss = step(optimizer, ys.asarray([1.0, -1.0]))
    >>> float(loss) < 0.01
    True
    """

    rule: ClassVar[Callable[..., Transform]]
    """The function that makes the transform from the settings."""

    def __init__(self, params: Tree, *args: Any, **settings: Any) -> None:
        rule = type(self).rule
        if isinstance(params, list) and params and all(isinstance(g, dict) and "params" in g for g in params):
            rules_by_place = {f"[{n}]": rule(*args, **_without_params({**settings, **g})) for n, g in enumerate(params)}
            params = [group["params"] for group in params]
            self.transform = groups(rules_by_place, lambda path, p: path[: path.index("]") + 1])
        else:
            self.transform = _transform(rule, args, settings)
        if current().precision == "f16" and self.transform.scale is None:
            self.transform = _scaled(self.transform)
        self.params: Tree = params
        """The parameters."""
        self.state: Any = self.transform.init(partition(params)[0])
        """The state of the transform, a tree of tensors."""

    def value_and_grad(
        self, loss: Callable[..., Any], /, *, has_aux: bool = False, has_state: bool = False
    ) -> Callable[..., tuple[Any, Tree]]:
        """Return a function that computes a loss of the parameters and its gradient.

        It is `ys.nn.value_and_grad(optimizer.params, loss, …)`, with the scale of `scale_loss`, if there is one.

        Parameters
        ----------
        loss : callable
            A function of the parameters and further arguments that returns a real floating-point scalar, or, with
            `has_aux`, the pair (scalar, anything).
        has_aux : bool
            True if `loss` returns a pair whose second part is passed through.
        has_state : bool
            True: the new state of modules is returned, too.

        Returns
        -------
        callable
            A function of the further arguments. It returns (value, gradient), as `ys.nn.value_and_grad` does.
        """
        scale = None if self.transform.scale is None else self.transform.scale(self.state)
        return value_and_grad(self.params, loss, has_aux=has_aux, has_state=has_state, scale=scale)

    def step(self, grads: Tree, params: Tree = None, value: Tensor | None = None) -> Self:
        """Return the optimiser after a step.

        Parameters
        ----------
        grads : tree of tensors
            The gradients, as `ys.value_and_grad` or `ys.nn.value_and_grad` returns them.
        params : tree of tensors, optional
            The parameters with new state, as `ys.nn.value_and_grad(…, has_state=True)` returns them.
        value : tensor, optional
            The loss, for the transforms that follow it.

        Returns
        -------
        Optimizer
            The same optimiser with new parameters and a new state.
        """
        own, rest = partition(self.params if params is None else params)
        updates, state = self.transform.update(grads, self.state, own, value)
        new: Self = _rebuilt(type(self), self.transform, (combine(apply_updates(own, updates), rest), state))
        return new

    def __init_subclass__(cls) -> None:
        register_tree(
            cls, lambda o: ((o.params, o.state), o.transform), lambda t, parts: _rebuilt(cls, t, parts),
            lambda o: (".params", ".state"),
        )  # fmt: skip


def _transform(rule: Callable[..., Transform], args: tuple[Any, ...], settings: dict[str, Any]) -> Transform:
    """The transform of a rule: the same one for equal settings, so that a step that was jitted for one optimiser keeps
    its trace for the next. Only numbers, texts and tuples of them are compared."""
    if all(map(_is_plain, (*args, *settings.values()))):
        return _known_transform(rule, args, tuple(sorted(settings.items())))
    return rule(*args, **settings)


@lru_cache(maxsize=256, typed=True)
def _known_transform(
    rule: Callable[..., Transform], args: tuple[Any, ...], settings: tuple[tuple[str, Any], ...]
) -> Transform:
    return rule(*args, **dict(settings))


_scaled = lru_cache(maxsize=256)(scale_loss)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in (bool, int, float, str, type(None))


def _rebuilt(cls: Any, transform: Transform, parts: Any) -> Any:
    made = object.__new__(cls)
    made.transform, (made.params, made.state) = transform, parts
    return made


def _without_params(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "params"}


def _doc(summary: str, function: str, call: str) -> str:
    return f"""{summary}: see `{function}`.

    Examples
    --------
    >>> import yosegi as ys
    >>> optimizer = ys.optim.{call}
    >>> bool(ys.all(optimizer.step(ys.ones((2,))).params < 1))
    True
    """


@final
class Chain(Optimizer):
    """Transforms one after another: see `chain`.

    Examples
    --------
    >>> import yosegi as ys
    >>> rate = ys.optim.warmup(ys.optim.cosine_decay(0.1, 100), 10, start=0.01)
    >>> optimizer = ys.optim.Chain(ys.ones((2,)), ys.optim.clip_by_norm(1.0), ys.optim.adamw(rate))
    >>> bool(ys.all(optimizer.step(ys.ones((2,))).params < 1))
    True
    """

    rule = chain


@final
class SGD(Optimizer):
    __doc__ = _doc("Stochastic gradient descent", "sgd", "SGD(ys.ones((2,)), lr=0.1, momentum=0.9)")
    rule = rules.sgd


@final
class Adam(Optimizer):
    __doc__ = _doc("Adam", "adam", "Adam(ys.ones((2,)), lr=0.1, betas=(0.9, 0.99))")
    rule = rules.adam


@final
class AdamW(Optimizer):
    __doc__ = _doc(
        "Adam with weight decay that is no part of the gradient",
        "adamw",
        "AdamW(ys.ones((2,)), lr=0.1, weight_decay=0.1)",
    )
    rule = rules.adamw


@final
class NAdam(Optimizer):
    __doc__ = _doc("Adam with Nesterov's momentum", "nadam", "NAdam(ys.ones((2,)), lr=0.1)")
    rule = rules.nadam


@final
class RAdam(Optimizer):
    __doc__ = _doc("Adam with rectified first steps", "radam", "RAdam(ys.ones((2,)), lr=0.1)")
    rule = rules.radam


@final
class Adamax(Optimizer):
    __doc__ = _doc("Adam with the largest recent gradient", "adamax", "Adamax(ys.ones((2,)), lr=0.1)")
    rule = rules.adamax


@final
class RMSprop(Optimizer):
    __doc__ = _doc(
        "Gradients over the root of their mean square", "rmsprop", "RMSprop(ys.ones((2,)), lr=0.1, centered=True)"
    )
    rule = rules.rmsprop


@final
class Adagrad(Optimizer):
    __doc__ = _doc("Gradients over the root of the sum of their squares", "adagrad", "Adagrad(ys.ones((2,)), lr=0.1)")
    rule = rules.adagrad


@final
class Lion(Optimizer):
    __doc__ = _doc("The sign of a mean of gradients", "lion", "Lion(ys.ones((2,)), lr=0.1)")
    rule = rules.lion


@final
class Muon(Optimizer):
    """Mean gradients of matrices with all singular values near 1: see `muon`.

    Examples
    --------
    >>> import yosegi as ys
    >>> optimizer = ys.optim.Muon(ys.ones((2, 2)), lr=0.1)
    >>> bool(ys.all(optimizer.step(ys.ones((2, 2))).params < 1))
    True
    """

    rule = rules.muon


@final
class LBFGS(Optimizer):
    __doc__ = _doc("L-BFGS without line search", "lbfgs", "LBFGS(ys.ones((2,)), lr=0.1, history_size=5)")
    rule = quasi_newton.lbfgs
