"""Everything that wants a GPU, in one go: the tests, random programs, and times beside other libraries'.

    python tests/gpu_run.py [part …]          all parts by default; $OUT, or ./gpu-run, gets the results

Each part is a process of its own with a time limit: one that fails, or hangs, costs no other. Results are checked
before they are timed. `gpu.txt` is to be read, `gpu.json` holds the same as data, `tests.xml` the tests.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda:0"
LIMITS = {
    "devices": 40, "attention": 90, "chain": 60, "memory": 50, "matmul": 200, "patterns": 150, "written": 150,
    "kernels": 150, "convolutions": 150, "library": 130, "branches": 60, "transfer": 30, "full": 60, "chaos": 60,
    "tests": 200, "odd": 120, "memcheck": 300, "racecheck": 300,
}  # fmt: skip
"""The parts in order, and the seconds each may take: first what is short and says most."""

_SHARES = 4
"""Processes for the odd shapes of a dtype, under a sanitizer."""
PRODUCTS = (8192, 4096, 2048, 1024, 512, 256, 128, 64)

Row = dict[str, Any]


# Clocks


class Ours:
    """Yosegi on the GPU, and its stream's clock."""

    def __init__(self) -> None:
        import cupy

        import yosegi as ys
        from yosegi._run.device import device_named

        self.ys, self.device = ys, device_named(DEVICE)
        self.queue = self.device.queue
        self.cuda = cupy.cuda
        spin = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'
        self._spin = cupy.RawKernel(spin, "spin")

    def put(self, array: Any) -> Any:
        return self.ys.asarray(array).to_device(DEVICE)

    def device_us(self, call: Callable[[], Any], turns: int = 200, rounds: int = 7) -> float:
        """Microseconds of the device for a call. The queue is filled while a kernel spins: the host is no limit, but
        for the few runs that learning waits for, which become rare."""
        for _ in range(turns * rounds // 2):
            call()
        times = []
        for _ in range(rounds):
            first, last = self.cuda.Event(), self.cuda.Event()
            with self.queue.stream:
                self._spin((1,), (1,), (np.int64(20e-6 * turns * 1.9e9),))
            first.record(self.queue.stream)
            for _ in range(turns):
                call()
            last.record(self.queue.stream)
            last.synchronize()
            times.append(self.cuda.get_elapsed_time(first, last) * 1e3 / turns)
        return statistics.median(times)

    def host_us(self, call: Callable[[], Any], turns: int = 300, rounds: int = 9) -> float:
        return host_us(call, self.device.synchronize, turns, rounds)


def host_us(call: Callable[[], Any], wait: Callable[[], Any], turns: int = 300, rounds: int = 9) -> float:
    """Microseconds of the host for a call, back to back, the wait at the end counted in."""
    for _ in range(20):
        call()
    wait()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(turns):
            call()
        wait()
        times.append((time.perf_counter() - start) * 1e6 / turns)
    return statistics.median(times)


def torch_device_us(torch: Any, call: Callable[[], Any], turns: int = 200, rounds: int = 7) -> float:
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(20e-6 * turns * 1.9e9))
        first.record()
        for _ in range(turns):
            call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / turns)
    return statistics.median(times)


def in_turns(ours: Ours, own: Callable[[], Any], torch: Any, other: Callable[[], Any], turns: int = 200) -> Row:
    """Microseconds of the device for our call and for PyTorch's, in turns, because large products make the GPU hot, and
    slow; and how many times as fast ours is: the median of nine, the third and the seventh."""
    pairs = [(ours.device_us(own, turns, 1), torch_device_us(torch, other, turns, 1)) for _ in range(9)]
    us, others = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    return {"us": us, "torch_us": others, "ratio": ratios[4], "from": ratios[2], "to": ratios[6]}


def checked(name: str, got: Any, expected: Any, error: float) -> None:
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, f"{name}: {got.shape} instead of {expected.shape}"
    distance = np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-300)
    assert distance <= error, f"{name} is off by {distance:.2e}"


