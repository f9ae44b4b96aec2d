"""Ops by CUDA's libraries on a GPU: timed beside PyTorch, and compared with the reference.

    python tests/gpu_library_ops.py [seconds]         stops to begin new cases after so many (150)

Every case is tried by itself; failures are printed, and counted at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from typing import Any

import numpy as np

import yosegi as ys
from yosegi._run.device import device_named

DEVICE = "cuda:0"
RNG = np.random.default_rng(3)
SINGLE, DOUBLE, COMPLEX = ("float32", "float64", "complex64")
FLOATS = ("float32", "float64", "float16", "bfloat16")
INEXACT = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16")
ORDERED = (*FLOATS, "bool", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64")
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "complex64": 2e-5}
"""The error of a result, as a share of its largest number, by the dtype of the input; 1e-10 for any other."""

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


# Values


def numbers(dtype: str, *shape: int) -> Any:
    kind = getattr(ys, dtype if dtype != "bool" else "bool")
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if kind.is_integer:
        return RNG.integers(0, 50, shape).astype(kind.numpy)
    values = RNG.normal(size=shape)
    return (values + 1j * RNG.normal(size=shape) if kind.is_complex else values).astype(kind.numpy)


def definite(dtype: str, *shape: int) -> Any:
    wide = numbers(dtype, *shape)
    wide = wide.astype(np.complex128 if wide.dtype.kind == "c" else np.float64)
    return (wide @ wide.swapaxes(-2, -1).conj() / shape[-1] + np.eye(shape[-1])).astype(getattr(ys, dtype).numpy)


def special(dtype: str) -> Any:
    """Ties, zeros of both signs, infinities, and NaN of both signs."""
    values = [3, np.nan, -0.0, 0.0, -np.inf, 3, np.inf, -np.nan, 1, 1, -2, -0.0, np.nan, 0.0]
    return np.array(values * 5).astype(getattr(ys, dtype).numpy)


def ordered(x: Any) -> Any:
    """Elements in ascending order; NumPy sorts a bfloat16 NaN anywhere."""
    return np.sort(x.reshape(-1).astype(np.float32)).astype(x.dtype) if x.dtype.name == "bfloat16" else np.sort(x, None)


def broken(dtype: str, kind: str) -> Any:
    """A stack in which two matrices are singular, indefinite, or hold what is not finite."""
    x = definite(dtype, 3, 4, 5, 5)
    for at in ((0, 1), (2, 3)):
        x[at] = {"singular": np.zeros_like, "indefinite": np.negative, "nan": lambda m: m * np.nan,
                 "inf": lambda m: np.full_like(m, np.inf)}[kind](x[at])  # fmt: skip
    return x


# Programs: what they give does not depend on signs and rotations that a library may choose


def of_svd(x: Any, full: bool) -> tuple[Any, ...]:
    u, s, vh = ys.linalg.svd(x, full_matrices=full)
    k = s.shape[-1]
    return s, (u[..., :k] * s[..., None, :]) @ vh[..., :k, :], adjoint(u) @ u, vh @ adjoint(vh)


def of_qr(x: Any, mode: str) -> tuple[Any, ...]:
    q, r = ys.linalg.qr(x, mode=mode)
    below = np.tril(np.ones(r.shape[-2:]), -1)
    return q @ r, adjoint(q) @ q, r * ys.asarray(below).astype(r.dtype)


def of_eigh(x: Any) -> tuple[Any, ...]:
    values, vectors = ys.linalg.eigh(x)
    return values, (vectors * values[..., None, :]) @ adjoint(vectors)


def of_slogdet(x: Any) -> tuple[Any, ...]:
    return tuple(ys.linalg.slogdet(x))


def adjoint(x: Any) -> Any:
    return ys.conj(ys.matrix_transpose(x)) if x.dtype.is_complex else ys.matrix_transpose(x)


def orders() -> Iterator[Case]:
    for dtype in ORDERED:
        shapes = [(1,), (2000,), (7, 33), (3, 5, 17)] if dtype == SINGLE else [(1000,), (6, 33)]
        given = [numbers(dtype, *shape) for shape in shapes] + ([special(dtype)] if dtype in FLOATS else [])
        for x in given:
            for descending in (False, True):
                for axis in range(-1, x.ndim - 1) if dtype == SINGLE else (-1,):
                    how = {"axis": axis, "descending": descending}
                    label = f"{dtype} {x.shape} {how}"
                    yield f"sort {label}", partial(ys.sort, **how), (x,)
                    yield f"argsort {label}", partial(ys.argsort, **how), (x,)
        for x1 in (ordered(given[0]), ordered(given[-1])):
            x2 = np.concatenate([given[0].reshape(-1), given[-1].reshape(-1)])
            for side in ("left", "right"):
                yield f"searchsorted {dtype} {side}", partial(ys.searchsorted, side=side), (x1, x2)
        for invert in (False, True):
            yield f"isin {dtype} {invert}", partial(ys.isin, invert=invert), (given[-1], given[-1].reshape(-1)[:9])
    nothing = np.zeros((0, 3), np.float32)
    yield "sort of nothing", ys.sort, (nothing,)
    yield "argsort of nothing", partial(ys.argsort, axis=0), (nothing,)


def transforms() -> Iterator[Case]:
    for dtype in INEXACT:
        for shape, axis in [((1,), 0), ((2,), 0), ((64,), 0), ((3, 1009), 1), ((60, 7), 0), ((4, 5, 6), 1)]:
            x = numbers(dtype, *shape)
            for norm in ("backward", "ortho", "forward") if dtype in (SINGLE, COMPLEX) else ("backward",):
                how = {"axis": axis, "norm": norm}
                label = f"{dtype} {shape} {how}"
                yield f"fft {label}", partial(ys.fft.fft, **how), (x,)
                yield f"ifft {label}", partial(ys.fft.ifft, **how), (x,)
                if x.dtype.kind != "c":
                    yield f"rfft {label}", partial(ys.fft.rfft, **how), (x,)
                    continue
                for n in (2 * shape[axis] - 2, 2 * shape[axis] - 1):
                    if n > 0:  # a spectrum that is nobody's: what has to be real is not
                        yield f"irfft {label} n={n}", partial(ys.fft.irfft, n=n, **how), (x,)
    for dtype in (SINGLE, "complex128"):
        x = numbers(dtype, 6, 1, 10, 7)
        for axes in (None, (2, 3), (1, 2, 3), (0, 1), (0, 3), (3, 1), (0, 1, 2)):
            yield f"fftn {dtype} {axes}", partial(ys.fft.fftn, axes=axes), (x,)
            yield f"ifftn {dtype} {axes}", partial(ys.fft.ifftn, axes=axes), (x,)
        if dtype == SINGLE:
            yield "rfftn", ys.fft.rfftn, (x,)
            yield "irfftn", ys.fft.irfftn, (numbers(COMPLEX, 5, 6),)
        yield f"fft2 {dtype} of a row", partial(ys.fft.fftn, axes=(0, 1)), (numbers(dtype, 1, 32),)
    yield "hfft", ys.fft.hfft, (numbers(COMPLEX, 9),)
    yield "ihfft", ys.fft.ihfft, (numbers(SINGLE, 9),)
    yield "fft of nothing", ys.fft.fft, (np.zeros((0, 8), np.complex64),)


def matrices() -> Iterator[Case]:
    for dtype in INEXACT:
        for shape in ((1, 1), (6, 6), (40, 40), (2, 3, 5, 5), (3, 33, 33)):
            a, label, n = definite(dtype, *shape), f"{dtype} {shape}", shape[-1]
            yield f"inv {label}", ys.linalg.inv, (a,)
            yield f"det {label}", ys.linalg.det, (a,)
            yield f"slogdet {label}", of_slogdet, (a,)
            yield f"cholesky {label}", ys.linalg.cholesky, (a,)
            yield f"cholesky {label} upper", partial(ys.linalg.cholesky, upper=True), (a,)
            yield f"eigh {label}", of_eigh, (a,)
            yield f"eigvalsh {label}", ys.linalg.eigvalsh, (a,)
            for sides in ((n,), (n, 3), (2, 1, n, 2)):
                yield f"solve {label} {sides}", ys.linalg.solve, (a, numbers(dtype, *sides))
        if dtype in ("float16", "bfloat16"):
            continue
        for shape in ((5, 3), (3, 5), (40, 40), (2, 40, 36), (2, 3, 4, 7)):
            a, label = numbers(dtype, *shape), f"{dtype} {shape}"
            for full in (False, True):
                yield f"svd {label} {full}", partial(of_svd, full=full), (a,)
            for mode in ("reduced", "complete"):
                yield f"qr {label} {mode}", partial(of_qr, mode=mode), (a,)
            yield f"svdvals {label}", ys.linalg.svdvals, (a,)
            yield f"pinv {label}", ys.linalg.pinv, (a,)
            yield f"matrix_rank {label}", ys.linalg.matrix_rank, (a,)
    for dtype in (SINGLE, "complex128"):
        for name, function, kind in (
            ("inv", ys.linalg.inv, "singular"), ("det", ys.linalg.det, "singular"), ("slogdet", of_slogdet, "singular"),
            ("cholesky", ys.linalg.cholesky, "indefinite"),
            ("svdvals", ys.linalg.svdvals, "nan"), ("eigvalsh", ys.linalg.eigvalsh, "inf"), ("eigh", of_eigh, "nan"),
            ("svd", partial(of_svd, full=True), "inf"), ("pinv", ys.linalg.pinv, "nan"),
        ):  # fmt: skip
            stack = broken(dtype, kind)
            yield f"{name} {dtype} {kind}", function, (stack,)
            yield f"{name} {dtype} {kind} alone", function, (stack[0, 1],)
        yield f"solve {dtype} singular", ys.linalg.solve, (broken(dtype, "singular"), numbers(dtype, 5, 2))
        large = np.stack([definite(dtype, 300, 300), np.zeros((300, 300), getattr(ys, dtype).numpy)])
        yield f"solve {dtype} singular, large", ys.linalg.solve, (large, numbers(dtype, 300, 2))
        yield f"inv {dtype} singular, large", ys.linalg.inv, (large,)
        rank_one = np.ones((2, 4, 4), getattr(ys, dtype).numpy)
        yield f"gradient of det {dtype}", ys.grad(lambda a: ys.real(ys.sum(ys.linalg.det(a)))), (rank_one,)
    for shape in ((0, 3, 3), (2, 0, 0)):
        empty = np.zeros(shape, np.float32)
        for name, function in (("inv", ys.linalg.inv), ("det", ys.linalg.det), ("eigh", of_eigh),
                               ("cholesky", ys.linalg.cholesky), ("svdvals", ys.linalg.svdvals)):  # fmt: skip
            yield f"{name} {shape}", function, (empty,)
    yield "svd (2, 3, 0)", partial(of_svd, full=True), (np.zeros((2, 3, 0), np.float32),)


# Checks


def outputs(made: Any) -> list[Any]:
    return [t.numpy() for t in (made if isinstance(made, tuple) else (made,))]


def on(device: str, function: Callable[..., Any], *arrays: Any) -> list[Any]:
    with ys.options(device=device, on_fallback="error" if device == DEVICE else "silent"):
        return outputs(function(*[ys.asarray(a) for a in arrays]))


def compared(got: list[Any], expected: list[Any], dtype: Any) -> None:
    error = ROUNDING.get(np.dtype(dtype).name, 1e-10)
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), f"{ours.dtype}{ours.shape}, not {theirs.shape}"
        if ours.dtype.kind in "biu":
            assert np.array_equal(ours, theirs), f"{np.sum(ours != theirs)} of {ours.size} differ"
            continue
        wide = np.complex128 if ours.dtype.kind == "c" else np.float64
        a, b = ours.astype(wide), theirs.astype(wide)
        same = np.isnan(a) == np.isnan(b)
        assert same.all(), f"NaN differs in {np.sum(~same)} of {a.size}"
        finite = np.isfinite(b)
        assert np.array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)]), "infinities differ"
        scale = np.max(np.abs(b[finite]), initial=1e-30)
        distance = np.max(np.abs(a[finite] - b[finite]), initial=0) / max(scale, 1.0 if scale < 1e-3 else 0.0)
        assert distance <= error, f"off by {distance:.2e} of the largest"


def in_a_program(x: Any, a: Any) -> tuple[Any, ...]:
    """Transforms, sorts and systems between loops, sums and products."""
    found = ys.fft.rfft(ys.tanh(x) * 2 + ys.sum(x, axis=-1, keepdims=True))
    power = ys.sort(ys.real(found * ys.conj(found)), axis=-1, descending=True) + 1
    solved = ys.linalg.solve(a @ ys.matrix_transpose(a) + ys.eye(8) * 8, ys.exp(x[:8, :3]))
    u, s, vh = ys.linalg.svd(a, full_matrices=False)
    return ys.log(power) / 2, ys.sum(solved, axis=0), (u * s) @ vh + 0.5, s * s


def repeated(seed: int, runs: int = 10) -> None:
    """A jitted program, with data that changes, some of it already on the device and some reused."""
    rng = np.random.default_rng(seed)
    program = ys.jit(in_a_program)
    kept = ys.asarray(rng.normal(size=(8, 8)).astype(np.float32)).to_device(DEVICE)
    pending = []
    for run in range(runs):
        x = rng.normal(size=(32, 64)).astype(np.float32)
        a = kept if run % 3 else ys.asarray(rng.normal(size=(8, 8)).astype(np.float32))
        with ys.options(device=DEVICE, on_fallback="error"):
            made = program(ys.asarray(x).to_device(DEVICE), a)
        pending.append((made, x, a.numpy()))
        if run % 2:
            made[0].numpy()
    for made, x, a in pending:
        compared(outputs(made), on("cpu", in_a_program, x, a), np.float32)


def in_two_threads() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            repeated(seed, 20)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# Times


def milliseconds(call: Callable[[], Any], wait: Callable[[], Any], turns: int) -> float:
    for _ in range(3):
        call()
    wait()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(turns):
            call()
        wait()
        times.append((time.perf_counter() - start) * 1e3 / turns)
    return float(np.median(times))


def timed(name: str, ours: Any, theirs: Any, turns: int, *arrays: Any) -> None:
    import torch

    with ys.options(device=DEVICE, on_fallback="error"):
        given = [ys.asarray(a).to_device(DEVICE) for a in arrays]
        f = ys.jit(ours)
        own = milliseconds(lambda: f(*given), device_named(DEVICE).synchronize, turns)
    tensors = [torch.from_numpy(a).cuda() for a in arrays]
    other = milliseconds(lambda: theirs(*tensors), torch.cuda.synchronize, turns)
    print(f"time  {name:24} {own:9.3f} ms   torch {other:9.3f} ms   {other / own:6.2f}x", flush=True)


def times() -> Iterator[tuple[str, Callable[[], None]]]:
    import torch

    L = torch.linalg
    line, image, rows = numbers(SINGLE, 1 << 20), numbers(SINGLE, 2048, 2048), numbers(SINGLE, 1024, 1024)
    for name, ours, theirs, turns, arrays in (
        ("sort 1M", ys.sort, torch.sort, 20, (line,)),
        ("argsort 1M", ys.argsort, torch.argsort, 20, (line,)),
        ("sort 1024x1024", ys.sort, torch.sort, 20, (rows,)),
        ("rfft 2048x2048", ys.fft.rfft, torch.fft.rfft, 50, (image,)),
        ("rfft2 2048x2048", ys.fft.rfftn, torch.fft.rfft2, 50, (image,)),
        ("fft2 2048x2048", ys.fft.fftn, torch.fft.fft2, 50, (numbers(COMPLEX, 2048, 2048),)),
        ("solve 1024", ys.linalg.solve, L.solve, 10, (rows, numbers(SINGLE, 1024))),
        ("solve 1000 x 16", ys.linalg.solve, L.solve, 10, (definite(SINGLE, 1000, 16, 16), numbers(SINGLE, 16, 1))),
        ("inv 1024", ys.linalg.inv, L.inv, 10, (rows,)),
        ("det 1024", ys.linalg.det, L.det, 10, (rows,)),
        ("cholesky 1024", ys.linalg.cholesky, L.cholesky, 20, (definite(SINGLE, 1024, 1024),)),
        ("qr 512", lambda x: tuple(ys.linalg.qr(x)), L.qr, 5, (numbers(SINGLE, 512, 512),)),
        ("eigh 512", lambda x: tuple(ys.linalg.eigh(x)), L.eigh, 3, (definite(SINGLE, 512, 512),)),
        ("svd 512", lambda x: tuple(ys.linalg.svd(x)), L.svd, 2, (numbers(SINGLE, 512, 512),)),
    ):  # fmt: skip
        yield name, partial(timed, name, ours, theirs, turns, *arrays)


def main(seconds: float) -> int:
    start = time.perf_counter()
    import cupy

    print(f"CuPy {cupy.__version__}, {device_named(DEVICE).description}", flush=True)
    cases: list[tuple[str, Callable[[], None]]] = [("a jitted program", partial(repeated, 0))]
    cases += [("two threads", in_two_threads), *times()]
    for name, function, arrays in (*orders(), *transforms(), *matrices()):

        def check(function: Any = function, arrays: Any = arrays) -> None:
            compared(on(DEVICE, function, *arrays), on("cpu", function, *arrays), arrays[0].dtype)

        cases.append((name, check))
    right = wrong = 0
    for name, check in cases:
        if time.perf_counter() - start > seconds:
            break
        try:
            check()
            right += 1
        except Exception as error:
            wrong += 1
            print(f"WRONG {name}: {type(error).__name__}: {error}"[:400], flush=True)
    left = len(cases) - right - wrong
    print(f"{right} right, {wrong} wrong, {left} not tried, in {time.perf_counter() - start:.0f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 150))
