"""Event files of TensorBoard: scalars by name and step, without TensorBoard's own packages.

A file is a row of records: length, its checksum, an `Event` message of Protocol Buffers, its checksum.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Final


class EventWriter:
    """A writer of scalars that `tensorboard --logdir` shows.

    Parameters
    ----------
    folder : path
        The folder. It is made if it is not there.

    Examples
    --------
    >>> import os, tempfile
    >>> import yosegi as ys
    >>> folder = tempfile.mkdtemp()
    >>> with ys.training.EventWriter(folder) as events:
    ...     events.scalar("loss", 0.5, step=1)
    >>> [name.startswith("events.out.tfevents.") for name in os.listdir(folder)]
    [True]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = (Path(folder) / name).open("wb")
        self._write(_text(3, "brain.Event:2"))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write the value of a name at a step.

        Parameters
        ----------
        name : str
            The name, such as "train/loss".
        value : float
            The value.
        step : int
            The number of the step.
        """
        entry = _text(1, name) + _tag(2, 5) + struct.pack("<f", value)
        self._write(_tag(2, 0) + _varint(step) + _bytes(5, _bytes(1, entry)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, fields: bytes) -> None:
        event = _tag(1, 1) + struct.pack("<d", time.time()) + fields
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))
        self._file.flush()


def _tag(field: int, kind: int) -> bytes:
    return bytes([field << 3 | kind])


def _varint(n: int) -> bytes:
    low = bytearray()
    while n > 127:
        low.append(n & 127 | 128)
        n >>= 7
    return bytes([*low, n])


def _bytes(field: int, content: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _row(n: int) -> int:
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    return n


_CRC32C: Final = tuple(map(_row, range(256)))


def _masked_crc(data: bytes) -> bytes:
    """The checksum CRC-32C, rotated and shifted as the format has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
