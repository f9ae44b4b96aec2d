'''`@op`: an operation as one block.

The block holds the rule for the output's spec, the NumPy reference body, the gradient, the scalar rule for code
generation, the class and the tolerance. Parameters annotated `Arr` are tensors, all others are attributes, part of the
program's structure:

    @op(OpKind.ACTIVATION, infer=floating, vjp=lambda g, out, x: (g * conj(out),), scalar=lambda k, x: k.exp(x))
    def exp(x: Arr, /) -> Arr:
        """Element-wise e**x."""
        return np.exp(x)

The decorator returns an `Op`. User code calls it with tensors, arrays or numbers, and gets a tensor on a new node;
nothing is computed. The call is checked here, at the user's line. Everything behind reads the op through `Call.op`.
'''

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import copysign
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeAlias, get_type_hints
from weakref import WeakValueDictionary

import numpy as np

from .._run.memory import Buffer
from ..errors import ArgumentError, DTypeError, UserError
from . import interchange
from .dtype import (
    DType,
    as_dtype,
    default_float,
    default_of,
    float16,
    number_type,
    on_new_default,
    promote,
    rank,
    with_scalar,
)
from .interchange import class_name
from .node import Call, Node, Spec, spec
from .role import Leaf, Role
from .spellings import advice
from .tensor import HOOKS, OPERATORS, Tensor
from .tracebacks import hide_frames

Arr: TypeAlias = Any
"""A tensor argument. The public call takes tensors and numbers; the reference body gets NumPy arrays."""

P = ParamSpec("P")
_MEMO_LIMIT: Final = 8192
IN_COMPOSITE: Final = ContextVar("in_composite", default=False)
"""True while a composite is decomposed."""