def told(**row: Any) -> None:
    """Print a row, for people and for the process that started this one."""
    shown = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print(shown, flush=True)
    print("row:" + json.dumps(row), flush=True)


def attempted(name: str, work: Callable[[], Any]) -> None:
    """Do one thing of a part. A failure is told, and the next thing follows."""
    try:
        work()
    except Exception as error:
        told(case=name, failed=f"{type(error).__name__}: {error}"[:600])


# Parts


def devices() -> None:
    import yosegi as ys
    from yosegi._run.device import Absent, discovered

    for device in discovered():
        told(device=device.name, what=device.reason if isinstance(device, Absent) else device.description)
    x = ys.asarray(np.arange(1000, dtype=np.float32))
    with ys.options(device=DEVICE, on_fallback="error"):
        checked("a first loop", (x * 2 + 1).numpy(), np.arange(1000) * 2 + 1, 1e-6)
        checked("a first sum", ys.sum(x).numpy(), np.asarray(499500), 1e-6)
        a = np.random.default_rng(0).normal(size=(70, 50)).astype(np.float32)
        checked("a first product", (ys.asarray(a) @ ys.asarray(a.T.copy())).numpy(), a @ a.T, 1e-6)
    told(first="right")


def _chain(lib: Any, x: Any, y: Any) -> Any:
    t = lib.tanh(x * y + x)
    return lib.sqrt(abs(t * y - x)) + y


def chain() -> None:
    """Eight elementwise ops in float16."""
    import torch

    ours = Ours()
    rng = np.random.default_rng(1)
    for n in (128, 512, 2048):
        a, b = (rng.normal(size=(n, n)).astype(np.float16) for _ in range(2))
        expected = _chain(np, a.astype(np.float64), b.astype(np.float64))

        def yosegi(n: int = n, a: Any = a, b: Any = b, expected: Any = expected) -> None:
            with ours.ys.options(device=DEVICE, on_fallback="error"):
                x, y = ours.put(a), ours.put(b)
                f = ours.ys.jit(lambda x, y: _chain(ours.ys, x, y))
                for _ in range(3):
                    checked("the chain", f(x, y).numpy(), expected, 5e-3)
                told(case="chain", n=n, by="yosegi", device_us=ours.device_us(lambda: f(x, y)),
                     host_us=ours.host_us(lambda: f(x, y)))  # fmt: skip
                eager = lambda: ours.ys.eval(_chain(ours.ys, x, y))
                told(case="chain, not jitted", n=n, by="yosegi", host_us=ours.host_us(eager))
                g = ours.ys.jit(lambda x, y: ours.ys.nn.softmax(_chain(ours.ys, x, y)))
                for _ in range(4):
                    g(x, y)
                soft = np.exp(expected - expected.max(-1, keepdims=True))
                checked("softmax", g(x, y).numpy(), soft / soft.sum(-1, keepdims=True), 2e-2)
                told(case="chain and softmax", n=n, by="yosegi", device_us=ours.device_us(lambda: g(x, y), 100),
                     host_us=ours.host_us(lambda: g(x, y)))  # fmt: skip

        def torches(n: int = n, a: Any = a, b: Any = b) -> None:
            x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
            compiled = torch.compile(lambda x, y: _chain(torch, x, y))
            for by, f in (("torch", lambda x, y: _chain(torch, x, y)), ("torch.compile", compiled)):
                f(x, y)
                told(case="chain", n=n, by=by, device_us=torch_device_us(torch, lambda f=f: f(x, y)),
                     host_us=host_us(lambda f=f: f(x, y), torch.cuda.synchronize))  # fmt: skip

        def jaxes(n: int = n, a: Any = a, b: Any = b) -> None:
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
            import jax

            x, y = jax.device_put(a), jax.device_put(b)
            f = jax.jit(lambda x, y: _chain(jax.numpy, x, y))
            last = [f(x, y)]
            told(case="chain", n=n, by="jax", host_us=host_us(
                lambda: last.__setitem__(0, f(x, y)), lambda: last[0].block_until_ready()))  # fmt: skip

        for name, work in (("yosegi", yosegi), ("torch", torches), ("jax", jaxes)):
            attempted(f"chain {n} {name}", work)


