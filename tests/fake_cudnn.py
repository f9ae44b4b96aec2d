"""A cuDNN that computes nothing: it remembers what it is told, and has the engines that a test gives it.

Numbers are those of cuDNN 9's header, once more: what the device's code has must agree.
"""

from __future__ import annotations

from ctypes import c_char, c_char_p
from dataclasses import dataclass, field
from typing import Any

CONVOLUTION, ENGINE, CHOICE, HEURISTICS, PLAN, FORWARD, TO_WEIGHTS, TO_INPUT, GRAPH, VARIANT, TENSOR = (
    1, 2, 3, 4, 5, 10, 11, 12, 15, 16, 17,
)  # fmt: skip
KIND_OF = {1: CONVOLUTION, 2: HEURISTICS, 3: CHOICE, 4: PLAN, 8: GRAPH, 9: TENSOR, 10: VARIANT, 13: ENGINE}
"""Whose an attribute is, by its hundreds."""
KIND_OF_OPERATION = (FORWARD, TO_INPUT, TO_WEIGHTS)
"""Whose an attribute from 700 on is: each operation has six."""
TYPE_OF = {
    100: 1, 101: 7, 102: 3, 103: 3, 104: 3, 105: 3, 106: 3, 200: 8, 201: 15, 202: 15, 300: 15, 303: 3, 400: 0, 401: 15,
    402: 3, 702: 15, 703: 15, 704: 15, 705: 15, 708: 15, 709: 15, 710: 15, 711: 15, 714: 15, 715: 15, 716: 15, 717: 15,
    800: 0, 801: 15, 900: 3, 901: 1, 902: 3, 903: 3, 906: 3, 1000: 3,
    1001: 6, 1003: 6, 1301: 3, 1303: 11, 1305: 19,
}  # fmt: skip
"""What an attribute holds: a scale (700, 701, 706, 707, 712, 713) is float or double."""
SIZE_OF = {0: 8, 1: 4, 3: 8, 4: 4, 5: 8, 6: 8, 7: 4, 8: 4, 11: 4, 15: 8, 19: 4}
EXPECTED, FALLBACK = 3, 2
"""The heuristics' modes that are asked for."""
NOT_SUPPORTED, NO_DEVICE_MEMORY = 3000, 4004
HANDLE = 77


@dataclass(frozen=True)
class Offered:
    """An engine that there is."""

    number: int = 0
    numerics: tuple[int, ...] = ()
    behaviour: tuple[int, ...] = ()
    workspace: int = 0
    tells: bool = True
    """Whether its workspace is told before it is a plan."""
    more: int = 0
    """What the plan needs beyond that."""
    status: int = 0
    """Of making it a plan."""


@dataclass
class Told:
    """A descriptor."""

    kind: int
    attributes: dict[int, list[Any]] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    is_finished: bool = False
    offered: Offered | None = None


