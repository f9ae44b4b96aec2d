"""Time against work: a GPT with 1 to 16 layers and words 64 to 1,024 long, on the CPU.

    PYTHONPATH=tests python tests/bench_growth.py [--training] [--processor-time] [--json FILE] [--plot FILE ...]

256 wide, 4 heads, batch 1, float32: the forward pass, or with `--training` a step of AdamW at up to 8 layers and a
length of 256. Each figure is the least time of a call. `--processor-time` takes the processor time of one thread, which
other work on the machine hardly changes. With `--plot`, nothing is measured: files of earlier runs become growth.svg.

Prints a table of times and one of floating-point operations in a nanosecond, and the largest fall of the latter from a
size to the next larger one: a step, if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from math import log10, prod
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

import yosegi as ys
from yosegi.tools.bench import models

LAYERS = (1, 2, 4, 8, 16)
LENGTHS = (64, 128, 256, 512, 1024)
RNG = np.random.default_rng(0)
BLOCK = 12
"""Parameters of a layer."""
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677")
IMAGE = Path(__file__).parent.parent / "docs" / "images" / "growth.svg"


def shapes(layers: int) -> tuple[tuple[int, ...], ...]:
    """The parameters of a GPT with so many layers."""
    return (models.GPT[0], *models.GPT[1 : 1 + BLOCK] * layers, *models.GPT[-4:])


def work(layers: int, length: int) -> float:
    """Floating-point operations of a forward pass: products by weights, and attention to the words before."""
    weights = sum(prod(s) for s in shapes(layers)[1:] if len(s) == 2)
    width = models.GPT[0][1]
    return 2.0 * length * weights + 2.0 * layers * length * length * width


def forward(layers: int, length: int) -> Callable[[], Any]:
    """A forward pass."""
    own = [ys.asarray(p) for p in weights(layers)]
    words = ys.asarray(RNG.integers(0, models.GPT[0][0], (1, length)))
    function = ys.jit(lambda words: models.gpt(own, words))
    return lambda: function(words).block_until_ready()


def training(layers: int, length: int) -> Callable[[], Any]:
    """A step of AdamW, with new parameters in each call."""
    count = len(shapes(layers))
    step = ys.jit(models.adam_step(models.gpt, count))
    words, labels = (ys.asarray(RNG.integers(0, models.GPT[0][0], s)) for s in ((1, length), (length,)))
    held = [ys.asarray(p) for p in weights(layers)]
    held += [ys.asarray(np.full(p.shape, start, np.float32)) for start in (0, 1) for p in weights(layers)]

    def run() -> None:
        loss, *held[:] = step(*held, words, labels)
        float(loss)

    return run


def weights(layers: int) -> list[Any]:
    """Parameters that keep the size of activations."""
    return [(RNG.standard_normal(s) / np.sqrt(max(1, prod(s[1:])))).astype(np.float32) for s in shapes(layers)]


def least(run: Callable[[], Any], clock: Callable[[], float], seconds: float) -> float:
    """The least seconds of a call, after those that compile and compare variants."""
    for _ in range(3):
        run()
    found, end = [], clock() + seconds
    while clock() < end or len(found) < 5:
        start = clock()
        run()
        found.append(clock() - start)
    return min(found)


def table(title: str, rows: dict[int, dict[int, float]], digits: int) -> None:
    lengths = list(next(iter(rows.values())))
    print(f"\n{title}\n| layers |", *[f" {n} |" for n in lengths], sep="")
    print("|---|" + "--:|" * len(lengths))
    for layers, row in rows.items():
        print(f"| {layers} |", *[f" {value:.{digits}f} |" for value in row.values()], sep="")


def largest_fall(speeds: dict[int, dict[int, float]]) -> str:
    """The size at which the speed is least, beside the next smaller one in either direction."""
    falls = []
    for n, (layers, row) in enumerate(speeds.items()):
        for m, (length, speed) in enumerate(row.items()):
            before = [*([row[list(row)[m - 1]]] if m else []), *([speeds[list(speeds)[n - 1]][length]] if n else [])]
            falls += [(speed / other, layers, length) for other in before]
    ratio, layers, length = min(falls)
    return f"largest fall: to {ratio:.2f} of the speed of the next smaller size, at {layers} layers, length {length}"


def measured(args: argparse.Namespace) -> None:
    layers, lengths = (LAYERS[:4], LENGTHS[:3]) if args.training else (LAYERS, LENGTHS)
    clock = process_time if args.processor_time else perf_counter
    make, passes = (training, 3) if args.training else (forward, 1)
    seconds: dict[int, dict[int, float]] = {n: {} for n in layers}
    with ys.options(device="cpu"):
        for count in layers:
            for length in lengths:
                seconds[count][length] = least(make(count, length), clock, args.seconds)
    speeds = {n: {t: passes * work(n, t) / s / 1e9 for t, s in row.items()} for n, row in seconds.items()}
    table("milliseconds, by length", {n: {t: s * 1e3 for t, s in row.items()} for n, row in seconds.items()}, 2)
    table("operations in a nanosecond, by length", speeds, 0)
    print("\n" + largest_fall(speeds))
    if args.json:
        document = {"name": "training step" if args.training else "forward", "seconds": seconds, "passes": passes}
        Path(args.json).write_text(json.dumps(document))


# The plot


def plotted(files: Sequence[str]) -> None:
    """Time against work on logarithmic axes: a line for each number of layers, a marker for each length."""
    wide, high, left, low = 720, 420, 60, 45
    series = []
    for number, name in enumerate(files):
        document = json.loads(Path(name).read_text())
        for colour, (layers, row) in zip(COLOURS, document["seconds"].items(), strict=False):
            points = [(document["passes"] * work(int(layers), int(t)) / 1e9, s * 1e3) for t, s in row.items()]
            series.append((f"{document['name']}, {layers} layer{'s' * (layers != '1')}", colour, number, points))
    bounds = [[f(v) for f in (min, max)] for v in zip(*[p for *_, points in series for p in points], strict=True)]
    (x0, x1), (y0, y1) = ([10 ** (np.floor(log10(a) * 2) / 2), 10 ** (np.ceil(log10(b) * 2) / 2)] for a, b in bounds)

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (log10(v / a) / log10(b / a) for v, a, b in ((x, x0, x1), (y, y0, y1)))
        return left + across * (wide - left - 190), high - low - up * (high - low - 15)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">'
    ]
    parts.append(f'<rect width="{wide}" height="{high}" fill="white"/>')
    for axis, (a, b) in enumerate(((x0, x1), (y0, y1))):
        for power in range(int(np.ceil(log10(a))), int(log10(b)) + 1):
            ends = [at(10.0**power, y) for y in (y0, y1)] if axis == 0 else [at(x, 10.0**power) for x in (x0, x1)]
            (ax, ay), (bx, by) = ends
            parts.append(f'<path d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}" stroke="#ddd"/>')
            x, y, side = (ax, ay + 16, "middle") if axis == 0 else (ax - 6, ay + 4, "end")
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{side}">{10.0**power:g}</text>')
    parts.append(f'<text x="{left + 200}" y="{high - 8}" text-anchor="middle">10⁹ floating-point operations</text>')
    parts.append(f'<text x="14" y="{high / 2}" text-anchor="middle" transform="rotate(-90 14 {high / 2})">ms</text>')
    for n, (label, colour, number, points) in enumerate(series):
        dashes = ' stroke-dasharray="5 3"' if number else ""
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*p) for p in points))
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in points)]
        y = 24 + 18 * n
        parts.append(f'<path d="M{wide - 180} {y - 4}h22" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{wide - 152}" y="{y}">{label}</text>')
    IMAGE.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
    print(IMAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json")
    parser.add_argument("--plot", nargs="+")
    args = parser.parse_args()
    if args.plot:
        plotted(args.plot)
        return
    if args.processor_time:
        os.environ["YOSEGI_THREADS"] = "1"
    measured(args)


if __name__ == "__main__":
    main()
