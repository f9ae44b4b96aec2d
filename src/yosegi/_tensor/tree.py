"""Trees: nested containers as a flat list of leaves and a structure that can be rebuilt.

Containers are tuples, lists, dicts, named tuples, dataclasses, and classes that `register_tree` has made known. `None`
is part of the structure. Everything else is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, TypeVar

from ..errors import ArgumentError
from .tracebacks import short_tracebacks

Structure = Any
"""Hashable: how a tree is nested. A leaf is `...`."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Container:
    """How objects of a class are taken apart and put together."""

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    """The parts, and what else is needed to put them together, which must be hashable."""
    unflatten: Callable[[Any, Sequence[Any]], Any]
    names: Callable[[Any], Sequence[str]] | None = None
    """The parts' names in a path, such as ".weight"."""


_REGISTERED: Final[dict[type, Container]] = {}
_KNOWN: Final[dict[type, Container | None]] = {}
"""The known classes: registered ones, dataclasses, and leaves."""


@short_tracebacks
def register_tree(
    cls: type[T],
    flatten: Callable[[T], tuple[Sequence[Any], Any]],
    unflatten: Callable[[Any, Sequence[Any]], T],
    /,
    names: Callable[[T], Sequence[str]] | None = None,
) -> type[T]:
    """Make a class a container of trees: `jax.tree_util.register_pytree_node` by another name.

    - `cls`: the class. Its subclasses are not containers by it.
    - `flatten`: takes an object, gives its parts and, hashable, what else `unflatten` needs.
    - `unflatten`: takes that and new parts, gives an object.
    - `names`: takes an object, gives the names of its parts in a path, such as ".weight"; "<0>" and so on by default.

    Returns the class.

    >>> import yosegi as ys
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> _ = ys.register_tree(Pair, lambda p: ((p.a, p.b), None), lambda _, parts: Pair(*parts))
    >>> ys.tree_leaves([Pair(1, 2), 3])
    [1, 2, 3]
    """
    if not isinstance(cls, type) or cls in (dict, list, tuple, type(None)):
        raise ArgumentError(f"[register_tree] expected a class that is no container of Python's, got {cls!r}")
    _REGISTERED[cls] = _KNOWN[cls] = Container(flatten, unflatten, names)
    return cls


def _of_dataclass(kind: type) -> Container:
    names = tuple(f.name for f in fields(kind) if f.init)

    def unflatten(_: Any, parts: Sequence[Any]) -> Any:
        return kind(**dict(zip(names, parts, strict=True)))

    return Container(
        lambda tree: (tuple([getattr(tree, n) for n in names]), None), unflatten, lambda _: [f".{n}" for n in names]
    )


def container_of(kind: type) -> Container | None:
    """How objects of a class are taken apart, if they are no container of Python's: registered ones and dataclasses."""
    if kind not in _KNOWN:
        _KNOWN[kind] = _of_dataclass(kind) if is_dataclass(kind) else None
    return _KNOWN[kind]


def registered(kind: type) -> Container | None:
    """How objects of a class that `register_tree` was called for are taken apart."""
    return _REGISTERED.get(kind)


@dataclass(frozen=True, slots=True)
class Kind:
    """In a structure: an object of a class that is a container."""

    cls: type
    rest: Any
    exactly: Any = None
    """A key that distinguishes equal rests, such as 2 and 2.0, in the signature of a jitted function."""


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves in order, and the structure."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind = type(tree)
    if kind is dict:
        return dict, tuple(tree), tuple([_flatten(v, leaves) for v in tree.values()])
    if kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return kind, None, tuple([_flatten(v, leaves) for v in tree])
    if tree is None:
        return None
    known = container_of(kind)
    if known is not None:
        parts, rest = known.flatten(tree)
        return Kind(kind, rest), None, tuple([_flatten(v, leaves) for v in parts])
    leaves.append(tree)
    return ...


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Any) -> Any:
    if structure is ...:
        return next(leaves)
    if structure is None:
        return None
    kind, keys, parts = structure
    values = [_unflatten(p, leaves) for p in parts]
    return rebuilt(kind, keys, values)


def rebuilt(kind: Any, keys: Any, values: Sequence[Any]) -> Any:
    """One container of a structure, with its parts."""
    if kind is dict:
        return dict(zip(keys, values, strict=True))
    if isinstance(kind, Kind):
        known = container_of(kind.cls)
        assert known is not None
        return known.unflatten(kind.rest, values)
    return list(values) if kind is list else tuple(values) if kind is tuple else kind(*values)


def children(tree: Any) -> dict[Any, Any] | None:
    """The parts of a container by their places; `None` for a leaf."""
    kind = type(tree)
    if kind is dict:
        return tree  # type: ignore[no-any-return]
    if isinstance(tree, (list, tuple)):
        return dict(enumerate(tree))
    known = container_of(kind)
    return None if known is None else dict(enumerate(known.flatten(tree)[0]))


def paths(tree: Any, root: str = "") -> list[str]:
    """The path of each leaf, as Python would write it: `['layers'][3].weight`."""
    return list(_paths(tree, root))


