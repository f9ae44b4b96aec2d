"""OpenVINO as a compiler of models for one plugin."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np

from ..._run.memory.pool import Pool
from ..._schedule.fuse import Region
from ..._tensor.dtype import bfloat16
from ..._tensor.node import Call, Spec
from ..._tune.store import package_digest, processor, sealed, unsealed
from ..model.models import Compiler
from ..model.ports import Port
from ..model.requests import Request
from ..model.translate import Translation, Translator
from .library import core, openvino, opset, settings
from .op_row import TYPES
from .ops import ROWS


@cache
def machine() -> str:
    """The identity of this machine and its software, for a cache that several machines share."""
    return "\n".join([version("openvino"), processor(), package_digest()])


@final
class PluginCompiler(Compiler):
    """Models for one plugin."""

    folder = "openvino"
    suffix = ".blob"
    proof = "yosegi.devices.openvino.probe:prove"

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self.child = (plugin,)

    def identity(self, region: Region) -> str:
        """The machine, the plugin, and how models are compiled for it."""
        return f"{machine()}\n{self.plugin}\n{sorted(settings(self.plugin, region.precision).items())}"

    def translate(self, region: Region) -> Translation[TensorPort]:
        """The model of a region."""
        return translate(region)

    def compile(self, region: Region, model: Any) -> Any:
        """A compiled model."""
        return core().compile_model(model, self.plugin, settings(self.plugin, region.precision))

    def load(self, region: Region, place: Path) -> Any | None:
        """The compiled model of a blob; `None` if there is none, or a damaged one, or OpenVINO does not take it."""
        blob = unsealed(place)
        with suppress(Exception):
            chosen = settings(self.plugin, region.precision)
            return None if blob is None else core().import_model(blob, self.plugin, chosen)
        return None

    def save(self, place: Path, compiled: Any) -> None:
        """Keep a compiled model; a plugin that cannot export it is only slower the next time."""
        with suppress(Exception):
            blob = compiled.export_model()
            sealed(place, blob if isinstance(blob, bytes) else blob.getvalue())

    def request(self, compiled: Any, translation: Translation[Any], pool: Pool) -> TensorRequest:
        """A request to run a compiled model."""
        return TensorRequest(compiled.create_infer_request(), translation, pool)


@final
class TensorPort(Port):
    """An input or an output: how an array becomes a tensor of OpenVINO, on the same memory."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        ov = openvino()
        self._shape = ov.Shape(spec.shape)
        self._type = getattr(ov.Type, TYPES[spec.dtype.name])
        self._tensor = ov.Tensor
        self._is_foreign = spec.dtype is bfloat16  # to OpenVINO's bindings, and to NumPy's interface

    def tensor_on(self, array: Any) -> Any:
        """A tensor on the memory of an array, which must be contiguous, and stay as long as the tensor is used."""
        return self._tensor(array.view(np.uint16) if self._is_foreign else array, self._shape, self._type)

    def parameter(self) -> Any:
        """The node of a model that stands for this input."""
        return opset().parameter(list(self.spec.shape), self._type)


@final
class TensorRequest(Request[TensorPort]):
    """A request of OpenVINO."""

    def __init__(self, request: Any, translation: Translation[TensorPort], pool: Pool) -> None:
        super().__init__(translation, pool)
        self.request = request
        # The method of the library itself: that of its Python class makes a dictionary of results that nobody reads.
        self._infer = partial(openvino()._pyopenvino.InferRequest.infer, request, {}, True, True)

    def read_from(self, n: int, port: TensorPort, array: Any) -> None:
        """Bind an input."""
        self.request.set_input_tensor(n, port.tensor_on(array))

    def write_to(self, n: int, port: TensorPort, array: Any) -> None:
        """Bind an output. Each costs more in the run after it."""
        self.request.set_output_tensor(n, port.tensor_on(array))

    def infer(self) -> None:
        """Run the model."""
        self._infer()


@final
class _ModelTranslator(Translator[TensorPort]):
    """Builds one model of OpenVINO."""

    def port(self, spec: Spec) -> TensorPort:
        return TensorPort(spec)

    def parameters(self, ports: Sequence[TensorPort]) -> list[Any]:
        self._parameters = [port.parameter() for port in ports]
        return self._parameters

    def constant(self, spec: Spec, array: Any) -> Any:
        return openvino().op.Constant(TensorPort(spec).tensor_on(array), shared_memory=True)

    def built(self, call: Call, args: Sequence[Any]) -> Any:
        return ROWS[call.op.name].build(opset(), call, args)

    def model(self, results: Sequence[tuple[Any, TensorPort]]) -> Any:
        return openvino().Model([opset().result(node) for node, _ in results], self._parameters, "region")


def translate(region: Region) -> Translation[TensorPort]:
    """The model of a region that the table has nothing against."""
    return _ModelTranslator().translated(region)
