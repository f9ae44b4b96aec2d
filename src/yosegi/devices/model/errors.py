"""The exceptions of model compilers as failures of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ...errors import DeviceFailure, DeviceLost, OutOfMemory

# They raise one class for everything: the text distinguishes.
_NO_MEMORY: Final = (
    "bad_alloc", "allocate", "out of memory", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "nsufficient memory",
)  # fmt: skip
_LOST: Final = ("DEVICE_NOT_AVAILABLE", "DEVICE_LOST", "device lost")


@contextmanager
def translated(kind: type[DeviceFailure], doing: str) -> Iterator[None]:
    """Raise what a compiler raises inside as the failure it is: of this kind, if the text says no more."""
    try:
        yield
    except DeviceFailure:
        raise
    except Exception as error:
        raise failure(kind, error, doing) from error


def failure(kind: type[DeviceFailure], error: Exception, doing: str) -> DeviceFailure:
    """The failure that an exception means. Of a message the last line says what went wrong, those before where."""
    if isinstance(error, MemoryError):
        return OutOfMemory(f"{doing}: the system has no memory left")
    text = str(error).strip() or type(error).__name__
    said = f"{doing}: {text.splitlines()[-1]}"
    if any(words in text for words in _NO_MEMORY):
        return OutOfMemory(said)
    return DeviceLost(said) if any(words in text for words in _LOST) else kind(said)
