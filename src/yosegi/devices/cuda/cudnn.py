"""cuDNN through its C interface: the library, and the descriptors of operations.

All its inputs and outputs are descriptors with attributes: tensors, operations, engines,
plans. Its older functions, one for each operation, reach only its older kernels.
"""

from __future__ import annotations

from ctypes import CDLL, byref, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from weakref import finalize

from .blas import loaded

_LEAST_VERSION: Final = 90200
"""From then on engines tell what memory they need, and whether they can be made, before they are made."""
_WORDS: Final = 1024
"""Bytes for what the library says of an error."""

# What attributes hold: cudnnBackendAttributeType_t, and its type in C.
HANDLE: Final = 0, c_void_p
DATA_TYPE: Final = 1, c_int
INTEGERS: Final = 3, c_int64
SINGLE: Final = 4, c_float
DOUBLE: Final = 5, c_double
POINTERS: Final = 6, c_void_p
CONVOLUTION_MODE: Final = 7, c_int
HEURISTICS_MODE: Final = 8, c_int
NUMERICAL_NOTES: Final = 11, c_int
DESCRIPTORS: Final = 15, c_void_p
BEHAVIOUR_NOTES: Final = 19, c_int


@dataclass(frozen=True, slots=True)
class Attribute:
    """Something that a descriptor has."""

    number: int
    """cudnnBackendAttributeName_t."""
    holds: tuple[int, Any]


class CUDNNError(RuntimeError):
    """A status of the library's that is not success."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def library_refusal() -> str | None:
    """Why the library cannot be used, or `None`."""
    found = _found()
    return found if isinstance(found, str) else None


def do(name: str, *arguments: Any) -> None:
    """Call a function of the library; raises `CUDNNError`."""
    status = getattr(_library(), name)(*arguments)
    if status:
        raise CUDNNError(status, f"{name}: {_words(status)}")


class Descriptor:
    """A descriptor of the library, which lives as long as this object. It keeps those that it is made
    of: nobody says whether the library does."""

    def __init__(self, kind: int) -> None:
        """`kind` is a cudnnBackendDescriptorType_t."""
        self.pointer = c_void_p()
        self._parts: list[Descriptor] = []
        do("cudnnBackendCreateDescriptor", c_int(kind), byref(self.pointer))
        finalize(self, _library().cudnnBackendDestroyDescriptor, self.pointer)

    def set(self, attribute: Attribute, *values: Any) -> Self:
        """Give it an attribute: numbers, addresses or descriptors."""
        kind, cell = attribute.holds
        self._parts += [value for value in values if isinstance(value, Descriptor)]
        plain = [value.pointer if isinstance(value, Descriptor) else value for value in values]
        cells = (cell * len(plain))(*plain)
        do("cudnnBackendSetAttribute", self.pointer, c_int(attribute.number), c_int(kind), c_int64(len(plain)), cells)
        return self

    def finished(self) -> Self:
        """Have it checked, after which it cannot be changed. For what is to be run, this is where the work is."""
        do("cudnnBackendFinalize", self.pointer)
        return self

    def number(self, attribute: Attribute) -> int:
        """An attribute that is one number."""
        cells = (attribute.holds[1] * 1)()
        self._read(attribute, 1, cells)
        return int(cells[0])

    def numbers(self, attribute: Attribute, most: int) -> tuple[int, ...]:
        """An attribute that is numbers, so many at most."""
        cells = (attribute.holds[1] * most)()
        count = self._read(attribute, most, cells)
        return tuple(cells[: min(count, most)])

    def part(self, attribute: Attribute, kind: int) -> Descriptor:
        """An attribute that is a descriptor of a kind."""
        return self._filled(attribute, kind, 1)[0]

    def parts(self, attribute: Attribute, kind: int) -> list[Descriptor]:
        """An attribute that is descriptors of a kind."""
        return self._filled(attribute, kind, self._read(attribute, 0, None))

    def _filled(self, attribute: Attribute, kind: int, count: int) -> list[Descriptor]:
        """This many descriptors, which are made here and filled in by the library."""
        made = [Descriptor(kind) for _ in range(count)]
        for part in made:
            part._parts.append(self)
        self._read(attribute, count, (c_void_p * count)(*[part.pointer for part in made]))
        return made

    def _read(self, attribute: Attribute, most: int, cells: Any) -> int:
        """Have the library fill so many cells; gives how many it would."""
        count = c_int64()
        do(
            "cudnnBackendGetAttribute", self.pointer, c_int(attribute.number), c_int(attribute.holds[0]), c_int64(most),
            byref(count), cells,
        )  # fmt: skip
        return count.value


@cache
def _found() -> CDLL | str:
    """The library: loaded already, where the system looks, or as a package. Or why there is none."""
    places = [loaded("libcudnn.so"), "libcudnn.so.9", "libcudnn.so.8"]
    package = find_spec("nvidia.cudnn") if find_spec("nvidia") is not None else None
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        places += [str(p) for p in sorted(Path(folder, "lib").glob("libcudnn.so.*"))]
    reason = "cuDNN is not installed"
    for place in places:
        try:
            found = CDLL(place)
        except OSError:
            continue
        found.cudnnGetVersion.restype = c_size_t
        version = found.cudnnGetVersion()
        if version >= _LEAST_VERSION:
            found.cudnnGetErrorString.restype = c_char_p
            found.cudnnGetLastErrorString.restype = None
            return found
        major, rest = divmod(version, 1000 if version < 10000 else 10000)  # since version 9 there is a digit more
        reason = f"cuDNN {major}.{rest // 100} is too old: it has to be 9.2 or newer"
    return reason


def _library() -> Any:
    found = _found()
    assert not isinstance(found, str), found
    return found


def _words(status: int) -> str:
    """The name of a status, and the library's message."""
    library = _library()
    said = (c_char * _WORDS)()
    library.cudnnGetLastErrorString(said, c_size_t(_WORDS))
    words = " ".join(said.value.decode(errors="replace").split())
    name: str = library.cudnnGetErrorString(c_int(status)).decode()
    return f"{name}: {words}" if words else name