class OpKind(Enum):
    """The operation classes by which devices state what they can do."""

    SOURCE = "source"
    MOVEMENT = "movement"
    ACTIVATION = "activation"
    NORMALISATION = "normalisation"
    CONVOLUTION = "convolution"
    REDUCTION = "reduction"
    ORDER = "order"
    LINEAR_ALGEBRA = "linear algebra"
    COMPLEX = "complex math"
    RANDOM = "random distributions"
    CONTROL = "control flow"
    DISTRIBUTED = "communication"

    __hash__ = object.__hash__  # by identity: devices are asked for it with every region


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a device's result may lie from the reference: relative error in units of the dtype's eps."""

    ulps: float = 4.0


class Normal(NamedTuple):
    """The result of a rule that also brings the attributes into their normal form."""

    outputs: Spec | tuple[Spec, ...]
    attrs: dict[str, Any]


class _Bound(NamedTuple):
    call: Call
    casts: tuple[DType | None, ...] | None


class Op(Generic[P]):
    """An operation. Made by `@op`; called with tensors, it builds a node."""

    def __init__(
        self,
        function: Callable[P, Arr],
        kind: OpKind,
        infer: Callable[..., Any],
        vjp: Callable[..., Any] | None,
        scalar: Callable[..., Any] | None,
        ufunc: np.ufunc | None,
        real_ufunc: np.ufunc | None,
        promotes_from: int | None,
        inexact: bool,
        computes_half: bool,
        tolerance: Tolerance,
        decomposition: Callable[..., Tensor] | None = None,
        role: Role | None = None,
        batch: Callable[..., Any] | None = None,
        jvp: Callable[..., Any] | None = None,
        linear: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = function.__name__.strip("_")
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(function)
        self.kind = kind
        self.infer = infer
        self.body: Callable[..., Any] = function if ufunc is None else ufunc
        self.real_ufunc = real_ufunc
        self.vjp = vjp
        self.scalar = scalar
        self.promotes_from = promotes_from
        self.inexact = inexact
        self.computes_half = computes_half or kind in (OpKind.SOURCE, OpKind.MOVEMENT)
        self.tolerance = tolerance
        self.decomposition = decomposition
        self.role = role
        self.batch = batch
        self.jvp = jvp
        self.linear = linear
        parameters = list(self.__signature__.parameters.values())
        self._variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._names = tuple(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)
        self._is_tensor = tuple(p.annotation in (Arr, "Arr") for p in parameters if p.kind is not p.VAR_POSITIONAL)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._attr_names = tuple(n for n, t in zip(self._names, self._is_tensor, strict=True) if not t)
        self.optional = tuple(
            n for n, t in zip(self._names, self._is_tensor, strict=True) if t and self._defaults.get(n, ...) is None
        )
        if self.optional:  # which of them are there is part of the structure
            self._attr_names += ("given",)
            self._defaults["given"] = ()
        self._positional = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        self._keywords = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        self._function = function
        self._attr_types: dict[str, Any] | None = None
        self._bound: dict[Any, _Bound] = {}
        # Weak: a call lives as long as a node or a plan has it, and stays the same one all that time.
        self._calls: WeakValueDictionary[Any, Call] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.name,)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        # The two shapes of call that elementwise chains are made of, kept short: this is the hottest line of Yosegi.
        if not kwargs:
            if len(args) == 2:
                a, b = args
                na: Node | None
                nb: Node | None
                if type(a) is Tensor:
                    na = a._node
                    nb = b._node if type(b) is Tensor else _known_literal(b, na.spec)
                elif type(b) is Tensor:
                    nb = b._node
                    na = _known_literal(a, nb.spec)
                else:
                    na = nb = None
                if na is not None and nb is not None:
                    bound = self._bound.get((na.spec, nb.spec))
                    if bound is not None and bound.casts is None:
                        return Tensor(Node(bound.call, (na, nb)))
            elif len(args) == 1 and type(args[0]) is Tensor:
                na = args[0]._node
                bound = self._bound.get(na.spec)
                if bound is not None and bound.casts is None:
                    return Tensor(Node(bound.call, (na,)))
        try:
            return Tensor(self._node(args, kwargs))
        except (UserError, TypeError) as error:
            hide_frames(error)
            raise

    def outputs(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Tensor, ...]:
        """Call an op that may have several outputs."""
        node = self._node(args, kwargs)
        specs = node.call.outputs
        if len(specs) == 1:
            return (Tensor(node),)
        return tuple(Tensor(Node(pick_call(specs, i), (node,))) for i in range(len(specs)))

    def _node(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        tensors, attrs = self._split(args, kwargs)
        try:
            nodes = as_nodes(tensors, self.promotes_from, self.inexact)
            specs = tuple([n.spec for n in nodes])
            # Attribute-free calls of one or two inputs share their keys with the short cuts in __call__.
            key: Any = (specs, attrs, exact(attrs)) if attrs else specs[0] if len(specs) == 1 else specs
            bound = self._bound.get(key)
            if bound is None:
                bound = self._bind(key, specs, attrs)
        except UserError as error:
            raise error.of(self.name) from None
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            raise ArgumentError(
                f"[{self.name}] expected attributes that are numbers or tuples of them, {error}"
            ) from None
        if bound.casts is not None:
            nodes = tuple([n if to is None else cast(n, to) for n, to in zip(nodes, bound.casts, strict=True)])
        return Node(bound.call, nodes)

    def interned(self, key: Any, attrs: dict[str, Any], inputs: tuple[Spec, ...], outputs: tuple[Spec, ...]) -> Call:
        """The one call under this key."""
        call = self._calls.get(key)
        return call if call is not None else self._calls.setdefault(key, Call(self, attrs, inputs, outputs))

    def call(self, specs: tuple[Spec, ...], attrs: dict[str, Any]) -> Call:
        """The call of this op on inputs of these specs, for passes that write graphs."""
        values = tuple([attrs.get(name, self._defaults.get(name)) for name in self._attr_names])
        return self._bind((specs, values, exact(values), "pass"), specs, values).call

    @property
    def infers_layouts(self) -> bool:
        """True if its own rule gives the layouts of its outputs. Layouts of other ops follow from their roles."""
        return self.decomposition is not None or self.kind is OpKind.DISTRIBUTED

    @property
    def attr_types(self) -> dict[str, Any]:
        """The type of each attribute, as it is annotated: what a file may hold for it."""
        if self._attr_types is None:
            hints = {**get_type_hints(self._function), "given": tuple[str, ...]}
            self._attr_types = {name: hints[name] for name in self._attr_names}
        return self._attr_types

    def takes(self, count: int, given: tuple[str, ...] = ()) -> bool:
        """True if it can be called with so many tensors, of which the last are those optional ones."""
        needed = sum(self._is_tensor) - len(self.optional)
        if given != tuple([name for name in self.optional if name in given]):
            return False
        return count >= needed if self._variadic else count == needed + len(given)

    def infers(self, call: Call) -> bool:
        """True if the rule, applied to the call's own inputs and attributes, gives the call's outputs again."""
        attrs = {name: self._defaults.get(name) for name in self._attr_names} | call.attrs
        result = self.infer(*call.inputs, **attrs)
        outputs = result.outputs if isinstance(result, Normal) else result
        again = outputs if isinstance(outputs, tuple) else (outputs,)
        return [(s.shape, s.dtype) for s in again] == [(s.shape, s.dtype) for s in call.outputs]

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        if self._variadic:
            if not kwargs.keys() <= set(self._attr_names):
                self._complain(args, kwargs)
            return args, tuple([_hashable(kwargs.get(n, self._defaults.get(n))) for n in self._attr_names])
        if len(args) > self._positional or not kwargs.keys() <= self._keywords:
            self._complain(args, kwargs)
        values = list(args)
        for name in self._names[len(args) :]:
            if name in kwargs:
                values.append(kwargs[name])
            elif name in self._defaults:
                values.append(self._defaults[name])
            else:
                self._complain(args, kwargs)
        if len(values) < len(args) + len(kwargs):
            self._complain(args, kwargs)
        tensors = tuple([v for v, t in zip(values, self._is_tensor, strict=True) if t])
        attrs = tuple([_hashable(v) for v, t in zip(values, self._is_tensor, strict=True) if not t])
        if self.optional:
            first = len(tensors) - len(self.optional)
            there = {n: v for n, v in zip(self.optional, tensors[first:], strict=True) if v is not None}
            return (*tensors[:first], *there.values()), (*attrs, tuple(there))
        return tensors, attrs

    def _complain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        text = advice(self.name, self._keywords, kwargs)
        if text is not None:
            raise TypeError(text)
        try:
            self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"[{self.name}] {error}") from None
        raise TypeError(f"[{self.name}] expected {self.__signature__}")

    def _bind(self, key: Any, specs: tuple[Spec, ...], attrs: tuple[Any, ...]) -> _Bound:
        casts = None if self.promotes_from is None else promotion_casts(specs, self.promotes_from, self.inexact)
        named = dict(zip(self._attr_names, attrs, strict=True))
        typed = specs if casts is None else tuple([_retyped(s, to) for s, to in zip(specs, casts, strict=True)])
        has_layouts = any(s.layout is not None for s in typed) and not self.infers_layouts
        result = self.infer(*[_whole(s) for s in typed] if has_layouts else typed, **named)
        if isinstance(result, Normal):
            result, named = result
        outputs = result if isinstance(result, tuple) else (result,)
        is_inside = has_layouts and IN_COMPOSITE.get()
        if has_layouts:
            typed, outputs = HOOKS.propagate(self, typed, named, outputs, is_inside)
        if self.promotes_from == 0 and all(s.weak for s in specs):
            outputs = tuple([spec(s.shape, s.dtype, weak=True) for s in outputs])
        if len(self._bound) >= _MEMO_LIMIT:
            self._bound.clear()
        call = self.interned((typed, *named.items(), exact(named.values()), outputs), named, typed, outputs)
        bound = _Bound(call, casts if casts is not None and any(casts) else None)
        if not is_inside:  # whose sums of partial values are no mistakes: the user's may be
            self._bound[key] = bound
        return bound


REGISTRY: Final[dict[str, Op[Any]]] = {}
"""Every op by name: what the tests, the devices' tables and the docs are generated from."""


