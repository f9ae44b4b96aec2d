"""Core ML as a compiler of models, and how it runs them.

A region becomes a program of fixed shapes in MIL, written as a package, compiled by the system, and kept on disk by its
content and the system's version. Inputs are read where they lie; outputs are written where they are wanted.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import SimpleNamespace
from typing import Any, Final, final
from weakref import finalize

import numpy as np

from ..._run.memory.pool import Pool
from ..._schedule.fuse import Region
from ..._tensor.dtype import bool_, float16
from ..._tensor.node import Call, Spec
from ..._tensor.op import OpKind
from ..._tensor.precision import Precision
from ..._tune.store import sealed, set_aside, unsealed
from ...errors import CompileFailure, LaunchFailure
from ..model.models import Compiler
from ..model.ports import Port
from ..model.requests import Request
from ..model.translate import Translation, Translator
from .library import BUILDING, builder, core_ml, machine, opset, tools
from .movement import reshaped
from .op_row import number
from .ops import ROWS
from .plan import described

_CARRIED: Final = {Precision.FULL: "fp32", Precision.F16: "fp16"}
"""The type that a program computes in."""
_UNITS: Final = {Precision.FULL: 1, Precision.F16: 2}
"""MLComputeUnitsCPUAndGPU; MLComputeUnitsAll, with the Neural Engine, which computes in float16 alone."""
_ARRAYS: Final = {np.dtype(np.float32): 65568, np.dtype(np.float16): 65552}
"""MLMultiArrayDataTypeFloat32 and MLMultiArrayDataTypeFloat16."""
_TYPES: Final = {number: dtype for dtype, number in _ARRAYS.items()}


@final
class ArrayPort(Port):
    """An input or an output: an array of at least one dimension, of floats."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.dtype = np.dtype(np.float32 if spec.dtype is bool_ else spec.dtype.numpy)
        self.nbytes = spec.size * self.dtype.itemsize
        self.shape = spec.shape or (1,)

    @property
    def type(self) -> str:
        """The name of its type in MIL."""
        return "fp16" if self.dtype == np.float16 else "fp32"

    def given(self, array: Any) -> Any:
        """An array that the model wrote as the region's output."""
        return array != 0 if self.spec.dtype is bool_ else array

    def on(self, array: Any) -> Any:
        """A multi-array on the memory of an array, which must be contiguous, and stay as long as it is used."""
        strides = [prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        memory = (ctypes.c_char * self.nbytes).from_address(array.ctypes.data)
        made, error = (
            core_ml()[0]
            .MLMultiArray.alloc()
            .initWithDataPointer_shape_dataType_strides_deallocator_error_(
                memory, list(self.shape), _ARRAYS[self.dtype], strides, None, None
            )
        )
        if made is None:
            raise LaunchFailure(f"an array of shape {self.shape}: {error.localizedDescription()}")
        return made


@final
class ProgramTranslator(Translator[ArrayPort]):
    """Builds one program."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._carried = _CARRIED[precision]
        self._is_exact = precision is Precision.FULL
        self._opset = SimpleNamespace(**vars(opset()), number=self._number)
        self._open = ExitStack()

    def _number(self, x: Any) -> Any:
        """A truth as 0 or 1."""
        return builder().cast(x=x, dtype=self._carried)

    def translated(self, region: Region) -> Translation[ArrayPort]:
        """The program of a region."""
        with BUILDING, self._open:
            return super().translated(region)

    def port(self, spec: Spec) -> ArrayPort:
        """An input or an output."""
        return ArrayPort(spec)

    def parameters(self, ports: Sequence[ArrayPort]) -> list[Any]:
        """Begin the program: its inputs, in the type that it computes in."""
        from coremltools.converters.mil.mil import Function, types

        kinds = {"fp32": types.fp32, "fp16": types.fp16}
        given = {f"i{n}": builder().placeholder(p.shape, kinds[p.type]) for n, p in enumerate(ports)}
        self._function = self._open.enter_context(Function(given, opset_version=tools().target.iOS17))
        return [self._taken(self._function.inputs[f"i{n}"], port) for n, port in enumerate(ports)]

    def _taken(self, x: Any, port: ArrayPort) -> Any:
        x = reshaped(x, port.spec.shape)
        if port.spec.dtype is bool_:
            return opset().not_equal(x, number(opset(), 0, x))
        return x if port.type == self._carried else builder().cast(x=x, dtype=self._carried)

    def constant(self, spec: Spec, array: Any) -> Any:
        """The node of a constant. Integers are positions."""
        if spec.dtype.is_float:
            array = array.astype(np.float16 if self._carried == "fp16" else np.float32)
        return builder().const(val=array.astype(np.int32) if spec.dtype.is_integer else array)

    def built(self, call: Call, args: Sequence[Any]) -> Any:
        """The node of a call. A float16 result of a program in float32 is rounded."""
        made = ROWS[call.op.name].build(self._opset, call, args)
        is_moved = call.op.kind is OpKind.MOVEMENT and call.inputs[0].dtype is call.spec.dtype
        if call.spec.dtype is float16 and self._is_exact and not is_moved:
            made = builder().cast(x=builder().cast(x=made, dtype="fp16"), dtype="fp32")
        return made

    def model(self, results: Sequence[tuple[Any, ArrayPort]]) -> Any:
        """The program."""
        from coremltools.converters.mil.mil import Program

        outputs = []
        for n, (x, port) in enumerate(results):
            x = reshaped(x, port.shape)
            outputs.append(builder().cast(x=x, dtype=port.type, name=f"o{n}"))
        self._function.set_outputs(outputs)
        program = Program()
        program.add_function("main", self._function)
        return program


@final
class CompiledModel:
    """A compiled model on disk."""

    def __init__(self, path: Path, precision: Precision, folder: Path | None = None) -> None:
        """A `folder` goes with it."""
        self.path = path
        self.precision = precision
        if folder is not None:
            finalize(self, shutil.rmtree, folder, ignore_errors=True)


@final
class CoreMLCompiler(Compiler):
    """Programs for Core ML."""

    folder = "coreml"
    suffix = ".mlmodelc"
    proof = "yosegi.devices.coreml.probe:prove"

    def identity(self, region: Region) -> str:
        """The machine, with its system's version, and the precision."""
        return f"{machine()}\n{region.precision.value}"

    def translate(self, region: Region) -> Translation[ArrayPort]:
        """The program of a region."""
        return ProgramTranslator(region.precision).translated(region)

    def compile(self, region: Region, model: Any) -> CompiledModel:
        """A compiled model."""
        core, foundation, objc = core_ml()
        folder = Path(mkdtemp(prefix="yosegi-"))
        made = CompiledModel(folder / "region.mlmodelc", region.precision, folder)
        package = folder / "region.mlpackage"
        write_package(model, package)
        with objc.autorelease_pool():
            url, error = core.MLModel.compileModelAtURL_error_(foundation.NSURL.fileURLWithPath_(str(package)), None)
            if url is None:
                raise CompileFailure(str(error.localizedDescription()))
            shutil.move(str(url.path()), made.path)
        return made

    def load(self, region: Region, place: Path) -> CompiledModel | None:
        """The compiled model in a folder; `None` if there is none, or a damaged one."""
        seal = place.with_suffix(".seal")
        known = unsealed(seal)
        if known is None:
            return None
        if known == _content(place):
            return CompiledModel(place, region.precision)
        set_aside(seal)
        return None

    def save(self, place: Path, compiled: CompiledModel) -> None:
        """Move a compiled model into the cache; one that cannot be moved stays where it is."""
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)  # a damaged one
            shutil.move(str(compiled.path), place)
            compiled.path = place
            sealed(place.with_suffix(".seal"), _content(place))

    def request(self, compiled: CompiledModel, translation: Translation[Any], pool: Pool) -> ArrayRequest:
        """A request to run a compiled model."""
        core, foundation, objc = core_ml()
        with objc.autorelease_pool():
            configuration = core.MLModelConfiguration.alloc().init()
            configuration.setComputeUnits_(_UNITS[compiled.precision])
            url = foundation.NSURL.fileURLWithPath_(str(compiled.path))
            model, error = core.MLModel.modelWithContentsOfURL_configuration_error_(url, configuration, None)
            if model is None:
                raise CompileFailure(str(error.localizedDescription()))
        return ArrayRequest(model, compiled, configuration, translation, pool)


