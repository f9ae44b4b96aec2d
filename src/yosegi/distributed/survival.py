"""Survival: a run that goes on with the ranks that live, and with spares in the places of lost ones."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import numpy as np

from .._run.api import eval
from .._run.progress import show
from .._tensor.tensor import Tensor
from .._tensor.tree import flatten, unflatten
from ..errors import ArgumentError
from ..ops.creation import asarray
from ..ops.random import Generator
from ..training.checkpoints import Checkpoints
from ..training.loader import Loader
from .communicator import Communicator, RankLost
from .runtime import init, use

State = TypeVar("State")
_calls: Final[ContextVar[int]] = ContextVar("calls", default=0)
"""The calls of `survive` by this rank."""


def survive(
    step: Callable[[Communicator, int, State], State],
    state: State,
    *,
    steps: int,
    checkpoints: Checkpoints | None = None,
    every: int = 100,
    replicated: bool = True,
) -> State:
    """Run the steps of a training run. When a rank is lost, the others go on without it.

    The survivors take the state of the rank that has done most steps, or the last checkpoint where each rank has only a
    share of the state. A step that was cut off is done again, with the work shared among fewer ranks. A spare (`yosegi
    launch --spares`) takes the place of a lost rank: it runs the program from the top, and gets the state here. A rank
    that Ray starts again joins at the next checkpoint.

    Parameters
    ----------
    step : callable
        `step(ranks, number, state)` returns the next state. It shares its work by `ranks.rank` and `ranks.size`.
    state : tree
        The first state: tensors, arrays, numbers, generators of `ys.random` and loaders in any containers.
    steps : int
        The number of steps.
    checkpoints : Checkpoints, optional
        A folder that all ranks see. The run begins from the last checkpoint, and rank 0 writes new ones.
    every : int
        The steps between two checkpoints, at which new ranks join.
    replicated : bool
        True if all ranks have the whole state. False: a lost rank takes its share with it, so that the survivors go
        back to the last checkpoint.

    Returns
    -------
    tree
        The last state.

    Raises
    ------
    RankLost
        On a rank that the others go on without.

    Examples
    --------
    >>> import yosegi as ys
    >>> def step(ranks, number, state):
    ...     return {"w": state["w"] + 1}
    >>> ys.distributed.survive(step, {"w": ys.zeros((2,))}, steps=3)["w"].tolist()
    [3.0, 3.0]
    """
    ranks, first = init(), state
    _calls.set(_calls.get() + 1)
    done, state = _restored(checkpoints, first)
    is_late, reason, lost_at = ranks.is_new, "", time.monotonic()
    while True:
        moving = [(leaf, leaf.state) for leaf in flatten(state)[0] if isinstance(leaf, (Generator, Loader))]
        try:
            if is_late:
                done, state = _latest(ranks, done, state) if replicated else _restored(checkpoints, first)
                is_late = ranks.is_new = False
                if ranks.rank == 0:
                    reason = reason or f"{time.monotonic() - lost_at:.1f} s later"
                    show(f"{reason}; ranks {', '.join(map(str, ranks.members))} go on from step {done}")
            if done == steps:
                ranks.barrier()
                return state
            following = step(ranks, done, state)
            eval(*[leaf for leaf in flatten(following)[0] if isinstance(leaf, Tensor)])
            done, state = done + 1, following
            if checkpoints is not None and ranks.rank == 0 and (done % every == 0 or done == steps):
                checkpoints.save(done, state)
            if done % every == 0:
                grown = ranks.grow()
                is_late, reason = grown is not ranks, "a rank joined"
                ranks = grown
                use(ranks)
        except RankLost as error:
            own, lost_at = ranks.members[ranks.rank], time.monotonic()
            if not error.ranks or own in error.ranks:
                raise
            if own == min(set(ranks.members) - set(error.ranks)):
                show(str(error))
            for leaf, before in moving:
                leaf.state = before
            ranks, is_late, reason = ranks.shrink(), True, ""
            use(ranks)


def _restored(checkpoints: Checkpoints | None, first: Any) -> tuple[int, Any]:
    return (checkpoints.restore(first) if checkpoints is not None else None) or (0, first)


def _latest(ranks: Communicator, done: int, state: Any) -> tuple[int, Any]:
    """The number of steps and the state of the rank that has done most."""
    gathered = ranks.all_gather(np.asarray([_calls.get(), done]))
    if len({int(calls) for calls, _ in gathered}) > 1:
        raise ArgumentError("[survive] expected one call in a program with spares, got several; join their steps")
    counts = [int(count) for _, count in gathered]
    root = counts.index(max(counts))
    leaves, structure = flatten(state)
    plain = pickle.dumps([_plain(leaf) for leaf in leaves]) if ranks.rank == root else b""
    sent = pickle.loads(ranks.broadcast(np.frombuffer(plain, np.uint8), root))
    return counts[root], unflatten(structure, [_like(leaf, value) for leaf, value in zip(leaves, sent, strict=True)])


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, (Generator, Loader)):
        return leaf.state
    return leaf.numpy() if isinstance(leaf, Tensor) else leaf


def _like(leaf: Any, value: Any) -> Any:
    if isinstance(leaf, (Generator, Loader)):
        leaf.state = value
        return leaf
    return asarray(value) if isinstance(leaf, Tensor) else value
