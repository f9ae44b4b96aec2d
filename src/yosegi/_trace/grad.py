"""Gradients: the reverse pass over the ops' own rules.

A function is run on marked inputs, which builds its graph as always; the pass then walks that graph backwards. The
rules are written in tensor operations, so a gradient is itself a graph and can be differentiated again.

Complex numbers: for a real loss L and a complex input z = x + iy the gradient is dL/dx + i dL/dy, the direction of
steepest ascent (so `z - rate * grad` descends). It is the convention of PyTorch, and the conjugate of JAX's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from .._tensor.composite import rebuilt
from .._tensor.interchange import Read
from .._tensor.node import Call, Node, Spec, in_order
from .._tensor.op import Arr, OpKind, number, op, pick, pick_call
from .._tensor.tensor import Tensor
from .._tensor.tree import Structure, flatten, paths, unflatten
from ..errors import ArgumentError, DTypeError, ShapeError, UserError
from ..ops.creation import asarray
from ..ops.elementwise import real
from ..ops.reduce import sum as reduce_sum
from ..ops.shape import broadcast_to, reshape
from .objects import given
from .tracing import Recording, recording


@op(OpKind.MOVEMENT, infer=lambda x: x, vjp=lambda g, out, x: (g,), scalar=lambda k, x: x)
def variable(x: Arr, /) -> Arr:
    """The same value under a name of its own, so that the pass back knows where to stop."""
    return x


Tape = list[tuple[Node, tuple[Node, ...]]]
"""Nodes with their inputs, inputs before their users: a graph as it was, whatever is evaluated and let go of later."""


def record(outputs: Sequence[Node], variables: Sequence[Node], ends: Iterable[Node] = ()) -> Tape:
    """The nodes on the way from the variables to the outputs. No way is looked for behind `ends`."""
    depends = {**dict.fromkeys(ends, False), **dict.fromkeys(variables, True)}
    tape: Tape = []
    for node in in_order(outputs, lambda n: () if n in depends else n.inputs):
        if node not in depends:
            depends[node] = any(depends[i] for i in node.inputs)
            if depends[node]:
                tape.append((node, node.inputs))
    return tape


def pull_back(tape: Tape, outputs: Sequence[Node], gs: Sequence[Tensor], variables: Sequence[Node]) -> list[Tensor]:
    """The cotangents of the variables, given those of the outputs."""
    sums: dict[Node, list[Tensor | None]] = {}
    for output, g in zip(outputs, gs, strict=True):
        _accumulate(sums, output, 0, g)
    for node, inputs in reversed(tape):
        parts = sums.pop(node, None)
        if parts is None:
            continue
        call = node.call
        if call.op is pick:
            assert parts[0] is not None
            _accumulate(sums, inputs[0], call.attrs["index"], parts[0])
            continue
        if call.op.vjp is None and call.op.decomposition is not None:
            for input, g in zip(inputs, _through_parts(call, inputs, parts[0]), strict=True):
                if input.spec.dtype.is_inexact:
                    _accumulate(sums, input, 0, g)
            continue
        if call.op.vjp is None:
            raise ArgumentError(
                f"[grad] expected ops that have a gradient, got {call.op.name}; declare its vjp (flat, if it is a step)"
            )
        out: Any = Tensor(node)
        cotangent: Any = parts[0]
        if len(parts) > 1:
            out = tuple(Tensor(Node(pick_call(call.outputs, i), (node,))) for i in range(len(parts)))
            cotangent = tuple(_zeros(s) if g is None else g for s, g in zip(call.outputs, parts, strict=True))
        handles = [Tensor(i) for i in inputs]
        for input, g in zip(inputs, call.op.vjp(cotangent, out, *handles, **call.attrs), strict=True):
            if g is not None and input.spec.dtype.is_inexact:
                _accumulate(sums, input, 0, fitted_to(g, input.spec))
    return [_total(sums, v) for v in variables]


def _through_parts(call: Call, inputs: Sequence[Node], g: Tensor | None) -> list[Tensor]:
    """The cotangents of a composite's inputs: those of what it is made of.

    Its parts stand in the graph a second time then, and are found to be the same when it is simplified.
    """
    assert g is not None
    own = [variable(Tensor(i))._node for i in inputs]  # one per input, though two may be the same node
    output = rebuilt(call, own)
    return pull_back(record([output], own), [output], [g], own)


def _zeros(s: Spec) -> Tensor:
    return broadcast_to(number(0, s.dtype), s.shape)


def _total(sums: dict[Node, list[Tensor | None]], variable: Node) -> Tensor:
    found = sums.get(variable, [None])[0]
    return _zeros(variable.spec) if found is None else found


def _accumulate(sums: dict[Node, list[Tensor | None]], node: Node, index: int, g: Tensor) -> None:
    parts = sums.setdefault(node, [None] * len(node.call.outputs))
    known = parts[index]
    parts[index] = g if known is None else known + g


def fitted_to(g: Tensor, wanted: Spec) -> Tensor:
    """A cotangent in the shape and dtype of its input: broadcast dimensions summed, the imaginary part of a real
    input's dropped."""
    if g.shape != wanted.shape:
        lead = g.ndim - wanted.ndim
        wide = tuple(i for i in range(g.ndim) if i < lead or (wanted.shape[i - lead] == 1 and g.shape[i] != 1))
        g = reshape(reduce_sum(g, axis=wide), wanted.shape)
    if g.dtype is not wanted.dtype:
        g = (g if wanted.dtype.is_complex else real(g)).astype(wanted.dtype)
    return g


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Compute a function's value and its vector-Jacobian product.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors.
    *primals : Tensor, array, or tree of these
        The arguments.

    Returns
    -------
    value : Tensor or tree of tensors
        The value of the function.
    back : callable
        A function from the cotangent of the value to a tuple with the cotangents of the primals.

    Raises
    ------
    ArgumentError
        If a result is not a tensor, or if values of the arguments were read and no result depends on the arguments.

    Examples
    --------
    >>> import yosegi as ys
    >>> value, back = ys.vjp(lambda x: x * x, ys.asarray(3.0))
    >>> float(back(ys.asarray(1.0))[0])
    6.0
    """
    return _vjp("vjp", function, primals, is_loss=False)


def _vjp(
    name: str,
    function: Callable[..., Any],
    primals: Sequence[Any],
    *,
    is_loss: bool,
    names: Callable[[], Sequence[str]] = tuple,
) -> tuple[Any, Callable[[Any], Any]]:
    """`vjp`, with errors in the name of the function that the user has called. A loss must depend on an argument."""
    made = recorded(name, function, primals, is_loss=is_loss, names=names)
    return made.value, made.back


@dataclass(frozen=True, slots=True)
class Recorded:
    """A function at some arguments: its expression, and what is needed to go through it forwards and backwards."""

    structure: Structure
    """That of the arguments, a tuple."""
    variables: tuple[Node, ...]
    """The leaves of the arguments."""
    shape: Structure
    """The structure of the value."""
    outputs: tuple[Node, ...]
    """The leaves of the value."""
    tape: Tape

    @property
    def value(self) -> Any:
        """What the function returned."""
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
        return tuple(unflatten(self.structure, pull_back(self.tape, self.outputs, fitted, self.variables)))


def recorded(
    name: str,
    function: Callable[..., Any],
    primals: Sequence[Any],
    *,
    is_loss: bool = False,
    names: Callable[[], Sequence[str]] = tuple,
) -> Recorded:
    """Run a function on marked arguments, for the transform `name`. A loss must depend on an argument."""
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
        tape = record(outputs, variables)
        _check_dependence(name, outputs, variables, tape, made, is_loss=is_loss)
    return Recorded(structure, tuple(variables), shape, tuple(outputs), tape)


def _not_a_tensor(name: str, result: Any, reads: Sequence[Read]) -> ArgumentError:
    cause = f": {reads[-1].place} takes the value out of the graph" if reads else ""
    return ArgumentError(
        f"[{name}] expected the function to return a tensor made of its arguments, got {type(result).__name__}{cause}; "
        "return the tensor itself, and use Yosegi's functions in place of NumPy's"
    )


def _check_dependence(
    name: str, outputs: Sequence[Node], variables: Sequence[Node], tape: Tape, made: Recording, *, is_loss: bool
) -> None:
    """Raise if the outputs depend on none of the variables, and are a loss, or values were read. Warn of a variable
    that they do not depend on though the function has read its values.

    A gradient that was taken inside need not depend on the variables, as that of a linear function does not: nothing is
    wrong then.
    """
    used = {*outputs, *[i for _, inputs in tape for i in inputs]}
    unused = [v for v in variables if v not in used and not _depend(made.gradients, v)]
    if not unused or (len(unused) == len(variables) and not outputs):
        return
    if len(unused) == len(variables):
        if not is_loss and not made.reads:
            return
        cause = f": {made.reads[-1].place} takes a value out of the graph" if made.reads else ""
        raise ArgumentError(
            f"[{name}] expected a result that depends on the arguments, got one that depends on none of them{cause}; "
            "compute it from the arguments, with Yosegi's functions in place of NumPy's"
        )
    for read in made.reads:
        if read.node.spec.dtype.is_inexact and any(_depend([read.node], v) for v in unused):
            warnings.warn(
                f"[{name}] an argument has a zero gradient: {read.place} takes its value out of the graph, and the "
                "result does not depend on it otherwise; use the tensor itself",
                stacklevel=4,
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
    """Where a leaf stands, as the function writes it: `params['layers'][3].weight`."""
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
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
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


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes the value of a scalar function and its gradient.

    Parameters
    ----------
    function : callable
        A function that returns a real floating-point scalar tensor, or, with `has_aux`, the pair (scalar, anything).
    argnums : int or sequence of int
        The positions of the arguments to differentiate with respect to. They may be trees: nested tuples, lists, dicts.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.

    Returns
    -------
    callable
        A function with the same arguments. It returns (value, gradient), or ((value, aux), gradient) with `has_aux`.
        The gradient has the structure of the argument; for several `argnums` it is a tuple.

    Raises
    ------
    ArgumentError, ShapeError
        Under the same conditions as `grad`.

    Examples
    --------
    >>> import yosegi as ys
    >>> value, gradient = ys.value_and_grad(lambda x: ys.sum(x * x))(ys.asarray([1.0, 2.0]))
    >>> float(value), gradient.tolist()
    (5.0, [2.0, 4.0])
    """

    def wrapped(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        chosen = Chosen("grad", function, argnums, args, kwargs, has_aux)
        value, back = _vjp("grad", chosen.call, chosen.primals, is_loss=True, names=chosen.names)
        if not isinstance(value, Tensor) or value.shape != () or not value.dtype.is_float:
            got = repr(value._node.spec) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(
                f"[grad] expected the function to return a real floating scalar, got {got}; sum or mean it"
            )
        grads = back(number(1, value.dtype))
        return (value, chosen.aux[0]) if has_aux else value, grads[0] if isinstance(argnums, int) else grads

    return given(wrapped, function)


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient of a scalar function.

    No gradient flows through a value that leaves the graph by `float()`, `item()`, `tolist()` or a NumPy function. An
    argument that is not used has a zero gradient if another argument is used. For a complex argument z = x + iy the
    gradient is dL/dx + i dL/dy, as in PyTorch.

    Parameters
    ----------
    function : callable
        A function that returns a real floating-point scalar tensor, or, with `has_aux`, the pair (scalar, anything).
    argnums : int or sequence of int
        The positions of the arguments to differentiate with respect to. They may be trees: nested tuples, lists, dicts.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.

    Returns
    -------
    callable
        A function with the same arguments. It returns the gradient, or (gradient, aux) with `has_aux`. The gradient has
        the structure of the argument; for several `argnums` it is a tuple.

    Raises
    ------
    ArgumentError
        If the result is not a tensor, or depends on none of the arguments. The text names the line of the last value
        that was read.
    ShapeError
        If the result is not a real floating-point scalar.

    Warns
    -----
    UserWarning
        If an argument was read by `float()` or similar and has no other part in the result.

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.grad(ys.grad(lambda x: x**3))(ys.asarray(2.0)))
    12.0
    """

    def wrapped(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        value, gradient = value_and_grad(function, argnums, has_aux=has_aux)(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return given(wrapped, function)
