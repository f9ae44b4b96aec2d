"""The other libraries as contenders. This file names them; what is not installed says how to get it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ..._run.child import attempt
from ..._tensor.dtype import as_dtype
from .cases import Case
from .model_peers import onnxruntime_runner, openvino_runner
from .runners import NotHere, Runner


def numpy_runner() -> Runner:
    """NumPy, op by op: the yardstick of every case."""

    def prepare(case: Case) -> Callable[..., Any]:
        weights = case.weights()
        return lambda *x: case.program(NUMPY_FUNCTIONS, *x, *weights)

    return Runner("numpy", "", False, lambda a: a, prepare)


def _numpy_functions() -> Any:
    return SimpleNamespace(
        exp=np.exp, log=np.log, tanh=np.tanh, sqrt=np.sqrt, matmul=np.matmul,
        relu=lambda x: np.maximum(x, x.dtype.type(0)),
        transpose=lambda x: x.T,
        sum=lambda x, axis: np.sum(x, axis=axis, keepdims=axis is not None),
        max=lambda x, axis: np.max(x, axis=axis, keepdims=True),
        mean=lambda x, axis: np.mean(x, axis=axis, keepdims=True),
        convert=lambda x, dtype: x.astype(as_dtype(dtype).numpy),
        conv=_numpy_conv,
    )  # fmt: skip


def _numpy_conv(x: Any, w: Any, stride: int, padding: int, groups: int) -> Any:
    """The windows of an image, times the kernel, by groups of channels."""
    outputs, channels, *kernel = w.shape
    wide = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernel, axis=(2, 3))[:, :, ::stride, ::stride]
    windows = windows.reshape(x.shape[0], groups, channels, *windows.shape[2:])
    made = [np.einsum("nchwij,ocij->nohw", windows[:, g], part, optimize=True)
            for g, part in enumerate(w.reshape(groups, outputs // groups, channels, *kernel))]  # fmt: skip
    return np.concatenate(made, axis=1)


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
        conv=lambda x, w, stride, padding, groups: torch.conv2d(x, w, None, stride, padding, 1, groups),
    )  # fmt: skip

    def prepare(case: Case) -> Callable[..., Any]:
        if case.multiplies and case.dtype.is_half:
            _survived("half_product", case.dtype.name)

        weights = [_torch_from(torch, w) for w in case.weights()]

        def program(*inputs: Any) -> Any:
            return case.program(functions, *inputs, *weights)

        if not compiled:
            return program
        torch.compiler.reset()
        made: Callable[..., Any] = torch.compile(program, dynamic=False)
        return made

    name = "torch.compile" if compiled else "torch"
    return Runner(
        name, "", False, lambda a: _torch_from(torch, a), prepare, lambda t: t.double().numpy(), torch.inference_mode
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
        conv=lambda x, w, stride, padding, groups: jax.lax.conv_general_dilated(
            x, w, (stride, stride), ((padding, padding),) * 2, feature_group_count=groups
        ),
    )  # fmt: skip

    def prepare(case: Case) -> Callable[..., Any]:
        weights = [jnp.asarray(w) for w in case.weights()]
        jitted = jax.jit(lambda *inputs: case.program(functions, *inputs, *weights))
        return lambda *inputs: jitted(*inputs).block_until_ready()

    return Runner("jax", "", False, jnp.asarray, prepare, turn=lambda: jax.enable_x64(True))


PEERS: Final[dict[str, tuple[Callable[[int], Runner], str]]] = {
    "torch": (lambda threads: _torch_runner(threads, compiled=False), "pip install torch"),
    "torch.compile": (lambda threads: _torch_runner(threads, compiled=True), "pip install torch, and a C++ compiler"),
    "jax": (_jax_runner, "pip install jax"),
    "onnxruntime": (onnxruntime_runner, "pip install onnxruntime onnx"),
    "openvino": (openvino_runner, 'pip install "yosegi[openvino]"'),
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
