"""Yosegi as a contender: a device, and how it is used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..._run.api import eval, explain, holds_data
from ..._run.device import Device
from ..._run.memory import HOST
from ..._tensor.op import REGISTRY
from ..._tensor.options import options
from ..._trace.jit import jit
from ...ops.creation import asarray
from .cases import Case, Functions, Program

JIT, CACHED, SEPARATE, UPLOAD, DOWNLOAD = "jit", "plan cache", "separate", "upload", "download"
"""A program as one; built anew every time; op by op; and only its input there, or its result back."""


class NotHere(Exception):
    """A contender that cannot take part in a case, and why."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A library that can run cases: it takes arrays, makes a call of a program, and gives results back."""

    name: str
    mode: str
    is_device: bool
    adopt: Callable[[Any], Any]
    """A NumPy array as one of its own."""
    compile: Callable[[Case], Callable[..., Any]]
    """The case's program as a function of such arrays, which returns when the work is done; raises `NotHere`."""
    fetch: Callable[[Any], Any] = np.asarray
    """A result as a NumPy array."""
    turn: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def label(self) -> str:
        """How results call it."""
        return f"{self.name}, {self.mode}" if self.mode else self.name


def of_device(device: Device, mode: str) -> Runner:
    """A device, used in a mode."""

    def turn() -> AbstractContextManager[Any]:
        return options(device=device.name, on_fallback="error")  # a time on another device is not this one's

    def sent(array: Any) -> Any:
        x = asarray(array)
        return x.to_device(device) if holds_data(device) else x

    if mode == UPLOAD:
        # A new tensor every time: one that has been there keeps its copy.
        return Runner(device.name, mode, True, lambda a: a, lambda case: _finished(sent, device), turn=turn)
    if mode == DOWNLOAD:
        return Runner(device.name, mode, True, device.from_host, lambda case: device.to_host)
    return Runner(device.name, mode, True, sent, lambda case: _WAYS[mode](with_weights(case), device), turn=turn)


def with_weights(case: Case) -> Program:
    """The case's program as one of its inputs alone."""
    weights = [asarray(w) for w in case.weights()]
    return (lambda f, *inputs: case.program(f, *inputs, *weights)) if weights else case.program


def elsewhere(device: Device, case: Case, inputs: list[Any]) -> str | None:
    """Why a case, asked of a device, would be run by another; `None` if it runs there."""
    with options(device=device.name):
        steps = explain(with_weights(case)(FUNCTIONS, *inputs)).to_json()["steps"]
    for step in steps:
        if step["device"] != device.name:
            reasons = [r["reason"] for r in step["refused"] if r["device"] == device.name]
            return f"{' '.join(step['ops'])} goes to {step['device']}: {reasons[0] if reasons else 'it comes first'}"
    return None


def _finished(call: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """A call that returns when the device is done; on the host every call does."""
    if device.space == HOST:
        return call

    def finished(*inputs: Any) -> Any:
        result = call(*inputs)
        device.synchronize()
        return result

    return finished


def _jitted(program: Program, device: Device) -> Callable[..., Any]:
    return _finished(jit(lambda *inputs: program(FUNCTIONS, *inputs)), device)


def _built_anew(program: Program, device: Device) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        result = program(FUNCTIONS, *inputs)
        eval(result)
        return result

    return _finished(call, device)


def _op_by_op(program: Program, device: Device) -> Callable[..., Any]:
    # Each op is evaluated by itself, but not waited for: a queue may still be busy with the one before.
    return _finished(lambda *inputs: program(_ONE_BY_ONE, *map(_Separate, inputs)).value, device)


_WAYS: Final = {JIT: _jitted, CACHED: _built_anew, SEPARATE: _op_by_op}


class _Separate:
    """A value whose every operator is a jitted function of its own."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def lifted(name: str) -> Callable[..., Any]:
        """An op that is evaluated by itself."""
        one = jit(REGISTRY[name])

        def call(*operands: Any) -> _Separate:
            return _Separate(one(*[o.value if isinstance(o, _Separate) else o for o in operands]))

        return call


for _name, _op in {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide"}.items():
    _call = _Separate.lifted(_op)
    setattr(_Separate, f"__{_name}__", _call)
    setattr(_Separate, f"__r{_name}__", lambda self, other, call=_call: call(other, self))


class _Own:
    """Yosegi's functions, for lazy tensors."""

    def __init__(self) -> None:
        self.exp, self.log, self.tanh, self.sqrt = (REGISTRY[n] for n in ("exp", "log", "tanh", "sqrt"))
        self.matmul = REGISTRY["matmul"]

    def relu(self, x: Any) -> Any:
        return REGISTRY["maximum"](x, 0.0)

    def transpose(self, x: Any) -> Any:
        return x.T

    def sum(self, x: Any, axis: int | None) -> Any:
        return REGISTRY["sum"](x, axis=axis, keepdims=axis is not None)

    def max(self, x: Any, axis: int) -> Any:
        return REGISTRY["max"](x, axis=axis, keepdims=True)

    def mean(self, x: Any, axis: int) -> Any:
        return REGISTRY["mean"](x, axis=axis, keepdims=True)

    def convert(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype)

    def conv(self, x: Any, w: Any, stride: int, padding: int, groups: int) -> Any:
        return REGISTRY["conv"](x, w, stride=stride, padding=padding, groups=groups)


class _OneByOne:
    """The functions, each evaluated by itself."""

    def __init__(self, own: _Own) -> None:
        for name in ("exp", "log", "tanh", "sqrt", "relu", "matmul", "transpose"):
            self._add(name, jit(getattr(own, name)))
        for name in ("sum", "max", "mean"):
            self._add(name, jit(getattr(own, name), static_argnames="axis"))
        self._add("convert", jit(own.convert, static_argnames="dtype"))

    def _add(self, name: str, one: Callable[..., Any]) -> None:
        def call(*operands: Any) -> _Separate:
            return _Separate(one(*[o.value if isinstance(o, _Separate) else o for o in operands]))

        setattr(self, name, call)


FUNCTIONS: Final[Functions] = _Own()
_ONE_BY_ONE: Final[Any] = _OneByOne(_Own())
