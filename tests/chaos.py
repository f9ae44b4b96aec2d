"""Random programs over every device of this machine and several that fail at random.

    python tests/chaos.py [--graphs 2000] [--seed 0] [--only SEED]

Every result must equal the reference, no exception may escape, and the devices' memory must come back. It stops by
itself: a program that hangs is ended with its stack shown. A failure prints its seed; `--only` runs that one again.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

import yosegi as ys
from fakes import (
    CompilerFails,
    DiesAfter,
    FailsAtRandom,
    FakeDevice,
    Garbage,
    OutOfMemoryAt,
    WithoutFloat64,
    installed,
)
from yosegi._run.trace import trace
from yosegi.devices.kernel.faults import Faults
from yosegi.errors import DeviceFailure

DTYPES = ("float32", "float64", "int32", "complex64", "float16", "bool")
SHAPES = ((), (1,), (7,), (4, 5), (1, 5), (3, 1, 5), (0, 3), (130,), (33, 17))
NATIVES = frozenset({"softmax", "gelu"})
HANGS_AFTER = 60  # seconds
KEPT = 4096  # bytes of numbers that programs share, which may stay on a device
TABLE = 8 * prod(Faults.shape)  # bytes that a device keeps from the first index on that may be out of range


def _real(x: Any) -> Any:
    return ys.real(x) if x.dtype.is_complex else x


def _numeric(x: Any) -> Any:
    return x.astype(ys.float32) if x.dtype == ys.bool else x


UNARY: Sequence[Callable[[Any], Any]] = (
    lambda x: ys.tanh(_numeric(x)),
    lambda x: ys.sin(_numeric(x)) * 2,
    lambda x: ys.abs(_numeric(x)),
    lambda x: -_numeric(x),
    lambda x: _numeric(x) * 0.5 + 1,
    lambda x: ys.exp(-ys.abs(_numeric(x)).astype(ys.float32)),
    lambda x: ys.where(_real(x) > 0, x, 0 * _numeric(x)),
    lambda x: ys.sum(x, axis=-1) if x.ndim else x,
    lambda x: ys.max(_real(x), axis=0, keepdims=True) if x.ndim and x.size else x,
    lambda x: ys.mean(_numeric(x)) if x.size else x,
    lambda x: ys.any(x, axis=0) if x.ndim else x,
    lambda x: x[::2] if x.ndim else x,
    lambda x: x[..., -1] if x.ndim and x.shape[-1] else x,
    lambda x: x[None],
    lambda x: ys.flip(x),
    lambda x: ys.permute_dims(x, tuple(range(x.ndim))[::-1]),
    lambda x: ys.reshape(x, (-1,)) if x.size else x,
    lambda x: ys.take(ys.reshape(x, (-1,)), ys.asarray([0, 0]), axis=0) if x.size else x,
    lambda x: ys.astype(x, ys.complex64),
    lambda x: _real(x).astype(ys.float64),
    lambda x: ys.cumulative_sum(x, axis=0) if x.ndim else x,
    lambda x: ys.sort(_real(x), axis=-1) if x.ndim else x,
    lambda x: ys.concat([x, x], axis=0) if x.ndim else x,
    lambda x: ys.nn.gelu(_real(_numeric(x))),
    lambda x: ys.nn.softmax(ys.tanh(_real(_numeric(x)))) if x.ndim else x,
    lambda x: ys.nn.rms_norm(_real(_numeric(x))) if x.ndim else x,
)
BINARY: Sequence[Callable[[Any, Any], Any]] = (
    lambda a, b: _numeric(a) + _numeric(b),
    lambda a, b: _numeric(a) * _numeric(b),
    lambda a, b: ys.maximum(_real(_numeric(a)), _real(_numeric(b))),
    lambda a, b: _real(_numeric(a)) < _real(_numeric(b)),
    lambda a, b: _numeric(a) - _numeric(b),
)


def source(rng: np.random.Generator) -> Any:
    """A random array."""
    dtype, shape = DTYPES[rng.integers(len(DTYPES))], SHAPES[rng.integers(len(SHAPES))]
    values = rng.normal(size=shape) * 3
    return (values + 1j * rng.normal(size=shape) if dtype.startswith("complex") else values).astype(dtype)


def build(seed: int) -> list[Any]:
    """The tensors of a random program, some of them evaluated on the way."""
    rng = np.random.default_rng(seed)
    tensors = [ys.asarray(source(rng)) for _ in range(3)]
    for _ in range(int(rng.integers(3, 25))):
        a, b = (tensors[i] for i in rng.integers(len(tensors), size=2))
        kind = rng.random()
        if kind < 0.55:
            made = UNARY[rng.integers(len(UNARY))](a)
        elif kind < 0.9:
            try:
                made = BINARY[rng.integers(len(BINARY))](a, b)
            except (ys.errors.ShapeError, ys.errors.DTypeError):
                continue  # the user's mistake: shapes that do not broadcast, dtypes without a common one
        else:
            matrix = _numeric(a).astype(ys.complex64 if a.dtype.is_complex else ys.float32)
            made = matrix @ ys.permute_dims(matrix, tuple(range(matrix.ndim))[::-1]) if matrix.ndim == 2 else matrix
        if made.size > 100_000:
            continue
        tensors.append(made)
        if rng.random() < 0.15:
            ys.eval(made)
    return tensors[3:]


def devices(seed: int) -> list[FakeDevice]:
    """A few devices that fail, drawn at random."""
    rng = np.random.default_rng([seed, 1])
    makers: Sequence[Callable[[], FakeDevice]] = (
        FakeDevice,
        Garbage,
        WithoutFloat64,
        lambda: OutOfMemoryAt(int(rng.integers(0, 20_000))),
        lambda: CompilerFails("tanh", "sum", "matmul"),
        lambda: DiesAfter(int(rng.integers(0, 12))),
        lambda: FailsAtRandom(rng, 0.2),
        lambda: FailsAtRandom(rng, 0.6, is_volatile=False),
        lambda: FailsAtRandom(rng, 0.2, natives=NATIVES),
        lambda: CompilerFails("gelu", natives=NATIVES),
    )
    return [makers[i]() for i in rng.choice(len(makers), size=2, replace=False)]


def agree(result: Any, reference: Any) -> None:
    """Raise unless a result is the reference's, within what devices may differ by."""
    assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
    rtol = 3e-2 if reference.dtype == np.float16 else 2e-4
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(reference[np.isfinite(reference)]), initial=0)
    # Some devices' own gelu is closer than the formula with 1 + erf(x), of which nothing is left for x below -5.5.
    np.testing.assert_allclose(result, reference, rtol=rtol, atol=rtol * scale + 1e-7)


