"""cuDNN's engines for an operation: which there are, in the order that it expects, what they say of themselves, and
those of them that compute as precisely as they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType, float32
from ...errors import CompileFailure
from .cudnn import (
    BEHAVIOUR_NOTES,
    DESCRIPTORS,
    HANDLE,
    HEURISTICS_MODE,
    INTEGERS,
    NUMERICAL_NOTES,
    POINTERS,
    Attribute,
    CUDNNError,
    Descriptor,
    do,
)
from .launch import WORKSPACE

_ENGINE, _CHOICE, _EXPECTATION, _PLAN, _GRAPH, _VARIANT = 2, 3, 4, 5, 15, 16
"""cudnnBackendDescriptorType_t. A choice is an engine with all that can be turned on it."""

_EXPECTATION_MODE: Final = Attribute(200, HEURISTICS_MODE)
_EXPECTATION_GRAPH: Final = Attribute(201, DESCRIPTORS)
_EXPECTATION_CHOICES: Final = Attribute(202, DESCRIPTORS)
_CHOICE_ENGINE: Final = Attribute(300, DESCRIPTORS)
_CHOICE_WORKSPACE: Final = Attribute(303, INTEGERS)
_PLAN_HANDLE: Final = Attribute(400, HANDLE)
_PLAN_CHOICE: Final = Attribute(401, DESCRIPTORS)
_PLAN_WORKSPACE: Final = Attribute(402, INTEGERS)
_GRAPH_HANDLE: Final = Attribute(800, HANDLE)
_GRAPH_OPERATIONS: Final = Attribute(801, DESCRIPTORS)
_VARIANT_TENSORS: Final = Attribute(1000, INTEGERS)
_VARIANT_ADDRESSES: Final = Attribute(1001, POINTERS)
_VARIANT_WORKSPACE: Final = Attribute(1003, POINTERS)
_ENGINE_NUMBER: Final = Attribute(1301, INTEGERS)
_ENGINE_NUMERICS: Final = Attribute(1303, NUMERICAL_NOTES)
_ENGINE_BEHAVIOUR: Final = Attribute(1305, BEHAVIOUR_NOTES)

_MODES: Final = {"expected to be fast": 3, "for all else": 2}
"""cudnnBackendHeurMode_t. Another one, 1, thinks ten to a hundred times as long: measuring tells more."""

_TENSOR_CORES, _KEEPS_NANS = 0, 9
NUMERICS: Final = {
    _TENSOR_CORES: "tensor cores", 1: "shorter inputs", 2: "shorter sums", 3: "Fourier transforms",
    4: "another result every time", 5: "Winograd's way", 6: "Winograd's way, 4 x 4", 7: "Winograd's way, 6 x 6",
    8: "Winograd's way, 13 x 13", _KEEPS_NANS: "NaNs are kept",
}  # fmt: skip
"""cudnnBackendNumericalNote_t. An error by Fourier transforms or in Winograd's way is a share of the largest number
around, not of what a result is the sum of."""
BEHAVIOUR: Final = {
    0: "compiled when it is made", 1: "weights in another order", 2: "a bias in another order", 3: "a graph by itself",
    4: "by cuBLASLt",
}  # fmt: skip
"""cudnnBackendBehaviorNote_t."""
_REORDERED: Final = frozenset({1, 2})
"""The behaviour of engines that need their operands in another order."""
_MOST_NOTES: Final = 32


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with what was chosen on it."""

    choice: Descriptor
    number: int
    """Its own: the same engine may come with several choices."""
    numerics: tuple[int, ...]
    behaviour: tuple[int, ...]
    workspace: int | None
    """Bytes that it needs on the way, `None` if the library refuses to tell: it does of those that cannot be made."""

    @classmethod
    def of(cls, choice: Descriptor) -> Engine:
        """The engine of a choice. Raises `CUDNNError`."""
        engine = choice.part(_CHOICE_ENGINE, _ENGINE)
        numerics, behaviour = (engine.numbers(notes, _MOST_NOTES) for notes in (_ENGINE_NUMERICS, _ENGINE_BEHAVIOUR))
        workspace = None
        with suppress(CUDNNError):
            workspace = choice.number(_CHOICE_WORKSPACE)
        return cls(choice, engine.number(_ENGINE_NUMBER), numerics, behaviour, workspace)

    def objection(self, dtype: DType, *, rounds: bool) -> str | None:
        """Why it must not compute in a dtype, or `None`; `rounds`: products of float32 may be those of TF32.

        An engine that says of itself what nobody here knows may do anything: it is not used either.
        """
        harmless = {_KEEPS_NANS} if dtype is float32 and not rounds else {_KEEPS_NANS, _TENSOR_CORES}
        for note in self.numerics:
            if note not in harmless:
                return NUMERICS.get(note, f"numerical note {note}")
        for note in self.behaviour:
            if note in _REORDERED or note not in BEHAVIOUR:
                return BEHAVIOUR.get(note, f"behaviour note {note}")
        if self.workspace is None:
            return "it cannot be made"
        return _too_much(self.workspace) if self.workspace > WORKSPACE else None