def _kind_of(attribute: int) -> int:
    """Whose an attribute is."""
    return KIND_OF_OPERATION[(attribute - 700) // 6] if attribute // 100 == 7 else KIND_OF[attribute // 100]


class Library:
    """The library, as ctypes would call it."""

    def __init__(self, expected: list[Offered] | int, fallback: list[Offered] | int = NOT_SUPPORTED) -> None:
        """Engines by the mode that they are told in, or the status of asking."""
        self.offers = {EXPECTED: expected, FALLBACK: fallback}
        self.alive: dict[int, Told] = {}
        self.executed: list[tuple[Told, Told]] = []
        self.streams: list[int] = []
        self.asked = 0
        self.status = 0
        """Of running a plan."""
        self._made = 0

    def of(self, kind: int) -> list[Told]:
        return [told for told in self.alive.values() if told.kind == kind]

    def at(self, told: Told, attribute: int) -> Told:
        (pointer,) = told.attributes[attribute]
        return self.alive[pointer]

    def cudnnCreate(self, into: Any) -> int:
        into._obj.value = HANDLE
        return 0

    def cudnnSetStream(self, handle: Any, stream: Any) -> int:
        assert handle.value == HANDLE
        self.streams.append(stream.value)
        return 0

    def cudnnGetErrorString(self, status: Any) -> bytes:
        return f"CUDNN_STATUS_{status.value}".encode()

    def cudnnGetLastErrorString(self, into: Any, size: Any) -> None:
        assert isinstance(into, c_char * size.value)
        into.value = b"Error: it said\n so;  at line 3\n"

    def cudnnBackendCreateDescriptor(self, kind: Any, into: Any) -> int:
        self._made += 1
        self.alive[1000 + self._made] = Told(kind.value)
        into._obj.value = 1000 + self._made
        return 0

    def cudnnBackendDestroyDescriptor(self, descriptor: Any) -> int:
        del self.alive[descriptor.value]
        return 0

    def cudnnBackendSetAttribute(self, descriptor: Any, name: Any, type_: Any, count: Any, cells: Any) -> int:
        told = self._checked(descriptor, name, type_)
        assert not told.is_finished
        assert len(cells) == count.value
        assert memoryview(cells).nbytes == count.value * SIZE_OF[type_.value]
        told.attributes[name.value] = list(cells)
        told.types[name.value] = type_.value
        if type_.value == 15:
            assert all(self.alive[pointer].is_finished for pointer in cells)
        if type_.value == 0:
            assert list(cells) == [HANDLE]
        return 0

    def cudnnBackendFinalize(self, descriptor: Any) -> int:
        told = self.alive[descriptor.value]
        assert not told.is_finished
        if told.kind == HEURISTICS:
            self.asked += 1
            offers = self.offers[told.attributes[200][0]]
            if isinstance(offers, int):
                return offers
        if told.kind == PLAN:
            told.offered = self.at(told, 401).offered
            assert told.offered is not None
            if told.offered.status:
                return told.offered.status
        told.is_finished = True
        return 0

    def cudnnBackendGetAttribute(
        self, descriptor: Any, name: Any, type_: Any, most: Any, count: Any, cells: Any
    ) -> int:
        told = self._checked(descriptor, name, type_)
        assert told.is_finished
        found = self._found(told, name.value)
        if found is None:
            return NOT_SUPPORTED
        count._obj.value = len(found)
        for n, value in enumerate(found[: most.value]):
            if isinstance(value, Offered):  # into a descriptor that the caller has made
                self.alive[cells[n]].offered = value
                self.alive[cells[n]].is_finished = True
            else:
                cells[n] = value
        return 0

    def cudnnBackendExecute(self, handle: Any, plan: Any, variant: Any) -> int:
        assert handle.value == HANDLE
        made = self.alive[plan.value], self.alive[variant.value]
        assert all(told.is_finished for told in made)
        self.executed.append(made)
        return self.status

    def _checked(self, descriptor: Any, name: Any, type_: Any) -> Told:
        told = self.alive[descriptor.value]
        assert _kind_of(name.value) == told.kind
        assert TYPE_OF.get(name.value, type_.value) == type_.value
        return told

    def _found(self, told: Told, name: int) -> list[Any] | None:
        if name == 202:
            offers = self.offers[told.attributes[200][0]]
            assert not isinstance(offers, int)
            return list(offers)
        offered = told.offered
        assert offered is not None
        if name == 303 and not offered.tells:
            return None
        answers: dict[int, list[Any]] = {
            300: [offered], 303: [offered.workspace], 402: [offered.workspace + offered.more], 1301: [offered.number],
            1303: list(offered.numerics), 1305: list(offered.behaviour),
        }  # fmt: skip
        return answers[name]


class Versioned:
    """A library of which only the version is asked."""

    def __init__(self, version: int) -> None:
        def cudnnGetVersion() -> int:
            return version

        def cudnnGetErrorString(status: int) -> bytes:
            raise AssertionError(status)

        def cudnnGetLastErrorString(into: Any, size: int) -> None:
            raise AssertionError(into)

        self.cudnnGetVersion: Any = cudnnGetVersion
        self.cudnnGetErrorString: Any = cudnnGetErrorString
        self.cudnnGetLastErrorString: Any = cudnnGetLastErrorString

    def is_prepared(self) -> bool:
        return (self.cudnnGetErrorString.restype, self.cudnnGetLastErrorString.restype) == (c_char_p, None)
