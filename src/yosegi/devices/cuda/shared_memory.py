"""Exchange through memory that processes of one host share (CUDA IPC), also of several ranks on one GPU.

Each rank has a buffer that all others map. A rank copies what it sends into its buffer and waits for that; behind a
barrier of the ranks, each copies its parts out of the buffers of the others. So no GPU ever waits for another process:
a rank that is lost is missed at the barrier, which has a deadline. Two halves of the buffer serve in turn: when a half
is written again, all ranks have passed a barrier since they read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ..._run.device import Ranks
from ..._tensor.dtype import DType
from ..._tensor.role import Traffic
from ...errors import LaunchFailure
from .errors import translated
from .launch import Queue
from .memory import Data
from .traffic import Table

_LEAST: Final = 8 << 20
"""Bytes of half a buffer, at first. Smaller allocations of CUDA share a block, and handles are for whole blocks."""
_PEER_ACCESS: Final = 1
_ANYWHERE: Final = 4
"""A copy between any two places."""


class SharedMemory:
    """The buffers of a group of ranks on one host."""

    stands_alone = True
    """The host takes part in its exchanges: they cannot be recorded."""

    def __init__(self, queue: Queue, ranks: Ranks) -> None:
        """All ranks call it. Raises on all of them if one cannot share its memory."""
        self._queue, self._ranks = queue, ranks
        self._half = 0
        """The bytes of half a buffer."""
        self._turn = 0
        self._places: list[int] = []
        """The addresses of the buffers of all ranks."""
        self._grow(_LEAST)

    def __str__(self) -> str:
        return "CUDA IPC"

    def exchange(self, table: Table) -> Any:
        """An exchange of bytes, as a function of the source, the target, and values that are made before."""
        return partial(self._exchange, table)

    def native(self, traffic: Traffic, count: int, dtype: DType) -> None:
        """There are no collectives of its own."""

    def _exchange(self, table: Table, source: Data, target: Data, after: Sequence[Data] = ()) -> None:
        queue, runtime, rank = self._queue, self._queue.runtime, table.rank
        queue.undecided()  # a recording that is under way would not have this
        needed = max(table.extent(r) for r in range(len(table.sent)))
        if needed > self._half:
            self._grow(needed)
        self._turn ^= 1
        begin, own = self._turn * self._half, table.extent(rank)
        with translated(f"[{queue.name}] {table.name}"), queue.lock:
            runtime.setDevice(queue.number)
            if own:
                runtime.memcpyAsync(self._places[rank] + begin, source.pointer, own, _ANYWHERE, queue.pointer)
            runtime.streamSynchronize(queue.pointer)
        self._ranks.barrier(table.name)
        with translated(f"[{queue.name}] {table.name}"), queue.lock:
            runtime.setDevice(queue.number)
            for of, at in enumerate(table.starts):
                first, nbytes = table.sent[of][rank]
                place = source.pointer if of == rank else self._places[of] + begin
                if nbytes:
                    runtime.memcpyAsync(target.pointer + at, place + first, nbytes, _ANYWHERE, queue.pointer)

    def _grow(self, nbytes: int) -> None:
        """Buffers whose halves have at least so many bytes. All ranks call it at the same moment."""
        runtime, rank = self._queue.runtime, self._ranks.rank
        half = max(_LEAST, 1 << (nbytes - 1).bit_length())
        runtime.setDevice(self._queue.number)
        runtime.streamSynchronize(self._queue.pointer)
        for of, place in enumerate(self._places):
            if of != rank:
                runtime.ipcCloseMemHandle(place)
        own, self._places = self._places[rank] if self._places else 0, []
        self._ranks.barrier("memory")
        if own:
            runtime.free(own)
        made: list[int] = []

        def shared() -> bytes:
            made.append(int(runtime.malloc(2 * half)))
            return bytes(runtime.ipcGetMemHandle(made[0]))

        handles = self._agreed(shared)
        places: list[int] = []

        def mapped() -> bytes:
            for of, handle in enumerate(handles):
                places.append(made[0] if of == rank else int(runtime.ipcOpenMemHandle(handle, _PEER_ACCESS)))
            return b""

        self._agreed(mapped)
        self._half, self._places = half, places

    def _agreed(self, work: Any) -> list[bytes]:
        """The results of a function on each rank. Raises on all ranks if it fails on one."""
        try:
            report = b"+" + work()
        except RuntimeError as error:
            report = b"-" + str(error).encode()
        reports = [each.tobytes() for each in self._ranks.all_gather(np.frombuffer(report, np.uint8))]
        for of, each in enumerate(reports):
            if each[:1] == b"-":
                raise LaunchFailure(f"rank {of} cannot share its memory: {each[1:].decode(errors='replace')}")
        return [each[1:] for each in reports]