def check(seed: int) -> None:
    """One program: on the host, and over the failing devices and those of this machine."""
    with ys.options(device="cpu"):
        expected = [t.numpy() for t in build(seed)]
    baseline = in_use()
    fakes = devices(seed)
    names = [d.name for d in ys.devices() if d.name != "cpu"]
    with installed(*fakes) as chain, ys.options(device="+".join([chain, *names])):
        tensors = build(seed)
        ys.eval(*tensors)
        results = [t.numpy() for t in tensors]
    for result, reference in zip(results, expected, strict=True):
        agree(result, reference)
    result = tensors = results = None  # the last result may be a device's own memory
    gc.collect()
    for fake in fakes:
        assert fake.live < KEPT, f"{fake.name} still holds {fake.live} bytes"
    for name, nbytes in in_use().items():
        assert nbytes < baseline[name] + KEPT + TABLE, f"{name} holds {nbytes} bytes, before it was {baseline[name]}"


def in_use() -> dict[str, int]:
    """The bytes that are in use on each device of this machine, when all work is done."""
    for device in ys.devices():
        with suppress(DeviceFailure):  # work that fails here is nobody's any more
            device.synchronize()
    return {name: stats.get("in_use") or 0 for name, stats in ys.memory_stats()["devices"].items()}


def main() -> int:
    """Run many; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    seeds = [options.only] if options.only is not None else range(options.seed, options.seed + options.graphs)
    start, kinds, ran = time.perf_counter(), Counter[str](), Counter[str]()
    for seed in seeds:
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        trace.clear()
        try:
            check(seed)
        except BaseException:
            print(f"failed: seed {seed}; run it again with --only {seed}", file=sys.stderr)
            raise
        kinds.update(f.kind for r in trace.records for f in r.failures if f.kind != "quarantined")
        ran.update(r.device.split(":")[0].rstrip("0123456789") for r in trace.records)
        if seed % 200 == 199:
            print(f"{seed + 1 - options.seed} graphs, {sum(kinds.values())} faults survived", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(seeds)} graphs right in {time.perf_counter() - start:.0f} s; steps run: {dict(ran)}")
    print(f"faults survived: {dict(kinds)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
