"""Products with bfloat16 numbers inside, on a machine that has a unit for them: right, and how fast.

    make bench-matrix, or: PYTHONPATH=src:tests python tests/matrix_units.py matrix.json [--sweep] [--mkl PATH]

All kernels are compared with float64 first, with the real instructions. Then products are timed on two threads, beside
NumPy's in the same rounds; and what users call, in turns with other libraries' in processes of their own. `--sweep`
times other ways of cutting the work instead. It takes some minutes, more where there is no such unit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product as combinations
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

import yosegi as ys
from matrix_emulation import EmulatingCompiler
from matrix_peers import PEERS, Array, Gone, Peer, error, exact, numbers
from yosegi._tensor.dtype import float32
from yosegi.codegen.llvm.bfloat16_units import BFloat16Unit
from yosegi.codegen.llvm.blocking import BFLOAT16, BlockingPolicy
from yosegi.codegen.llvm.builder import LlvmBuilder
from yosegi.codegen.llvm.product import FusedStage, Product, Side
from yosegi.codegen.scalar.value import Value
from yosegi.devices.cpu import bfloat16_support
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.half_calls import HalfProducts
from yosegi.devices.cpu.operand_layout import Arrays
from yosegi.devices.cpu.results import Results
from yosegi.tools.bench.timing import Contender, Timing, race

SIZES = (512, 1024, 2048, 4096)
PRODUCT, FUSED = "product", "relu(x@w+b+r)"
BESIDE_PEERS = "product, in turns with peers in processes of their own"
FUSED_SIZES = (128, 1024)
TURNS = 9
WARM = 12
"""Calls of a jitted function after which it has chosen its way."""
NAMES = {1: "bf16", 2: "bf16x2", 3: "bf16x3"}
SETTLE = 0.15  # seconds in which the threads of every library stop looking for work
"""Seconds before a turn: NumPy's threads spin for a while."""
SETTINGS = ("YOSEGI_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ROWS_SHARES, PANELS_SHARES, COPIED_ROWS = (0.4, 0.8, 1.4, 2.8), (0.12, 0.24, 0.48), (16, 64, 512)
"""Of the policies by which `--sweep` cuts the work."""


def relu(k: LlvmBuilder, x: Value, bias: Value, rest: Value) -> list[Value]:
    """relu(x + bias + rest)."""
    made = k.add(k.add(x, bias), rest)
    return [k.select(k.lt(made, k.const(0, made)), k.const(0, made), made)]


FUSION = Product(float32, after=FusedStage(relu, float32, (Side(float32), Side(float32))), parts=1)


def plain(parts: int = 1) -> Product:
    """A product by itself."""
    return Product(float32, parts=parts)


def computed(products: HalfProducts, product: Product, a: Array, b: Array, *sides: Array, kept: bool = False) -> Array:
    """A product, in memory that was poisoned before."""
    out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.float32)
    contender(products, product, a, b, *sides, kept=kept, out=out).call()
    return out


# Right


def checks(products: HalfProducts) -> Iterator[tuple[str, float, float]]:
    """What is computed, its error, and the largest that it may have."""
    for parts, largest in bfloat16_support.LARGEST_ERRORS.items():
        product = plain(parts)
        for words, a, b in operands():
            got = computed(products, product, a, b)
            yield f"{NAMES[parts]}, {words}", error(got, bfloat16_support.expected(a, b, parts)), largest
        a, b = numbers(70, 130), numbers(130, 90, seed=1)
        got = computed(products, product, a, b, kept=True)
        yield f"{NAMES[parts]}, w kept", error(got, bfloat16_support.expected(a, b, parts)), largest
    a, b, bias, rest = numbers(100, 200), numbers(200, 90, seed=1), numbers(1, 90, seed=2), numbers(100, 90, seed=3)
    wanted = np.maximum(bfloat16_support.expected(a, b, 1) + bias + rest, 0)
    for kept in (False, True):
        got = computed(products, FUSION, a, b, bias, rest, kept=kept)
        yield f"{FUSED}{', w kept' if kept else ''}", error(got, wanted), bfloat16_support.LARGEST_ERRORS[1]
    a, b = np.abs(numbers(40, 50)) + 1, np.abs(numbers(50, 40, seed=1)) + 1
    a[3, 7], a[20, 49], b[11, 5] = np.nan, np.inf, np.inf
    a[30, 2] = np.finfo(np.float32).tiny / 4
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float64) @ b
    for parts, name in NAMES.items():
        got = computed(products, plain(parts), a, b)
        yield f"{name}, NaN and infinities", float(np.mean(np.isfinite(wanted) != np.isfinite(got))), 0.0


