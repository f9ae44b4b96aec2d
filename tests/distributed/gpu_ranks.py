"""Ranks on GPUs: two ranks on one GPU through CUDA IPC, and NCCL at one rank.

    PYTHONPATH=src:tests python tests/distributed/gpu_ranks.py [part …]      about 90 s on a GPU

Each part is a program of its own with a time limit: `mpiexec` starts those of two ranks. A part that fails costs no
other. With `--fake` all of it runs on the host's memory, with kernels that a C++ compiler builds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

DEADLINE = 6.0
LIMITS = {"nccl": 40, "collectives": 60, "copies": 45, "train": 40, "kill": 40}
"""The parts in order, and the seconds that each may take. All but the first have two ranks."""
MOVED = ("bool", "int16", "float32", "float64", "complex128")
"""A dtype of each size, for collectives that move elements alone."""


# The parts


def nccl() -> None:
    """NCCL at one rank: all collectives, and a training step that is one launch with its all-reduce in it."""
    import yosegi as ys
    from yosegi.distributed import Combine, communication, links

    mesh = ys.distributed.Mesh((1,), ("data",))
    link = links.connect(mesh.groups[0])
    print(f"connection: {link.connection}{link.reason}")
    assert str(link.connection).startswith("NCCL"), "expected NCCL"
    via = {"mesh": mesh, "via": link.connection, "why": ""}

    def reduced(x: Any, combine: Combine = Combine.SUM, *, is_ordered: bool = False) -> Any:
        return communication.all_reduce(x, **via, axis=0, combine=combine, fixed_order=is_ordered)

    from distributed_cases import DTYPES, combines, value

    count = 0
    for dtype in DTYPES:
        for shape in [(0,), (7,), (4, 5), (3, 2, 6)]:
            array = value(dtype, shape, 0)
            x = ys.asarray(array)
            calls = [lambda x: communication.broadcast(x, **via, root=0)]
            for dim in range(len(shape)):
                calls.append(lambda x, d=dim: communication.all_gather(x, **via, axis=0, dim=d, length=x.shape[d]))
                for to in {*range(len(shape))} - {dim}:
                    calls.append(lambda x, d=dim, to=to: communication.all_to_all(
                        x, **via, axis=0, dim=d, to=to, length=x.shape[d]))  # fmt: skip
            for combine in combines(dtype):
                for fixed in (False, True):
                    calls.append(lambda x, c=combine, f=fixed: reduced(x, c, is_ordered=f))
                    calls.append(lambda x, c=combine, f=fixed: communication.reduce_scatter(
                        x, **via, axis=0, dim=0, combine=c, fixed_order=f))  # fmt: skip
            for call in calls:
                same(call(x).numpy(), array)
                count += 1
    print(f"{count} collectives of {len(DTYPES)} dtypes equal NumPy")

    def step(exchanged: Callable[[Any], Any]) -> Any:
        def run(w: Any, x: Any, y: Any) -> Any:
            loss, (a, b) = ys.value_and_grad(lambda p: model_loss(p, x, y))(w)
            return (w[0] - 0.1 * exchanged(a), w[1] - 0.1 * exchanged(b)), loss

        return ys.jit(run)

    first, x, y = state()
    results, counted, seconds = [], {}, {}
    for name, exchanged in (("alone", lambda g: g), ("exchanged", reduced)):
        run, w = step(exchanged), first
        for _ in range(6):
            w, loss = run(w, x, y)
        ys.synchronize()
        with transferred() as counted[name]:
            began = time.perf_counter()
            for _ in range(20):
                w, loss = run(w, x, y)
            ys.synchronize()
            seconds[name] = (time.perf_counter() - began) / 20
            value_of_loss = float(loss)
        results.append([value_of_loss, *[p.numpy() for p in w]])
        plan = run.plans[-1]
        assert len(plan.steps) == 1, plan.explain()
        print(f"step, {name}: {plan.steps[0].launched}, {seconds[name] * 1e6:.0f} µs, copies {counted[name] or 'none'}")
        assert plan.steps[0].launched.startswith("one launch"), plan.explain()
    assert "all_reduce" in run.plans[-1].to_json()["steps"][0]["ops"], "the exchange is a part of the launch"
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other), "the exchange changed a result"
    assert sum(counted["exchanged"].values()) <= 1, f"more than the loss: {counted}"


def collectives() -> None:
    """All collectives of tensors against NumPy, and their gradients."""
    import yosegi as ys
    from distributed_cases import DTYPES
    from tensor_collectives import (
        check_gradients,
        check_gradients_of_parts,
        check_parts,
        check_reductions,
        check_replicate,
    )
    from yosegi.distributed import current

    ranks = current()
    mesh = ys.distributed.Mesh((ranks.size,), ("data",))
    route = ys.explain(ys.distributed.gather(ys.distributed.shard(np.ones((4, 2), np.float32), mesh, data=0)))
    if ranks.rank == 0:
        print(next((line.strip() for line in str(route).splitlines() if "by CUDA" in line), route))
    assert "CUDA IPC" in str(route), route
    for dtype in DTYPES[::4] if FAKE else DTYPES:
        began = time.perf_counter()
        check_reductions(ranks, dtype)
        if str(dtype) in MOVED:
            check_parts(ranks, dtype)
            check_replicate(ranks, dtype)
        if ranks.rank == 0:
            print(f"{dtype}: equal ({time.perf_counter() - began:.1f} s)", flush=True)
    check_gradients_of_parts(ranks, np.dtype("float32"))
    check_gradients(ranks)
    for fixed in (False, True):
        with ys.options(deterministic=fixed):
            value = np.random.default_rng(ranks.rank).normal(size=100_001).astype(np.float32)
            whole = ys.distributed.from_local(ys.asarray(value), mesh, data=ys.distributed.Partial())
            total = ys.distributed.all_reduce(whole).numpy()
            both = ranks.all_gather(value)
            assert np.array_equal(total, both[0] + both[1])
    if ranks.rank == 0:
        print("gradients: equal; sums of two ranks: bit-equal")


def copies() -> None:
    """No value goes through the host; the times of exchanges, beside those through the host over MPI."""
    import yosegi as ys
    from yosegi import distributed as dist

    ranks = dist.current()
    direct = dist.Mesh((ranks.size,), ("data",))
    with ys.options(device="auto"):
        staged = dist.Mesh((ranks.size,), ("data",), ranks.split(0, ranks.rank))
    sizes = (1 << 12, 1 << 20) if FAKE else (1 << 12, 1 << 16, 1 << 20, 4 << 20, 64 << 20)
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        for nbytes in sizes:
            taken, counted = {}, {}
            for way, mesh in (("direct", direct), ("host", staged)):
                run = ys.jit(lambda x, mesh=mesh, name=name: exchanged(name, x * 2, mesh) + 1)
                x = on_device(np.ones(nbytes // 4, np.float32))
                for _ in range(4):
                    made = run(x)
                ys.synchronize()
                with transferred() as counted[way]:
                    times = []
                    for _ in range(3 if FAKE else 12):
                        ranks.barrier()
                        began = time.perf_counter()
                        made = run(x)
                        ys.synchronize()
                        times.append(time.perf_counter() - began)
                taken[way] = median(times)
                assert float(made[0]) == (2 * ranks.size if "reduce" in name else 2) + 1
            assert not counted["direct"], f"{name} of {nbytes} bytes: {counted['direct']}"
            if ranks.rank == 0:
                shown = [f"{taken[way] * 1e6:8.0f} µs {by}" for way, by in (("direct", "IPC"), ("host", "MPI"))]
                print(f"{name:15}{nbytes >> 10:7} KB:{','.join(shown)} ({counted['host'] or 'no copies'})", flush=True)
    if ranks.rank == 0:
        print("copies between host and device: none by CUDA IPC")


def train() -> None:
    """A data parallel run on two ranks has the losses of one."""
    import yosegi as ys
    from yosegi import distributed as dist

    ranks = dist.current()
    first, x, y = state()

    def step(optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = ys.value_and_grad(lambda p: model_loss(p, x, y))(optimizer.params)
        return optimizer.step(grads), loss

    losses, seconds, counted = {}, {}, {}
    for name, run in (("one", ys.jit(step)), ("two", dist.data_parallel(step))):
        optimizer = ys.optim.Adam(list(first), lr=0.01)
        kept = []
        for _ in range(3):
            optimizer, loss = run(optimizer, x, y)
            kept.append(loss)
        ys.synchronize()
        with transferred() as counted[name]:
            began = time.perf_counter()
            for _ in range(20):
                optimizer, loss = run(optimizer, x, y)
                kept.append(loss)
            ys.synchronize()
            seconds[name] = (time.perf_counter() - began) / 20
        losses[name] = [float(loss) for loss in kept]
        if ranks.rank == 0:
            shown = f"{seconds[name] * 1e3:.2f} ms a step, loss {losses[name][0]:.6f} → {losses[name][-1]:.6f}"
            print(f"{name} rank{'s' * (name == 'two')}: {shown}, copies {counted[name] or 'none'}", flush=True)
    np.testing.assert_allclose(losses["two"], losses["one"], rtol=2e-4 if FAKE else 1e-4)
    assert not counted["two"], counted


def kill() -> None:
    """Rank 1 kills itself between two exchanges; rank 0 names it within the deadline."""
    import yosegi as ys
    from yosegi import distributed as dist

    ranks = dist.init(deadline=60.0)
    mesh = dist.Mesh((ranks.size,), ("data",))
    run = ys.jit(lambda x: exchanged("all_reduce", x, mesh))
    x = on_device(np.ones(1 << 16, np.float32))
    for _ in range(5):
        ys.eval(run(x))
    ranks.barrier()
    mesh.groups[0].deadline = ranks.deadline = DEADLINE
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    lost = None
    try:
        run(x).numpy()
    except dist.RankLost as error:
        lost = error
    waited = time.monotonic() - began
    print(f"RankLost after {waited:.1f} s: {lost}", flush=True)
    assert lost is not None, "a sum without rank 1"
    assert lost.ranks == (1,), lost.ranks
    assert waited < DEADLINE + 1.0


# What they share


FAKE = "--fake" in sys.argv
DEVICE = "cuda:0"


def same(got: Any, wanted: Any) -> None:
    """The same dtype, shape and values."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), (got.dtype, got.shape)
    assert np.array_equal(got, wanted, equal_nan=wanted.dtype.kind not in "biu"), f"{got}, expected {wanted}"