def memory() -> None:
    """Elementwise work and reductions against a copy on the device."""
    for n in (10_000_000, 100_000_000):
        attempted(f"memory {n}", partial(_memory, Ours(), n))


def _memory(ours: Ours, n: int) -> None:
    import torch

    ys, rng = ours.ys, np.random.default_rng(2)
    a = rng.random(n, dtype=np.float32)
    s, t = torch.from_numpy(a).cuda(), torch.empty(n, device="cuda")
    turns = 50 if n < 50_000_000 else 20
    limit = 8 * n / torch_device_us(torch, lambda: t.copy_(s), turns) / 1e3
    told(case="copy", n=n, by="torch", gbs=limit)
    wide = (n // 1000, 1000)
    with ys.options(device=DEVICE, on_fallback="error"):
        x, y = ours.put(a), ours.put(a[::-1].copy())
        z = ours.put(a.reshape(wide))
        cases: list[tuple[str, Any, tuple[Any, ...], Any, Any, int]] = [
            ("scale", lambda x: x * 2.5, (x,), lambda: a * np.float32(2.5), lambda: s * 2.5, 8 * n),
            ("add", lambda x, y: x + y, (x, y), lambda: a + a[::-1], lambda: s + t, 12 * n),
            ("gelu", lambda x: ys.nn.gelu(x * 1.3 + 0.2), (x,),
             lambda: torch.nn.functional.gelu(s * 1.3 + 0.2).cpu().numpy(),
             lambda: torch.nn.functional.gelu(s * 1.3 + 0.2), 8 * n),
            ("sum", lambda x: ys.sum(x), (x,), lambda: a.sum(dtype=np.float64), lambda: s.sum(), 4 * n),
            ("max", lambda x: ys.max(x), (x,), lambda: a.max(), lambda: s.max(), 4 * n),
            ("sum of rows", lambda z: ys.sum(z, axis=1), (z,), lambda: a.reshape(wide).sum(1, dtype=np.float64),
             lambda: s.view(wide).sum(1), 4 * n),
            ("sum of columns", lambda z: ys.sum(z, axis=0), (z,), lambda: a.reshape(wide).sum(0, dtype=np.float64),
             lambda: s.view(wide).sum(0), 4 * n),
            ("sum of exp", lambda x: ys.sum(ys.exp(x) * x), (x,), lambda: (np.exp(a) * a).sum(dtype=np.float64),
             lambda: (torch.exp(s) * s).sum(), 4 * n),
        ]  # fmt: skip
        for name, program, given, expected, peer, nbytes in cases:

            def work(name: str, program: Any, given: Any, expected: Any, peer: Any, nbytes: int) -> None:
                f = ys.jit(program)
                for _ in range(3):
                    made = f(*given)
                checked(name, made.numpy(), expected(), 1e-5)
                del made
                us = ours.device_us(lambda: f(*given), turns)
                other = torch_device_us(torch, peer, turns)
                told(case=name, n=n, us=us, gbs=nbytes / us / 1e3, of_copy=nbytes / us / 1e3 / limit, torch_us=other)

            attempted(f"{name} {n}", partial(work, name, program, given, expected, peer, nbytes))


def matmul() -> None:
    """Products at every precision against cuBLAS through torch."""
    import torch

    from yosegi._graph.graph import capture, graph_of
    from yosegi._schedule.fuse import fuse
    from yosegi._tensor.precision import Precision

    ours = Ours()
    ys, rng = ours.ys, np.random.default_rng(3)
    kinds = [("float16", Precision.FULL, 2e-3), ("bfloat16", Precision.FULL, 1e-2), ("float32", Precision.FULL, 2e-6),
             ("float32", Precision.TF32, 2e-3), ("float32", Precision.BF16X3, 1e-5)]  # fmt: skip
    for n in PRODUCTS:
        a, b = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(2))
        for name, precision, error in kinds:

            def work(n: int = n, a: Any = a, b: Any = b, name: str = name, precision: Any = precision,
                     error: float = error) -> None:  # fmt: skip
                dtype = getattr(ys, name)
                p, q = ys.asarray(a).astype(dtype), ys.asarray(b).astype(dtype)
                ys.eval(p, q)
                (region,) = fuse(graph_of(capture([(p @ q)._node])[0]))
                kernel = ours.device.compile(replace(region, precision=precision))
                x, y = ours.device.from_host(p.numpy()), ours.device.from_host(q.numpy())
                rows = slice(0, 8)
                exact = p.numpy()[rows].astype(np.float64) @ q.numpy().astype(np.float64)
                for _ in range(20):  # until the way is known
                    result = kernel(x, y)[0]
                checked(f"{name} {precision.value} {n}", ours.device.to_host(result)[rows], exact, error)
                turns = 100 if n <= 1024 else 20 if n <= 4096 else 5
                host = ours.host_us(lambda: kernel(x, y), turns, 5) if n <= 1024 else 0.0
                s, t = (torch.from_numpy(m).cuda().to(getattr(torch, name)) for m in (a, b))
                torch.backends.cuda.matmul.allow_tf32 = precision is Precision.TF32
                called = host_us(lambda: s @ t, torch.cuda.synchronize, turns, 5) if n <= 1024 else 0.0
                both = in_turns(ours, lambda: kernel(x, y), torch, lambda: s @ t, turns)
                tflops, torchs = (2 * n**3 / both[k] / 1e6 for k in ("us", "torch_us"))
                told(case="matmul", n=n, kind=f"{name} {precision.value}", host_us=host, torch_host_us=called,
                     tflops=tflops, torch_tflops=torchs, **both)  # fmt: skip

            attempted(f"matmul {n} {name} {precision.value}", work)