def write_package(program: Any, place: Path) -> None:
    """Write a program as a package. No pass of coremltools changes it."""
    from coremltools.converters.mil.backend.mil.load import load

    with BUILDING, TemporaryDirectory(prefix="yosegi-") as weights:
        spec = load(program, weights, specification_version=tools().target.iOS17)
        tools().models.utils.save_spec(spec, str(place), weights_dir=weights)


def _content(folder: Path) -> bytes:
    """A digest of the files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder)}\n{os.path.getsize(path)}\n".encode())
        digest.update(path.read_bytes())
    return digest.digest()


@final
class ArrayRequest(Request[ArrayPort]):
    """A request of Core ML."""

    def __init__(
        self, model: Any, compiled: CompiledModel, configuration: Any, translation: Translation[ArrayPort], pool: Pool
    ) -> None:
        super().__init__(translation, pool)
        self._model = model
        self._compiled = compiled  # its files stay as long as the model
        self._configuration = configuration
        self._options = core_ml()[0].MLPredictionOptions.alloc().init()
        self._features: dict[str, Any] = {}
        self._backings: dict[str, Any] = {}
        self._wanted: dict[str, Any] = {}
        """The arrays that outputs are bound to."""

    @property
    def launched(self) -> str:
        """Core ML's plan: the costliest ops, and the device of each."""
        return described(self._compiled.path, self._configuration)

    def read_from(self, n: int, port: ArrayPort, array: Any) -> None:
        """Bind an input."""
        self._features[f"i{n}"] = core_ml()[0].MLFeatureValue.featureValueWithMultiArray_(port.on(array))

    def write_to(self, n: int, port: ArrayPort, array: Any) -> None:
        """Bind an output."""
        self._backings[f"o{n}"] = port.on(array)
        self._wanted[f"o{n}"] = np.reshape(array, port.shape)
        self._options.setOutputBackings_(self._backings)

    def infer(self) -> None:
        """Run the model."""
        core, _, objc = core_ml()
        with objc.autorelease_pool():
            given, error = core.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(self._features, None)
            made = None
            if given is not None:
                made, error = self._model.predictionFromFeatures_options_error_(given, self._options, None)
            if made is None:
                raise LaunchFailure(str(error.localizedDescription()))
            for name, wanted in self._wanted.items():
                _fetch(made.featureValueForName_(name).multiArrayValue(), wanted)


def _fetch(made: Any, wanted: Any) -> None:
    """Copy an output that Core ML did not write where it was wanted. Its rows may be padded."""
    dtype = _TYPES[int(made.dataType())]
    shape, strides = ([int(n) for n in numbers] for numbers in (made.shape(), made.strides()))
    extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = np.frombuffer(made.dataPointer().as_buffer(extent * dtype.itemsize), dtype)
    if memory.ctypes.data != wanted.ctypes.data:
        np.copyto(wanted, np.lib.stride_tricks.as_strided(memory, shape, [s * dtype.itemsize for s in strides]))
