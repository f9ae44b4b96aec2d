"""Tensor: a handle on a node.

Operators and functions build nodes. `numpy()`, `float()`, `repr` and `__dlpack__` need a value: they call the
evaluator, which `_run/evaluate.py` installs, and convert its result by `interchange`.

Tensors are values: no write to one ever shows through another. `x[i] = v` and `x += v` make the handle `x` point at a
new value; tensors made from `x` before keep the old one. Arrays handed out (`numpy()`, `np.asarray(x)`) are read-only
views that cannot be made writeable, so that this holds for NumPy's hands too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from ..errors import ArgumentError, DTypeError, NoDimensionsError, ShapeError, UserError
from . import interchange
from .dtype import DType
from .interchange import Array as Array
from .interchange import is_array
from .node import Node, Shape, fetch
from .tracebacks import hide_frames, short_tracebacks

Operand: TypeAlias = "Tensor | bool | int | float | complex | np.ndarray[Any, Any] | np.generic"

OPERATORS: Final[dict[str, Callable[..., Tensor]]] = {}
"""The functions behind Python's operators and Tensor's methods, by name. They are declared below this file in the
layers, and put themselves in."""


@dataclass(slots=True)
class Hooks:
    """Further functions that tensors use. Files below this one in the layers fill them in."""

    device_of: Callable[[Tensor], Any] = field(init=False)
    namespace: Callable[[str | None], ModuleType] = field(init=False)
    from_plain: Callable[[Array, str], Tensor] = field(init=False)
    ufunc: Callable[..., Any] = field(init=False)
    function: Callable[..., Any] = field(init=False)
    propagate: Callable[..., Any] = field(init=False)
    lower: Callable[[Any], Any] = field(default=lambda graph: graph)
    with_layout_of: Callable[[Tensor, Any], Tensor] = field(default=lambda g, spec: g)
    sum_of_layouts: Callable[[Tensor, Tensor], Tensor] = field(init=False)
    """The last four are those of `distributed`. No tensor has a layout before it is imported."""


HOOKS: Final = Hooks()


def _unary(name: str) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor, /) -> Tensor:
        return OPERATORS[name](self)

    return method


def _binary(name: str) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Operand, /) -> Tensor:
        try:
            return OPERATORS[name](self, other)
        except UserError as error:
            if isinstance(error, DTypeError) and not _is_mistaken(other):
                return NotImplemented  # type: ignore[no-any-return]  # lets Python try the other side's operator
            hide_frames(error)
            raise

    return method


def _reflected(name: str) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Operand, /) -> Tensor:
        if not _is_mistaken(other):
            return NotImplemented  # type: ignore[no-any-return]
        return OPERATORS[name](other, self)

    return short_tracebacks(method)


def _in_place(name: str) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Operand, /) -> Tensor:
        if not _is_mistaken(other):
            return NotImplemented  # type: ignore[no-any-return]
        result = OPERATORS[name](self, other)
        if self._node.spec.weak:  # a number in a trace: like a Python number, it becomes what the result is
            self._node = result._node
            return self
        if result.shape != self.shape:
            raise ShapeError(
                f"[{name}] expected the result of the in-place operator to keep the shape {self.shape}, "
                f"got {result.shape}; write x = x <op> y"
            )
        if result.dtype is not self.dtype:
            raise DTypeError(
                f"[{name}] expected the result of the in-place operator to keep the dtype {self.dtype.name}, "
                f"got {result.dtype.name}; write x = x <op> y, or cast the other side"
            )
        self._node = result._node
        return self

    return short_tracebacks(method)


def _reduction(name: str) -> Callable[..., Tensor]:
    def method(self: Tensor, axis: Any = None, dtype: Any = None, out: None = None, **attrs: Any) -> Tensor:
        if out is not None:
            raise ArgumentError(f"[{name}] expected out=None, got {type(out).__name__}; tensors are values")
        if dtype is not None:
            attrs["dtype"] = dtype
        return OPERATORS[name](self, axis=axis, **attrs)

    method.__name__, method.__doc__ = name, f"See `ys.{name}`."
    return short_tracebacks(method)


def _method(name: str) -> Callable[..., Any]:
    """A method that is the function of that name, with the tensor as its first argument."""

    def method(self: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        return OPERATORS[name](self, *args, **kwargs)

    method.__name__, method.__doc__ = name, f"See `ys.{name}`."
    return short_tracebacks(method)


def _is_mistaken(value: Any) -> bool:
    """True for operands, and for what is easily taken for one: the operator then says how to convert it."""
    return _is_operand(value) or is_array(value) or isinstance(value, (list, tuple))


def _is_operand(value: Any) -> bool:
    return isinstance(value, (Tensor, bool, int, float, complex, np.ndarray, np.generic))


class Tensor:
    """An n-dimensional array that is computed when its values are needed.

    `asarray`, `zeros` and the other creation functions make tensors, and so does every operation. `numpy()`, `float()`,
    `print` and `ys.eval` compute them. Tensors are values: `x[i] = v` and `x += v` give `x` a new value, and no other
    tensor changes.

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> y = x @ x.T + 1  # not computed yet
    >>> y.shape, y.dtype
    ((2, 2), yosegi.float64)
    >>> y.tolist()  # computed now
    [[6.0, 12.0], [12.0, 26.0]]
    """

    __slots__ = ("_node",)
    __hash__ = None  # type: ignore[assignment]  # == compares elements

    def __init__(self, node: Node) -> None:
        self._node = node

    # What it is

    @property
    def shape(self) -> Shape:
        """The length of each dimension."""
        return self._node.spec.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._node.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._node.spec.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._node.spec.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self._node.spec.nbytes

    @property
    def layout(self) -> Any:
        """The distribution over ranks: `None` if every rank has the whole value. See `ys.distributed.Layout`."""
        return self._node.spec.layout

    @property
    def device(self) -> Any:
        """The device that holds the value. Before the value is computed, the default device."""
        return HOOKS.device_of(self)

    @short_tracebacks
    def __len__(self) -> int:
        if not self.shape:
            raise NoDimensionsError("[len] expected a tensor of at least one dimension, got a 0-d tensor; use size")
        return self.shape[0]

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """Return the `yosegi` module, which is the Array API namespace."""
        return HOOKS.namespace(api_version)

    # Its value

    @short_tracebacks
    def numpy(self) -> Array:
        """Return the value as a read-only NumPy array.

        No copy is made if the value is in the host's memory. NumPy cannot make the array writeable; copy it to write to
        it.

        Returns
        -------
        numpy.ndarray
            The value.

        Examples
        --------
        >>> import yosegi as ys
        >>> (ys.asarray([1, 2]) + 1).numpy()
        array([2, 3])
        """
        return interchange.host_array(self._node)

    @short_tracebacks
    def item(self) -> bool | int | float | complex:
        """Return the only element as a Python number.

        Returns
        -------
        bool, int, float or complex
            The element.

        Raises
        ------
        ShapeError
            If the tensor does not have exactly one element.

        Examples
        --------
        >>> import yosegi as ys
        >>> ys.asarray([2.5]).item()
        2.5
        """
        if self.size != 1:
            raise ShapeError(f"[item] expected a tensor of one element, got shape {self.shape}; index it first")
        return interchange.read(self._node).item()  # type: ignore[no-any-return]

    @short_tracebacks
    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers.

        Returns
        -------
        list or number
            A number for a 0-d tensor.

        Examples
        --------
        >>> import yosegi as ys
        >>> ys.asarray([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return interchange.read(self._node).tolist()

    @short_tracebacks
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = interchange.read(self._node)
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ArgumentError(f"[__array__] expected dtype {array.dtype} for copy=False, got {np.dtype(dtype)}")
            return array.astype(dtype)
        return array.copy() if copy else interchange.sealed(array)

    @short_tracebacks
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy's elementwise functions on tensors are ours: `np.sin(x)` is `ys.sin(x)`."""
        return HOOKS.ufunc(ufunc, method, *inputs, **kwargs)

    @short_tracebacks
    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's other functions on tensors are ours: `np.median(x)` is `ys.median(x)`."""
        return HOOKS.function(function, args, kwargs)

    @short_tracebacks
    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return interchange.to_dlpack(self._node, stream, max_version, dl_device, copy)

    def __dlpack_device__(self, /) -> tuple[Any, int]:
        return interchange.HOST_DEVICE

    def __buffer__(self, flags: int, /) -> memoryview:
        return memoryview(self.numpy())

    def __reduce__(self) -> tuple[Any, ...]:
        return HOOKS.from_plain, (interchange.plain(self.numpy()), self.dtype.name)

    def __copy__(self) -> Tensor:
        return Tensor(self._node)

    def __deepcopy__(self, memo: dict[int, Any], /) -> Tensor:
        return Tensor(self._node)  # values never change: a new handle is a full copy

    def _number(self, kind: str) -> Any:
        if self._node.spec.ndim:
            raise ShapeError(f"[{kind}] expected a 0-d tensor, got shape {self.shape}; index it, or reduce it first")
        return interchange.read(self._node)[()]

    @short_tracebacks
    def __bool__(self, /) -> bool:
        return bool(self._number("bool"))

    @short_tracebacks
    def __int__(self, /) -> int:
        return int(self._real_number("int"))

    @short_tracebacks
    def __float__(self, /) -> float:
        return float(self._real_number("float"))

    @short_tracebacks
    def __complex__(self, /) -> complex:
        return complex(self._number("complex"))

    @short_tracebacks
    def __index__(self, /) -> int:
        if not (self.dtype.is_integer or self.ndim):
            raise DTypeError(f"[index] expected an integer tensor, got {self.dtype.name}; cast it with astype")
        return int(self._number("index"))

    def _real_number(self, kind: str) -> Any:
        if self.dtype.is_complex:
            raise DTypeError(f"[{kind}] expected a real tensor, got {self.dtype.name}; take ys.real or ys.abs first")
        return self._number(kind)

    @short_tracebacks
    def __repr__(self) -> str:
        return interchange.describe(self._node, lambda: self.device)

    def _repr_html_(self) -> str:
        """Notebooks show this. It computes nothing: a tensor without a value is shown by its shape and dtype."""
        return interchange.describe_html(self._node, lambda: self.device)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Notebooks ask for the plain text, too, which `repr` would compute."""
        text = interchange.describe_briefly(self._node, lambda: self.device)
        return {"text/plain": text, "text/html": self._repr_html_()}

    @short_tracebacks
    def __format__(self, format_spec: str) -> str:
        if format_spec and not self.shape:
            return format(fetch(self._node)[()], format_spec)
        return format(repr(self), format_spec)

    # Parts and layouts

    @short_tracebacks
    def __getitem__(self, key: Any, /) -> Tensor:
        return OPERATORS["getitem"](self, key)

    @short_tracebacks
    def __setitem__(self, key: Any, value: Any, /) -> None:
        self._node = OPERATORS["setitem"](self, key, value)._node

    @short_tracebacks
    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise NoDimensionsError("[iter] expected a tensor of at least one dimension, got a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool(OPERATORS["any"](OPERATORS["eq"](self, value)))

    @short_tracebacks
    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """Copy the value to the memory of a device.

        Later operations on the result run on this device if it supports them.

        Parameters
        ----------
        device : str or Device
            A device with a memory of its own, or the host.
        stream : None
            Not used.

        Returns
        -------
        Tensor
            A tensor with the same value.

        Raises
        ------
        ArgumentError
            If this machine has no such device, or if the device computes in the host's memory.

        Examples
        --------
        >>> import yosegi as ys
        >>> ys.asarray([1.0]).to_device("cpu").device.name
        'cpu'
        """
        return OPERATORS["to_device"](self, device, stream)

    def block_until_ready(self) -> Tensor:
        """Compute the tensor, and wait until its device is done.

        `eval` may return before a GPU is done. A mistake that only the device could find, such as an index out of
        range, is raised here.

        Returns
        -------
        Tensor
            This tensor.

        Examples
        --------
        >>> import yosegi as ys
        >>> (ys.asarray([1.0, 2.0]) * 2).block_until_ready().tolist()
        [2.0, 4.0]
        """
        return OPERATORS["block_until_ready"](self)

    def astype(self, dtype: Any, /, *, copy: bool = True) -> Tensor:
        """Convert the elements to another dtype.

        Parameters
        ----------
        dtype : DType
            The dtype of the result.
        copy : bool
            False: return the same tensor if it already has the dtype.

        Returns
        -------
        Tensor
            The converted tensor.

        Examples
        --------
        >>> import yosegi as ys
        >>> ys.asarray([1.7, -1.7]).astype(ys.int32).tolist()
        [1, -1]
        """
        return OPERATORS["astype"](self, dtype, copy=copy)

    def copy(self) -> Tensor:
        """Return a new tensor with the same value.

        Returns
        -------
        Tensor
            A tensor that later writes to this one do not change.

        Examples
        --------
        >>> import yosegi as ys
        >>> x = ys.asarray([1.0])
        >>> y = x.copy()
        >>> x += 1
        >>> y.tolist()
        [1.0]
        """
        return Tensor(self._node)

    @short_tracebacks
    def reshape(self, *shape: Any) -> Tensor:
        """Return the elements in another shape.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The new shape. One length may be -1: it follows from the others.

        Returns
        -------
        Tensor
            The tensor of the new shape.

        Examples
        --------
        >>> import yosegi as ys
        >>> ys.arange(6).reshape(2, -1).tolist()
        [[0, 1, 2], [3, 4, 5]]
        """
        return OPERATORS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def flatten(self) -> Tensor:
        """Return the elements in one dimension.

        Returns
        -------
        Tensor
            A 1-d tensor.

        Examples
        --------
        >>> import yosegi as ys
        >>> ys.ones((2, 3)).flatten().shape
        (6,)
        """
        return OPERATORS["reshape"](self, (-1,))

    ravel = flatten

    def transpose(self, *axes: Any) -> Tensor:
        """The dimensions in reverse order, or in the order of `axes`."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return OPERATORS["transpose"](self, order or None)

    def tobytes(self) -> bytes:
        """The bytes of the elements, in row-major order."""
        return bytes(interchange.read(self._node).tobytes())

    @property
    def real(self) -> Tensor:
        """The real parts."""
        return OPERATORS["real"](self)

    @property
    def imag(self) -> Tensor:
        """The imaginary parts."""
        return OPERATORS["imag"](self)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def at(self) -> Any:
        """Updates that return a new tensor: `x.at[key].set(v)`, and `add`, `multiply`, `min`, `max`.

        >>> import yosegi as ys
        >>> ys.zeros((3,)).at[[0, 0, 2]].add(1.0).tolist()
        [2.0, 0.0, 1.0]
        """
        return OPERATORS["at"](self)

    squeeze, swapaxes, repeat, take = _method("squeeze"), _method("swapaxes"), _method("repeat"), _method("take")
    clip, round, conj, conjugate = _method("clip"), _method("round"), _method("conj"), _method("conj")
    cumsum, cumprod, dot = _method("cumsum"), _method("cumprod"), _method("dot")
    sort, argsort, nonzero = _method("sort"), _method("argsort"), _method("nonzero")
    diagonal, trace, ptp = _method("diagonal"), _method("trace"), _method("ptp")
    searchsorted = _method("searchsorted")

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError(f"[T] expected a 2-d tensor, got shape {self.shape}; use mT or ys.permute_dims")
        return OPERATORS["matrix_transpose"](self)

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two dimensions transposed."""
        return OPERATORS["matrix_transpose"](self)

    # Reductions, by NumPy's names

    sum, prod = _reduction("sum"), _reduction("prod")
    mean, std, var = _reduction("mean"), _reduction("std"), _reduction("var")
    max, min = _reduction("max"), _reduction("min")
    argmax, argmin = _reduction("argmax"), _reduction("argmin")
    any, all = _reduction("any"), _reduction("all")

    # Operators

    def __round__(self, decimals: int | None = None, /) -> Tensor:
        return OPERATORS["round"](self, decimals or 0)

    def __divmod__(self, other: Operand, /) -> Any:
        return OPERATORS["divmod"](self, other) if _is_operand(other) else NotImplemented

    def __rdivmod__(self, other: Operand, /) -> Any:
        return OPERATORS["divmod"](other, self) if _is_operand(other) else NotImplemented

    __neg__ = _unary("neg")
    __pos__ = _unary("pos")
    __abs__ = _unary("abs")
    __invert__ = _unary("invert")

    __add__, __radd__, __iadd__ = _binary("add"), _reflected("add"), _in_place("add")
    __sub__, __rsub__, __isub__ = _binary("sub"), _reflected("sub"), _in_place("sub")
    __mul__, __rmul__, __imul__ = _binary("mul"), _reflected("mul"), _in_place("mul")
    __truediv__, __rtruediv__, __itruediv__ = _binary("truediv"), _reflected("truediv"), _in_place("truediv")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floordiv"), _reflected("floordiv"), _in_place("floordiv")
    __mod__, __rmod__, __imod__ = _binary("mod"), _reflected("mod"), _in_place("mod")
    __pow__, __rpow__, __ipow__ = _binary("pow"), _reflected("pow"), _in_place("pow")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul"), _reflected("matmul"), _in_place("matmul")
    __and__, __rand__, __iand__ = _binary("and"), _reflected("and"), _in_place("and")
    __or__, __ror__, __ior__ = _binary("or"), _reflected("or"), _in_place("or")
    __xor__, __rxor__, __ixor__ = _binary("xor"), _reflected("xor"), _in_place("xor")
    __lshift__, __rlshift__, __ilshift__ = _binary("lshift"), _reflected("lshift"), _in_place("lshift")
    __rshift__, __rrshift__, __irshift__ = _binary("rshift"), _reflected("rshift"), _in_place("rshift")

    __eq__ = _binary("eq")  # type: ignore[assignment]
    __ne__ = _binary("ne")  # type: ignore[assignment]
    __lt__ = _binary("lt")
    __le__ = _binary("le")
    __gt__ = _binary("gt")
    __ge__ = _binary("ge")
