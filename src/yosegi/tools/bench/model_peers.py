"""Peers that take a model, not calls: a case's program, run once on symbols, writes the model down."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from ..._tensor.dtype import as_dtype
from .cases import Case
from .runners import NotHere, Runner


class _ModelWriter(Protocol):
    """A writer of models: nodes by their ONNX names, and constants."""

    def node(self, kind: str, *operands: _Symbol, **attributes: Any) -> _Symbol: ...
    def array(self, value: Any) -> _Symbol: ...


class _Symbol:
    """A value of a model that is being written."""

    def __init__(self, writer: _ModelWriter, value: Any, dtype: Any) -> None:
        self.writer, self.value, self.dtype = writer, value, dtype

    def _with(self, kind: str, other: Any, *, swapped: bool = False) -> _Symbol:
        if not isinstance(other, _Symbol):
            other = self.writer.array(np.asarray(other, self.dtype))
        return self.writer.node(kind, *((other, self) if swapped else (self, other)))

    def __add__(self, other: Any) -> _Symbol:
        return self._with("Add", other)

    def __radd__(self, other: Any) -> _Symbol:
        return self._with("Add", other, swapped=True)

    def __sub__(self, other: Any) -> _Symbol:
        return self._with("Sub", other)

    def __mul__(self, other: Any) -> _Symbol:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> _Symbol:
        return self._with("Mul", other, swapped=True)

    def __truediv__(self, other: Any) -> _Symbol:
        return self._with("Div", other)


class _WrittenModel:
    """`Functions` on symbols."""

    def exp(self, x: _Symbol) -> _Symbol:
        return x.writer.node("Exp", x)

    def log(self, x: _Symbol) -> _Symbol:
        return x.writer.node("Log", x)

    def tanh(self, x: _Symbol) -> _Symbol:
        return x.writer.node("Tanh", x)

    def sqrt(self, x: _Symbol) -> _Symbol:
        return x.writer.node("Sqrt", x)

    def relu(self, x: _Symbol) -> _Symbol:
        return x.writer.node("Relu", x)

    def matmul(self, a: _Symbol, b: _Symbol) -> _Symbol:
        return a.writer.node("MatMul", a, b)

    def transpose(self, x: _Symbol) -> _Symbol:
        return x.writer.node("Transpose", x)

    def sum(self, x: _Symbol, axis: int | None) -> _Symbol:
        return x.writer.node("ReduceSum", x, axis=axis)

    def max(self, x: _Symbol, axis: int) -> _Symbol:
        return x.writer.node("ReduceMax", x, axis=axis)

    def mean(self, x: _Symbol, axis: int) -> _Symbol:
        return x.writer.node("ReduceMean", x, axis=axis)

    def convert(self, x: _Symbol, dtype: str) -> _Symbol:
        return x.writer.node("Cast", x, to=as_dtype(dtype).numpy)

    def conv(self, x: _Symbol, w: _Symbol, stride: int, padding: int, groups: int) -> _Symbol:
        return x.writer.node("Conv", x, w, strides=[stride] * 2, pads=[padding] * 4, group=groups)


_FUNCTIONS: Final = _WrittenModel()


# ONNX Runtime


def onnxruntime_runner(threads: int) -> Runner:
    """ONNX Runtime on the processor."""
    runtime = importlib.import_module("onnxruntime")
    onnx = importlib.import_module("onnx")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3

    def prepare(case: Case) -> Callable[..., Any]:
        if "bfloat16" in case.id:
            raise NotHere("it has no bfloat16 arithmetic on the processor")
        model = _OnnxWriter(onnx).model(case, case.inputs(np.random.default_rng(0)))
        session = runtime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        return lambda *x: session.run(None, dict(zip(names, x, strict=True)))[0]

    return Runner("onnxruntime", "", False, lambda a: a, prepare)


class _OnnxWriter:
    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self, case: Case, inputs: tuple[Any, ...]) -> Any:
        """The whole model, for inputs of these shapes."""
        helper = self.onnx.helper
        symbols = [_Symbol(self, f"x{n}", a.dtype) for n, a in enumerate(inputs)]
        result = case.program(_FUNCTIONS, *symbols, *map(self.array, case.weights()))
        given = [self._described(f"x{n}", a.dtype, a.shape) for n, a in enumerate(inputs)]
        made = [self._described(result.value, result.dtype, None)]
        graph = helper.make_graph(self.nodes, "case", given, made, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def _described(self, name: str, dtype: Any, shape: Any) -> Any:
        helper = self.onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)

    def node(self, kind: str, *operands: _Symbol, **attributes: Any) -> _Symbol:
        names, dtype = [o.value for o in operands], operands[0].dtype
        if kind.startswith("Reduce"):
            axis = attributes["axis"]
            names += [] if axis is None else [self._constant(np.array([axis]))]
            attributes = {"keepdims": int(axis is not None)}
        elif kind == "Cast":
            dtype = attributes["to"]
            attributes = {"to": self.onnx.helper.np_dtype_to_tensor_dtype(dtype)}
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, names, [name], **attributes))
        return _Symbol(self, name, dtype)

    def array(self, value: Any) -> _Symbol:
        return _Symbol(self, self._constant(value), value.dtype)

    def _constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name


# OpenVINO


def openvino_runner(threads: int) -> Runner:
    """OpenVINO's plugin for the processor."""
    openvino = importlib.import_module("openvino")
    core = openvino.Core()
    # The precision is ours to say: left alone, it may choose one that ends the process.
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}

    def prepare(case: Case) -> Callable[..., Any]:
        if case.dtype.name != "float32" or case.suite == "conversion":
            raise NotHere("it is held to float32 here")
        writer = _OpenvinoWriter()
        parameters = [writer.opset.parameter(a.shape, np.float32) for a in case.inputs(np.random.default_rng(0))]
        symbols = [_Symbol(writer, p, np.float32) for p in parameters]
        result = case.program(_FUNCTIONS, *symbols, *map(writer.array, case.weights()))
        model = openvino.Model([result.value], parameters)
        request = core.compile_model(model, "CPU", settings).create_infer_request()

        def call(*x: Any) -> Any:
            for n, array in enumerate(x):
                request.set_input_tensor(n, openvino.Tensor(array, shared_memory=True))
            request.infer()
            return request.get_output_tensor(0).data

        return call

    return Runner("openvino", "", False, lambda a: a, prepare, np.array)