def product(a: Any, b: Any) -> Any:
    """A product of matrices; the fake GPU has no library for them."""
    import yosegi as ys

    return ys.sum(a[:, :, None] * b[None], axis=1) if FAKE else a @ b


def state() -> tuple[Any, Any, Any]:
    """Weights of two layers, and a batch, on the device."""
    width = 8 if FAKE else 256
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) / s[0] ** 0.5 for s in ((width, width), (width, 4))]
    batch = [rng.normal(size=(16 if FAKE else 512, n)).astype(np.float32) for n in (width, 4)]
    return tuple(map(on_device, arrays)), *map(on_device, batch)


def model_loss(p: Any, x: Any, y: Any) -> Any:
    """The mean squared error of two layers."""
    import yosegi as ys

    return ys.mean((product(ys.tanh(product(x, p[0])), p[1]) - y) ** 2)


def on_device(array: Any) -> Any:
    """A tensor in the device's memory."""
    import yosegi as ys

    return ys.asarray(array).to_device(DEVICE)


def exchanged(name: str, x: Any, mesh: Any) -> Any:
    """A collective on the part of each rank; the local result."""
    from yosegi import distributed as dist

    if name == "all_gather":
        return dist.all_gather(dist.from_local(x, mesh, data=0))
    whole = dist.from_local(x, mesh, data=dist.Partial())
    return dist.all_reduce(whole) if name == "all_reduce" else dist.local(dist.reduce_scatter(whole, 0))


