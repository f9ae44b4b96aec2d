"""Science and finance: filters, integrators, particles, transforms, simulation, linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import yosegi as ys

from .program import PROGRAMS, RNG, Program, add_function, evaluated, normal


def unrolled(step: Any, first: Any, rows: Any = None, length: int | None = None) -> Any:
    """PyTorch's loop, which is Python's."""
    state, made = first, []
    for n in range(length if rows is None else len(rows)):
        state, out = step(state, None if rows is None else rows[n])
        made.append(out)
    return state, torch.stack(made)


def kalman(xp: Any, scan: Any) -> Any:
    """A filter of positions and speeds in two dimensions, 200 measurements."""

    def run(f: Any, h: Any, q: Any, r: Any, seen: Any) -> Any:
        def step(state: Any, z: Any) -> Any:
            x, p = state
            x, p = f @ x, f @ p @ f.T + q
            gain = p @ h.T @ xp.linalg.inv(h @ p @ h.T + r)
            x = x + gain @ (z - h @ x)
            return (x, p - gain @ h @ p), x

        return scan(step, (xp.zeros_like(f[0]), 10 * q), seen)[1]

    return run


def lorenz(xp: Any, scan: Any) -> Any:
    """The classical Runge–Kutta method for many starting points."""

    def speed(s: Any) -> Any:
        x, y, z = s
        return 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z

    def run(x: Any, y: Any, z: Any) -> Any:
        def moved(s: Any, d: Any, by: float) -> Any:
            return tuple(a + by * b for a, b in zip(s, d, strict=True))

        def step(s: Any, _: Any) -> Any:
            a = speed(s)
            b = speed(moved(s, a, 0.0005))
            c = speed(moved(s, b, 0.0005))
            d = speed(moved(s, c, 0.001))
            s = tuple(v + 0.001 / 6 * (i + 2 * j + 2 * k + m) for v, i, j, k, m in zip(s, a, b, c, d, strict=True))
            return s, xp.mean(s[0])

        return scan(step, (x, y, z), length=200)

    return run


def bodies(xp: Any, scan: Any) -> Any:
    """Gravity between all pairs, ten leapfrog steps."""

    def pull(x: Any, mass: Any) -> Any:
        apart = x[None] - x[:, None]
        near = xp.sum(apart**2, axis=-1) + 0.01
        return xp.sum(apart * (mass * near**-1.5)[..., None], axis=1)

    def run(x: Any, v: Any, mass: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            v = v + 0.01 * pull(x, mass)
            return (x + 0.01 * v, v), xp.sum(v**2)

        return scan(step, (x, v), length=10)

    return run


def heat(xp: Any, scan: Any) -> Any:
    """Heat on a plate: 50 explicit steps of a five-point stencil on slices."""

    def run(u: Any) -> Any:
        def step(u: Any, _: Any) -> Any:
            inner = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
            new = u[1:-1, 1:-1] + 0.2 * inner
            padded = F.pad(new, (1, 1, 1, 1)) if xp is torch else ys.pad(new, 1)
            return padded, padded[128, 128]

        return scan(step, u, length=50)

    return run


def ranked(xp: Any, scan: Any, add: Any) -> Any:
    """Twenty rounds of PageRank over a list of links."""

    def run(start: Any, source: Any, target: Any, share: Any) -> Any:
        def step(rank: Any, _: Any) -> Any:
            new = 0.15 / len(start) + 0.85 * add(xp.zeros_like(rank), target, rank[source] * share)
            return new, xp.sum(abs(new - rank))

        return scan(step, start, length=20)

    return run


def add_loops() -> None:
    f = np.eye(4, dtype=np.float32)
    f[0, 2] = f[1, 3] = 0.1
    h, q, r = np.eye(2, 4, dtype=np.float32), np.eye(4, dtype=np.float32) * 0.01, np.eye(2, dtype=np.float32) * 0.1
    pairs = [
        ("Kalman filter, 200 measurements", kalman, [f, h, q, r, normal(200, 2)], 1e-3),
        ("Runge–Kutta, 4,096 starts, 200 steps", lorenz, [normal(4096) for _ in range(3)], 1e-3),
        ("Gravity, 512 bodies, 10 steps", bodies, [normal(512, 3), normal(512, 3), RNG.random(512, np.float32)], 1e-3),
        ("Heat on a plate, 256 × 256, 50 steps", heat, [normal(256, 256)], 1e-4),
    ]
    for title, program, arrays, tolerance in pairs:
        add_function(title, program(ys, ys.scan), program(torch, unrolled), arrays, tolerance)
    source, target = RNG.integers(0, 20_000, (2, 200_000))
    share = (1 / np.maximum(np.bincount(source, minlength=20_000), 1)[source]).astype(np.float32)
    arrays = [np.full(20_000, 1 / 20_000, np.float32), source, target, share]
    ours = ranked(ys, ys.scan, lambda x, at, v: x.at[at].add(v))
    theirs = ranked(torch, unrolled, lambda x, at, v: x.index_add(0, at, v))
    add_function("PageRank, 200,000 links, 20 rounds", ours, theirs, arrays, 1e-3)


def add_transforms() -> None:
    def filtered(xp: Any) -> Any:
        def run(signals: Any, kernel: Any) -> Any:
            size = 16_384
            a, b = xp.fft.rfft(signals, n=size), xp.fft.rfft(kernel, n=size)
            return xp.fft.irfft(a * b, n=size)[:, : signals.shape[1]]

        return run

    add_function("Convolution by FFT, 32 signals", filtered(ys), filtered(torch), [normal(32, 8192), normal(513)])

    def spectrum(xp: Any) -> Any:
        def run(images: Any) -> Any:
            made = xp.fft.fft2(images)
            power = xp.log1p(abs(made) ** 2)
            return xp.mean(xp.fft.fftshift(power), axis=0)

        return run

    add_function(
        "Power spectrum of images, 16 of 128 × 128", spectrum(ys), spectrum(torch), [normal(16, 128, 128)], 1e-3
    )


def add_simulation() -> None:
    """The price of an Asian option from random walks. Draws differ between the libraries: prices agree roughly."""

    def ours() -> Any:
        rng = ys.random.default_rng(0)

        @ys.jit
        def price(spot: Any, strike: Any, sigma: Any) -> Any:
            steps = rng.normal((100_000, 32), dtype=ys.float32) * (sigma * 32**-0.5) - sigma**2 / 64
            paths = spot * ys.exp(ys.cumulative_sum(steps, axis=1))
            paid = ys.maximum(ys.mean(paths, axis=1) - strike, 0)
            return ys.mean(paid), ys.std(paid)

        given = [ys.asarray(np.float32(v)) for v in (100.0, 100.0, 0.2)]
        return lambda: evaluated(price(*given))

    def theirs(wrap: Any, dtype: Any) -> Any:
        torch.manual_seed(0)

        def price(spot: Any, strike: Any, sigma: Any) -> Any:
            steps = torch.randn(100_000, 32, dtype=dtype) * (sigma * 32**-0.5) - sigma**2 / 64
            paths = spot * torch.exp(torch.cumsum(steps, 1))
            paid = torch.clamp(paths.mean(1) - strike, min=0)
            return paid.mean(), paid.std()

        call, given = wrap(price), [torch.tensor(v, dtype=dtype) for v in (100.0, 100.0, 0.2)]
        return lambda: call(*given)

    PROGRAMS.append(Program("Monte Carlo of an Asian option", ours, theirs, 3e-2))

    def scholes(xp: Any) -> Any:
        def run(spot: Any, strike: Any, rate: Any, sigma: Any, time: Any) -> Any:
            root = sigma * xp.sqrt(time)
            d1 = (xp.log(spot / strike) + (rate + sigma**2 / 2) * time) / root
            d2 = d1 - root
            erf = torch.erf if xp is torch else ys.nn.erf
            n1, n2 = ((1 + erf(d * 0.5**0.5)) / 2 for d in (d1, d2))
            call = spot * n1 - strike * xp.exp(-rate * time) * n2
            return call, call - spot + strike * xp.exp(-rate * time)

        return run

    arrays = [
        RNG.uniform(a, b, 500_000).astype(np.float32)
        for a, b in ((80, 120), (80, 120), (0.01, 0.05), (0.1, 0.4), (0.2, 2))
    ]
    add_function("Black–Scholes, 500,000 options", scholes(ys), scholes(torch), arrays)


def add_algebra() -> None:
    def process(xp: Any, solve: Any) -> Any:
        """Regression by a Gaussian process in float64."""

        def run(x: Any, y: Any, new: Any) -> Any:
            def kernel(a: Any, b: Any) -> Any:
                apart = xp.sum(a**2, axis=1)[:, None] + xp.sum(b**2, axis=1) - 2 * a @ b.T
                return xp.exp(-apart / 8)

            lower = xp.linalg.cholesky(kernel(x, x) + 0.1 * xp.eye(len(x), dtype=x.dtype))
            weights = solve(lower, y[:, None])
            cross = kernel(new, x)
            spread = xp.linalg.solve(lower, cross.T)
            return (cross @ weights)[:, 0], 1 - xp.sum(spread**2, axis=0), 2 * xp.sum(xp.log(xp.linalg.diagonal(lower)))

        return run

    arrays = [a.astype(np.float64) for a in (normal(400, 4), normal(400), normal(200, 4))]
    ours = process(ys, lambda lower, y: ys.linalg.solve(lower.T, ys.linalg.solve(lower, y)))
    theirs = process(torch, lambda lower, y: torch.linalg.solve(lower.T, torch.linalg.solve(lower, y)))
    add_function("Gaussian process, 400 points, float64", ours, theirs, arrays, 1e-6)

    def least(xp: Any) -> Any:
        """Ridge regression of many small systems."""

        def run(a: Any, b: Any) -> Any:
            normal = xp.matrix_transpose(a) @ a if xp is ys else a.mT @ a
            right = xp.matrix_transpose(a) @ b if xp is ys else a.mT @ b
            return xp.linalg.solve(normal + 0.1 * xp.eye(a.shape[-1], dtype=a.dtype), right)

        return run

    add_function(
        "Ridge regression, 256 systems of 16", least(ys), least(torch), [normal(256, 64, 16), normal(256, 64, 1)], 1e-3
    )

    def odd(xp: Any, f: Any) -> Any:
        """Norms and softmax over an odd number of features, between products."""

        def run(x: Any, w: Any, v: Any) -> Any:
            for _ in range(4):
                y = f.softmax(f.layer_norm(x, x.shape[-1:]) if xp is torch else f.layer_norm(x), -1)
                x = x + xp.tanh(y @ w) @ v
            return x

        return run

    arrays = [normal(1000, 333), normal(333, 77, scale=0.05), normal(77, 333, scale=0.1)]
    add_function("Norms and softmax over 333 features", odd(ys, ys.nn), odd(torch, F), arrays)


def add_all() -> None:
    add_loops()
    add_transforms()
    add_simulation()
    add_algebra()