def _registered(name: str) -> Op[Any]:
    """The op of a pickled name."""
    if name not in REGISTRY:
        raise ArgumentError(f"[pickle] expected an op of this process, got {name!r}; import the module that defines it")
    return REGISTRY[name]


def _forget() -> None:
    for each in REGISTRY.values():
        each._bound.clear()


on_new_default(_forget)


def op(
    kind: OpKind,
    *,
    infer: Callable[..., Any],
    vjp: Callable[..., Any] | None = None,
    scalar: Callable[..., Any] | None = None,
    ufunc: np.ufunc | None = None,
    real_ufunc: np.ufunc | None = None,
    promotes_from: int | None = None,
    inexact: bool = False,
    computes_half: bool = False,
    operator: str | None = None,
    tolerance: Tolerance = Tolerance(),
    decomposition: Callable[..., Tensor] | None = None,
    role: Role | None = None,
    batch: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    linear: tuple[tuple[int, ...], ...] = (),
) -> Callable[[Callable[P, Arr]], Op[P]]:
    """Declare the decorated function an op, with itself as the NumPy reference body.

    - `infer(*specs, **attrs)` gives the output's spec, or those of several outputs, or a `Normal`; it raises on misuse.
    - `vjp(g, out, *inputs, **attrs)` gives one cotangent per input, `None` where none flows. The gradient pass sums
      out broadcast dimensions and casts to the input's dtype by itself. For complex inputs it gives `g * conj(f')`.
    - `scalar(k, *inputs)` is the operation on one element, in the primitives of `codegen.scalar.primitives.Primitives`.
    - `ufunc` is the whole reference body, for the ops that NumPy has as one; the function then only gives signature
      and documentation. `real_ufunc` is the body for real inputs only; the function is that for complex ones.
    - `promotes_from` is the index of the first of the inputs that are brought to a common dtype.
    - `inexact`: integers and bools among those are brought to the default float.
    - `computes_half`: the body handles 16-bit floats itself. All other bodies get such inputs as float32.
    - `operator` names the Python operator that is this op: "add" for `+`.
    - `decomposition` is the op in other ops, on tensors: see `composite`.
    - `role` is its structure, for ops that are more than one element at a time: see `role`.
    - `batch(op, batched, *inputs, **attrs)` is the op on many examples at once: see `batch`. Most roles imply it.
    - `jvp(tangents, out, *inputs, **attrs)` gives the tangent of each output, with `None` for a zero on both sides. It
      is needed only where it is better than the transpose of the vjp.
    - `linear` lists groups of inputs: the op is a linear function of each group, with the other inputs fixed. A sum of
      two inputs has the group (0, 1), a product the groups (0,) and (1,). Most roles imply it.
    """

    def declare(function: Callable[P, Arr]) -> Op[P]:
        made = Op(
            function, kind, infer, vjp, scalar, ufunc, real_ufunc, promotes_from, inexact, computes_half, tolerance,
            decomposition, role, batch, jvp, linear,
        )  # fmt: skip
        assert made.name not in REGISTRY, f"two ops are named {made.name}"
        REGISTRY[made.name] = made
        if operator is not None:
            OPERATORS[operator] = made
        return made

    return declare


