"""Trees: nested tuples, lists and dicts, as a flat list of leaves and a structure that can be rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Structure = Any
"""Hashable: how a tree is nested. A leaf is `...`."""


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves in order, and the structure. `None` and anything that is not a container is a leaf."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind = type(tree)
    if kind is dict:
        return dict, tuple(tree), tuple([_flatten(v, leaves) for v in tree.values()])
    if kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return kind, None, tuple([_flatten(v, leaves) for v in tree])
    leaves.append(tree)
    return ...


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Any) -> Any:
    if structure is ...:
        return next(leaves)
    kind, keys, parts = structure
    values = [_unflatten(p, leaves) for p in parts]
    if kind is dict:
        return dict(zip(keys, values, strict=True))
    return values if kind is list else tuple(values) if kind is tuple else kind(*values)


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
    columns = [leaves]
    for other in others:
        more, same = flatten(other)
        if same != structure:
            raise ValueError(f"[tree_map] expected trees of one structure, got {structure} and {same}")
        columns.append(more)
    return unflatten(structure, [function(*row) for row in zip(*columns, strict=True)])
