"""Rules for shapes, axes and dtypes that many ops share. They raise at the user's call; `Op` adds the op's name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import cleandoc, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from .._tensor.dtype import DType, as_dtype, bool_, real_of
from .._tensor.interchange import class_name
from .._tensor.node import Shape, Spec, spec
from .._tensor.op import as_nodes
from .._tensor.spellings import respelled
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import hide_frames
from ..errors import ArgumentError, AxisError, DTypeError, ShapeError, UserError

P = ParamSpec("P")
R = TypeVar("R")


def named(function: Callable[P, R]) -> Callable[P, R]:
    """Name this function in the errors of the ops that it calls."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            try:
                return function(*args, **kwargs)
            except UserError as error:
                raise error.retold(function.__name__) from None
            except TypeError as error:
                raise respelled(function, kwargs, error) from None
        except (UserError, TypeError, BufferError) as error:
            hide_frames(error)
            raise

    return call


def on_tensor(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """`named`, for a function of a tensor: arrays and numbers are taken for one, as ops do."""

    @named
    @wraps(function)
    def call(x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(as_tensor(x), *args, **kwargs)

    return call


def described(
    parameters: Mapping[str, tuple[str, str]], returns: tuple[str, str], **own: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add the sections Parameters and Returns to a docstring of a summary and examples.

    `parameters` holds the type and the description of parameters that several functions share, by name, or by several
    names with commas between. `own` replaces descriptions.
    """

    def add(function: Callable[P, R]) -> Callable[P, R]:
        summary, _, examples = cleandoc(function.__doc__ or "").partition("\nExamples\n")
        lines = [summary, "Parameters", "----------"]
        names = signature(function).parameters
        for key in dict.fromkeys(key for name in names for key in parameters if name in key.split(", ")):
            kind, text = parameters[key]
            lines += [f"{key} : {kind}", f"    {own.get(key, text)}"]
        lines += ["", "Returns", "-------", returns[0], f"    {returns[1]}", "", "Examples", examples]
        function.__doc__ = "\n".join(lines)
        return function

    return add


def as_tensor(x: Any) -> Tensor:
    """A tensor from whatever ops take for one."""
    return x if isinstance(x, Tensor) else Tensor(as_nodes((x,))[0])


def as_tensors(arrays: Any) -> list[Tensor]:
    """The tensors of a sequence, in which a number takes its dtype from the others."""
    if not isinstance(arrays, Iterable):
        raise DTypeError(f"expected a sequence of tensors, got {type(arrays).__name__}")
    return [Tensor(node) for node in as_nodes(tuple(arrays), promotes_from=0)]


def short(value: Any) -> str:
    """The beginning of a value's text, for an error."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def as_index(value: Any, what: str) -> int:
    """A Python int from whatever can be an index."""
    try:
        return operator.index(value)
    except UserError:
        raise  # a tensor that has no value yet, or is no integer, says so itself
    except TypeError:
        raise DTypeError(f"expected {what} as an integer, got {short(value)}") from None


def function(op: str, value: Any) -> None:
    """Raise unless an argument of the transform of this name is a function."""
    if not callable(value):
        raise ArgumentError(f"[{op}] expected a function, got {class_name(value)}; pass it without calling it")


def counts(op: str, least: int = 0, **values: Any) -> None:
    """Raise unless these are integers of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ArgumentError(f"[{op}] expected {name} as an integer of at least {least}, got {short(value)}")


def positions(op: str, option: str, value: Any) -> tuple[int, ...]:
    """The positions of arguments that an option names, as an int or as several."""
    try:
        return (value,) if isinstance(value, int) else tuple([operator.index(n) for n in value])
    except TypeError:
        raise ArgumentError(f"[{op}] expected {option} as an int or a sequence of ints, got {value!r}") from None


def as_float(number: Any) -> Any:
    """A number as a float, if it is an integer."""
    try:
        return float(number) if isinstance(number, int) else number
    except OverflowError:
        raise DTypeError(f"expected numbers that fit float64, got {str(number)[:20]}...") from None


def plain_float(value: Any, what: str) -> float:
    """An attribute that is a real number, in Python's own type."""
    value = value.item() if isinstance(value, Tensor) else value
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise DTypeError(f"expected {what} as a real number, got {value!r}")
    return float(as_float(value))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all of these broadcast to."""
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for i, length in enumerate(shape, start=ndim - len(shape)):
            if length != 1:
                if result[i] not in (1, length):
                    raise ShapeError(
                        f"expected shapes that broadcast together, got {' and '.join(map(str, shapes))}; "
                        f"dimension {i} is both {result[i]} and {length}: reshape or expand_dims one of them"
                    )
                result[i] = length
    return tuple(result)


def normal_axis(axis: Any, ndim: int) -> int:
    """One axis, counted from the front."""
    place = as_index(axis, "an axis")
    if not -ndim <= place < ndim:
        raise AxisError(f"expected an axis from {-ndim} to {ndim - 1} for {ndim} dimensions, got {place}")
    return place % ndim


def normal_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """One, several or (`None`) all axes, counted from the front, without repeats, in the order given."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(normal_axis(a, ndim) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(set(axes)) != len(axes):
        raise AxisError(f"expected each axis once, got {axis}")
    return axes


def normal_shape(shape: Any) -> Shape:
    """A shape as a tuple of non-negative ints."""
    lengths = tuple(as_index(n, "a length") for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    if any(n < 0 for n in lengths):
        raise ShapeError(f"expected lengths of at least 0, got {lengths}")
    return lengths


def reduced_shape(shape: Shape, axes: Iterable[int], keepdims: bool) -> Shape:
    """The shape when `axes` are reduced."""
    gone = set(axes)
    if keepdims:
        return tuple(1 if i in gone else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def expect(dtype: DType, what: str, accepts: Callable[[DType], bool]) -> None:
    """Raise unless the dtype is accepted."""
    if not accepts(dtype):
        raise DTypeError(f"expected {what}, got {dtype.name}; cast it with astype")


def is_numeric(d: DType) -> bool:
    """Anything but bool."""
    return d is not bool_


def is_real(d: DType) -> bool:
    """Numbers on the real line: integers and real floats."""
    return d is not bool_ and not d.is_complex


Rule = Callable[..., Spec]


def elementwise(what: str, accepts: Callable[[DType], bool], result: Callable[[DType], DType] = lambda d: d) -> Rule:
    """The rule of an elementwise op: inputs of one dtype that broadcast; `result` maps the dtype."""

    def rule(*inputs: Spec) -> Spec:
        dtype = inputs[-1].dtype
        expect(dtype, what, accepts)
        shape = inputs[0].shape if len(inputs) == 1 else broadcast_shapes(*[s.shape for s in inputs])
        return spec(shape, result(dtype))

    return rule


numeric = elementwise("a numeric dtype", is_numeric)
real = elementwise("a real numeric dtype", is_real)
floating = elementwise("a floating dtype", lambda d: d.is_inexact)
real_floating = elementwise("a real floating dtype", lambda d: d.is_float)
integer = elementwise("an integer dtype", lambda d: d.is_integer)
integer_or_bool = elementwise("an integer or bool dtype", lambda d: d.is_integer or d is bool_)
boolean = elementwise("a bool dtype", lambda d: d is bool_)
compare = elementwise("any dtype", lambda d: True, lambda d: bool_)
compare_real = elementwise("a real dtype", lambda d: not d.is_complex, lambda d: bool_)
test_numeric = elementwise("a numeric dtype", is_numeric, lambda d: bool_)
test_float = elementwise("a real floating dtype", lambda d: d.is_float, lambda d: bool_)
magnitude = elementwise("a numeric dtype", is_numeric, real_of)
complex_part = elementwise("a complex dtype", lambda d: d.is_complex, real_of)


def optional_dtype(dtype: Any) -> DType | None:
    """A dtype argument that may be left out."""
    return None if dtype is None else as_dtype(dtype)


def one_of(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise unless an argument is one of the choices."""
    is_known = isinstance(value, Hashable) and value in choices  # an array is not, and compares by elements
    if not is_known:
        raise ArgumentError(f"expected {name} among {', '.join(map(repr, choices))}, got {short(value)}")