def attention() -> None:
    """Fused attention and its gradient beside torch's."""
    from gpu_kernels import attention_beside_torch, gradient_beside_torch

    ours = Ours()
    attention_beside_torch(ours, told, attempted, torch_device_us)
    gradient_beside_torch(ours, told, attempted, torch_device_us)


def kernels() -> None:
    """Every way to compute products and patterns."""
    from gpu_kernels import all_ways

    all_ways(Ours(), told, attempted)


def convolutions() -> None:
    """Every way to compute convolutions, beside torch's."""
    from gpu_convolutions import convolutions_beside_torch

    convolutions_beside_torch(Ours(), told, attempted, torch_device_us)


def library() -> None:
    """Sorts, transforms and linear algebra, checked, and timed beside PyTorch's."""
    from gpu_library_ops import main

    assert main(110) == 0, "a result is wrong"


def patterns() -> None:
    """The seven patterns beside PyTorch's."""
    from gpu_patterns import all_patterns

    all_patterns(Ours(), told, attempted, (torch_device_us, host_us, in_turns))


def written() -> None:
    """Programs in a user's own words beside PyTorch's."""
    from gpu_patterns import all_patterns, written

    all_patterns(Ours(), told, attempted, (torch_device_us, host_us, in_turns), written)


def transfer() -> None:
    """To the host and back."""
    import torch

    ours = Ours()
    for megabytes in (1, 40, 400):
        a = np.random.default_rng(4).random(megabytes * 250_000, dtype=np.float32)

        def work(a: Any = a, megabytes: int = megabytes) -> None:
            data = ours.device.from_host(a)
            first = time.perf_counter()
            checked("a download", ours.device.to_host(data)[:1000], a[:1000], 0)
            cold = time.perf_counter() - first
            s = torch.from_numpy(a).cuda()
            down, up, other, other_up = [], [], [], []
            for _ in range(5):
                for into, call in (
                    (down, lambda: ours.device.to_host(data)),
                    (other, s.cpu),
                    (up, lambda: (ours.device.from_host(a), ours.device.synchronize())),
                    (other_up, lambda: (torch.from_numpy(a).cuda(), torch.cuda.synchronize())),
                ):
                    torch.cuda.synchronize()
                    ours.device.synchronize()
                    start = time.perf_counter()
                    call()
                    into.append(a.nbytes / (time.perf_counter() - start) / 1e9)
            told(case="transfer", megabytes=megabytes, down_gbs=statistics.median(down),
                 first_gbs=a.nbytes / cold / 1e9,
                 up_gbs=statistics.median(up), torch_down_gbs=statistics.median(other),
                 torch_up_gbs=statistics.median(other_up))  # fmt: skip

        attempted(f"transfer {megabytes} MB", work)