def operands() -> Iterator[tuple[str, Array, Array]]:
    """Sizes and layouts."""
    for m, n, k in ((1, 7, 127), (17, 33, 16), (32, 32, 32), (130, 257, 700), (256, 192, 1100)):
        for left, right in combinations((False, True), repeat=2):
            a = numbers(k, m).T if left else numbers(m, k)
            b = numbers(n, k, seed=1).T if right else numbers(k, n, seed=1)
            yield f"{m}x{k}{' turned' if left else ''} @ {k}x{n}{' turned' if right else ''}", a, b
    yield "strides", numbers(200, 300)[::-2, 1::3], numbers(300, 200, seed=1)[::3, ::-2]
    yield "a stack", numbers(5, 60, 70), numbers(5, 70, 50, seed=1)
    yield "long sums", numbers(32, 4096), numbers(4096, 32, seed=1)


def checked(products: HalfProducts) -> list[dict[str, Any]]:
    found = [{"what": w, "error": e, "largest": most, "right": bool(e <= most)} for w, e, most in checks(products)]
    wrong = [f for f in found if not f["right"]]
    print(f"{products.unit.value}: {len(found) - len(wrong)} of {len(found)} checks are right")
    for f in wrong:
        print(f"  WRONG: {f['what']}: an error of {f['error']:.1e}, not {f['largest']:.1e}")
    return found


# Fast


def contender(
    products: HalfProducts, product: Product, a: Array, b: Array, *sides: Array, kept: bool = False,
    threads: int | None = None, out: Array | None = None,
) -> Contender:  # fmt: skip
    """A product whose result goes where it went before."""
    made, generated = np.empty((a.shape[-2], b.shape[-1]), np.float32) if out is None else out, products.generated
    bound = generated.bound(product, Arrays(a, b, (), sides, (made,)), kept=kept, threads=threads)
    right, work = generated.packed(product, b) if kept else b, np.empty(bound.workspace, np.uint8)
    return Contender(lambda: bound.call(a, right, *sides, made, work))


def jitted(function: Callable[..., Any], *arrays: Array) -> Contender:
    """Through the front door."""
    tensors = [ys.asarray(a) for a in arrays]
    compiled = ys.jit(function)
    return Contender(lambda: compiled(*tensors).numpy(), lambda: ys.options(device="cpu", precision="f16"))