@contextmanager
def transferred() -> Iterator[dict[str, int]]:
    """The transfers inside, by their route."""
    import yosegi as ys

    before = ys.memory_stats()["transfers"]
    counted: dict[str, int] = {}
    yield counted
    for name, after in ys.memory_stats()["transfers"].items():
        more = after["count"] - before.get(name, {"count": 0})["count"]
        if more:
            counted[name] = more


@contextmanager
def fake_device() -> Iterator[None]:
    """A GPU on the host's memory, with an NCCL."""
    from fakes import installed
    from fakes.nccl import FakeNCCL
    from fakes.shared_gpu import fake_cupy
    from yosegi.devices.cuda import nccl, peers
    from yosegi.devices.cuda.device import CUDADevice

    folder = Path(tempfile.gettempdir()) / "yosegi-fake-kernels"
    folder.mkdir(exist_ok=True)
    cupy = fake_cupy(folder)
    library = nccl.Library(FakeNCCL(cupy.cuda.runtime.put))
    nccl.library = peers.library = lambda: library
    try:
        with installed(CUDADevice(cupy, 0), alone=True):
            yield
    finally:
        cupy.cuda.runtime.close()


# Running them


def launched(part: str) -> list[str]:
    """The command of a part: with `mpiexec` if it has two ranks."""
    own = [sys.executable, __file__, "--rank", part, *(["--fake"] if FAKE else [])]
    if part == "nccl":
        return own
    beside = Path(os.environ.get("MPIEXEC") or Path(sys.executable).parent / "mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise FileNotFoundError("mpiexec is not there")
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    survives = ["--mca", "orte_enable_recovery", "1", "--mca", "orte_abort_on_non_zero_status", "0"]
    options = survives if ") 4." in version else ["--with-ft", "ulfm"]
    return [mpiexec, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *options, "-n", "2", *own]


def run(part: str) -> str:
    """Run a part; "" if it succeeded, else why not."""
    variables = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables |= {
        "YOSEGI_DEVICE": DEVICE,
        "YOSEGI_DEADLINE": "30",
        "YOSEGI_DISTRIBUTED": "off" if part == "nccl" else "mpi",
    }
    if FAKE:
        variables |= {"YOSEGI_CALIBRATE": "0", "YOSEGI_DEVICE": "auto"}
    process = subprocess.Popen(
        launched(part), env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, errors = process.communicate(timeout=LIMITS[part] * (4 if FAKE else 1))
        late = False
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said, errors = process.communicate()
        late = True
    ends = {line for line in said.splitlines() if line.endswith(": done")}
    print("\n".join(f"    {line}" for line in said.splitlines() if line not in ends), flush=True)
    expected = 1 if part in ("nccl", "kill") else 2
    if len(ends) == expected:
        return ""
    tail = "\n".join(line for line in errors.splitlines() if "PMIX" not in line)[-3000:]
    return f"{'ran past its limit' if late else f'status {process.returncode}'}\n{tail}"


def rank(part: str) -> None:
    """One rank of a part."""
    import yosegi as ys
    from yosegi.distributed import current

    number = current().rank if part != "nccl" else 0
    with fake_device() if FAKE else nullcontext(), ys.options(device=DEVICE):
        globals()[part]()
    print(f"{part} on rank {number}: done", flush=True)
    if part == "kill":
        os._exit(0)  # MPI would wait for the rank that is lost


def main() -> int:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[[], *LIMITS], default=[])
    parser.add_argument("--rank")
    parser.add_argument("--fake", action="store_true")
    options = parser.parse_args()
    if options.rank:
        rank(options.rank)
        return 0
    rows = []
    for part in options.parts or LIMITS:
        print(f"{part}:", flush=True)
        began = time.monotonic()
        try:
            failure = run(part)
        except OSError as error:
            failure = str(error)
        rows.append((part, time.monotonic() - began, failure))
        if failure:
            print(failure, flush=True)
    print("\n" + "\n".join(f"{part:12}{seconds:6.1f} s  {'FAILED' if why else 'right'}" for part, seconds, why in rows))
    return int(any(why for *_, why in rows))


if __name__ == "__main__":
    sys.exit(main())
