"""Ranks that are processes, over MPI.

Every operation is nonblocking and polled, so that it has a deadline. When the deadline passes, the ranks that wait call
the roll: each sends a call to all others, and the ranks that stay silent are the missing ones. MPI itself reports a
process that died (`MPI_ERR_PROC_FAILED`, with `mpiexec --with-ft ulfm`).

Processes behind the ranks of the group are spares. They wait for a roll, and then take the places of lost ranks.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Final, NoReturn, final

import mpi4py
import numpy as np
from ml_dtypes import bfloat16

from .._tensor.environment import setting
from ..errors import ArgumentError
from .communicator import (
    BACKGROUND,
    Array,
    Combine,
    Communicator,
    RankLost,
    combined,
    described,
    disagreement,
    lost,
    reduction,
)

mpi4py.rc.finalize = False  # `_finish` finalizes, unless a lost rank would hang it
from mpi4py import MPI  # noqa: E402

_SPIN: Final = 2e-4
"""Seconds in which a request is tested before the processor is offered to other ranks. On a loaded machine, one test
may take as long: MPI offers the processor too."""
_PATIENCE: Final = 0.05
"""Seconds of waiting after which a rank sleeps between tests, and listens for calls of other ranks."""
_NAP: Final = 5e-5
_GRACE: Final = 2.0
"""Seconds at the end of the deadline in which the ranks call the roll, and the survivors form a group."""
_ROLL: Final = 0.75
"""The share of that time in which a rank has to answer."""
_SMALL: Final = 1 << 15
"""Bytes up to which a reduction in order sends whole arrays to all ranks, with the comparison: one message in all."""
_SHARE: Final = 1 << 16
"""Bytes for each rank from which a reduction in order is faster than MPI's own: MPI's takes up to 3 times as long."""
_SHAPE: Final = 64
"""The most dimensions of an array."""
_CALL: Final = 160
"""Bytes of a call of the roll."""
_KNOWN: Final = 1 << 12
"""Digests that are remembered."""
_NO_ARRAY: Final = np.zeros(_SHAPE + 2, np.int64)
"""The header of a rank that gives no array."""
_EXIT: Final = "exit"
"""The operation at the end of a program."""
_STAND_BY: Final = 0.02
"""Seconds that a spare sleeps before it listens again."""

_DTYPES: Final = tuple(np.dtype(d) for d in (*"?bhiqBHIQefdFD", bfloat16))
_RAW: Final = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""A type of MPI for the elements of each size, where their values do not matter."""
_ANY_ORDER: Final = {
    **{(np.dtype(d), combine): MPI.SUM for d in "fdFD" for combine in (Combine.SUM, Combine.MEAN)},
    **{(np.dtype(d), Combine.SUM): MPI.SUM for d in "iqIQ"},
    **{(np.dtype(d), Combine.MAX): MPI.MAX for d in "bhiqBHIQ"},
    **{(np.dtype(d), Combine.MIN): MPI.MIN for d in "bhiqBHIQ"},
}
"""Reductions for which MPI has NumPy's result, but for the order of sums. Its MAX and MIN of floats lose NaNs, its sums
of 8-bit and 16-bit integers saturate on some processors, and it has no 16-bit floats."""


_LOSSES: Final = frozenset(
    [getattr(MPI, f"ERR_{name}", -1) for name in ("PROC_FAILED", "PROC_FAILED_PENDING", "REVOKED")]
)
"""Errors of MPI by which a rank learns of the death of another."""


@cache
def _reports_losses() -> bool:
    """True if the library reports ranks that died, and groups can go on without them (ULFM). Otherwise a rank that is
    lost is one that misses the roll, and the program ends."""
    try:
        MPI.COMM_SELF.Dup().Revoke()
    except (AttributeError, NotImplementedError, MPI.Exception):
        return False
    return True


