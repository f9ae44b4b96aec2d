"""Generated functions that take trees of one structure apart and put them together, without a call per container.

A jitted function reads all of its arguments at every call, and makes all of its results. A walk over the structure
costs a call for each container; these functions are straight lines of code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from .op import exact
from .tree import Kind, Structure, container_of

_PLAIN: Final = (dict, list, tuple)


def reader(structure: Structure) -> Callable[[Any], Sequence[Any] | None] | None:
    """A function that gives the leaves of a tree in order, or `None` if its containers are others than the structure's.

    What stands in the place of a leaf is not looked at: the caller makes sure that it is no container. The result is
    `None` for a structure with containers that are not those of `flatten`.

    >>> read = reader((dict, ("x", "y"), (..., (tuple, None, (..., ...)))))
    >>> read({"x": 1, "y": (2, 3)}), read({"x": 1, "y": [2, 3]})
    ([1, 2, 3], None)
    """
    code = _Code()
    leaves: list[str] = []
    pending = [(structure, "tree")]
    while pending:
        part, name = pending.pop()
        if part is ...:
            leaves.append(name)
            continue
        if part is None:
            code.refuse(f"{name} is not None")
            continue
        kind, keys, parts = part
        inside = [code.name() for _ in parts]
        if isinstance(kind, Kind):
            container = container_of(kind.cls)
            if container is None:
                return None
            code.refuse(f"type({name}) is not {code.constant(kind.cls)}")
            code.add(f"{name}, rest = {code.constant(container.flatten)}({name})")
            code.refuse(f"rest != {code.constant(kind.rest)} or len({name}) != {len(parts)}")
            if kind.exactly is not None:
                code.refuse(f"{code.constant(exact)}((rest,)) != {code.constant(kind.exactly)}")
        elif kind is dict:
            code.refuse(f"type({name}) is not dict or tuple({name}) != {code.constant(keys)}")
            name += ".values()"
        elif kind in _PLAIN or (isinstance(kind, type) and issubclass(kind, tuple)):
            code.refuse(f"type({name}) is not {code.constant(kind)} or len({name}) != {len(parts)}")
        else:
            return None
        if inside:
            code.add(f"{', '.join(inside)}, = {name}")
        pending += reversed([*zip(parts, inside, strict=True)])
    code.add(f"return [{', '.join(leaves)}]")
    made: Callable[[Any], Sequence[Any] | None] = code.function("tree")
    return made


def builder(structure: Structure) -> Callable[[Sequence[Any]], Any]:
    """`unflatten` for one structure.

    >>> builder((dict, ("x", "y"), (..., (tuple, None, (..., ...)))))([1, 2, 3])
    {'x': 1, 'y': (2, 3)}
    """
    code = _Code()
    leaves: list[str] = []
    made: list[str] = []  # what is built so far and has no place yet
    pending: list[tuple[Structure, bool]] = [(structure, False)]
    while pending:
        part, is_ready = pending.pop()
        if part is None:
            made.append("None")
        elif part is ...:
            leaves.append(code.name())
            made.append(leaves[-1])
        elif not is_ready:
            pending.append((part, True))
            pending += [(p, False) for p in reversed(part[2])]
        else:
            kind, keys, parts = part
            first = len(made) - len(parts)
            inside = ", ".join(made[first:])
            if kind is dict:
                text = f"{{{', '.join(f'{code.constant(k)}: {v}' for k, v in zip(keys, made[first:], strict=True))}}}"
            elif isinstance(kind, Kind):
                container = container_of(kind.cls)
                assert container is not None
                text = f"{code.constant(container.unflatten)}({code.constant(kind.rest)}, [{inside}])"
            elif kind is list:
                text = f"[{inside}]"
            else:
                text = f"({inside}{',' if parts else ''})" if kind is tuple else f"{code.constant(kind)}({inside})"
            made[first:] = [code.name()]
            code.add(f"{made[-1]} = {text}")
    if leaves:
        code.lines.insert(0, f"{', '.join(leaves)}, = leaves")
    code.add(f"return {made[0]}")
    function: Callable[[Sequence[Any]], Any] = code.function("leaves")
    return function


class _Code:
    """The lines of a function, and the values that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._constants: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._count = 0

    def name(self) -> str:
        """A new variable."""
        self._count += 1
        return f"v{self._count}"

    def constant(self, value: Any) -> str:
        """The name of a value that is always the same."""
        name = self._names.setdefault(id(value), f"c{len(self._names)}")
        self._constants[name] = value  # which keeps its id
        return name

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def refuse(self, condition: str) -> None:
        """Return `None` under a condition."""
        self.lines.append(f"if {condition}: return None")

    def function(self, argument: str) -> Any:
        """The function of these lines."""
        text = "\n ".join([f"def made({argument}):", *self.lines])
        exec(compile(text, "<yosegi tree>", "exec"), self._constants)
        return self._constants["made"]
