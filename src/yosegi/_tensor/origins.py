"""The origins of nodes: the user's line, the module and the pass that made each. They name the cause of a NaN.

Origins are recorded under `options(check_nan=True)` alone. Until the option is first used, nothing of this file runs.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from .node import Call, Node
from .options import NAN_CHECKS, current
from .tracebacks import PACKAGE, package_of


@dataclass(frozen=True, slots=True)
class Origin:
    """The place in a program that made a node."""

    line: str = ""
    """The file and the number of the user's line."""
    module: str = ""
    """The path of the module whose call made it, such as "Model.blocks.2"."""
    gradient_of: str = ""
    """For a node of the pass back, the op whose gradient it belongs to."""

    def __str__(self) -> str:
        of = f"in the gradient of {self.gradient_of}" if self.gradient_of else ""
        module = f"in {self.module}" if self.module else ""
        return ", ".join(part for part in (of, module, f"at {self.line}" if self.line else "") if part)


MODULE: Final[ContextVar[tuple[Any, str] | None]] = ContextVar("module", default=None)
"""The module whose call is under way, and its path."""
BACKWARD: Final[ContextVar[Origin | None]] = ContextVar("backward", default=None)
"""The origin of the nodes that a pass back makes."""
_ORIGINS: Final[WeakKeyDictionary[Node, Origin]] = WeakKeyDictionary()
_UNKNOWN: Final = Origin()


def origin_of(node: Node) -> Origin:
    """The origin of a node, as far as it is recorded."""
    return _ORIGINS.get(node, _UNKNOWN)


def backward_origin(node: Node) -> Origin:
    """The origin of the nodes that carry a cotangent through this one."""
    return replace(origin_of(node), gradient_of=node.call.op.name)


def _here() -> Origin:
    frame = sys._getframe(2)
    while package_of(frame) in (PACKAGE, "numpy") and frame.f_back is not None:
        frame = frame.f_back
    module = MODULE.get()
    return Origin(f"{frame.f_code.co_filename}:{frame.f_lineno}", "" if module is None else module[1])


def _record() -> None:
    """Let every new node record its origin where the option is on."""
    plain = Node.__init__

    def init(self: Node, call: Call, inputs: tuple[Node, ...], buffer: Any = None) -> None:
        plain(self, call, inputs, buffer)
        if current().check_nan:
            _ORIGINS[self] = BACKWARD.get() or _here()

    Node.__init__ = init  # type: ignore[method-assign]


NAN_CHECKS.append(_record)
