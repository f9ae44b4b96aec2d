"""Arguments of jitted functions: the inputs of a trace, and the signature that selects a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from .._run.memory import Buffer
from .._tensor.dtype import DType, as_dtype, number_type
from .._tensor.interchange import class_name, is_array
from .._tensor.node import Node, Spec, spec
from .._tensor.op import exact, leaf_call
from .._tensor.tensor import Tensor
from .._tensor.tree import Structure
from .._tensor.tree_code import reader
from ..errors import ArgumentError, DTypeError
from ..ops.creation import asarray
from .objects import is_comparable

_TENSORS: Final = {Tensor}
WEAK: Final = {kind: spec((), as_dtype(kind), weak=True) for kind in (int, float, complex)}
"""The specs of Python numbers."""


@dataclass(frozen=True, slots=True)
class Static:
    """An argument that belongs to the signature by its value: the function may branch on it."""

    exact: Any
    value: Any


_LEAVES: Final = frozenset({
    Tensor, Static, float, int, complex, bool, str, type(None), np.ndarray, np.float32, np.float64, np.int32, np.int64,
})  # fmt: skip
"""Types that are leaves of arguments, whatever their values."""


class Arguments:
    """The structure of arguments, as part of a signature. A function has one object for each structure."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self._read: Callable[[Any], Sequence[Any] | None] | None = None
        self._is_new = True

    def leaves(self, given: Any) -> Sequence[Any] | None:
        """The leaves of arguments of this structure; `None` if they have another, or a leaf of another type."""
        if self._is_new:  # a function that is called once needs no generated code
            self._read, self._is_new = reader(self.structure), False
        leaves = None if self._read is None else self._read(given)
        return leaves if leaves is not None and _LEAVES.issuperset(map(type, leaves)) else None


def kinds_and_nodes(leaves: Sequence[Any]) -> tuple[list[Spec | Static], list[Node]]:
    """The part of a signature that leaves give, and the nodes of those leaves that are inputs."""
    if set(map(type, leaves)) == _TENSORS:
        nodes = [t._node for t in leaves]
        return [n.spec for n in nodes], nodes
    kinds: list[Spec | Static] = []
    nodes = []
    for value in leaves:
        given = value if type(value) is Tensor else _as_input(value)
        if isinstance(given, Static):
            kinds.append(given)
            continue
        node = given._node if isinstance(given, Tensor) else _number(given)
        kinds.append(node.spec)
        nodes.append(node)
    return kinds, nodes


def _as_input(value: Any) -> Tensor | Static | int | float | complex:
    if isinstance(value, (Tensor, Static)):
        return value
    if is_array(value):
        return asarray(value)
    if number_type(value) in WEAK:
        return value  # type: ignore[no-any-return]
    made = static(value)
    if not is_comparable(value):
        raise ArgumentError(
            f"[jit] expected arguments whose changes show, got {type(value).__name__}, which equals only itself and "
            "has no attributes; pass what the function needs of it, or close over it"
        )
    return made


def is_result(value: Any) -> bool:
    """True for tensors and NumPy's arrays and numbers."""
    return isinstance(value, (Tensor, np.ndarray, np.generic))


def static(value: Any) -> Static:
    """An argument that belongs to the signature. Raises `ArgumentError` if it cannot be hashed."""
    try:
        hash(value)
    except (TypeError, ValueError):  # a memoryview raises the second
        raise ArgumentError(
            f"[jit] expected arguments that are tensors, numbers or hashable, got {class_name(value)}; pass it as a "
            "tuple, or close over it"
        ) from None
    return Static(exact((value,)), value)


def plain(value: Any) -> Any:
    """A result that is not a tensor. Types that may hold a tensor are refused."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Enum, DType)):
        return value
    raise ArgumentError(
        f"[jit] expected the function to return tensors, numbers, strings or None, in tuples, lists and dicts, got "
        f"{class_name(value)}"
    )


def nodes_of(args: Sequence[Any]) -> list[Node]:
    """The nodes of tensors and numbers."""
    return [a._node if type(a) is Tensor else _number(a) for a in args]


def _number(value: complex) -> Node:
    """A leaf with the value of a Python number."""
    kind = WEAK[number_type(value)]  # type: ignore[index]
    try:
        return Node(leaf_call(kind), (), Buffer(np.asarray(value, kind.dtype.numpy)))
    except OverflowError:
        raise DTypeError(
            f"[jit] expected a number that fits {kind.dtype.name}, got {value}; pass it as a float"
        ) from None
