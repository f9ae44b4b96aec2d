"""Gradients: `grad`, `value_and_grad` and `vjp`.

Complex numbers: for a real loss L and a complex input z = x + iy the gradient is dL/dx + i dL/dy, the direction of
steepest ascent (so `z - rate * grad` descends). It is the convention of PyTorch, and the conjugate of JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._tensor.op import number
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from ..errors import ShapeError
from .objects import given
from .recorded import Chosen, recorded
from .reverse import cotangent_inputs


@short_tracebacks
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
    made = recorded(name, function, primals, is_loss=is_loss, names=names, inputs_of=cotangent_inputs)
    return made.value, made.back


@short_tracebacks
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

    return given("value_and_grad", wrapped, function)


@short_tracebacks
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

    return given("grad", wrapped, function)
