"""Objects as trees: the attributes of an object are inputs of a trace, or belong to its signature.

A trace that is keyed by an object's identity would keep using the old attributes after `model.w = …`. So `flatten`
takes an object apart like a container, also a bound method or a `partial`. The traced function gets a copy of the
object with traced tensors in the place of its own. It must not change the copy: a replay would not repeat that.

An attribute that cannot be compared, such as a set or a file, is not part of the copy: a function that reads it is
refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import lru_cache, partial
from logging import Logger
from threading import Lock, RLock
from types import MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from .._tensor import tree
from .._tensor.interchange import is_array
from .._tensor.op import exact
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import Structure
from ..errors import ArgumentError, TraceError
from ..ops import rules

_HARMLESS: Final = (object, ModuleType, Logger, type(Lock()), type(RLock()))
"""Classes of objects that do not influence the results of a function."""
_INEXACT: Final = (bool, int, float, complex, tuple)
"""Types whose equal values may differ for a function: 2 equals 2.0."""


@dataclass(frozen=True, slots=True)
class _Object:
    """In a structure: an object that was taken apart."""

    kind: type
    number: int
    """Its number among the objects of the tree. An object that occurs several times has one number."""
    hidden: tuple[tuple[str, str], ...] = ()
    """The attributes that are left out, with their types."""


class _Hidden(Exception):
    """A value that cannot be compared with a later one."""


@lru_cache(maxsize=4096)
def _slots(kind: type) -> dict[str, MemberDescriptorType] | None:
    """The slots of a class whose objects can be taken apart and copied; `None` for other classes: those of Python, of
    this package and of extension modules, and those that own something that `__del__` gives back."""
    package = kind.__module__.partition(".")[0]
    if package in sys.stdlib_module_names or package == "yosegi" or hasattr(kind, "__del__"):
        return None
    try:
        object.__new__(kind)
    except TypeError:
        return None
    found = {n: d for base in kind.__mro__ for n, d in vars(base).items() if isinstance(d, MemberDescriptorType)}
    return {n: d for n, d in found.items() if n not in ("__dict__", "__weakref__")}


def opens(value: Any) -> bool:
    """True if the attributes of an object count, and not the object: it is hashed by its identity or not at all, it is
    a dataclass, a registered container, a bound method or a `partial`."""
    kind: Any = type(value)
    if kind is MethodType or kind is partial or tree.registered(kind) is not None:
        return True
    if kind.__hash__ not in (object.__hash__, None) and not is_dataclass(kind):
        return False
    return _slots(kind) is not None


def given(name: str, wrapped: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapped` with its first argument given, so that `jit` sees a function that has a state, such as a method.

    `name` is the transform's.
    """
    rules.function(name, function)
    if opens(function):
        return partial(short_tracebacks(wrapped), function)
    return short_tracebacks(lambda *args, **kwargs: wrapped(function, *args, **kwargs))


def is_comparable(value: Any) -> bool:
    """True if equal values are interchangeable: they are hashed by content, or cannot change."""
    kind: Any = type(value)
    if kind.__hash__ is object.__hash__:
        # `None` is hashed by its identity before Python 3.12.
        return value is None or callable(value) or kind.__module__.partition(".")[0] == "yosegi" or kind in _HARMLESS
    try:
        hash(value)
    except TypeError:
        return False
    return True


def flatten(value: Any, static: Callable[[Any], Any]) -> tuple[list[Any], Structure]:
    """The leaves of a tree with objects in it, and its structure.

    Attributes that are not tensors or arrays become leaves made by `static`: a model may branch on them.
    """
    reader = _Reader(static)
    try:
        structure = reader.read(value, False)
    except _Hidden as hidden:
        raise ArgumentError(
            f"[jit] expected a method or a partial of tensors, arrays and values that can be compared, got {hidden}; "
            "pass what the function needs of it as a tuple"
        ) from None
    return reader.leaves, structure


