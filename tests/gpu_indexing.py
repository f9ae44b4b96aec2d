"""Indexing, searches, scans, sources and random words on a GPU: against the reference, then timed beside PyTorch.

    PYTHONPATH=src:tests python tests/gpu_indexing.py [device]     (`cuda:0` unless another is named)

Each case stands alone: one that fails prints its exception, and the others go on. The exit status is the number of
failures. Times are medians of runs that each end in a wait for the device, under `jit`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from program_cases import BAD, ELEMENTS, INDEXING, SCANS, SEARCHES, call
from program_code import expected
from values import same
from yosegi.errors import IndexingError
from yosegi.ops.index import scatter_add

RNG = np.random.default_rng(9)
_WARM, _RUNS = 12, 50


def checks() -> Iterator[tuple[str, Callable[[], ys.Tensor], int]]:
    """A name, a tensor that is one call, and by how many units in the last place it may differ."""
    for table, ulps in ((INDEXING, 64), (SEARCHES, 0), (ELEMENTS, 0)):
        for name, make in table.items():
            yield name, make, ulps
    for name, shape, axis, initial in SCANS:
        yield f"{name} {shape}", lambda n=name, s=shape, a=axis, i=initial: call(  # type: ignore[misc]
            n, RNG.integers(-3, 4, s), axis=a, include_initial=i
        ), 0  # fmt: skip
        yield f"{name} of floats {shape}", lambda n=name, s=shape, a=axis, i=initial: call(  # type: ignore[misc]
            n, RNG.uniform(0.9, 1.1, s), axis=a, include_initial=i
        ), 1024  # fmt: skip
    for shape, axis in (((4096, 8192), 1), ((5_000_011,), 0), ((300, 7001), 0)):
        large = RNG.normal(size=shape).astype(np.float32)
        large.reshape(-1)[17::100_003] = np.nan
        yield f"argmax {shape}", lambda x=large, a=axis: call("argmax", x, axis=a), 0  # type: ignore[misc]
        yield f"argmin {shape}", lambda x=large, a=axis: call("argmin", x, axis=a), 0  # type: ignore[misc]
    yield "long cumulative_sum", lambda: call("cumulative_sum", RNG.integers(-9, 9, 5_000_011), axis=0), 0
    yield "many words", lambda: call("random_words", np.array([1, 2, 3, 4], np.uint32), shape=(1_000_003,)), 0
    for rows, count, width in ((256, 2048, 384), (50_000, 8192, 768), (3, 5000, 17)):
        x, value = np.zeros((rows, width), np.float32), RNG.normal(size=(count, width)).astype(np.float32)
        places = RNG.integers(0, rows, count)
        yield (f"scatter_add {count} into {(rows, width)}",
               lambda x=x, v=value, i=places: scatter_add(  # type: ignore[misc]
                   ys.asarray(x), ys.asarray(v), ys.asarray(i), axes=(0,), at=0), 1 << 14)  # fmt: skip


def attempted(name: str, work: Callable[[], Any]) -> bool:
    """Whether some work succeeds; if not, its exception is printed."""
    try:
        work()
    except Exception as error:
        print(f"FAILED  {name}: {type(error).__name__}: {str(error).strip()[:400]}", flush=True)
        if "-v" in sys.argv:
            traceback.print_exc()
        return False
    return True


def checked(device: str) -> int:
    """Every case on the device alone, in any order and in the reference's. Returns the number of failures."""
    failures = total = 0
    for deterministic in (False, True):
        for name, make, ulps in checks():

            def work(make: Any = make, ulps: int = ulps, deterministic: bool = deterministic) -> None:
                tensor = make()
                wanted = expected(tensor)
                with ys.options(device=device, on_fallback="error", deterministic=deterministic):
                    got = [np.asarray((make_again(tensor)).numpy()) for _ in range(3)]  # the third is replayed
                for each in got:
                    loose = ulps if not deterministic or "cumulative" in tensor._node.call.op.name else 0
                    near(each, wanted, loose)
                    if deterministic:
                        assert each.tobytes() == got[0].tobytes(), "bits differ from run to run"

            total += 1
            failures += not attempted(f"{name}{' (deterministic)' if deterministic else ''}", work)
    for name, bad in BAD.items():
        total += 1
        failures += not attempted(f"out of range: {name}", lambda bad=bad: _raises(device, *bad()))  # type: ignore[misc]
    print(f"{total - failures} of {total} cases agree with the reference on {device}", flush=True)
    return failures


def make_again(tensor: ys.Tensor) -> ys.Tensor:
    """The same call on the same values, not computed yet."""
    node = tensor._node
    return node.call.op(*[ys.Tensor(n) for n in node.inputs], **node.call.attrs)


def near(got: Any, wanted: Any, ulps: int) -> None:
    """The same bits, or sums whose errors are small beside their largest."""
    if not ulps or got.dtype.kind not in "fc":
        same(got, wanted, ulps=0)
        return
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    error = np.max(np.abs(got - wanted), initial=0)
    most = ulps * np.finfo(got.dtype).eps * np.max(np.abs(wanted), initial=1e-30)
    assert error <= most, f"off by {error}, where {most} would do"


