"""The ranks of this program: `init`, `rank`, `size`, and the communicator that ops use."""

from __future__ import annotations

import os
from threading import Lock
from typing import Final

from .._tensor.environment import setting
from .communicator import CURRENT, Communicator
from .fake import alone

_LAUNCHED: Final = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS")
"""Variables that launchers of MPI programs set: one of them means that this process is a rank."""
_lock: Final = Lock()
_world: list[Communicator] = []
"""The communicator of this process, once it is known."""


def init(*, deadline: float | None = None) -> Communicator:
    """Join the ranks of this program.

    A process that `yosegi launch`, `mpiexec` or `srun` started joins the others over MPI. Any other process is alone:
    a world of size 1. `YOSEGI_DISTRIBUTED` decides where this finds the wrong answer: `mpi` or `off`.

    Parameters
    ----------
    deadline : float, optional
        The seconds that a collective waits for a rank before it raises `RankLost`. By default `YOSEGI_DEADLINE`, or
        300.

    Returns
    -------
    Communicator
        The group of all ranks. A second call returns the same one, with the deadline that is given.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.init().size
    1
    """
    own = CURRENT.get()
    with _lock:
        if own is None and not _world:
            _world.append(_joined(setting("YOSEGI_DEADLINE", 300.0)))
        own = own or _world[0]
    if deadline is not None:
        own.deadline = deadline
    return own


def _joined(deadline: float) -> Communicator:
    engine = setting("YOSEGI_DISTRIBUTED", "mpi" if any(name in os.environ for name in _LAUNCHED) else "off")
    if engine == "off":
        return alone(deadline)
    from .mpi import joined  # the import starts MPI

    return joined(deadline)


def current() -> Communicator:
    """The communicator of all ranks, as `init` returns it.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.current() is ys.distributed.init()
    True
    """
    return CURRENT.get() or (_world[0] if _world else init())


def use(communicator: Communicator) -> None:
    """Make another group the current one: the survivors after `RankLost`."""
    if CURRENT.get() is not None:
        CURRENT.set(communicator)
    else:
        _world[:] = [communicator]


def rank() -> int:
    """The number of this rank among all, from 0.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.rank()
    0
    """
    return current().rank


def size() -> int:
    """The number of ranks; 1 in one process.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.size()
    1
    """
    return current().size
