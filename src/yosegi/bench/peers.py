"""The other libraries as contenders. This file names them; what is not installed says how to get it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ..dtype import as_dtype
from ..trial import attempt
from .cases import Case
from .runners import NotHere, Runner


def numpy_runner() -> Runner:
    """NumPy, op by op: the yardstick of every case."""
    functions = _numpy_functions()
    return Runner("numpy", "", False, lambda a: a, lambda case: lambda *x: case.program(functions, *x))


def _numpy_functions() -> Any:
    return SimpleNamespace(
        exp=np.exp, log=np.log, tanh=np.tanh, sqrt=np.sqrt, matmul=np.matmul,
        relu=lambda x: np.maximum(x, x.dtype.type(0)),
        transpose=lambda x: x.T,
        sum=lambda x, axis: np.sum(x, axis=axis, keepdims=axis is not None),
        max=lambda x, axis: np.max(x, axis=axis, keepdims=True),
        mean=lambda x, axis: np.mean(x, axis=axis, keepdims=True),
        convert=lambda x, dtype: x.astype(as_dtype(dtype).numpy),
    )  # fmt: skip


NUMPY_FUNCTIONS: Final = _numpy_functions()


# PyTorch


def _torch_from(torch: Any, array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array)


def _torch_runner(threads: int, *, compiled: bool) -> Runner:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    functions = SimpleNamespace(
        exp=torch.exp, log=torch.log, tanh=torch.tanh, sqrt=torch.sqrt, relu=torch.relu, matmul=torch.matmul,
        transpose=lambda x: x.T,
        sum=lambda x, axis: torch.sum(x) if axis is None else torch.sum(x, dim=axis, keepdim=True),
        max=lambda x, axis: torch.amax(x, dim=axis, keepdim=True),
        mean=lambda x, axis: torch.mean(x, dim=axis, keepdim=True),
        convert=lambda x, dtype: x.to(getattr(torch, dtype)),
    )  # fmt: skip

    def prepare(case: Case) -> Callable[..., Any]:
        if case.multiplies and case.dtype.is_half:
            _survived("half_product", case.dtype.name)

        def program(*inputs: Any) -> Any:
            return case.program(functions, *inputs)

        if not compiled:
            return program
        torch.compiler.reset()
        made: Callable[..., Any] = torch.compile(program, dynamic=False)
        return made

    name = "torch.compile" if compiled else "torch"
    return Runner(
        name, "", False, lambda a: _torch_from(torch, a), prepare, lambda t: t.float().numpy(), torch.inference_mode
    )


def half_product(dtype: str) -> bool:
    """A product in 16 bits by PyTorch: run in a child process first, because on some machines it ends the process."""
    torch = importlib.import_module("torch")
    x = torch.ones((256, 256), dtype=getattr(torch, dtype))
    return bool((x @ x).float().mean() == 256)


_survivals: dict[tuple[str, ...], str | None] = {}


def _survived(function: str, *arguments: str) -> None:
    key = (function, *arguments)
    if key not in _survivals:
        _survivals[key] = attempt(f"{__name__}:{function}", *arguments).failure
    if _survivals[key] is not None:
        raise NotHere(f"tried in a child process: {_survivals[key]}")


# JAX


def _jax_runner(threads: int) -> Runner:
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    functions = SimpleNamespace(
        exp=jnp.exp, log=jnp.log, tanh=jnp.tanh, sqrt=jnp.sqrt, matmul=jnp.matmul,
        relu=jax.nn.relu,
        transpose=lambda x: x.T,
        sum=lambda x, axis: jnp.sum(x, axis=axis, keepdims=axis is not None),
        max=lambda x, axis: jnp.max(x, axis=axis, keepdims=True),
        mean=lambda x, axis: jnp.mean(x, axis=axis, keepdims=True),
        convert=lambda x, dtype: x.astype(dtype),
    )  # fmt: skip

    def prepare(case: Case) -> Callable[..., Any]:
        jitted = jax.jit(lambda *inputs: case.program(functions, *inputs))
        return lambda *inputs: jitted(*inputs).block_until_ready()

    return Runner("jax", "", False, jnp.asarray, prepare, turn=lambda: jax.enable_x64(True))


# ONNX Runtime


def _onnxruntime_runner(threads: int) -> Runner:
    runtime = importlib.import_module("onnxruntime")
    onnx = importlib.import_module("onnx")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3

    def prepare(case: Case) -> Callable[..., Any]:
        if case.dtype.name == "bfloat16" or "bfloat16" in case.name:
            raise NotHere("it has no bfloat16 arithmetic on the processor")
        inputs = case.inputs(np.random.default_rng(0))
        model = _OnnxGraph(onnx).model(case, inputs)
        session = runtime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        return lambda *x: session.run(None, dict(zip(names, x, strict=True)))[0]

    return Runner("onnxruntime", "", False, lambda a: a, prepare)


class _OnnxGraph:
    """A case's program as an ONNX model: the functions, and values with Python's operators, write nodes."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def model(self, case: Case, inputs: tuple[Any, ...]) -> Any:
        """The whole model, for inputs of these shapes."""
        helper = self.onnx.helper
        result = case.program(self, *[_OnnxValue(self, f"x{n}", a.dtype) for n, a in enumerate(inputs)])
        kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in inputs]
        given = [
            helper.make_tensor_value_info(f"x{n}", k, a.shape)
            for n, (k, a) in enumerate(zip(kinds, inputs, strict=True))
        ]
        made = [helper.make_tensor_value_info(result.name, helper.np_dtype_to_tensor_dtype(result.dtype), None)]
        graph = helper.make_graph(self.nodes, "case", given, made, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def node(self, kind: str, *operands: _OnnxValue, dtype: Any = None, **attributes: Any) -> _OnnxValue:
        """A new value."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, [o.name for o in operands], [name], **attributes))
        return _OnnxValue(self, name, dtype or operands[0].dtype)

    def constant(self, value: Any, dtype: Any) -> _OnnxValue:
        """A number, or a list of axes."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return _OnnxValue(self, name, np.dtype(dtype))

    def exp(self, x: _OnnxValue) -> _OnnxValue:
        return self.node("Exp", x)

    def log(self, x: _OnnxValue) -> _OnnxValue:
        return self.node("Log", x)

    def tanh(self, x: _OnnxValue) -> _OnnxValue:
        return self.node("Tanh", x)

    def sqrt(self, x: _OnnxValue) -> _OnnxValue:
        return self.node("Sqrt", x)

    def relu(self, x: _OnnxValue) -> _OnnxValue:
        return self.node("Relu", x)

    def matmul(self, a: _OnnxValue, b: _OnnxValue) -> _OnnxValue:
        return self.node("MatMul", a, b)

    def transpose(self, x: _OnnxValue) -> _OnnxValue:
        return self.node("Transpose", x, perm=[1, 0])

    def _reduced(self, kind: str, x: _OnnxValue, axis: int | None) -> _OnnxValue:
        axes = [] if axis is None else [self.constant([axis], np.int64)]
        return self.node(kind, x, *axes, keepdims=int(axis is not None))

    def sum(self, x: _OnnxValue, axis: int | None) -> _OnnxValue:
        return self._reduced("ReduceSum", x, axis)

    def max(self, x: _OnnxValue, axis: int) -> _OnnxValue:
        return self._reduced("ReduceMax", x, axis)

    def mean(self, x: _OnnxValue, axis: int) -> _OnnxValue:
        return self._reduced("ReduceMean", x, axis)

    def convert(self, x: _OnnxValue, dtype: str) -> _OnnxValue:
        numpy = as_dtype(dtype).numpy
        return self.node("Cast", x, dtype=numpy, to=self.onnx.helper.np_dtype_to_tensor_dtype(numpy))


class _OnnxValue:
    """A value of an ONNX graph."""

    def __init__(self, graph: _OnnxGraph, name: str, dtype: Any) -> None:
        self.graph, self.name, self.dtype = graph, name, dtype

    def _with(self, kind: str, other: Any, *, swapped: bool = False) -> _OnnxValue:
        if not isinstance(other, _OnnxValue):
            other = self.graph.constant(other, self.dtype)
        a, b = (other, self) if swapped else (self, other)
        return self.graph.node(kind, a, b)

    def __add__(self, other: Any) -> _OnnxValue:
        return self._with("Add", other)

    def __radd__(self, other: Any) -> _OnnxValue:
        return self._with("Add", other, swapped=True)

    def __sub__(self, other: Any) -> _OnnxValue:
        return self._with("Sub", other)

    def __mul__(self, other: Any) -> _OnnxValue:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> _OnnxValue:
        return self._with("Mul", other, swapped=True)

    def __truediv__(self, other: Any) -> _OnnxValue:
        return self._with("Div", other)


# OpenVINO


def _openvino_runner(threads: int) -> Runner:
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset13")
    core = openvino.Core()
    # The precision is ours to say: left alone, it may choose one that ends the process.
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    functions = SimpleNamespace(
        exp=opset.exp, log=opset.log, tanh=opset.tanh, sqrt=opset.sqrt, relu=opset.relu,
        matmul=lambda a, b: opset.matmul(a, b, False, False),
        transpose=lambda x: opset.transpose(x, np.array([1, 0])),
        sum=lambda x, axis: opset.reduce_sum(x, np.array([0 if axis is None else axis]), axis is not None),
        max=lambda x, axis: opset.reduce_max(x, np.array([axis]), True),
        mean=lambda x, axis: opset.reduce_mean(x, np.array([axis]), True),
        convert=lambda x, dtype: opset.convert(x, _OPENVINO_NAMES[dtype]),
    )  # fmt: skip

    def prepare(case: Case) -> Callable[..., Any]:
        if case.dtype.name != "float32" or case.suite == "conversion":
            raise NotHere("it is held to float32 here")
        inputs = case.inputs(np.random.default_rng(0))
        parameters = [opset.parameter(a.shape, np.float32) for a in inputs]
        model = openvino.Model([case.program(functions, *parameters)], parameters)
        request = core.compile_model(model, "CPU", settings).create_infer_request()

        def call(*x: Any) -> Any:
            for n, array in enumerate(x):
                request.set_input_tensor(n, openvino.Tensor(array, shared_memory=True))
            request.infer()
            return request.get_output_tensor(0).data

        return call

    return Runner("openvino", "", False, lambda a: a, prepare, lambda a: np.array(a))


_OPENVINO_NAMES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}

PEERS: Final[dict[str, tuple[Callable[[int], Runner], str]]] = {
    "torch": (lambda threads: _torch_runner(threads, compiled=False), "pip install torch"),
    "torch.compile": (lambda threads: _torch_runner(threads, compiled=True), "pip install torch, and a C++ compiler"),
    "jax": (_jax_runner, "pip install jax"),
    "onnxruntime": (_onnxruntime_runner, "pip install onnxruntime onnx"),
    "openvino": (_openvino_runner, 'pip install "yosegi[openvino]"'),
}
"""How each joins in, with so many threads, and what brings it."""


def peers(names: list[str], threads: int) -> tuple[list[Runner], dict[str, str]]:
    """The peers that are installed, and why the others are not there."""
    found: list[Runner] = []
    skipped: dict[str, str] = {}
    for name in names:
        load, install = PEERS[name]
        try:
            found.append(load(threads))
        except ImportError as error:
            skipped[name] = f"not installed ({error}); {install}"
    return found, skipped
