"""`summary`: the modules of a model with the shapes of their outputs, without computing any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._tensor.interchange import class_name
from .._tensor.node import Spec
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten
from .._trace.shapes import eval_shape
from ..errors import ArgumentError
from .module import WATCH, Module
from .training import stateful


@dataclass(frozen=True, slots=True)
class Row:
    """A module in a summary."""

    path: str
    """The name of the module in the model; empty for the model itself."""
    kind: str
    """The name of its class."""
    outputs: tuple[Spec, ...]
    """The tensors that its first call returns; empty for a module that is not called."""
    parameters: int
    """The number of elements of its parameters, with those of the modules in it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The modules of a model: see `summary`. Its text is a table."""

    rows: tuple[Row, ...]
    """The model first, then its modules in the order of the tree."""
    parameters: int
    """The number of elements of all parameters."""
    nbytes: int
    """The bytes of all parameters."""

    def __str__(self) -> str:
        cells = [("module", "class", "output", "parameters")]
        cells += [(r.path or "(model)", r.kind, " ".join(map(repr, r.outputs)), f"{r.parameters:,}") for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([*[c.ljust(w) for c, w in zip(row[:3], widths, strict=False)], row[3].rjust(widths[3])])
            for row in cells
        ]
        return "\n".join([*lines, f"{self.parameters:,} parameters, {self.nbytes:,} bytes"])

    __repr__ = __str__


@short_tracebacks
def summary(model: Module, /, *args: Any, **kwargs: Any) -> Summary:
    """Return the modules of a model with their outputs and numbers of parameters. No value is computed.

    Parameters
    ----------
    model : Module
        The model.
    *args, **kwargs : Tensor, array, Spec, or tree of these
        The arguments of a call. Of tensors and arrays only shape and dtype count.

    Returns
    -------
    Summary
        The rows, with a table as text.

    Examples
    --------
    >>> import yosegi as ys
    >>> print(ys.nn.summary(ys.nn.Sequential(ys.nn.Linear(2, 8), ys.nn.relu), ys.ones((5, 2), dtype=ys.float32)))
    module   class       output         parameters
    (model)  Sequential  float32[5, 8]          24
    0        Linear      float32[5, 8]          24
    24 parameters, 96 bytes
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"[summary] expected a module, got {class_name(model)}")
    outputs: dict[str, tuple[Spec, ...]] = {}

    def call(model: Module, /, *args: Any, **kwargs: Any) -> Any:
        names = {id(module): name for name, module in model.named_modules()}

        def watch(module: Module, made: Any) -> None:
            found = tuple(t._node.spec for t in flatten(made)[0] if isinstance(t, Tensor))
            outputs.setdefault(names.get(id(module), ""), found)

        token = WATCH.set(watch)
        try:
            return stateful(model)(*args, **kwargs)
        finally:
            WATCH.reset(token)

    eval_shape(call, model, *args, **kwargs)
    rows = tuple(
        Row(name, type(module).__name__, outputs.get(name, ()), sum(t.size for t in module.parameters()))
        for name, module in model.named_modules()
    )
    nbytes = sum(t.size * t.dtype.numpy.itemsize for t in model.parameters())
    return Summary(rows, rows[0].parameters, nbytes)
