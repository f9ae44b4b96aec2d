"""Core ML as pyobjc shows it, as far as the device uses it.

Packages are parsed back and evaluated op by op (`mil_interpreter`). The double refuses what Core ML refuses: programs
with too many dimensions, inputs and outputs of other types, arrays that do not fit. `failing` decides which calls fail;
`objc.LIVE` counts the objects that are alive.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from Foundation import NSURL
from objc import LIVE, NSError, Object, Varlist, autoreleased  # type: ignore[attr-defined]  # noqa: F401

import mil_interpreter

_share = float(os.environ.get("YOSEGI_TEST_COREML_FAULTS", "0"))
failing: Callable[[str], str | None] = lambda what: "an injected fault" if random.random() < _share else None
"""Called with "compile", "load" or "predict"; the text is the reason of a failure."""
takes_backings = True
"""False if outputs are written to memory of its own, with padded rows."""
compiled = 0
"""Packages that were compiled."""
_TYPES = {65568: np.dtype(np.float32), 65552: np.dtype(np.float16)}
_PADDING = 3  # elements between rows
_ENGINE = 2  # MLComputeUnitsAll, the only units that the device asks for with a Neural Engine


class MLMultiArray(Object):
    """An array on somebody's memory."""

    def initWithDataPointer_shape_dataType_strides_deallocator_error_(
        self, data: Any, shape: list[int], kind: int, strides: list[int], deallocator: None, error: None
    ) -> tuple[MLMultiArray | None, NSError | None]:
        super().__init__()
        assert shape, "an array without dimensions"
        assert min(shape) > 0, "an array without elements"
        assert len(shape) == len(strides)
        if kind not in _TYPES:
            return None, autoreleased(NSError(f"no arrays of type {kind}"))
        extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        assert ctypes.sizeof(data) >= extent * _TYPES[kind].itemsize, "more elements than bytes"
        self.address, self._shape, self._strides, self._kind = ctypes.addressof(data), shape, strides, kind
        self.kept: Any = None
        return self, None

    def array(self) -> Any:
        """The elements, in place."""
        dtype = _TYPES[self._kind]
        extent = sum((n - 1) * s for n, s in zip(self._shape, self._strides, strict=True)) + 1
        flat = np.frombuffer(self.dataPointer().as_buffer(extent * dtype.itemsize), dtype)
        return np.lib.stride_tricks.as_strided(flat, self._shape, [s * dtype.itemsize for s in self._strides])

    def dataPointer(self) -> Varlist:
        return Varlist(self.address)

    def shape(self) -> list[int]:
        return self._shape

    def strides(self) -> list[int]:
        return self._strides

    def dataType(self) -> int:
        return self._kind


