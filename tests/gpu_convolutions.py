"""Every way to compute convolutions on a GPU: against float64, in memory full of garbage, in turns with torch's.

A part of `gpu_run`. Odd shapes are checked, not timed, in another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpu_kernels import ERRORS
from yosegi._graph.graph import capture, graph_of
from yosegi._schedule.fuse import fuse
from yosegi.errors import CompileFailure
from yosegi.ops.conv import conv

Attrs = dict[str, Any]

ODD: dict[str, tuple[tuple[int, ...], tuple[int, ...], Attrs]] = {
    "same": ((2, 3, 9, 10), (5, 3, 3, 3), {"padding": 1}),
    "uneven": ((1, 4, 7, 7), (6, 2, 3, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2),
                                           "groups": 2}),
    "depthwise": ((2, 5, 11, 6), (5, 1, 3, 3), {"padding": 1, "groups": 5}),
    "groups": ((2, 32, 5, 5), (64, 16, 3, 3), {"padding": 1, "groups": 2}),
    "one length": ((2, 3, 40), (33, 3, 5), {"padding": ((4, 1),), "dilation": 2}),
    "three lengths": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
    "spread": ((2, 3, 4, 5), (4, 3, 3, 2), {"padding": 2, "spread": (2, 3)}),
    "larger kernel": ((1, 2, 3, 2), (3, 2, 5, 6), {"padding": ((2, 2), (3, 2))}),
    "1 x 1": ((2, 12, 5, 7), (9, 12, 1, 1), {}),
}  # fmt: skip
TIMED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Attrs]] = {
    "3 x 3": ((1, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "3 x 3, batch of 8": ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "3 x 3, many channels": ((8, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "7 x 7, strided": ((8, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    "depthwise": ((8, 128, 56, 56), (128, 1, 3, 3), {"padding": 1, "groups": 128}),
    "1 x 1, batch of 8": ((8, 64, 56, 56), (256, 64, 1, 1), {}),
}
_ROUNDS = 7


def convolutions_beside_torch(
    ours: Any,
    told: Callable[..., None],
    attempted: Callable[[str, Callable[[], Any]], None],
    torch_us: Callable[..., float],
) -> None:
    """Usual ones, checked and timed."""
    for name, (image, kernel, attrs) in TIMED.items():
        for dtype in ("float32", "float16"):
            work = partial(_beside_torch, ours, told, torch_us, name, dtype, image, kernel, attrs)
            attempted(f"{name} {dtype}", work)


def odd_convolutions(
    ours: Any, told: Callable[..., None], attempted: Callable[[str, Callable[[], Any]], None], dtype: str
) -> None:
    """Check every way to compute those of odd shapes."""
    for name, (image, kernel, attrs) in ODD.items():
        attempted(f"{name} {dtype}", partial(_right_ways, ours, told, name, dtype, image, kernel, attrs))


def _right_ways(
    ours: Any, told: Callable[..., None], name: str, dtype: str, image: tuple[int, ...], kernel: tuple[int, ...],
    attrs: Attrs,
) -> tuple[dict[str, Callable[..., Any]], list[Any]]:  # fmt: skip
    """The ways that are right, as kernels, and the data that they were tried on."""
    rng, ys, device = np.random.default_rng(12), ours.ys, ours.device
    x, w = (ys.asarray(rng.normal(size=s).astype(np.float32)).astype(getattr(ys, dtype)) for s in (image, kernel))
    ys.eval(x, w)
    with ys.options(device="cpu"):
        expected = conv(x.astype(ys.float64), w.astype(ys.float64), **attrs).numpy()
    key, leaves, _ = capture([conv(x, w, **attrs)._node])
    (region,) = fuse(graph_of(key))
    data = [device.from_host(node.buffer.data) for node in leaves]
    row = {"case": f"conv, {name}", "dtype": dtype, "shape": f"{image} {kernel}"}
    right: dict[str, Callable[..., Any]] = {}
    for way, make in device._fused.variants(region).items():
        try:
            made = make()
            device._memory.fill_with_garbage()
            got = np.asarray(device.to_host(made(*data)[0]), np.float64)
            error = float(np.max(np.abs(got - expected))) / max(float(np.max(np.abs(expected))), 1e-30)
            assert error <= ERRORS[dtype], f"wrong by {error}"
            right[way] = made
        except CompileFailure as failure:
            told(**row, way=way, refused=str(failure)[:400])  # a library need not have everything
        except Exception as failure:
            told(**row, way=way, failed=f"{type(failure).__name__}: {failure}"[:400])
        finally:
            device._memory.pool.on_take = None
    assert right, "no way is right"
    told(**row, checked=", ".join(right))
    return right, data


def _beside_torch(
    ours: Any, told: Callable[..., None], torch_us: Callable[..., float], name: str, dtype: str,
    image: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs,
) -> None:  # fmt: skip
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    right, data = _right_ways(ours, told, name, dtype, image, kernel, attrs)
    x, w = (torch.randn(s, device="cuda", dtype=getattr(torch, dtype)) for s in (image, kernel))
    peer = partial(torch.nn.functional.conv2d, x, w, **attrs)
    work = 2 * peer().numel() * float(np.prod(kernel[1:]))
    clocks: dict[str, Callable[[], float]] = {"torch": lambda: torch_us(torch, peer, 50, 1)}
    for way, made in right.items():
        if way != "naive" or work < 1e8:  # elsewhere known to be far behind
            clocks[way] = lambda made=made: ours.device_us(lambda: made(*data), 50, 1)  # type: ignore[misc]
    times: dict[str, list[float]] = {way: [] for way in clocks}
    for _ in range(_ROUNDS):
        for way, clock in clocks.items():
            times[way].append(clock())
    medians = {way: float(np.median(own)) for way, own in times.items()}
    for way, us in sorted(medians.items(), key=lambda pair: pair[1]):
        told(case=f"conv, {name}", dtype=dtype, shape=f"{image} {kernel}", way=way, us=us, tflops=work / us / 1e6,
             of_torch=medians["torch"] / us)  # fmt: skip