def _hashable(value: Any) -> Any:
    """An attribute as it can be looked up: lists, arrays and tensors as tuples, whose values are then structure."""
    kind = type(value)
    if kind is tuple or kind is list:
        flat = kind is tuple and all(type(v) not in (list, tuple, Tensor, np.ndarray) for v in value)
        return value if flat else tuple([_hashable(v) for v in value])
    if kind is Tensor or kind is np.ndarray:
        return _hashable(value.tolist())
    return value


def exact(values: Iterable[Any]) -> tuple[Any, ...]:
    """A key that distinguishes equal values: 1, 1.0 and True, 0.0 and -0.0."""
    return tuple(
        [exact(v) if type(v) is tuple else repr(v) if type(v) in (float, complex) else type(v) for v in values]
    )


def flat(g: Any, out: Any, *inputs: Any, **attrs: Any) -> tuple[None, ...]:
    """The gradient of a step function: zero wherever there is one."""
    return (None,) * len(inputs)


def _retyped(s: Spec, to: DType | None) -> Spec:
    return s if to is None and not s.weak else spec(s.shape, s.dtype if to is None else to, layout=s.layout)


def _whole(s: Spec) -> Spec:
    """The spec without its layout."""
    return s if s.layout is None else spec(s.shape, s.dtype, s.weak)


# Leaves and constants -------------------------------------------------------------------------------------------


@op(OpKind.SOURCE, infer=lambda *, spec: Normal(spec, {}), role=Leaf())
def leaf(*, spec: Spec) -> Arr:
    """A value that is there, or will be when a traced function is replayed: it is looked up, never computed."""
    raise AssertionError("a leaf has no body")


def _constant_rule(*, value: Any, dtype: DType) -> Spec:
    _fitted_array(value, dtype)
    return spec((), dtype)


