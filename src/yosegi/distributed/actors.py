"""Ranks that are actors of Ray. Ray places them, and starts them again.

Ray's own collectives need PyTorch or NVIDIA GPUs. Here the arrays go through one more actor, the hub, in which every
rank is a thread. So the ranks may live on any hosts, but the hub limits the speed.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import ray

from . import worker
from .communicator import Array, Combine, Communicator
from .fake import FakeCommunicator, first_group
from .runtime import use


class Hub:
    """The actor in which ranks meet. Its threads wait in the place of the ranks."""

    def __init__(self, size: int, deadline: float) -> None:
        self._first = first_group(size)
        self._world = self._first.world
        self._deadline = deadline
        self._numbers = list(range(size))
        """The number of the process that runs, or ran last, at each place."""
        self._begun: set[int] = set()
        self._next = size
        self._communicators: list[FakeCommunicator] = []

    def begin(self, place: int) -> tuple[Any, ...]:
        """A process begins at a place: as a rank of the first group, or in the place of one that is gone."""
        with self._world.lock:
            if place not in self._begun:
                self._begun.add(place)
                return self._described(FakeCommunicator(self._first, place, self._deadline))
            self._world.leave(self._numbers[place])
            number = self._numbers[place] = self._next
            self._next += 1
        return self._described(self._world.join(number, self._deadline))

    def end(self, place: int) -> None:
        """The program of a place has ended."""
        self._world.leave(self._numbers[place])

    def lost(self) -> list[int]:
        """The places that missed a deadline, each once."""
        with self._world.lock:
            missed = {rank for group in self._world.groups for rank in group.lost} - self._world.gone
            self._world.gone |= missed
            return [place for place, number in enumerate(self._numbers) if number in missed]

    def waiting(self) -> list[int]:
        """The places whose process waits to join the others."""
        return [place for place, number in enumerate(self._numbers) if number in self._world.waiting]

    def call(self, key: int, deadline: float, name: str, given: Sequence[Any], options: dict[str, Any]) -> Any:
        """Call a method of a rank's communicator."""
        communicator = self._communicators[key]
        communicator.deadline = deadline
        made = getattr(communicator, name)(*given, **options)
        return self._described(made) if isinstance(made, FakeCommunicator) else made

    def _described(self, made: FakeCommunicator) -> tuple[Any, ...]:
        with self._world.lock:
            if made not in self._communicators:
                self._communicators.append(made)
            return self._communicators.index(made), made.rank, made.members, made.deadline, made.is_new


@final
class ActorCommunicator(Communicator):
    """A group of actors, which a hub describes."""

    def __init__(self, hub: Any, key: int, rank: int, members: tuple[int, ...], deadline: float, is_new: bool) -> None:
        self.rank, self.size, self.members, self.deadline, self.is_new = rank, len(members), members, deadline, is_new
        self._hub, self._key = hub, key

    def _ask(self, name: str, *given: Any, **options: Any) -> Any:
        try:
            return _own(ray.get(self._hub.call.remote(self._key, self.deadline, name, given, options)))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def _group(self, description: tuple[Any, ...]) -> Communicator:
        return self if description[0] == self._key else ActorCommunicator(self._hub, *description)

    def all_reduce(self, array: Array, combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the arrays of all ranks, always in their order."""
        return self._ask("all_reduce", array, combine)

    def all_gather(self, array: Array) -> list[Array]:
        """The arrays of all ranks."""
        made: list[Array] = self._ask("all_gather", array)
        return made

    def reduce_scatter(self, parts: Sequence[Array], combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the part with this rank's index over all ranks, always in their order."""
        return self._ask("reduce_scatter", parts, combine)

    def all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        """Send part i to rank i, and receive one part from each rank."""
        made: list[Array] = self._ask("all_to_all", parts)
        return made

    def broadcast(self, array: Array | None, root: int) -> Array:
        """The array of the root."""
        return self._ask("broadcast", array if self.rank == root else None, root)

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Send a copy of an array to one rank."""
        self._ask("send", array, to, tag)

    def receive(self, source: int, tag: int = 0) -> Array:
        """The next array that a rank sent under this tag."""
        return self._ask("receive", source, tag)

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks."""
        self._ask("barrier", name)

    def split(self, color: int, key: int) -> Communicator:
        """The group of the ranks with the same color, ordered by key."""
        return self._group(self._ask("split", color, key))

    def shrink(self) -> Communicator:
        """The group of the ranks that live."""
        return self._group(self._ask("shrink"))

    def grow(self) -> Communicator:
        """The group with the ranks that wait to join it, or this group."""
        return self._group(self._ask("grow"))


def _own(value: Any) -> Any:
    """A value whose arrays may be written to: Ray's are views of shared memory."""
    if isinstance(value, list):
        return [_own(each) for each in value]
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value


class Rank:
    """The actor that runs a program."""

    def run(self, hub: Any, place: int, arguments: list[str]) -> int:
        """Run a program, and return its status. Ray calls this again in an actor that it has started again."""
        use(ActorCommunicator(hub, *ray.get(hub.begin.remote(place))))
        try:
            worker.run(arguments)
            status: object = 0
        except SystemExit as end:
            status = end.code or 0
        except Exception:
            traceback.print_exc()
            status = 1
        ray.get(hub.end.remote(place))
        return status if isinstance(status, int) else 1