def _paths(tree: Any, path: str) -> Iterator[str]:
    kind = type(tree)
    if tree is None:
        return
    if kind is dict:
        parts, names = list(tree.values()), [f"[{key!r}]" for key in tree]
    elif kind is list or kind is tuple:
        parts, names = list(tree), [f"[{n}]" for n in range(len(tree))]
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts, names = list(tree), [f".{name}" for name in tree._fields]
    else:
        known = container_of(kind)
        if known is None:
            yield path
            return
        parts = list(known.flatten(tree)[0])
        names = list(known.names(tree)) if known.names else [f"<{n}>" for n in range(len(parts))]
    for part, name in zip(parts, names, strict=True):
        yield from _paths(part, path + name)


# The public functions


def tree_flatten(tree: Any, /) -> tuple[list[Any], Structure]:
    """The leaves of a tree in order, and its structure.

    >>> import yosegi as ys
    >>> leaves, structure = ys.tree_flatten({"x": 1, "y": (2, None)})
    >>> leaves
    [1, 2]
    """
    return flatten(tree)


@short_tracebacks
def tree_unflatten(structure: Structure, leaves: Sequence[Any], /) -> Any:
    """The tree of a structure with new leaves.

    >>> import yosegi as ys
    >>> ys.tree_unflatten(ys.tree_structure({"x": 0, "y": (0, None)}), [1, 2])
    {'x': 1, 'y': (2, None)}
    """
    given = list(leaves)
    needed = _count(structure)
    if len(given) != needed:
        raise ArgumentError(f"[tree_unflatten] expected {needed} leaves, got {len(given)}")
    return unflatten(structure, given)


def _count(structure: Structure) -> int:
    if structure is None or structure is ...:
        return int(structure is ...)
    return sum(_count(part) for part in structure[2])


def tree_leaves(tree: Any, /) -> list[Any]:
    """The leaves of a tree in order.

    >>> import yosegi as ys
    >>> ys.tree_leaves({"x": 1, "y": (2, 3)})
    [1, 2, 3]
    """
    return flatten(tree)[0]


def tree_structure(tree: Any, /) -> Structure:
    """The structure of a tree: equal for trees that are nested alike.

    >>> import yosegi as ys
    >>> ys.tree_structure([1, 2]) == ys.tree_structure([3, 4])
    True
    """
    return flatten(tree)[1]


@short_tracebacks
def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to the leaves of trees.

    A tree is a nesting of tuples, named tuples, lists and dicts. `None` is a leaf.

    Parameters
    ----------
    function : callable
        A function with one argument per tree.
    tree : tree
        The first tree. The result has its structure.
    *others : tree
        Further trees of the same structure.

    Returns
    -------
    tree
        The results of `function`.

    Raises
    ------
    ValueError
        If the structures differ.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.tree_map(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    leaves, structure = flatten(tree)
    columns = _columns("tree_map", tree, leaves, structure, others)
    return unflatten(structure, [function(*row) for row in zip(*columns, strict=True)])


@short_tracebacks
def tree_map_with_path(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The function applied to the path of each leaf, a string such as `['layers'][3].weight`, and the leaves.

    >>> import yosegi as ys
    >>> ys.tree_map_with_path(lambda path, leaf: f"{path} is {leaf}", {"w": [1, 2]})
    {'w': ["['w'][0] is 1", "['w'][1] is 2"]}
    """
    leaves, structure = flatten(tree)
    columns = _columns("tree_map_with_path", tree, leaves, structure, others)
    return unflatten(structure, [function(*row) for row in zip(paths(tree), *columns, strict=True)])


def tree_reduce(function: Callable[[Any, Any], Any], tree: Any, /, *initial: Any) -> Any:
    """A function of two arguments applied along the leaves, from the first one or from an initial value.

    >>> import yosegi as ys
    >>> ys.tree_reduce(lambda a, b: a + b, {"x": 1, "y": (2, 3)})
    6
    """
    values = [*initial, *flatten(tree)[0]]
    if not values:
        raise ArgumentError("[tree_reduce] expected at least one leaf or an initial value, got none")
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def _columns(name: str, tree: Any, leaves: list[Any], structure: Structure, others: Sequence[Any]) -> list[list[Any]]:
    """The leaves of all trees, which must have one structure."""
    columns = [leaves]
    for other in others:
        more, same = flatten(other)
        if same != structure:
            raise ArgumentError(f"[{name}] expected trees of one structure, got {difference(tree, other)}")
        columns.append(more)
    return columns


def difference(first: Any, second: Any) -> str:
    """Where two trees of different structure differ first."""
    for one, other in zip(paths(first), paths(second), strict=False):
        if one != other:
            return f"a leaf at {one or 'the root'} in one, and at {other or 'the root'} in the other"
    ours, theirs = paths(first), paths(second)
    if len(ours) == len(theirs):
        return f"containers of other kinds: {flatten(first)[1]} and {flatten(second)[1]}"
    longer = ours if len(ours) > len(theirs) else theirs
    return f"a leaf at {longer[min(len(ours), len(theirs))] or 'the root'} in only one of them"