def _fitted_array(value: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """A Python number as an array of a dtype that has room for it."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(value, dtype.numpy)
    except (OverflowError, TypeError, ValueError):
        raise DTypeError(f"expected a number that fits {dtype.name}, got {value!r}; cast the tensor first") from None


@op(OpKind.SOURCE, infer=_constant_rule)
def constant(*, value: complex | bool, dtype: DType) -> Arr:
    """A number that is part of the program's structure, so that simplification can see it."""
    return np.asarray(value, dtype.numpy)


@op(OpKind.SOURCE, infer=lambda *, array: spec(array.shape, as_dtype(array.dtype)))
def embedded(*, array: Any) -> Arr:
    """A value that constant folding computed when the plan was made."""
    return array


def _pick_rule(*outputs: Spec, index: int) -> Spec:
    if not 0 <= index < len(outputs):
        raise ArgumentError(f"expected an index from 0 to {len(outputs) - 1}, got {index}")
    return outputs[index]


@op(OpKind.SOURCE, infer=_pick_rule)
def pick(x: Arr, /, *, index: int) -> Arr:
    """One output of an op that has several."""
    return x[index]


def pick_call(source: tuple[Spec, ...], index: int) -> Call:
    """The call that takes one output of an op with these."""
    return pick.interned((source, index), {"index": index}, source, (_pick_rule(*source, index=index),))


@lru_cache(maxsize=4096)
def leaf_call(s: Spec) -> Call:
    """The call of every leaf of this spec."""
    return leaf.interned(s, {}, (), (s,))


def from_array(array: np.ndarray[Any, Any]) -> Tensor:
    """A leaf tensor on a NumPy array that nobody will write to any more."""
    return Tensor(Node(leaf_call(spec(array.shape, as_dtype(array.dtype))), (), Buffer(array)))


def from_plain(array: np.ndarray[Any, Any], dtype: str) -> Tensor:
    """The inverse of `interchange.plain`: what a pickle calls."""
    return from_array(interchange.sealed(array.view(as_dtype(dtype).numpy)))


HOOKS.from_plain = from_plain

_STRUCTURAL: Final = frozenset({0, 1, -1, 2, 0.5})
_LITERALS: Final[dict[Any, Node]] = {}


def _known_literal(value: Any, beside: Spec) -> Node | None:
    """The node of a number that has been met before; `None` if it must be looked at more closely."""
    if beside.weak:
        return None
    if type(value) is float:
        if value == 0 and copysign(1, value) < 0:
            return None  # -0.0 == 0.0, but they are not the same number
    elif type(value) is not int:
        return None
    return _LITERALS.get((value, type(value), beside.dtype))


def literal(value: Any, dtype: DType) -> Node:
    """A Python number as a node.

    The few numbers that simplification has rules for become part of the structure. Any other is data, so that
    `x * rate` keeps its plan when `rate` changes.
    """
    array = _fitted_array(value, dtype)
    array.flags.writeable = False  # one array serves every use of the number
    # Numbers that compare equal may differ in the sign of a zero: their bytes tell.
    plain = type(value) in (int, float) and (value != 0 or copysign(1, value) > 0)
    key = (value if plain else array.tobytes(), type(value), dtype)
    node = _LITERALS.get(key)
    if node is None:
        if plain and value in _STRUCTURAL:
            attrs = {"value": value, "dtype": dtype}
            node = Node(constant.interned(key, attrs, (), (spec((), dtype),)), ())
        else:
            node = Node(leaf_call(spec((), dtype)), (), Buffer(array))
        if len(_LITERALS) >= _MEMO_LIMIT:
            _LITERALS.clear()
        node = _LITERALS.setdefault(key, node)
    return node


def number(value: Any, dtype: DType) -> Tensor:
    """A Python number as a tensor: a node and memory of its own, for those of `literal` are everybody's."""
    node = literal(value, dtype)
    return Tensor(Node(node.call, (), None if node.buffer is None else Buffer(node.buffer.data.copy())))


def as_nodes(args: tuple[Any, ...], promotes_from: int | None = None, inexact: bool = False) -> tuple[Node, ...]:
    """Tensors, arrays and numbers as nodes; a number takes its dtype from the inputs it is promoted with."""
    nodes: list[Any] = []
    scalars = False
    for arg in args:
        if isinstance(arg, Tensor):
            nodes.append(arg._node)
        elif isinstance(arg, (np.ndarray, np.generic)):
            nodes.append(from_array(np.array(arg, as_dtype(arg.dtype).numpy))._node)
        elif number_type(arg) is not None:
            scalars = True
            nodes.append(arg)
        else:
            raise DTypeError(f"expected a tensor or a number, got {class_name(arg)}; convert it with ys.asarray")
    if scalars:
        first = len(nodes) if promotes_from is None else promotes_from
        peers = [n.spec for n in nodes[first:] if isinstance(n, Node)]
        common = common_dtype(peers, inexact)
        weak = bool(peers) and all(s.weak for s in peers)
        for i, value in enumerate(nodes):
            if not isinstance(value, Node):
                kind = number_type(value)
                assert kind is not None
                dtype = default_of(kind) if common is None or i < first else with_scalar(common, kind)
                nodes[i] = literal(value, dtype)
                if weak and i >= first:  # a number that meets numbers of a trace is one of them
                    nodes[i] = Node(leaf_call(spec((), dtype, weak=True)), (), Buffer(np.asarray(value, dtype.numpy)))
    return tuple(nodes)


def common_dtype(specs: Iterable[Spec], inexact: bool = False) -> DType | None:
    """The dtype these are brought to; Python numbers (weak specs) follow the tensors. `None` if there are none."""
    common: DType | None = None
    # The highest kind first, so that the order of the operands does not matter; Python numbers last.
    for s in sorted(specs, key=lambda s: (s.weak, -rank(s.dtype))):
        if common is None:
            common = s.dtype
        else:
            common = with_scalar(common, _PYTHON_TYPE[s.dtype.kind]) if s.weak else promote(common, s.dtype)
    return default_float() if inexact and common is not None and not common.is_inexact else common


def promotion_casts(specs: tuple[Spec, ...], first: int, inexact: bool) -> tuple[DType | None, ...]:
    """The dtype each input from `first` on must be cast to, `None` where it has it already."""
    common = common_dtype(specs[first:], inexact)
    return tuple([None if i < first or s.dtype is common else common for i, s in enumerate(specs)])


_PYTHON_TYPE: Final = {"bool": bool, "signed integer": int, "real floating": float, "complex floating": complex}


def _single_for_bfloat16(x: Arr) -> Arr:
    """float64 → float32 such that rounding on to bfloat16 is as if done at once: ties made by the first are undone."""
    single = x.astype(np.float32)
    on_tie = (single.view(np.uint32) & 0xFFFF) == 0x8000
    away = np.where(single < x, np.float32(np.inf), np.float32(-np.inf))
    return np.where(on_tie & (single != x) & np.isfinite(single), np.nextafter(single, away), single)


@op(OpKind.MOVEMENT, infer=lambda x, *, dtype: spec(x.shape, dtype), vjp=lambda g, out, x, *, dtype: (g,),
    scalar=lambda k, x, *, dtype: k.convert(x, dtype), linear=((0,),))  # fmt: skip
def convert(x: Arr, /, *, dtype: DType) -> Arr:
    """The values converted to another dtype."""
    if x.dtype.kind == "c" and dtype.kind == "bool":
        return x != 0
    x = x if dtype.is_complex else x.real
    if x.dtype == np.float64 and dtype.is_half and dtype is not float16:
        x = _single_for_bfloat16(x)
    return x.astype(dtype.numpy)


def _fitted_rule(x: Spec, *, dtype: DType) -> Spec:
    if x.ndim or not (x.dtype.is_integer and dtype.is_integer):
        raise DTypeError(f"expected one integer and an integer dtype, got {x!r} and {dtype.name}")
    return spec((), dtype)


@op(OpKind.SOURCE, infer=_fitted_rule)
def fitted(x: Arr, /, *, dtype: DType) -> Arr:
    """A Python integer that a traced function was given, in the integer dtype it met, which must have room for it."""
    if not np.iinfo(dtype.numpy).min <= x <= np.iinfo(dtype.numpy).max:
        raise DTypeError(f"[jit] expected a number that fits {dtype.name}, got {x}; cast the tensor first")
    return x.astype(dtype.numpy)


def cast(node: Node, dtype: DType) -> Node:
    """The node's values in `dtype`."""
    if node.spec.dtype is dtype:
        return node
    to = fitted if node.spec.weak and node.spec.dtype.is_integer and dtype.is_integer else convert
    return to._node((Tensor(node),), {"dtype": dtype})
