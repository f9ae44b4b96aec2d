"""`Module`: a layer or a model, as an immutable tree of parameters.

The tensors and modules among a module's attributes are the parts of the tree, in the order of their assignment. All
other attributes belong to its structure, so `jit` traces a module with other settings anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any, ClassVar, Final, Self, TypeVar

from .._tensor.op import exact
from .._tensor.options import current
from .._tensor.origins import MODULE
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import hide_frames
from .._tensor.tree import children, flatten, register_tree, unflatten
from .._trace.objects import is_comparable
from ..errors import ArgumentError, UserError
from ..ops.creation import asarray

M = TypeVar("M", bound="Module")


class Role(Enum):
    """The part that a tensor has in a module."""

    PARAMETER = "parameter"
    STATE = "state"
    GENERATOR = "generator"


class _Form:
    """The structure of a module apart from its parts: compared by content, hashed once."""

    __slots__ = ("_hash", "key", "parts", "rest")

    def __init__(self, parts: tuple[str, ...], rest: tuple[tuple[str, Any], ...]) -> None:
        self.parts, self.rest = parts, rest
        self.key = parts, rest, exact([value for _, value in rest])
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Form) and self.key == other.key)

    def __repr__(self) -> str:
        return f"{self.parts} {dict(self.rest)}"


class Module:
    """The base class of layers and models: an immutable tree of parameters.

    A subclass assigns its attributes in `__init__` and defines `forward`. A call of the module calls `forward`. Each
    attribute is assigned once; `replace`, `train`, `eval` and `load_state_dict` return new modules.

    - Tensors, modules, and lists, tuples and dicts of these are parts of the tree. `ys.jit`, `ys.grad`, `ys.vmap`,
      `ys.tree_map` and `ys.eval` take a module as they take a dict.
    - All other attributes are settings. They must be hashable.
    - Tensors are parameters, except those that the class names in `state` or `generators`.
    - A tensor that stands in two places of a model is two parameters. To share one, read it from one place.

    Examples
    --------
    >>> import yosegi as ys
    >>> class Model(ys.nn.Module):
    ...     def __init__(self, width, rng=None):
    ...         self.up = ys.nn.Linear(2, width, rng=rng)
    ...         self.down = ys.nn.Linear(width, 1, rng=rng)
    ...
    ...     def forward(self, x):
    ...         return self.down(ys.nn.relu(self.up(x)))
    >>> Model(8)(ys.ones((5, 2))).shape
    (5, 1)
    """

    state: ClassVar[tuple[str, ...]] = ()
    """The attributes with tensors that are not trained, such as running statistics."""
    generators: ClassVar[tuple[str, ...]] = ()
    """The attributes with the state of random draws. They are no part of `state_dict`, as in PyTorch."""
    training: bool = True
    """False in a module that `eval` has made."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_tree(cls, _flatten, lambda form, parts: _unflatten(cls, form, parts), _names)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            raise ArgumentError(
                f"[{type(self).__name__}] expected attributes that are assigned once, got a new value of {name}; "
                f"modules are immutable: use replace({name}=...), which returns a new one"
            )
        _check(self, name, value)
        vars(self)[name] = value
        vars(self).pop("_form", None)

    def __delattr__(self, name: str) -> None:
        raise ArgumentError(f"[{type(self).__name__}] expected attributes that stay, got del of {name}; use replace")

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call `forward`. An error names the path of the module that raised it."""
        try:
            made = self._recorded(args, kwargs) if current().check_nan else self.forward(*args, **kwargs)
        except UserError as error:
            _locate(error, self)
            hide_frames(error)
            raise
        watch = WATCH.get()
        if watch is not None:
            watch(self, made)
        return made

    def _recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `forward`, so that the nodes made there record the path of this module."""
        outer = MODULE.get()
        path = "" if outer is None else _joined(outer[1], _path_in(outer[0], self))
        token = MODULE.set((self, path or type(self).__name__))
        try:
            return self.forward(*args, **kwargs)
        finally:
            MODULE.reset(token)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output of the module. Every subclass that is called defines it."""
        raise ArgumentError(f"[{type(self).__name__}] expected a class with a method forward, got none")

    def __repr__(self) -> str:
        return "\n".join(_lines(self, ""))

    def extra_repr(self) -> str:
        """The text between the parentheses in `repr`: the settings by default."""
        return ", ".join(f"{name}={_shown(value)}" for name, value in _form(self).rest if name != "training")

    # Copies

    def replace(self, **changes: Any) -> Self:
        """Return the module with new values of some attributes.

        Parameters
        ----------
        **changes
            The attributes and their values.

        Returns
        -------
        Module
            A new module.

        Examples
        --------
        >>> import yosegi as ys
        >>> layer = ys.nn.Linear(2, 3)
        >>> layer.replace(bias=None)(ys.ones((1, 2))).shape
        (1, 3)
        """
        for name, value in changes.items():
            if not hasattr(self, name):
                raise ArgumentError(f"[replace] expected attributes of {type(self).__name__}, got {name}")
            _check(self, name, value)
        made = object.__new__(type(self))
        vars(made).update({k: v for k, v in vars(self).items() if k != "_form"} | changes)
        return made

    def train(self, mode: bool = True) -> Self:
        """Return the module for training, or for evaluation with `mode=False`, with all modules in it."""
        return mapped(lambda module, _: module.replace(training=mode), self)  # type: ignore[no-any-return]

    def eval(self) -> Self:
        """Return the module for evaluation: dropout drops nothing, batch norm takes its running statistics."""
        return self.train(False)

    # Parameters by name

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return the parameters with their names, such as "layers.0.weight"."""
        return [(name, value) for name, value, role in entries(self) if role is Role.PARAMETER]

    def parameters(self) -> list[Tensor]:
        """Return the parameters, in the order of the tree."""
        return [value for _, value in self.named_parameters()]

    def named_modules(self) -> list[tuple[str, Module]]:
        """Return this module, whose name is empty, and all modules in it, with their names."""
        return list(_modules(self, ""))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and the state by name, as PyTorch's `state_dict` does.

        The states of random draws are left out. A checkpoint that resumes with the same bits saves the leaves of the
        tree: `ys.tree_leaves(model)`.
        """
        return {name: value for name, value, role in entries(self) if role is not Role.GENERATOR}

    def load_state_dict(self, values: Mapping[str, Any]) -> Self:
        """Return the module with new parameters and state.

        Parameters
        ----------
        values : mapping of str to Tensor or array
            One value for each name of `state_dict`, of the same shape. It is cast to the dtype of the module. PyTorch's
            `state_dict` is taken, too. For a part of the names use `{**model.state_dict(), **values}`.

        Returns
        -------
        Module
            A new module.

        Raises
        ------
        ArgumentError
            If names or shapes differ. The text lists all differences.

        Examples
        --------
        >>> import yosegi as ys
        >>> layer = ys.nn.Linear(2, 3)
        >>> other = ys.nn.Linear(2, 3).load_state_dict(layer.state_dict())
        >>> bool(ys.all(other.weight == layer.weight))
        True
        """
        own = self.state_dict()
        given = {name: asarray(value) for name, value in values.items()}
        faults = [f"{name} of shape {t.shape} is missing" for name, t in own.items() if name not in given]
        faults += [f"{name} of shape {t.shape} is unknown" for name, t in given.items() if name not in own]
        faults += [
            f"{name} is of shape {given[name].shape}, expected {t.shape}"
            for name, t in own.items()
            if name in given and given[name].shape != t.shape
        ]
        if faults:
            raise ArgumentError(
                f"[load_state_dict] expected the names and shapes of {type(self).__name__}, got {len(faults)} "
                "differences:\n  " + "\n  ".join(faults)
            )
        leaves = [
            value if role is Role.GENERATOR else given[name].astype(value.dtype) for name, value, role in entries(self)
        ]
        return unflatten(flatten(self)[1], leaves)  # type: ignore[no-any-return]

    # State

    def current(self, name: str) -> Any:
        """Return a state of this module with the updates of the call under way: see `stateful`."""
        updates = UPDATES.get() or {}
        return updates.get(id(self), {}).get(name, getattr(self, name))

    def update(self, **values: Tensor) -> None:
        """Hand new values of the state to the `stateful` call under way, which returns a module with them."""
        updates = UPDATES.get()
        if updates is None:
            raise ArgumentError(
                f"[{type(self).__name__}] expected a call that keeps the new {' and '.join(values)}, got a call of a "
                "module in training; use ys.nn.stateful(model)(...) or value_and_grad(..., has_state=True), or call "
                "model.eval()"
            )
        updates.setdefault(id(self), {}).update(values)


UPDATES: Final[ContextVar[dict[int, dict[str, Tensor]] | None]] = ContextVar("updates", default=None)
"""The new states of the `stateful` call under way, by the identity of the module."""
WATCH: Final[ContextVar[Callable[[Module, Any], None] | None]] = ContextVar("watch", default=None)
"""Called with each module that has been called, and its output: see `summary`."""


# As a tree


def _form(module: Module) -> _Form:
    known: _Form | None = vars(module).get("_form")
    if known is None:
        items = [(k, v) for k, v in vars(module).items() if k != "training"]
        parts = tuple(name for name, value in items if _is_part(value))
        rest = [(k, v) for k, v in items if k not in parts]
        known = vars(module)["_form"] = _Form(parts, (*rest, ("training", module.training)))
    return known


def _is_part(value: Any) -> bool:
    if isinstance(value, (Tensor, Module)):
        return True
    inside = children(value)
    return inside is not None and any(map(_is_part, inside.values()))


def _check(module: Module, name: str, value: Any) -> None:
    if not _is_part(value) and not is_comparable(value):
        raise ArgumentError(
            f"[{type(module).__name__}] expected attributes that are tensors, modules, or hashable, got "
            f"{type(value).__name__} for {name}; make it a tuple, or a tensor"
        )


def _flatten(module: Module) -> tuple[Sequence[Any], _Form]:
    form, values = _form(module), vars(module)
    return [values[name] for name in form.parts], form


def _unflatten(cls: type[M], form: _Form, parts: Sequence[Any]) -> M:
    made = object.__new__(cls)
    values = vars(made)
    values.update(zip(form.parts, parts, strict=True))
    values.update(form.rest)
    values["_form"] = form  # also where a part is no tensor now, such as the `None` of a gradient
    return made


def _names(module: Module) -> list[str]:
    return [f".{name}" for name in _form(module).parts]


register_tree(Module, _flatten, lambda form, parts: _unflatten(Module, form, parts), _names)


def entries(value: Any, path: str = "", role: Role = Role.PARAMETER) -> Iterator[tuple[str, Any, Role]]:
    """The leaves of a module in the order of the tree, each with its name and its role."""
    if value is None:
        return
    if isinstance(value, Module):
        for name in _form(value).parts:
            kind = Role.STATE if name in value.state else Role.GENERATOR if name in value.generators else role
            yield from entries(vars(value)[name], _joined(path, name), kind)
        return
    inside = children(value)
    if inside is None:
        yield path, value, role
        return
    for key, part in inside.items():
        yield from entries(part, _joined(path, key), role)


def _modules(value: Any, path: str) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield path, value
    for key, part in _children(value).items():
        yield from _modules(part, _joined(path, key))


def _children(value: Any) -> dict[Any, Any]:
    if isinstance(value, Module):
        return {name: vars(value)[name] for name in _form(value).parts}
    return {} if value is None else children(value) or {}


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def mapped(function: Callable[[Module, Module], Module], value: Any) -> Any:
    """A tree with a function applied to each module in it, parts first. The function takes the module with its new
    parts and the module as it was."""
    if isinstance(value, Module):
        parts = [mapped(function, part) for part in _flatten(value)[0]]
        return function(_unflatten(type(value), _form(value), parts), value)
    if isinstance(value, dict):
        return {key: mapped(function, part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(function, part) for part in value)
    return value


# Texts


def _locate(error: UserError, module: Module) -> None:
    """Add the path of a module to the text of an error that passes through its call."""
    if error.module is None:
        path, text = "", str(error)
    else:
        inner, rest, text = error.module
        path = _path_in(module, inner)
        path = _joined(path, rest) if rest else path
    error.module = module, path, text
    error.args = (f"{text} (in {_joined(type(module).__name__, path) if path else type(module).__name__})",)


def _path_in(module: Module, inner: Module) -> str:
    """The path from a module to one in it; empty if it is not in it."""
    return next((name for name, found in _modules(module, "") if found is inner and found is not module), "")


def _lines(value: Module, name: str) -> Iterator[str]:
    count = sum(t.size for t in value.parameters())
    label = f"{name}: " if name else ""
    yield f"{label}{type(value).__name__}({value.extra_repr()})" + (f" [{count:,} parameters]" if count else "")
    for key, part in _children(value).items():
        for path, module in _outermost(part, str(key)):
            yield from (f"  {line}" for line in _lines(module, path))


def _outermost(value: Any, path: str) -> Iterator[tuple[str, Module]]:
    """The modules of an attribute that stand in no other module of it."""
    if isinstance(value, Module):
        yield path, value
        return
    for key, part in _children(value).items():
        yield from _outermost(part, _joined(path, key))


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)
