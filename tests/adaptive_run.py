"""Adaptive products: which precision each tolerance gets, how right it is, and how fast, beside PyTorch by hand.

    python tests/adaptive_run.py [--device cpu] [--sizes 1024,2048,4096] [--torch auto|no]

For each size and tolerance: a jitted product under `precision="adaptive"` against the same under "f32", in turns, and
PyTorch's product in the precision that was chosen, with the conversions written by hand. Operands and results are
float32 throughout and stay on the device. Errors are those of some rows against float64. Prints a table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import yosegi as ys
from yosegi._run.device import device_named

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
ROUNDS, ROWS, SECONDS = 15, 64, 0.05
TERMS = {"bf16": 1, "bf16x2": 2, "bf16x3": 3}


def by_hand(torch: Any, a: Any, b: Any, precision: str) -> Callable[[], Any] | None:
    """The product in a precision, as one would write it in PyTorch."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    if precision in ("full", "tf32"):
        return lambda: a @ b
    if precision == "f16":
        return lambda: (a.half() @ b.half()).float()
    if precision not in TERMS:
        return None

    def parts(x: Any) -> list[Any]:
        made = []
        for _ in range(TERMS[precision]):
            made.append(x.bfloat16())
            x = x - made[-1].float()
        return made

    def product() -> Any:
        left, right = parts(a), parts(b)
        pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if i + j < len(left)]
        total = None
        for i, j in sorted(pairs, key=sum, reverse=True):
            made = (left[i] @ right[j]).float()
            total = made if total is None else total + made
        return total

    return product


def timed(call: Callable[[], Any], wait: Callable[[], Any], turns: int) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(turns):
        call()
    wait()
    return (time.perf_counter() - start) / turns


def turns_of(call: Callable[[], Any], wait: Callable[[], Any], seconds: float = SECONDS) -> int:
    for _ in range(3):
        call()
    return max(1, round(seconds / timed(call, wait, 1)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="1024,2048,4096")
    parser.add_argument("--torch", default="auto", choices=("auto", "no"))
    args = parser.parse_args()
    device = device_named(args.device)
    torch = None
    if args.torch == "auto" and find_spec("torch"):
        import torch  # type: ignore[no-redef]
    there = "cuda" if device.is_gpu else "cpu"
    print(f"{device.name}: {device.description}")
    print("| n | tol | precision | error | times f32 (spread) | PyTorch by hand, times its f32 | ours, times by hand |")
    print("|---|---|---|---|---|---|---|")
    for n in map(int, args.sizes.split(",")):
        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
        exact = a[:ROWS].astype(np.float64) @ b.astype(np.float64)
        x, y = (ys.asarray(m).to_device(args.device) for m in (a, b))
        ys.eval(x, y)
        for tol in TOLERANCES:
            contenders: dict[str, Callable[[], Any]] = {}
            waits: dict[str, Callable[[], Any]] = {}
            f = ys.jit(lambda a, b: a @ b)

            def ours(strategy: str, f: Any = f, tol: float = tol, x: Any = x, y: Any = y) -> Any:
                with ys.options(device=args.device, precision=strategy, tol=tol):
                    return f(x, y)

            contenders["adaptive"] = lambda: ours("adaptive")
            contenders["f32"] = lambda: ours("f32")
            got = contenders["adaptive"]().numpy()[:ROWS]
            for _ in range(8):
                contenders["adaptive"]()
            error = float(np.linalg.norm(got - exact) / np.linalg.norm(exact))
            assert error <= tol, f"{n} {tol}: an error of {error:.1e}"
            precision = f.plans[0].steps[0].candidate.precision.value
            waits |= dict.fromkeys(contenders, device.synchronize)
            if torch is not None:
                s, t = (torch.from_numpy(m).to(there) for m in (a, b))
                wait = torch.cuda.synchronize if there == "cuda" else lambda: None
                full, hand = by_hand(torch, s, t, "full"), by_hand(torch, s, t, precision)
                assert full is not None
                contenders["torch f32"], waits["torch f32"] = full, wait
                if hand is not None:
                    contenders["torch"], waits["torch"] = hand, wait
            turns = {name: turns_of(call, waits[name]) for name, call in contenders.items()}
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(ROUNDS):
                for name, call in contenders.items():
                    if torch is not None and name.startswith("torch"):
                        torch.backends.cuda.matmul.allow_tf32 = name == "torch" and precision == "tf32"
                    times[name].append(timed(call, waits[name], turns[name]))
            ratio = sorted(s / t for s, t in zip(times["f32"], times["adaptive"], strict=True))
            low, high = ratio[len(ratio) // 10], ratio[-1 - len(ratio) // 10]
            hand_ratio = "–"
            if "torch" in times:
                hand_ratio = f"{statistics.median(times['torch f32']) / statistics.median(times['torch']):.2f}"
            beside = "–"
            if "torch" in times:
                beside = (
                    f"{statistics.median(times['torch']) / statistics.median(times['adaptive']):.2f} × PyTorch's speed"
                )
            middle = statistics.median(ratio)
            told = f"{middle:.2f} ({low:.2f} – {high:.2f})"
            print(f"| {n} | {tol:.0e} | {precision} | {error:.1e} | {told} | {hand_ratio} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