def graph_of(operation: Descriptor, handle: c_void_p) -> Descriptor:
    """One operation as the graph that engines are for."""
    return Descriptor(_GRAPH).set(_GRAPH_HANDLE, handle).set(_GRAPH_OPERATIONS, operation).finished()


def _ranked(graph: Descriptor, mode: int) -> list[Descriptor]:
    """The engines for a graph, the best first by one of the library's heuristics. Raises `CUDNNError`."""
    asked = Descriptor(_EXPECTATION).set(_EXPECTATION_GRAPH, graph).set(_EXPECTATION_MODE, mode).finished()
    return asked.parts(_EXPECTATION_CHOICES, _CHOICE)


def usable(graph: Descriptor, dtype: DType, *, rounds: bool, most: int) -> tuple[list[Engine], list[str]]:
    """The first engines that may compute in a dtype, so many at most, and why others may not.

    What the library has for all else are engines as they come: one that was there before, with a choice, is not there
    again.
    """
    found: list[Engine] = []
    objections: dict[str, None] = {}  # in their order
    for mode in _MODES.values():
        before = {engine.number for engine in found}
        for engine in _described(graph, mode, objections):
            objection = engine.objection(dtype, rounds=rounds)
            if objection is not None:
                objections[objection] = None
            elif engine.number not in before:
                found.append(engine)
                if len(found) == most:
                    return found, list(objections)
    return found, list(objections)


def _described(graph: Descriptor, mode: int, objections: dict[str, None]) -> Iterator[Engine]:
    """The engines of a mode; what the library refuses to tell is an objection."""
    offered: list[Descriptor] = []
    try:
        offered = _ranked(graph, mode)
    except CUDNNError as error:
        objections[str(error)] = None
    for choice in offered:
        try:
            engine = Engine.of(choice)
        except CUDNNError as error:
            objections[str(error)] = None
        else:
            yield engine


class EnginePlan:
    """An engine that is ready to run, again and again."""

    def __init__(self, engine: Engine, handle: c_void_p) -> None:
        """Takes milliseconds, and longer where it is compiled. Raises `CUDNNError`, or `CompileFailure` if it needs
        more memory than there is."""
        self._handle = handle
        self._plan = Descriptor(_PLAN).set(_PLAN_HANDLE, handle).set(_PLAN_CHOICE, engine.choice).finished()
        self.workspace = self._plan.number(_PLAN_WORKSPACE)
        if self.workspace > WORKSPACE:
            raise CompileFailure(_too_much(self.workspace))

    def run(self, tensors: Sequence[int], addresses: Sequence[int], workspace: int) -> None:
        """Put it into the handle's stream: with the tensors of these numbers at these addresses. Raises `CUDNNError`.

        What holds the addresses cannot be changed, and is made anew: graphs that are replayed do without.
        """
        variant = Descriptor(_VARIANT).set(_VARIANT_TENSORS, *tensors).set(_VARIANT_ADDRESSES, *addresses)
        variant.set(_VARIANT_WORKSPACE, workspace).finished()
        do("cudnnBackendExecute", self._handle, self._plan.pointer, variant.pointer)


def _too_much(nbytes: int) -> str:
    return f"it needs {nbytes} bytes on the way, of which there are {WORKSPACE}"