def branches() -> None:
    """Four of them in one function: side by side in its graph, and one after the other."""
    from yosegi.devices.cuda import replay
    from yosegi.devices.cuda.concurrency import Turn

    ours = Ours()
    ys, rng, aside = ours.ys, np.random.default_rng(6), replay.turns
    for n in (128, 256, 512, 1024, 2048):
        a, *ws = (rng.normal(size=(n, n)).astype(np.float16) / np.float16(n**0.5) for _ in range(5))
        expected = [_gelu_softmax(a.astype(np.float64) @ w.astype(np.float64)) for w in ws]
        times = {}
        for how, turns in (("side by side", aside), ("in a row", lambda given: [Turn(0, ())] * len(given))):
            replay.turns = turns
            with ys.options(device=DEVICE, on_fallback="error"):
                given = [ours.put(v) for v in (a, *ws)]
                f = ys.jit(lambda x, *ws: tuple(ys.nn.softmax(ys.nn.gelu(x @ w)) for w in ws))
                for _ in range(30):
                    made = f(*given)
                for part, wanted in zip(made, expected, strict=True):
                    checked(f"{how} {n}", part.numpy(), wanted, 5e-3)
                times[how] = ours.device_us(lambda f=f, given=given: f(*given))
        replay.turns = aside
        told(case="four branches", n=n, **{how.replace(" ", "_"): us for how, us in times.items()})


def _gelu_softmax(x: Any) -> Any:
    from gpu_kernels import gelu, softmax

    return softmax(gelu(x))


def full() -> None:
    """A GPU whose memory somebody else has taken: runs that come to the end of it go on elsewhere, and lose nothing."""
    from yosegi._run.trace import trace

    ours = Ours()
    ys, runtime = ours.ys, ours.cuda.runtime
    a = np.random.default_rng(5).normal(size=(4096, 4096)).astype(np.float32)  # 64 MB
    x = ours.put(a)
    ys.eval(x)
    ours.device.synchronize()
    taken = runtime.malloc(runtime.memGetInfo()[0] - (300 << 20))
    try:
        with ys.options(device=DEVICE, on_fallback="silent"):
            made = [x * n + 1 for n in range(12)]  # more than twice what there is
            ys.eval(*made[:2])
            total = ys.sum(ys.concat(made), axis=0)
            ys.eval(total, *made)
            checked("a sum", total.numpy(), np.sum([a * n + 1 for n in range(12)], axis=0).sum(axis=0), 1e-4)
            for n, part in enumerate(made):
                checked(f"part {n}", part.numpy(), a * n + 1, 1e-6)
    finally:
        runtime.free(taken)
    failures = [f.message for record in trace.records for f in record.failures if f.kind == "OutOfMemory"]
    assert failures, "there was room for everything: nothing was tested"
    told(case="full", times_out_of_memory=len(failures), first=failures[0], ran=str(trace.steps()))


