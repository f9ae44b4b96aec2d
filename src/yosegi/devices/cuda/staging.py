"""Copies between the device and arrays of the host that are not pinned, in pieces through pinned memory.

While the device reads one piece, threads of the host fill the next ones: one alone does not keep up with the bus.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from threading import Lock
from typing import Any, Final

import numpy as np

from ..._run.memory.pool import Block, Pool

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_WITHOUT_TIMING: Final = 2
_PIECE: Final = 4 << 20
_PIECES: Final = 8
_THREADS: Final = 4
_DIRECT: Final = 64 << 10
"""Bytes up to which the driver copies an array aside itself before it returns."""


class _Piece:
    """One piece of pinned memory, and the event after which it is free again."""

    def __init__(self, runtime: Any, block: Block) -> None:
        self.block = block
        self.bytes = np.asarray(_Bytes(block))
        self.done: int = runtime.eventCreateWithFlags(_WITHOUT_TIMING)


class _Bytes:
    """A block's bytes for NumPy."""

    def __init__(self, block: Block) -> None:
        self.__array_interface__ = {
            "data": (block.memory, False), "shape": (block.nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip


class Staging:
    """The pieces of one device. One copy is made at a time."""

    def __init__(self, runtime: Any, stream: int, pinned: Pool) -> None:
        self._runtime = runtime
        self._stream = stream
        self._pinned = pinned
        self._pieces: list[_Piece] = []
        self._threads: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def upload(self, source: Any, pointer: int) -> None:
        """Copy bytes to the device. The array may be let go of when this returns."""
        runtime, stream = self._runtime, self._stream
        if source.nbytes <= _DIRECT:
            runtime.memcpyAsync(pointer, source.ctypes.data, source.nbytes, _HOST_TO_DEVICE, stream)
            return
        with self._lock:
            pieces, threads = self._ready()
            spans = [(at, min(at + _PIECE, source.nbytes)) for at in range(0, source.nbytes, _PIECE)]
            filled: list[tuple[_Piece, tuple[int, int], Future[None]]] = []
            for piece, span in zip(cycle(pieces), spans, strict=False):
                if len(filled) == len(pieces):
                    self._send(*filled.pop(0), pointer)
                filled.append((piece, span, threads.submit(self._fill, piece, source, span)))
            for each in filled:
                self._send(*each, pointer)

    def _fill(self, piece: _Piece, source: Any, span: tuple[int, int]) -> None:
        self._runtime.eventSynchronize(piece.done)
        np.copyto(piece.bytes[: span[1] - span[0]], source[span[0] : span[1]])

    def _send(self, piece: _Piece, span: tuple[int, int], filled: Future[None], pointer: int) -> None:
        filled.result()
        runtime, size = self._runtime, span[1] - span[0]
        runtime.memcpyAsync(pointer + span[0], piece.block.memory, size, _HOST_TO_DEVICE, self._stream)
        runtime.eventRecord(piece.done, self._stream)

    def download(self, pointer: int, target: Any) -> None:
        """Copy bytes from the device, when all work before is done."""
        runtime, stream = self._runtime, self._stream
        if target.nbytes <= _DIRECT:
            runtime.memcpyAsync(target.ctypes.data, pointer, target.nbytes, _DEVICE_TO_HOST, stream)
            runtime.streamSynchronize(stream)
            return
        with self._lock:
            pieces, threads = self._ready()
            emptied: list[Future[None] | None] = [None] * len(pieces)
            for n, at in enumerate(range(0, target.nbytes, _PIECE)):
                piece, size = pieces[n % len(pieces)], min(_PIECE, target.nbytes - at)
                waiting = emptied[n % len(pieces)]
                if waiting is not None:
                    waiting.result()
                runtime.memcpyAsync(piece.block.memory, pointer + at, size, _DEVICE_TO_HOST, stream)
                runtime.eventRecord(piece.done, stream)
                emptied[n % len(pieces)] = threads.submit(self._empty, piece, target[at : at + size])
            for last in emptied:
                if last is not None:
                    last.result()

    def _empty(self, piece: _Piece, target: Any) -> None:
        self._runtime.eventSynchronize(piece.done)
        np.copyto(target, piece.bytes[: target.nbytes])

    def _ready(self) -> tuple[list[_Piece], ThreadPoolExecutor]:
        while len(self._pieces) < _PIECES:
            self._pieces.append(_Piece(self._runtime, self._pinned.take(_PIECE)))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "yosegi-copies")
        return self._pieces, self._threads
