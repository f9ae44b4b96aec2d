"""Models in inference beside PyTorch, OpenVINO and ONNX Runtime on the same weights: blocks of calls in turns.

    PYTHONPATH=tests python tests/bench_inference.py [--device auto] [--turns 5] [--seconds 1] [--compile] [--more]
        [--processor-time] [--only TEXT]

ResNet-18 (224 × 224, batch 1 and 8) and GPT (4 layers, 256 wide, 128 long, batch 4), float32, two threads for every
contender; with `--more`, the networks of `convolutional_models` at batch 1 and 8 instead. The results must agree before
anything is timed; `--only` takes the cases whose titles begin so. OpenVINO and ONNX Runtime are contenders if they are
installed; ONNX Runtime with onnx and onnxscript, by which PyTorch writes the model.

`--processor-time` gives every contender one thread, and takes the least processor time of a call in each block: other
work on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import yosegi as ys
from convolutional_models import NETWORKS, YOSEGI, TorchNetwork
from yosegi.tools.bench import models

RNG = np.random.default_rng(0)
STRIDES = (1, 1, 2, 1, 2, 1, 2, 1)


def normed(x: Any, scale: Any, shift: Any) -> Any:
    """A batch norm of inference."""
    return x * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)


class TorchResNet(torch.nn.Module):
    """ResNet-18 with the parameters of `models.RESNET`."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        super().__init__()
        self.p = torch.nn.ParameterList(map(torch.from_numpy, parameters))

    def forward(self, x: Any) -> Any:
        p = iter(self.p)
        x = F.relu(normed(F.conv2d(x, next(p), stride=2, padding=3), next(p), next(p)))
        x = F.max_pool2d(x, 3, 2, 1)
        for stride in STRIDES:
            y = F.relu(normed(F.conv2d(x, next(p), stride=stride, padding=1), next(p), next(p)))
            y = normed(F.conv2d(y, next(p), padding=1), next(p), next(p))
            x = F.relu(y + (F.conv2d(x, next(p), stride=stride) if stride > 1 else x))
        return F.linear(x.mean((2, 3)), next(p), next(p))


class TorchGPT(torch.nn.Module):
    """A transformer with the parameters of `models.GPT`."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        super().__init__()
        self.p = torch.nn.ParameterList(map(torch.from_numpy, parameters))

    def forward(self, words: Any) -> Any:
        embedding, *blocks, scale, shift, head, bias = self.p
        x = F.embedding(words, embedding)
        batch, length, width = x.shape
        for n in range(0, len(blocks), 12):
            p = blocks[n : n + 12]
            parts = F.linear(F.layer_norm(x, (width,), p[0], p[1]), p[2], p[3]).view(batch, length, 3, 4, width // 4)
            q, k, v = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
            mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, width), p[4], p[5])
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (width,), p[6], p[7]), p[8], p[9])), p[10], p[11])
        return F.linear(F.layer_norm(x, (width,), scale, shift), head, bias)


def weights(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Parameters that keep the size of activations."""
    return [(RNG.standard_normal(s) / np.sqrt(max(1, np.prod(s[1:])))).astype(np.float32) for s in shapes]


def openvino(model: Any, x: Any, threads: int) -> Callable[[], Any]:
    """A model compiled by OpenVINO for float32."""
    import openvino as ov

    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    made = ov.Core().compile_model(ov.convert_model(model, example_input=x, input=[x.shape]), "CPU", hints)
    request, array = made.create_infer_request(), x.numpy()
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))

    def run() -> Any:
        request.infer()
        return request.get_output_tensor().data

    return run


def onnxruntime(model: Any, x: Any, threads: int) -> Callable[[], Any]:
    """A model in a session of ONNX Runtime."""
    import onnxruntime as ort

    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    made = ort.InferenceSession(program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    bound = made.io_binding()
    bound.bind_cpu_input(made.get_inputs()[0].name, x.numpy())
    bound.bind_output(made.get_outputs()[0].name)

    def run() -> Any:
        made.run_with_iobinding(bound)
        return bound.get_outputs()[0].numpy()

    return run


def in_turns(
    contenders: dict[str, Callable[[], Any]], turns: int, seconds: float, *, by_processor: bool
) -> dict[str, list[float]]:
    """The median milliseconds of each block of calls, or the least."""
    clock, typical = (process_time, min) if by_processor else (perf_counter, median)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1 + turns):
        for name, run in contenders.items():
            sleep(0.3)  # the threads of the contender before spin that long
            block, end = [], clock() + seconds * (1 if turn else 3)
            while clock() < end or len(block) < 3:
                start = clock()
                run()
                block.append(clock() - start)
            if turn:
                times[name].append(typical(block) * 1e3)
    return times


def cases(*, more: bool) -> list[tuple[str, Callable[..., Any], Any, list[Any], Any]]:
    """Titles, functions of parameters and inputs, modules, parameters, and inputs."""
    if more:
        made = []
        for name, (shapes, function, image) in NETWORKS.items():
            own = weights(shapes)
            for batch in (1, 8):
                x = RNG.standard_normal((batch, *image)).astype(np.float32)
                module = TorchNetwork(function, own)
                made.append((f"{name}, batch {batch}", lambda p, x, f=function: f(YOSEGI, p, x), module, own, x))
        return made
    resnet, gpt = weights(models.RESNET), weights(models.GPT)
    images = [RNG.standard_normal((batch, 3, 224, 224)).astype(np.float32) for batch in (1, 8)]
    words = RNG.integers(0, gpt[0].shape[0], models.GPT_BATCH)
    made = [(f"ResNet-18, batch {len(x)}", models.resnet, TorchResNet(resnet), resnet, x) for x in images]
    return [*made, ("GPT", models.gpt, TorchGPT(gpt), gpt, words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    threads = 1 if args.processor_time else 2
    if args.processor_time:
        os.environ["YOSEGI_THREADS"] = "1"
    torch.set_num_threads(threads)
    typical = min if args.processor_time else median
    if args.device == "auto":
        print(", ".join(device.name for device in ys.devices()))  # qualifies all drivers
    for title, function, peer, parameters, x in cases(more=args.more):
        if not title.startswith(args.only):
            continue
        own, given, module = [ys.asarray(p) for p in parameters], torch.from_numpy(x), peer.eval()
        traced, array = ys.jit(lambda x, f=function, p=own: f(p, x)), ys.asarray(x)
        with ys.options(device=args.device), torch.no_grad():
            contenders: dict[str, Callable[[], Any]] = {
                "Yosegi": lambda f=traced, x=array: f(x).block_until_ready(),
                "PyTorch": lambda m=module, x=given: m(x),
            }
            if args.compile:
                contenders["torch.compile"] = lambda m=torch.compile(module), x=given: m(x)
            if importlib.util.find_spec("openvino"):
                contenders["OpenVINO"] = openvino(module, given, threads)
            if all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript"))):
                contenders["ONNX Runtime"] = onnxruntime(module, given, threads)
            expected = np.asarray(module(given))
            for name, run in contenders.items():
                error = np.linalg.norm(np.asarray(run()) - expected) / np.linalg.norm(expected)
                assert error < 1e-5, f"{name} differs by {error}"
            times = in_turns(contenders, args.turns, args.seconds, by_processor=args.processor_time)
        print(title, flush=True)
        for name, blocks in times.items():
            ratio = typical(blocks) / typical(times["Yosegi"])
            print(f"  {name:14} {typical(blocks):8.2f} ms ({min(blocks):.2f} to {max(blocks):.2f}), {ratio:.2f} times")


if __name__ == "__main__":
    main()
