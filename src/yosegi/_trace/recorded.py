"""Functions at some arguments, recorded for gradients and tangents."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from .._tensor.interchange import ValueRead
from .._tensor.node import Node
from .._tensor.tensor import HOOKS, Tensor
from .._tensor.tracebacks import user_level
from .._tensor.tree import Structure, flatten, paths, unflatten
from ..errors import ArgumentError, DTypeError, ShapeError, UserError
from ..ops import rules
from ..ops.creation import asarray
from .reverse import Tape, fitted_to, pull_back, record, variable
from .tracing import Recording, recording


@dataclass(frozen=True, slots=True)
class Recorded:
    """A function at some arguments: its expression, for forward and reverse passes."""

    structure: Structure
    """The structure of the arguments, a tuple."""
    variables: tuple[Node, ...]
    """The leaves of the arguments."""
    shape: Structure
    """The structure of the value."""
    outputs: tuple[Node, ...]
    """The leaves of the value."""
    tape: Tape

    @property
    def value(self) -> Any:
        """The result of the function."""
        return unflatten(self.shape, [Tensor(o) for o in self.outputs])

    def back(self, cotangent: Any) -> tuple[Any, ...]:
        """The cotangents of the arguments, given that of the value."""
        gs, same = flatten(cotangent)
        if same != self.shape:
            raise ArgumentError(f"[vjp] expected a cotangent of the value's structure, {self.shape}, got {same}")
        tensors = [asarray(g) for g in gs]
        for g, output in zip(tensors, self.outputs, strict=True):
            if g.shape != output.spec.shape:
                raise ShapeError(f"[vjp] expected a cotangent of shape {output.spec.shape}, got {g.shape}")
        fitted = [fitted_to(g, o.spec) for g, o in zip(tensors, self.outputs, strict=True)]
        made = pull_back(self.tape, self.outputs, fitted, self.variables)
        own = [HOOKS.with_layout_of(g, v.spec) for g, v in zip(made, self.variables, strict=True)]
        return tuple(unflatten(self.structure, own))


def recorded(
    name: str,
    function: Callable[..., Any],
    primals: Sequence[Any],
    *,
    is_loss: bool = False,
    names: Callable[[], Sequence[str]] = tuple,
    inputs_of: Callable[[Node], Sequence[Node]] = lambda node: node.inputs,
) -> Recorded:
    """Run a function on marked arguments, for the transform `name`. A loss must depend on an argument."""
    rules.function(name, function)
    leaves, structure = flatten(tuple(primals))
    variables = [_variable_of(name, p, n, primals, names) for n, p in enumerate(leaves)]
    with recording(variables) as made:
        value = function(*unflatten(structure, [Tensor(v) for v in variables]))
        if value is None:
            raise _not_a_tensor(name, value, made.reads)
        results, shape = flatten(value)
        for result in results:
            if not isinstance(result, Tensor):
                raise _not_a_tensor(name, result, made.reads)
        outputs = [r._node for r in results]
        tape = record(outputs, variables, inputs_of=inputs_of)
        _check_dependence(name, outputs, variables, tape, made, is_loss=is_loss)
    return Recorded(structure, tuple(variables), shape, tuple(outputs), tape)


def _not_a_tensor(name: str, result: Any, reads: Sequence[ValueRead]) -> ArgumentError:
    cause = f": {reads[-1].place} takes the value out of the graph" if reads else ""
    return ArgumentError(
        f"[{name}] expected the function to return a tensor made of its arguments, got {type(result).__name__}{cause}; "
        "return the tensor itself, and use Yosegi's functions in place of NumPy's"
    )


def _check_dependence(
    name: str, outputs: Sequence[Node], variables: Sequence[Node], tape: Tape, made: Recording, *, is_loss: bool
) -> None:
    """Raise if the outputs depend on no variable, and are a loss or values were read. Warn if they do not depend on a
    variable whose values the function has read.

    Gradients that the function takes itself are exempt: that of a linear function depends on no variable.
    """
    used = {*outputs, *[i for _, inputs in tape for i in inputs]}
    unused = [v for v in variables if v not in used and not _depend(made.gradients, v)]
    if not unused or (len(unused) == len(variables) and not outputs):
        return
    if len(unused) == len(variables):
        reads = [r for r in made.reads if any(_depend([r.node], v) for v in variables)]
        if not is_loss and not reads:
            return
        cause = f": {reads[-1].place} takes a value out of the graph" if reads else ""
        raise ArgumentError(
            f"[{name}] expected a result that depends on the arguments, got one that depends on none of them{cause}; "
            "compute it from the arguments, with Yosegi's functions in place of NumPy's"
        )
    for read in made.reads:
        if read.node.spec.dtype.is_inexact and any(_depend([read.node], v) for v in unused):
            warnings.warn(
                f"[{name}] an argument has a zero gradient: {read.place} takes its value out of the graph, and the "
                "result does not depend on it otherwise; use the tensor itself",
                stacklevel=user_level(),
            )


def _depend(nodes: Sequence[Node], variable: Node) -> bool:
    return variable in nodes or bool(record(nodes, [variable]))


def _variable_of(
    name: str, value: Any, number: int, primals: Sequence[Any], names: Callable[[], Sequence[str]]
) -> Node:
    try:
        t = asarray(value)
    except UserError as error:
        where = _path(number, primals, names)
        raise DTypeError(
            f"[{name}] expected tensors and numbers, got {type(value).__name__} at {where}; close over it, or take it "
            "out"
        ) from error
    if not t.dtype.is_inexact:
        where = _path(number, primals, names)
        raise DTypeError(
            f"[{name}] expected floating arguments, got {t.dtype.name} at {where}; cast it, or close over it"
        )
    return variable(t)._node


def _path(number: int, primals: Sequence[Any], names: Callable[[], Sequence[str]]) -> str:
    """The path of a leaf, as the function writes it: `params['layers'][3].weight`."""
    roots = list(names()) or [f"argument {n}" for n in range(len(primals))]
    return [path for root, tree in zip(roots, primals, strict=True) for path in paths(tree, root)][number]


class Chosen:
    """A call of a function, as a function of those of its arguments to differentiate with respect to."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        argnums: int | Sequence[int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_aux: bool,
    ) -> None:
        numbers = rules.positions(name, "argnums", argnums)
        if len({n % max(1, len(args)) for n in numbers}) != len(numbers):
            raise ArgumentError(f"[{name}] expected each of argnums once, got {argnums}")
        for n in numbers:
            if not -len(args) <= n < len(args):
                raise ArgumentError(f"[{name}] expected argnums below {len(args)}, the arguments given, got {n}")
        self.primals = [args[n] for n in numbers]
        """The chosen arguments."""
        self.aux: list[Any] = []
        """With `has_aux`, the second part of each value so far."""
        self._function, self._args, self._kwargs, self._numbers = function, args, kwargs, numbers
        self._has_aux = has_aux

    def call(self, *values: Any) -> Any:
        """The value of the function with other values for the chosen arguments."""
        full = list(self._args)
        for n, value in zip(self._numbers, values, strict=True):
            full[n] = value
        result = self._function(*full, **self._kwargs)
        if self._has_aux:
            result, extra = result
            self.aux.append(extra)
        return result

    def names(self) -> list[str]:
        """The names of the chosen arguments, by number where they have none."""
        try:
            parameters = list(signature(self._function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        places = [n % len(self._args) for n in self._numbers]
        return [positional[n] if n < len(positional) else f"argument {n}" for n in places]