class _OpenvinoWriter:
    _NAMES: Final = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}

    def __init__(self) -> None:
        self.opset = importlib.import_module("openvino.opset13")

    def node(self, kind: str, *operands: _Symbol, **attributes: Any) -> _Symbol:
        values = [o.value for o in operands]
        if kind == "MatMul":
            made = self.opset.matmul(*values, False, False)
        elif kind == "Conv":
            made = self._conv(*values, **attributes)
        elif kind == "Transpose":
            made = self.opset.transpose(*values, np.array([1, 0]))
        elif kind.startswith("Reduce"):
            axis = attributes["axis"]
            reduce = getattr(self.opset, f"reduce_{kind.removeprefix('Reduce').lower()}")
            made = reduce(*values, np.array([0 if axis is None else axis]), axis is not None)
        else:
            made = getattr(self.opset, self._NAMES.get(kind, kind.lower()))(*values)
        return _Symbol(self, made, operands[0].dtype)

    def _conv(self, x: Any, w: Any, strides: list[int], pads: list[int], group: int) -> Any:
        steps = (strides, pads[:2], pads[2:], [1, 1])
        if group == 1:
            return self.opset.convolution(x, w, *steps)
        outputs, *rest = w.get_output_shape(0)
        split = self.opset.reshape(w, np.array([group, outputs // group, *rest]), False)
        return self.opset.group_convolution(x, split, *steps)

    def array(self, value: Any) -> _Symbol:
        return _Symbol(self, self.opset.constant(value), value.dtype)