class _Reader:
    def __init__(self, static: Callable[[Any], Any]) -> None:
        self.leaves: list[Any] = []
        self._static = static
        self._numbers: dict[int, int] = {}

    def read(self, value: Any, inside: bool) -> Structure:
        kind = type(value)
        if kind is Tensor:
            self.leaves.append(value)
            return ...
        if kind is dict:
            return dict, tuple(value), self._all(value.values(), inside)
        if kind is list or kind is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return kind, None, self._all(value, inside)
        if kind is MethodType:
            return kind, None, (self.read(value.__func__, True), self.read(value.__self__, True))
        if kind is partial:
            return kind, None, tuple([self.read(v, True) for v in (value.func, value.args, value.keywords)])
        container = tree.registered(kind)
        if container is not None:
            known, rest = container.flatten(value)
            exactly = exact((rest,)) if type(rest) in _INEXACT else None
            return tree.Kind(kind, rest, exactly), None, tuple([self.read(v, inside) for v in known])
        is_whole = is_array(value) and not isinstance(value, np.generic)
        if opens(value) and not is_whole:
            return self._object(value)
        if inside and not is_whole:
            if not is_comparable(value):
                raise _Hidden(kind.__name__)
            value = self._static(value)
        self.leaves.append(value)
        return ...

    def _all(self, values: Iterable[Any], inside: bool) -> tuple[Structure, ...]:
        """Read the parts of a container. A tensor costs no call: every call of a jitted function reads all of them."""
        made = []
        for value in values:
            if type(value) is Tensor:
                self.leaves.append(value)
                made.append(...)
            else:
                made.append(self.read(value, inside))
        return tuple(made)

    def _object(self, value: Any) -> Structure:
        kind, number = type(value), self._numbers.get(id(value))
        if number is not None:
            return _Object(kind, number), None, None
        number = self._numbers[id(value)] = len(self._numbers)
        names, parts, hidden = [], [], []
        for name, part in {**_of_class(value), **_of_object(value)}.items():
            leaves, numbers = len(self.leaves), len(self._numbers)
            try:
                parts.append(self.read(part, True))
                names.append(name)
            except _Hidden:
                hidden.append((name, type(part).__name__))
                del self.leaves[leaves:]
                while len(self._numbers) > numbers:
                    self._numbers.popitem()
        return _Object(kind, number, tuple(hidden)), tuple(names), tuple(parts)


def _of_object(value: Any) -> dict[str, Any]:
    """An object's own attributes."""
    found = dict(getattr(value, "__dict__", ()))
    kind: Any = type(value)
    for name, slot in (_slots(kind) or {}).items():
        with suppress(AttributeError):  # it is empty
            found[name] = slot.__get__(value)
    return found


def _of_class(value: Any) -> dict[str, Any]:
    """The attributes that an object takes from its class, without methods and other descriptors."""
    found: dict[str, Any] = {}
    for base in reversed(type(value).__mro__[:-1]) if hasattr(value, "__dict__") else ():
        for name, attribute in vars(base).items():
            if hasattr(type(attribute), "__get__") or name.startswith("__"):
                found.pop(name, None)
            else:
                found[name] = attribute
    return found


class Copies:
    """The copies of objects that a traced function gets."""

    def __init__(self, structure: Structure, leaves: Sequence[Any]) -> None:
        self._made: dict[int, Any] = {}
        self._hidden: dict[int, dict[str, str]] = {}
        self._leaves = iter(leaves)
        self.tree = self._build(structure)
        """The tree of this structure with these leaves."""
        self._before = {number: _contents(copy) for number, copy in self._made.items()}

    def _build(self, structure: Structure) -> Any:
        if structure is ...:
            return next(self._leaves)
        kind, names, parts = structure
        if isinstance(kind, _Object):
            return self._object(kind, names, parts)
        values = [self._build(part) for part in parts]
        if kind is partial:
            function, args, keywords = values
            return partial(function, *args, **keywords)
        return tree.rebuilt(kind, names, values)

    def _object(self, kind: _Object, names: Sequence[str], parts: Sequence[Structure] | None) -> Any:
        if parts is None:  # it stands somewhere else, too
            return self._made[kind.number]
        copy: Any = object.__new__(kind.kind)
        self._made[kind.number] = copy
        self._hidden[kind.number] = dict(kind.hidden)
        slots = _slots(kind.kind) or {}
        for name, part in zip(names, parts, strict=True):
            value = self._build(part)
            if name in slots:
                slots[name].__set__(copy, value)
            else:
                copy.__dict__[name] = value
        return copy

    def explain(self, error: AttributeError) -> None:
        """Raise `ArgumentError` if the function has asked a copy for an attribute that is not part of it."""
        for number, copy in self._made.items():
            if error.obj is copy and error.name in self._hidden[number]:
                name = f"{type(copy).__name__}.{error.name}"
                raise ArgumentError(
                    f"[jit] expected attributes that are tensors, arrays or values that can be compared, got {name}, a "
                    f"{self._hidden[number][error.name]}; pass what the function needs of it, or make it a tuple"
                ) from error

    def check(self) -> None:
        """Raise `TraceError` if the function has changed an object."""
        for number, copy in self._made.items():
            before, after = self._before[number], _contents(copy)
            for name in dict.fromkeys([*after, *before]):
                if not _is_same(before.get(name), after.get(name)):
                    raise TraceError(
                        "[jit] expected the function to leave its objects as they are, got a new value of "
                        f"{type(copy).__name__}.{name}, which a replay would not assign; return it, and assign it "
                        "outside"
                    )


_Contents = tuple[Structure, list[Any]]


def _contents(copy: Any) -> dict[str, _Contents]:
    """The content of each attribute: values, and the nodes of tensors, which may be written in place."""
    found = {}
    for name, value in _of_object(copy).items():
        leaves, structure = tree.flatten(value)
        found[name] = structure, [*leaves, *[v._node for v in leaves if isinstance(v, Tensor)]]
    return found


def _is_same(before: _Contents | None, after: _Contents | None) -> bool:
    if before is None or after is None or before[0] != after[0]:
        return False
    return len(before[1]) == len(after[1]) and all(b is a for b, a in zip(before[1], after[1], strict=True))