def _padded(array: Any) -> MLMultiArray:
    """An array in memory of Core ML's own, with a gap behind each row."""
    *batch, columns = array.shape
    memory = np.full((*batch, columns + _PADDING), 77, array.dtype)
    memory[..., :columns] = array
    strides = [s // array.itemsize for s in memory.strides]
    kind = next(k for k, d in _TYPES.items() if d == array.dtype)
    raw = (ctypes.c_char * memory.nbytes).from_address(memory.ctypes.data)
    made, _ = MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_(
        raw, list(array.shape), kind, strides, None, None
    )
    made.kept = memory
    return made


class MLFeatureValue(Object):
    """A value of a feature."""

    def __init__(self, array: MLMultiArray) -> None:
        super().__init__()
        self._array = array

    @classmethod
    def featureValueWithMultiArray_(cls, array: MLMultiArray) -> Any:
        return autoreleased(cls(array))

    def multiArrayValue(self) -> MLMultiArray:
        return self._array


class MLDictionaryFeatureProvider(Object):
    """Features by name."""

    def initWithDictionary_error_(self, features: dict[str, MLFeatureValue], error: None) -> tuple[Any, None]:
        super().__init__()
        self._features = dict(features)
        return self, None

    def featureValueForName_(self, name: str) -> MLFeatureValue:
        return self._features[name]


class MLPredictionOptions(Object):
    """Where outputs are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.backings: dict[str, MLMultiArray] = {}

    def setOutputBackings_(self, backings: dict[str, MLMultiArray]) -> None:
        self.backings = dict(backings)


class MLModelConfiguration(Object):
    """How a model is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.units = _ENGINE

    def setComputeUnits_(self, units: int) -> None:
        assert units in range(4)
        self.units = units


class MLModel(Object):
    """A model."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self._program = program

    @classmethod
    def compileModelAtURL_error_(cls, url: NSURL, error: None) -> tuple[NSURL | None, NSError | None]:
        global compiled
        reason = failing("compile") or mil_interpreter.refusal(mil_interpreter.program_of(Path(url.path())))
        if reason is not None:
            return None, autoreleased(NSError(reason))
        compiled += 1
        place = Path(tempfile.mkdtemp()) / "model.mlmodelc"
        shutil.copytree(url.path(), place)
        return NSURL.fileURLWithPath_(str(place)), None

    @classmethod
    def modelWithContentsOfURL_configuration_error_(
        cls, url: NSURL, configuration: MLModelConfiguration, error: None
    ) -> tuple[Any, NSError | None]:
        reason = failing("load")
        if reason is not None:
            return None, autoreleased(NSError(reason))
        return autoreleased(cls(mil_interpreter.program_of(Path(url.path())))), None

    def predictionFromFeatures_options_error_(
        self, features: MLDictionaryFeatureProvider, options: MLPredictionOptions, error: None
    ) -> tuple[Any, NSError | None]:
        reason = failing("predict")
        if reason is not None:
            return None, autoreleased(NSError(reason))
        given = {}
        for name, value in self._program.functions["main"].inputs.items():
            array = features.featureValueForName_(name).multiArrayValue().array()
            assert array.shape == tuple(value.shape), f"{name}: {array.shape} for {value.shape}"
            given[name] = array
        made = {}
        for name, array in mil_interpreter.evaluated(self._program, given).items():
            backing = options.backings[name]
            assert backing.array().shape == array.shape
            assert backing.array().dtype == array.dtype
            if takes_backings:
                backing.array()[...] = array
            made[name] = MLFeatureValue(backing if takes_backings else _padded(array))
        provider, _ = MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(made, None)
        return autoreleased(provider), None


# The plan -----------------------------------------------------------------------------------------------------------


class MLCPUComputeDevice(Object):
    """The processor."""


class MLGPUComputeDevice(Object):
    """The GPU."""


class MLNeuralEngineComputeDevice(Object):
    """The Neural Engine."""


class _Tree(Object):
    """An object whose methods give values."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, lambda value=value: value)


class MLComputePlan(Object):
    """Float16 ops on the Neural Engine, if it may be used, others on the GPU; equal costs, but none of constants."""

    def __init__(self, program: Any, units: int) -> None:
        super().__init__()
        self._operations = [_Tree(operatorName=op.op_type, own=op) for op in program.functions["main"].operations]
        self._units = units

    @classmethod
    def loadContentsOfURL_configuration_completionHandler_(
        cls, url: NSURL, configuration: MLModelConfiguration, handler: Callable[[Any, Any], None]
    ) -> None:
        handler(cls(mil_interpreter.program_of(Path(url.path())), configuration.units), None)

    def modelStructure(self) -> Any:
        main = _Tree(block=_Tree(operations=self._operations))
        return _Tree(program=_Tree(functions={"main": main}))

    def computeDeviceUsageForMLProgramOperation_(self, operation: Any) -> Any:
        if operation.operatorName() == "const":
            return None
        half = mil_interpreter.numpy_of(operation.own().outputs[0]) is np.float16
        engine = [MLNeuralEngineComputeDevice()] if half and self._units == _ENGINE else []
        devices = [*engine, MLGPUComputeDevice(), MLCPUComputeDevice()]
        return _Tree(preferredComputeDevice=devices[0], supportedComputeDevices=devices)

    def estimatedCostOfMLProgramOperation_(self, operation: Any) -> Any:
        if operation.operatorName() == "const":
            return None
        return _Tree(weight=1 / len([o for o in self._operations if o.operatorName() != "const"]))