def timed(products: HalfProducts, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Products by us and by NumPy."""
    for n in sizes:
        a, b = numbers(n, n), numbers(n, n, seed=1)
        ours = {}
        for parts, name in NAMES.items():
            ours |= {f"{name}{', w kept' if kept else ''}": (plain(parts), a, b, kept) for kept in (False, True)}
        contenders = {"numpy f32": Contender(lambda a=a, b=b: a @ b)}
        contenders |= {name: contender(products, *given, kept=kept) for name, (*given, kept) in ours.items()}
        contenders["jit, precision=f16"] = jitted(lambda x, y: x @ y, a, b)
        wanted, rows = exact(a, b)
        errors = {
            name: error(computed(products, *given, kept=kept)[rows], wanted) for name, (*given, kept) in ours.items()
        }
        errors["numpy f32"] = error((a @ b)[rows], wanted)
        with contenders["jit, precision=f16"].turn():
            errors["jit, precision=f16"] = error(contenders["jit, precision=f16"].call()[rows], wanted)  # type: ignore[index]
        yield from rated(PRODUCT, n, race(contenders, rounds=9, seconds=6, settle=SETTLE), errors)


def fused(products: HalfProducts, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """A layer by us and by NumPy."""
    for n in sizes:
        arrays = numbers(n, n), numbers(n, n, seed=1), numbers(1, n, seed=2), numbers(n, n, seed=3)
        a, b, bias, rest = arrays
        contenders = {
            "numpy f32": Contender(lambda a=a, b=b, bias=bias, rest=rest: np.maximum(a @ b + bias + rest, 0)),
            "bf16": contender(products, FUSION, *arrays),
            "bf16, w kept": contender(products, FUSION, *arrays, kept=True),
            "bf16, one thread": contender(products, FUSION, *arrays, threads=1),
            "jit, precision=f16": jitted(lambda x, w, b, r: ys.nn.relu(x @ w + b + r), *arrays),
        }
        wanted, rows = exact(a, b)
        wanted = np.maximum(wanted + bias + rest[rows], 0)
        wrong = error(computed(products, FUSION, *arrays)[rows], wanted)
        errors = {name: wrong for name in contenders if name.startswith("bf16")}
        with contenders["jit, precision=f16"].turn():
            errors["jit, precision=f16"] = error(contenders["jit, precision=f16"].call()[rows], wanted)  # type: ignore[index]
        yield from rated(FUSED, n, race(contenders, rounds=15, seconds=3, settle=SETTLE), errors)


def beside_peers(sizes: tuple[int, ...], mkl: str | None) -> Iterator[dict[str, Any]]:
    """Products through the front door, in turns with other libraries', who may take bfloat16 operands as they are."""
    peers: dict[str, Peer] = {}
    for name in PEERS:
        try:
            peers[name] = Peer(name, mkl)
            peers[name].multiplied(64)
        except Gone as reason:
            peers.pop(name, None)
            yield {"contender": name, "failure": str(reason)}
    for n in sizes:
        a, b = numbers(n, n), numbers(n, n, seed=1)
        constant, (wanted, rows) = ys.asarray(b), exact(a, b)
        own = {
            "jit, precision=f16": jitted(lambda x, y: x @ y, a, b),
            "jit, precision=f16, w a constant": jitted(lambda x, w=constant: x @ w, a),
        }
        errors, turns = {}, {}
        for name, ours in own.items():
            with ours.turn():
                for _ in range(WARM):
                    errors[name] = error(np.asarray(ours.call())[rows], wanted)
            turns[name] = lambda ours=ours: race({"": ours}, rounds=1)[""].median
        for name, peer in list(peers.items()):
            try:
                errors[name] = peer.multiplied(n)[1]
            except Gone as reason:
                yield {"contender": f"{name} {n}", "failure": str(reason)}
                del peers[name]
            else:
                turns[name] = lambda peer=peer, n=n: peer.multiplied(n)[0]
        taken: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(TURNS):
            first = number % len(turns)
            for name in [*turns][first:] + [*turns][:first]:
                sleep(SETTLE)
                taken[name].append(turns[name]())
        timings = {name: Timing((tuple(seconds),)) for name, seconds in taken.items()}
        for r in rated(BESIDE_PEERS, n, timings, errors):
            mkl_time = timings.get("mkl bf16")
            yield r | ({"of mkl": str(mkl_time.ratio_to(timings[r["contender"]]))} if mkl_time else {})
    for peer in peers.values():
        peer.leave()


def row(what: str, n: int, contender: str, seconds: float, wrong: float | None) -> dict[str, Any]:
    """A figure."""
    return {"what": what, "n": n, "contender": contender, "microseconds": seconds * 1e6,
            "gflops": 2 * n**3 / seconds / 1e9, "error": wrong}  # fmt: skip


def rated(what: str, n: int, timings: dict[str, Timing], errors: dict[str, float]) -> Iterator[dict[str, Any]]:
    for name, timing in timings.items():
        times = timings["numpy f32"].ratio_to(timing)
        yield {**row(what, n, name, timing.median, errors.get(name)), "speedup": times.median, "range": str(times)}


# Policies of cutting the work


def sweep(products: HalfProducts, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for n, kept in combinations(sizes, (True, False)):
        a, b = numbers(n, n), numbers(n, n, seed=1)
        rates: list[tuple[float, BlockingPolicy]] = []
        for rows, panels, copied in [(BFLOAT16.rows_share, BFLOAT16.panels_share, BFLOAT16.copied_rows),
                                     *combinations(ROWS_SHARES, PANELS_SHARES, COPIED_ROWS)]:  # fmt: skip
            policy = replace(BFLOAT16, rows_share=rows, panels_share=panels, copied_rows=copied)
            products.generated.policy = policy
            seconds = middle(contender(products, plain(), a, b, kept=kept))
            rates.append((2 * n**3 / seconds / 1e9, policy))
        products.generated.policy = None
        best = sorted(rates, key=lambda rate: -rate[0])
        rate = f"{rates[0][0]:.0f} GFLOP/s as it is; the best five of {len(best)}"
        print(f"\n{n}, w {'kept' if kept else 'fresh'}: {rate}")
        for own, policy in [*best[:5], best[-1]]:
            print(f"  {own:7.0f}  {policy}")
        yield from [{"n": n, "kept": kept, "policy": str(policy), "gflops": own} for own, policy in best]
    products.generated.policy = replace(BFLOAT16, single_work=0)
    print("\nsmall products, µs, by one thread and by two")
    for n in (32, 48, 64, 96, 128, 192, 256):
        a, b = numbers(n, n), numbers(n, n, seed=1)
        one, two = (middle(contender(products, plain(), a, b, threads=t)) * 1e6 for t in (1, 2))
        print(f"  {n:4}: {one:7.1f} {two:7.1f}")
        yield {"n": n, "one thread": one, "two threads": two}


def middle(what: Contender, seconds: float = 0.06) -> float:
    """The median of as many calls as fit."""
    what.call()
    taken = []
    begin = perf_counter()
    while len(taken) < 3 or perf_counter() - begin < seconds:
        start = perf_counter()
        what.call()
        taken.append(perf_counter() - start)
    return float(np.median(taken))


# The command


def show(results: list[dict[str, Any]]) -> None:
    """A table for each kind of work and size, and what could not be measured."""
    timings = [r for r in results if "n" in r]
    for what, n in dict.fromkeys((r["what"], r["n"]) for r in timings):
        rows = [r for r in timings if (r["what"], r["n"]) == (what, n)]
        base = next((r["microseconds"] for r in rows if r["contender"] == "numpy f32"), float("nan"))
        print(f"\n{what} {n}\n  {'':<33} {'µs':>10} {'GFLOP/s':>9} {'× numpy':>8} {'error':>9}  of MKL's speed")
        for r in rows:
            times = r.get("speedup") or base / r["microseconds"]
            wrong = "" if r["error"] is None else f"{r['error']:.1e}"
            figures = f"{r['microseconds']:10.1f} {r['gflops']:9.0f} {times:8.2f} {wrong:>9}"
            print(f"  {r['contender']:<33} {figures}  {r.get('of mkl', '')}")
    for r in results:
        if "failure" in r:
            print(f"\n{r['contender']}: {r['failure']}")


def described(machine: HostMachine, cpus: list[int]) -> dict[str, Any]:
    """The machine, and whether the processors are two cores or two threads of one."""

    def read(path: str) -> str:
        return Path(path).read_text().strip() if Path(path).exists() else ""

    folder = "/sys/devices/system/cpu/cpu"
    caches = [f"{read(f'{folder}0/cache/index{i}/level')}: {read(f'{folder}0/cache/index{i}/size')}" for i in range(4)]
    names = [line.partition(":")[2].strip() for line in read("/proc/cpuinfo").splitlines() if "model name" in line]
    return {
        "processor": (names or [""])[0], "model": machine.model, "llvm": machine.version,
        "python": platform.python_version(), "numpy": np.__version__, "cpus": cpus, "caches": caches,
        "siblings": {c: read(f"{folder}{c}/topology/thread_siblings_list") for c in cpus},
        "reported by the system": sorted(f for f in bfloat16_support.flags() if "amx" in f or "bf16" in f),
        "reported by LLVM": [f for f in ("amx-tile", "amx-bf16", "avx512bf16") if machine.has(f)],
    }  # fmt: skip


def usable(machine: HostMachine, *, emulated: bool) -> dict[BFloat16Unit, HalfProducts]:
    """Products by each unit that works here."""
    runtime, results = Runtime(Compiler(machine)), Results()
    if emulated:
        compiler: Any = EmulatingCompiler(runtime.compiler)
        return {BFloat16Unit.TILES: HalfProducts(runtime, BFloat16Unit.TILES, results, compiler=compiler)}
    print(f"\n{bfloat16_support.find(machine)}\n")
    working = [unit for unit in BFloat16Unit if bfloat16_support.failure(machine, unit) is None]
    return {unit: HalfProducts(runtime, unit, results) for unit in working}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="where the figures go, as JSON")
    parser.add_argument("--sweep", action="store_true", help="time other ways of cutting the work instead")
    parser.add_argument("--mkl", help="the path of libmkl_rt.so")
    parser.add_argument("--cpus", help="the processors to use, as in 0,1; the first two, if nothing is said")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="of the products")
    parser.add_argument("--emulated", action="store_true", help="without a unit: to try this script out")
    given = parser.parse_args()
    cpus = [int(c) for c in given.cpus.split(",")] if given.cpus else sorted(os.sched_getaffinity(0))[:2]
    settings = dict.fromkeys(SETTINGS, str(len(cpus)))
    if any(os.environ.get(name) != value for name, value in settings.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings)  # libraries have read theirs
    os.sched_setaffinity(0, cpus)
    begin = perf_counter()
    sizes = tuple(int(n) for n in given.sizes.split(","))
    machine = HostMachine.host()
    document: dict[str, Any] = {"machine": described(machine, cpus)}
    print(json.dumps(document["machine"], indent=1))
    made = usable(machine, emulated=given.emulated)
    document["checks"] = {unit.value: checked(products) for unit, products in made.items()}
    if made and given.sweep:
        document["sweep"] = list(sweep(next(iter(made.values())), sizes))
    elif made:
        best, *others = made.values()
        results = [*timed(best, sizes), *fused(best, FUSED_SIZES if sizes == SIZES else sizes)]
        for products in others:
            rows = [r for r in timed(products, sizes[:2]) if r["contender"].startswith("bf16")]
            results += [{**r, "contender": f"{r['contender']}, {products.unit.value}"} for r in rows]
        document["results"] = results + ([] if given.emulated else list(beside_peers(sizes, given.mkl)))
        show(document["results"])
    document["seconds"] = perf_counter() - begin
    print(f"\n{document['seconds']:.0f} s")
    Path(given.output).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0 if made and all(c["right"] for found in document["checks"].values() for c in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