def _raises(device: str, tensor: ys.Tensor, text: str) -> None:
    inputs = [ys.Tensor(n) for n in tensor._node.inputs]
    function = ys.jit(lambda *args: tensor._node.call.op(*args, **tensor._node.call.attrs))
    with ys.options(device=device, on_fallback="error"), pytest.raises(IndexingError, match=text):
        function(*inputs).numpy()


# Times


def cases(ys_device: str, torch: Any) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """A name, our program and PyTorch's, each on values that are on the device."""

    def both(array: Any) -> tuple[ys.Tensor, Any]:
        ours = ys.asarray(array).to_device(ys_device)
        return ours, None if torch is None else torch.from_numpy(array).cuda()

    def programs(label: str, table: Any, value: Any, places: Any) -> Iterator[tuple[str, Any, Any]]:
        (x, t_x), (v, t_v), (i, t_i) = both(table), both(value), both(places)
        look_up = ys.jit(lambda x, i: ys.take(x, i, axis=0))
        add = ys.jit(lambda x, v, i: scatter_add(x, v, i, axes=(0,), at=0))
        yield f"gather {label}", lambda: look_up(x, i), lambda: torch.nn.functional.embedding(t_i, t_x)
        yield f"scatter_add {label}", lambda: add(x, v, i), lambda: t_x.index_add(0, t_i, t_v)
        yield (f"scatter_add {label}, deterministic", lambda: _deterministic(add, x, v, i),
               lambda: _in_order(torch, t_x, t_v, t_i))  # fmt: skip

    for rows, count, width in ((256, 2048, 384), (50_000, 8192, 768)):
        table, value = (RNG.normal(size=(n, width)).astype(np.float32) for n in (rows, count))
        yield from programs(f"{count} of {(rows, width)}", table, value, RNG.integers(0, rows, count))
    table, value = (RNG.normal(size=(n, 384)).astype(np.float32) for n in (256, 2048))
    skewed = (RNG.random(2048) ** 4 * 256).astype(np.int64)  # as letters are: a few take most of the places
    yield from programs("2048 of (256, 384), skewed", table, value, skewed)
    rows_, t_rows = both(RNG.normal(size=(4096, 8192)).astype(np.float32))
    largest = ys.jit(lambda x: ys.argmax(x, axis=1))
    yield "argmax (4096, 8192)", lambda: largest(rows_), lambda: t_rows.argmax(1)
    line, t_line = both(RNG.normal(size=10_000_000).astype(np.float32))
    running = ys.jit(lambda x: ys.cumulative_sum(x))
    yield "cumulative_sum 10M", lambda: running(line), lambda: t_line.cumsum(0)
    overall = ys.jit(lambda x: ys.argmax(x))
    yield "argmax 10M", lambda: overall(line), lambda: t_line.argmax()
    dropped = ys.jit(lambda x: ys.nn.dropout(x, 0.1, rng=3))
    yield ("dropout (4096, 8192)", lambda: dropped(rows_),
           lambda: torch.nn.functional.dropout(t_rows, 0.1))  # fmt: skip


def _deterministic(function: Callable[..., Any], *args: Any) -> Any:
    with ys.deterministic():
        return function(*args)


def _in_order(torch: Any, x: Any, value: Any, places: Any) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return x.index_add(0, places, value)
    finally:
        torch.use_deterministic_algorithms(False)


def timed(work: Callable[[], Any], wait: Callable[[], None]) -> float:
    """The median of its runs, in microseconds."""
    for _ in range(_WARM):
        work()
    wait()
    times = []
    for _ in range(_RUNS):
        start = perf_counter()
        work()
        wait()
        times.append(perf_counter() - start)
    return median(times) * 1e6


def measured(name: str) -> int:
    """A table of times. Returns the number of failures."""
    device = next(d for d in ys.devices() if d.name == name)
    try:
        import torch

        torch = torch if torch.cuda.is_available() else None
    except ImportError:
        torch = None
    if torch is None:
        print("PyTorch, or a GPU for it, is not here: our times alone")
    print(f"\n| program | yosegi, µs | torch {getattr(torch, '__version__', '—')}, µs | share |\n|---|---|---|---|")
    failures = 0
    with ys.options(device=name, on_fallback="error"):
        for label, ours, theirs in cases(name, torch):

            def work(label: str = label, ours: Any = ours, theirs: Any = theirs) -> None:
                mine = timed(ours, device.synchronize)
                if torch is None:
                    print(f"| {label} | {mine:.1f} | | |", flush=True)
                    return
                other = timed(theirs, torch.cuda.synchronize)
                print(f"| {label} | {mine:.1f} | {other:.1f} | {mine / other:.2f} |", flush=True)

            failures += not attempted(label, work)
    return failures


def main(arguments: list[str]) -> int:
    """Check and measure on the device that is named."""
    named = [a for a in arguments if not a.startswith("-")]
    name = named[0] if named else "cuda:0"
    found = {d.name: d for d in ys.devices()}
    if name not in found:
        print(f"there is no {name} here: {', '.join(found)}")
        return 1
    print(repr(found[name]))
    failures = checked(name) if "--times" not in arguments else 0
    failures += 0 if "--checks" in arguments else measured(name)
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