def odd(dtype: str = "", share: str = "0/1") -> None:
    """Every way of every case of odd shapes: what the sanitizer looks at. `share`: of so many processes, the cases of
    one."""
    from gpu_convolutions import odd_convolutions
    from gpu_kernels import ERRORS, odd_reductions, odd_ways

    ours, (number, of), seen = Ours(), map(int, share.split("/")), count()

    def attempted_in_turn(name: str, work: Callable[[], Any]) -> None:
        if next(seen) % of == number:
            attempted(name, work)

    for each in (dtype,) if dtype else ERRORS:
        odd_convolutions(ours, told, attempted_in_turn, each)
        odd_ways(ours, told, attempted_in_turn, each)
        odd_reductions(ours, told, attempted_in_turn, each)


def memcheck() -> None:
    """Accesses out of bounds, by NVIDIA's tool."""
    _sanitized("memcheck")


def racecheck() -> None:
    """Races within groups, by NVIDIA's tool."""
    _sanitized("racecheck")


def _sanitized(tool: str) -> None:
    """In several processes: the tool keeps the host busy, more than the GPU."""
    from gpu_kernels import ERRORS

    command = [which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer", "--tool", tool,
               "--error-exitcode", "9", sys.executable, __file__, "--child", "odd"]  # fmt: skip
    own = [(dtype, f"{n}/{_SHARES}") for dtype in ERRORS for n in range(_SHARES)]
    aside = os.environ | {"YOSEGI_DEVICE": "cpu"}  # where references and inputs come from: nothing is calibrated
    with ExitStack() as files:
        logs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in own]
        running = [subprocess.Popen([*command, *at], env=aside, stdout=log, stderr=log)
                   for at, log in zip(own, logs, strict=True)]  # fmt: skip
        for (dtype, share), process, log in zip(own, running, logs, strict=True):
            status = process.wait()
            log.seek(0)
            print(log.read(), flush=True)
            told(case=tool, dtype=dtype, share=share, status=status)


def chaos() -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "chaos.py"), "--graphs", "200"]
    told(case="chaos", status=subprocess.run(command).returncode)


def tests() -> None:
    own = ["tests/devices", "tests/test_known_failures.py", "tests/test_survival.py", "tests/test_memory.py"]
    command = [sys.executable, "-m", "pytest", *own, "-q", "-p", "no:cacheprovider", "--tb=short", "--maxfail=60",
               f"--junitxml={_out() / 'tests.xml'}", "-W", "ignore"]  # fmt: skip
    if find_spec("xdist") is not None:
        command += ["-n", "8"]
    told(case="tests", status=subprocess.run(command, cwd=ROOT).returncode)


# All of it


def _out() -> Path:
    folder = Path(os.environ.get("OUT", "gpu-run"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(part: str, log: Any, cache: str) -> list[Row]:
    """One part in a process of its own; what it printed goes on as it comes."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / ".gpu" / "site"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p), "YOSEGI_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1",
        "YOSEGI_BACKGROUND": "0", "YOSEGI_CHECK": "1" if part in ("tests", "chaos") else "0",
    }  # fmt: skip
    command = ["timeout", "-k", "5", str(LIMITS[part]), sys.executable, __file__, "--child", part]
    rows: list[Row] = []
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("row:"):
                rows.append(json.loads(line.removeprefix("row:")))
            else:
                for to in (sys.stdout, log):
                    to.write(line)
                    to.flush()
    rows.append({"part": part, "status": child.returncode, "seconds": round(time.perf_counter() - start, 1)})
    for to in (sys.stdout, log):
        to.write(f"== {part}: status {child.returncode} after {rows[-1]['seconds']} s\n")
        to.flush()
    return rows


def main(parts: Sequence[str]) -> int:
    """All parts, or one as a child; 1 if anything failed."""
    if parts and parts[0] == "--child":
        globals()[parts[1]](*parts[2:])
        return 0
    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as cache, (_out() / "gpu.txt").open("w", encoding="utf-8") as log:
        for part in parts or LIMITS:
            found[part] = _run(part, log, cache)
            (_out() / "gpu.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(any("failed" in row or row.get("status", 0) for rows in found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