class _World:
    """State that all groups of one process share: the roll, and where the ranks live."""

    def __init__(self, comm: Any, numbers: tuple[int, ...], wanted: int) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.comm, self.numbers, self.wanted = comm, numbers, wanted
        self.size = min(wanted, comm.size)
        """The number of ranks that run the program. The processes behind them are spares."""
        self._everyone = comm.Get_group()
        self.homes: list[tuple[str, int]] = []
        """The host and the process of each rank."""
        self.whole = True
        """False once a rank is lost, until the survivors have a group of their own."""
        self.called = False
        self.heard: dict[int, tuple[str, float]] = {}
        """The calls of the other ranks: what each waits in, and for how many seconds it had."""
        self._roll = 0
        self._lock = Lock()
        self._kept: list[Any] = []

    def keep(self, request: Any) -> None:
        """Keep the memory of a request that is given up: a late rank may still write to it."""
        self._kept.append(request)

    def call(self, said: str, waited: float) -> None:
        """Tell all ranks, once in a roll, that this one waits in a call that fails."""
        with self._lock:
            if not self.called:
                self.called, self.whole = True, False
                self.heard[self.comm.rank] = (said, waited)
                self.tell(set(range(self.comm.size)) - {self.comm.rank}, said, waited)

    def tell(self, ranks: set[int], said: str, waited: float) -> None:
        """Send a call to ranks that live."""
        text = f"{waited:.3f} {said}".encode()[:_CALL].ljust(_CALL)
        for rank in ranks - self.dead():
            self._kept.append(self.comm.Isend(text, rank, self._roll))

    def listen(self) -> bool:
        """Receive the calls of other ranks. True if there are any."""
        with self._lock:
            for rank in set(range(self.comm.size)) - {self.comm.rank} - set(self.heard):
                with suppress(MPI.Exception):  # the rank died
                    if self.comm.Iprobe(rank, self._roll):
                        text = bytearray(_CALL)
                        self.comm.Recv(text, rank, self._roll)
                        waited, _, said = text.decode().strip().partition(" ")
                        self.heard[rank] = (said, float(waited))
            return bool(self.heard)

    def settle(self, ended: set[int], seconds: float) -> None:
        """Wait until all ranks have called, or are known to be dead, as those that were ended will be.

        MPI crashes if it learns of a death while it makes a communicator.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.listen()
            dead = self.dead()
            if ended <= dead and len(dead | set(self.heard)) == self.comm.size:
                break
            time.sleep(_NAP)

    def next_roll(self) -> None:
        """Forget the calls so far."""
        with self._lock:
            self._roll += 1
            self.called, self.heard = False, {}

    def dead(self) -> set[int]:
        """The ranks that died, as far as MPI knows yet."""
        if not _reports_losses():
            return set()
        group = self.comm.Get_failed()
        if not group.size:
            return set()
        ranks = group.Translate_ranks(None, self._everyone)
        group.Free()
        return set(ranks)

    def end(self, ranks: Iterable[int]) -> list[int]:
        """Kill processes on this host. Returns the ranks on other hosts."""
        here = [rank for rank in ranks if self.homes[rank][0] == socket.gethostname()]
        for rank in here:
            with suppress(ProcessLookupError):
                os.kill(self.homes[rank][1], signal.SIGKILL)
        return [rank for rank in ranks if rank not in here]


@final
class MPICommunicator(Communicator):
    """A group of processes."""

    def __init__(self, world: _World, comm: Any, members: tuple[int, ...], deadline: float) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size, self.members, self.deadline = comm.rank, comm.size, members, deadline
        self._world, self._comm = world, comm
        self._sending: list[Any] = []
        self._missing: list[int] = []

    def all_reduce(self, array: Array, combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the arrays of all ranks."""
        dtype = array.dtype
        source = np.asarray(array, order="C")
        said = reduction("all_reduce", combine, fixed_order, dtype, source.shape)
        op = _ANY_ORDER.get((dtype, combine))
        is_ordered = op is None or source.nbytes >= _SHARE * self.size or (fixed_order and dtype.kind in "fc")
        if is_ordered and source.nbytes * self.size <= _SMALL:
            return combined(list(self._agreed(said, source.tobytes()).view(dtype)), combine).reshape(source.shape)
        self._agreed(said)
        if is_ordered:
            return self._in_order(said, source, combine)
        result = np.empty(array.shape, dtype)
        self._do(said, self._comm.Iallreduce, source, result, op)
        if combine is Combine.MEAN:
            result /= self.size
        return result

    def _in_order(self, said: str, source: Array, combine: Combine) -> Array:
        """Combine the arrays in the order of ranks: each rank a share of them, then all get all shares."""
        if self.size == 1:
            return combined([source], combine)
        ends = [source.size * rank // self.size for rank in range(self.size + 1)]
        counts = [b - a for a, b in pairwise(ends)]
        result = np.empty(source.shape, source.dtype)
        share = result.reshape(-1)[ends[self.rank] : ends[self.rank + 1]]
        self._combined(said, source.reshape(-1), counts, combine, share)
        self._do(said, self._comm.Iallgatherv, MPI.IN_PLACE, [_raw(result), counts])
        return result

    def _combined(self, said: str, flat: Array, counts: list[int], combine: Combine, out: Array | None = None) -> Array:
        """Combine this rank's share of flat arrays that all ranks have cut alike. Its own part stays where it is."""
        ends = [0, *accumulate(counts)]
        size = counts[self.rank]
        rows = np.empty((self.size - 1, size), flat.dtype)
        sent, received = list(counts), [size] * self.size
        sent[self.rank] = received[self.rank] = 0
        self._do(said, self._comm.Ialltoallv, [_raw(flat), (sent, ends[:-1])], [_raw(rows), received])
        parts = list(rows)
        parts.insert(self.rank, flat[ends[self.rank] : ends[self.rank + 1]])
        return combined(parts, combine, out)

    def all_gather(self, array: Array) -> list[Array]:
        """The arrays of all ranks."""
        return self._gathered(described("all_gather", "", array.dtype), array)

    def _gathered(self, said: str, array: Array) -> list[Array]:
        source = np.asarray(array, order="C")
        headers = self._agreed(said, _header(source).tobytes()).view(np.int64)
        results = [_empty(header) for header in headers]
        flat = np.empty(sum(each.size for each in results), source.dtype)
        counts = [each.size for each in results]
        self._do(said, self._comm.Iallgatherv, _raw(source), [_raw(flat), counts])
        return _cut(flat, results)

    def reduce_scatter(self, parts: Sequence[Array], combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the part with this rank's index over all ranks, always in their order."""
        flat = self._flat("reduce_scatter", parts)
        said = reduction("reduce_scatter", combine, fixed_order, flat.dtype, *[part.shape for part in parts])
        counts = [part.size for part in parts]
        if flat.nbytes * self.size <= _SMALL:
            rows = self._agreed(said, flat.tobytes()).view(flat.dtype)
            first = sum(counts[: self.rank])
            share = combined(list(rows[:, first : first + counts[self.rank]]), combine)
        else:
            self._agreed(said)
            share = self._combined(said, flat, counts, combine)
        return share.reshape(parts[self.rank].shape)

    def all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        """Send part i to rank i, and receive one part from each rank."""
        flat = self._flat("all_to_all", parts)
        said = described("all_to_all", "", flat.dtype)
        self._agreed(said)
        headers = np.empty((self.size, _SHAPE + 2), np.int64)
        self._do(said, self._comm.Ialltoall, np.stack([_header(part) for part in parts]), headers)
        results = [_empty(header) for header in headers]
        received = np.empty(sum(each.size for each in results), flat.dtype)
        sent, counts = [part.size for part in parts], [each.size for each in results]
        self._do(said, self._comm.Ialltoallv, [_raw(flat), sent], [_raw(received), counts])
        return _cut(received, results)

    def _flat(self, name: str, parts: Sequence[Array]) -> Array:
        if len(parts) != self.size:
            raise ArgumentError(f"[{name}] expected a part for each of {self.size} ranks, got {len(parts)}")
        return np.concatenate([part.reshape(-1) for part in parts])

    def broadcast(self, array: Array | None, root: int) -> Array:
        """The array of the root."""
        if self.rank == root and array is None:
            raise ArgumentError("[broadcast] expected an array on the root, got None")
        said = f"broadcast from {root}"
        given = array if self.rank == root else None
        header = _NO_ARRAY if given is None else _header(given)
        result = _empty(self._agreed(said, header.tobytes()).view(np.int64)[root])
        if given is not None:
            result[...] = given
        self._do(said, self._comm.Ibcast, _raw(result), root)
        return result

    def _agreed(self, said: str, own: bytes = b"") -> Array:
        """Compare what the ranks call, in the first message of each collective. Raises `ArgumentError` if they differ.

        Returns a row of bytes for each rank: those that it gives along.
        """
        head = _digest(said)
        rows = np.empty((self.size, len(head) + len(own)), np.uint8)
        self._do(said, self._comm.Iallgather, head + own, rows)
        if rows[:, : len(head)].tobytes() != head * self.size:
            self._fail(said, 0.0, is_mistake=True)
        return rows[:, len(head) :]

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Send a copy of an array to one rank."""
        copy = np.array(array, order="C")
        try:
            self._sending = [request for request in self._sending if not request.Test()]
            self._sending += [self._comm.Isend(part, to, tag) for part in (_header(copy), _raw(copy))]
        except MPI.Exception as error:
            self._fail("send", 0.0, is_mistake=not self._is_loss(error))

    def receive(self, source: int, tag: int = 0) -> Array:
        """The next array that a rank sent under this tag."""
        said = f"receive from {self.members[source]}"
        header = np.empty(_SHAPE + 2, np.int64)
        self._do(said, self._comm.Irecv, header, source, tag)
        result = _empty(header)
        self._do(said, self._comm.Irecv, _raw(result), source, tag)
        return result

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks."""
        self._agreed(name)

    def split(self, color: int, key: int) -> Communicator:
        """The group of the ranks with the same color, ordered by key."""
        own = np.asarray([color, key, self.members[self.rank]])
        asked = [array.tolist() for array in self._gathered("split", own)]
        members = sorted((k, rank, number) for rank, (c, k, number) in enumerate(asked) if c == color)
        comm = self._made("split", lambda: self._comm.Split(color, key))
        return MPICommunicator(self._world, comm, tuple(number for _, _, number in members), self.deadline)

    def shrink(self) -> Communicator:
        """The group of the ranks that live, and of spares. A missing rank on this host is killed."""
        world = self._world
        if not _reports_losses():
            missing = [world.numbers[rank] for rank in self._missing]
            raise lost("shrink", missing, "is lost, and this MPI library cannot go on without it; use Open MPI 5")
        world.call("shrink", 0.0)
        self._end_missing()
        world.settle(set(self._missing), self._grace)
        world.next_roll()
        call = _Call(world.comm.Shrink)
        try:
            self._wait("shrink", call)
        except RankLost:  # a rank stopped since the roll
            self._end_missing()
            self._wait("shrink", call)
        comm = call.result
        numbers = tuple(world.numbers[rank] for rank in comm.group.Translate_ranks(None, world.comm.group))
        try:
            return _connected(comm, numbers, world.wanted, self.deadline)
        except RankLost:
            return _groups[-1].shrink()

    def _end_missing(self) -> None:
        far = [self._world.numbers[rank] for rank in self._world.end(self._missing)]
        if far:
            raise lost("shrink", far, "does not answer, and cannot be ended from this host")

    def _do(self, said: str, start: Callable[..., Any], *arguments: Any) -> None:
        """Start an operation of MPI, and wait for it."""
        began = time.monotonic()
        try:
            request = start(*arguments)
            while not request.Test():
                if time.monotonic() - began > _SPIN:
                    break
            else:
                return
        except MPI.Exception as error:
            self._fail(said, 0.0, is_mistake=not self._is_loss(error))
        self._wait(said, request, began)

    def _made(self, name: str, function: Callable[[], Any]) -> Any:
        """The result of a call of MPI that only blocks: a thread waits for it."""
        call = _Call(function)
        self._wait(name, call)
        return call.result

    def _wait(self, said: str, request: Any, began: float | None = None) -> None:
        """Wait for a request that began at this moment, or now."""
        began, waited = time.monotonic() if began is None else began, 0.0
        try:
            while not request.Test():
                waited = time.monotonic() - began
                if waited > self.deadline - self._grace or (waited > _PATIENCE and self._world.listen()):
                    self._world.keep(request)
                    self._fail(said, waited)
                time.sleep(_NAP if waited > _PATIENCE or BACKGROUND.is_computing() else 0)
        except MPI.Exception as error:
            self._fail(said, waited, is_mistake=not self._is_loss(error))

    @property
    def _grace(self) -> float:
        return min(_GRACE, self.deadline / 2)

    def _is_loss(self, error: MPI.Exception) -> bool:
        """True if an error of MPI says that a rank is lost. Else messages of different calls have met."""
        return error.Get_error_class() in _LOSSES or (_reports_losses() and self._comm.Is_revoked())

    def _fail(self, said: str, waited: float, *, is_mistake: bool = False) -> NoReturn:
        """Call the roll. Raise `RankLost` with the missing ranks, or `ArgumentError` if ranks call different things.

        In a mistake, messages have shown that they do: no rank needs to be missing.
        """
        world, end = self._world, time.monotonic() + _ROLL * self._grace
        name = said.partition(" ")[0]
        world.call(said, waited)
        if _reports_losses():
            self._comm.Revoke()
        own = {world.numbers.index(number) for number in self.members}
        active = own | set(range(world.size))
        silent, dead = active, active & set()
        while silent and not dead and time.monotonic() < end:
            time.sleep(_NAP)
            world.listen()
            gone = world.dead()
            silent, dead = set(range(world.comm.size)) - set(world.heard) - gone, gone & active
        asked = (own if is_mistake else active) & set(world.heard)
        calls = {world.numbers[rank]: world.heard[rank][0] for rank in asked}
        differ = len(set(calls.values())) > 1
        if is_mistake and differ:
            raise disagreement(name, calls) from None
        if dead:
            self._missing, reason = sorted(dead), "died"
        elif silent:
            self._missing, reason = sorted(silent & own or silent), f"did not come within {self.deadline:g} s"
        elif differ:
            raise disagreement(name, calls) from None
        else:
            last = min(active, key=lambda rank: world.heard[rank][1])
            self._missing, reason = [last], f"came later than {self.deadline:g} s after the first"
        raise lost(name, [world.numbers[rank] for rank in self._missing], reason) from None


@final
class _Call:
    """A blocking call in a thread, with the interface of a request."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self.result = function()
        except MPI.Exception as error:
            self._error = error

    def Test(self) -> bool:
        """True once the call has returned. Raises its error."""
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()


def _raw(array: Array) -> Array:
    """The elements of a contiguous array as a type that MPI has."""
    return array.reshape(-1).view(_RAW[array.dtype.itemsize])


@lru_cache(_KNOWN)
def _digest(said: str) -> bytes:
    """Few bytes that distinguish calls, the same on all ranks."""
    return blake2b(said.encode(), digest_size=8).digest()


def _header(array: Array) -> Array:
    """Dtype and shape, as one message of fixed length."""
    header = np.zeros(_SHAPE + 2, np.int64)
    header[: array.ndim + 2] = (_DTYPES.index(array.dtype), array.ndim, *array.shape)
    return header


def _empty(header: Array) -> Array:
    return np.empty(header[2 : 2 + header[1]], _DTYPES[header[0]])


def _cut(flat: Array, like: Sequence[Array]) -> list[Array]:
    ends = np.cumsum([each.size for each in like])[:-1]
    return [part.reshape(each.shape) for part, each in zip(np.split(flat, ends), like, strict=True)]


_groups: Final[list[MPICommunicator]] = []
"""The groups of all ranks: the first, and those of the survivors."""


def _connected(comm: Any, numbers: tuple[int, ...], wanted: int, deadline: float) -> Communicator:
    """The group of the first ranks of an MPI communicator, which have these numbers. A spare waits for its place."""
    world = _World(comm, numbers, wanted)
    everyone = MPICommunicator(world, comm, numbers, deadline)
    _groups.append(everyone)
    home = f"{socket.gethostname()} {os.getpid()}".encode()
    for text in everyone.all_gather(np.frombuffer(home, np.uint8)):
        host, pid = text.tobytes().decode().split()
        world.homes.append((host, int(pid)))
    is_spare = comm.rank >= world.size
    part = everyone._made("init", lambda: comm.Split(is_spare))  # the roll has a communicator of its own
    members = numbers[world.size :] if is_spare else numbers[: world.size]
    group = _groups[-1] = MPICommunicator(world, part, members, deadline)
    if not is_spare:
        return group
    while not world.listen():
        time.sleep(_STAND_BY)
    if _EXIT in {name for name, _ in world.heard.values()}:
        sys.exit()
    return group.shrink()


def joined(deadline: float) -> Communicator:
    """The group of all processes that one launcher started."""
    before = sys.excepthook

    def fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        group = _groups[-1]
        group._world.whole = False
        group._world.end(group._missing)

    sys.excepthook = fail
    atexit.register(_finish)
    count = MPI.COMM_WORLD.size
    group = _connected(MPI.COMM_WORLD, tuple(range(count)), count - setting("YOSEGI_SPARES", 0), deadline)
    group.is_new = len(_groups) > 1
    return group


def _finish() -> None:
    """Leave MPI once all ranks do. After the loss of a rank, MPI may wait for ever: the process just ends."""
    group = _groups[-1]
    if not group._world.whole:
        return
    try:
        group.barrier(_EXIT)
    except (RankLost, ArgumentError) as error:
        print(error, file=sys.stderr, flush=True)
        group._world.end(group._missing)
        os._exit(1)
    world = group._world
    if world.comm.rank == 0:
        world.tell(set(range(world.size, world.comm.size)), _EXIT, 0.0)
    if len(_groups) == 1:
        faulthandler.dump_traceback_later(group.deadline, exit=True)
        MPI.Finalize()
        faulthandler.cancel_dump_traceback_later()
