"""A program of both libraries, and the short ways to state one: a function, a module in inference, a training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import yosegi as ys

RNG = np.random.default_rng(0)
Run = Callable[[], Any]
Wrap = Callable[[Any], Any]
PROGRAMS: list[Program] = []


@dataclass(frozen=True)
class Program:
    """One program. A run returns a tree of results; runs that follow one another may depend on each other."""

    title: str
    ours: Callable[[], Run]
    theirs: Callable[[Wrap, Any], Run]
    """PyTorch's program, from `torch.compile` or the identity, and the dtype of its floats."""
    tolerance: float = 1e-4
    """The greatest difference from PyTorch's float64, relative to the norm of each result."""


def normal(*shape: int, scale: float = 1.0) -> Any:
    """A float32 array of normal numbers."""
    return RNG.standard_normal(shape, np.float32) * np.float32(scale)


def integers(high: int, *shape: int) -> Any:
    return RNG.integers(0, high, shape)


def tensor(array: Any, dtype: Any) -> Any:
    """PyTorch's tensor of an array, its floats in a dtype."""
    made = torch.from_numpy(np.array(array))
    return made.to(dtype) if made.is_floating_point() else made


def evaluated(tree: Any) -> Any:
    """A tree of tensors, computed."""
    ys.eval(tree)
    return tree


def add_function(
    title: str, ours: Callable[..., Any], theirs: Callable[..., Any], arrays: Sequence[Any], tolerance: float = 1e-4
) -> None:
    """Add a function of arrays."""

    def own() -> Run:
        call, given = ys.jit(ours), [ys.asarray(a) for a in arrays]
        return lambda: evaluated(call(*given))

    def peer(wrap: Wrap, dtype: Any) -> Run:
        call, given = wrap(theirs), [tensor(a, dtype) for a in arrays]

        def run() -> Any:
            with torch.no_grad():
                return call(*given)

        return run

    PROGRAMS.append(Program(title, own, peer, tolerance))


def loaded(model: Any, peer: Any) -> Any:
    """A module with the parameters of PyTorch's."""
    return model.load_state_dict({k: v.detach().numpy().copy() for k, v in peer.state_dict().items()})


def add_inference(title: str, model: Any, peer: Any, arrays: Sequence[Any], tolerance: float = 1e-4) -> None:
    """Add a call of a module."""
    model, peer = loaded(model, peer).eval(), peer.eval()

    def own() -> Run:
        call, given = ys.jit(lambda *xs: model(*xs)), [ys.asarray(a) for a in arrays]
        return lambda: evaluated(call(*given))

    def theirs(wrap: Wrap, dtype: Any) -> Run:
        call, given = wrap(deepcopy(peer).to(dtype)), [tensor(a, dtype) for a in arrays]

        def run() -> Any:
            with torch.no_grad():
                return call(*given)

        return run

    PROGRAMS.append(Program(title, own, theirs, tolerance))


def add_training(
    title: str,
    models: tuple[Any, Any],
    losses: tuple[Callable[..., Any], Callable[..., Any]],
    rules: tuple[Callable[[Any], Any], Callable[[Any], Any]],
    arrays: Sequence[Any],
    tolerance: float = 1e-3,
) -> None:
    """Add training steps of a module, with an optimiser. The result of a run is its loss."""
    peer = models[1].train()
    model = loaded(models[0], peer).train()

    def own() -> Run:
        @ys.jit
        def step(held: Any, *batch: Any) -> Any:
            (loss, new), grads = ys.nn.value_and_grad(held.params, losses[0], has_state=True)(*batch)
            return held.step(grads, params=new), loss

        held, given = [rules[0](model)], [ys.asarray(a) for a in arrays]

        def run() -> Any:
            held[0], loss = step(held[0], *given)
            return float(loss)

        return run

    def theirs(wrap: Wrap, dtype: Any) -> Run:
        twin, given = deepcopy(peer).to(dtype), [tensor(a, dtype) for a in arrays]
        rule, call = rules[1](twin.parameters()), wrap(lambda *batch: losses[1](twin, *batch))

        def run() -> Any:
            rule.zero_grad(set_to_none=True)
            loss = call(*given)
            loss.backward()
            rule.step()
            return float(loss.detach())

        return run

    PROGRAMS.append(Program(title, own, theirs, tolerance))


OURS = SimpleNamespace(
    nn=ys.nn,
    F=ys.nn,
    xp=ys,
    permute=ys.permute_dims,
    rng={"rng": ys.random.default_rng(0)},
    attention=ys.nn.scaled_dot_product_attention,
)
"""The names that a model for both libraries uses."""
THEIRS = SimpleNamespace(
    nn=torch.nn,
    F=torch.nn.functional,
    xp=torch,
    permute=torch.permute,
    rng={},
    attention=torch.nn.functional.scaled_dot_product_attention,
)


def both(model_of: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A model in both libraries."""
    return model_of(OURS), model_of(THEIRS)
