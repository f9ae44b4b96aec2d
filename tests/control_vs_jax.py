"""Random loops and branches, computed here and by JAX: values and gradients, with `jit` and without, on every device.

    PYTHONPATH=tests python tests/control_vs_jax.py [--programs 300] [--kind scan|cond|loop] [--device NAME]

A program is a seed. The functions of a program make their choices from generators of that seed, so that each library,
and each trace, sees the same program.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import yosegi as ys

KINDS = ("scan", "cond", "loop")
SHAPES = ((), (3,), (2, 3))
TOLERANCES = {"float64": 1e-9, "float32": 1e-3}


@dataclass(frozen=True)
class Library:
    """A library by the functions that programs use."""

    xp: Any
    scan: Callable[..., Any]
    cond: Callable[..., Any]
    while_loop: Callable[..., Any]
    fori_loop: Callable[..., Any]
    grad: Callable[..., Any]


YOSEGI = Library(ys, ys.scan, ys.cond, ys.while_loop, ys.fori_loop, ys.grad)


def jax_library() -> Library:
    """JAX, with float64. Raises `ImportError` where it is not installed."""
    import jax

    jax.config.update("jax_enable_x64", True)
    lax = jax.lax
    return Library(jax.numpy, lax.scan, lax.cond, lax.while_loop, lax.fori_loop, jax.grad)


# Expressions


def mixed(xp: Any, rng: Random, values: Sequence[Any], shape: tuple[int, ...], depth: int = 3) -> Any:
    """A random expression of some values, of a shape, between -1 and 1."""
    pool = [*values]
    for _ in range(depth):
        pool.append(_step(xp, rng, pool))
    total = _fitted(xp, pool[-1], shape)
    for value in values:
        total = total * 0.5 + _fitted(xp, value, shape)
    return xp.tanh(total * 0.3)


def _step(xp: Any, rng: Random, pool: Sequence[Any]) -> Any:
    a, b = rng.choice(pool), rng.choice(pool)
    kind = rng.randrange(12)
    if kind == 0:
        return a + b
    if kind == 1:
        return a * b
    if kind == 2:
        return xp.sin(a) - b
    if kind == 3:
        return xp.where(a > b, a, b * 0.25)
    if kind == 4:
        return xp.exp(-(a * a)) + xp.sum(b)
    if kind == 5:
        return xp.max(a + b, axis=-1, keepdims=True) if (a + b).ndim else a
    if kind == 6:
        return xp.flip(a, axis=-1) if a.ndim else xp.tanh(b)
    if kind == 7:
        return xp.mean(a, axis=0) if a.ndim == 2 else xp.sqrt(a * a + 0.5)
    if kind == 8:
        return a[..., -1:] * b if a.ndim else a * b
    if kind == 9:
        return xp.concat([a[..., 1:], a[..., :1]], axis=-1) if a.ndim else a - b
    if kind == 10 and a.ndim and a.shape[-1] == 3:
        return xp.matmul(a, xp.ones((3, 3), dtype=a.dtype) * 0.1)
    return a / (1.5 + b * b)


def _fitted(xp: Any, value: Any, shape: tuple[int, ...]) -> Any:
    if len(shape) < value.ndim:
        value = xp.mean(value, axis=tuple(range(value.ndim - len(shape))))
    return xp.broadcast_to(value, shape) if value.shape != shape else value


# Programs


@dataclass(frozen=True)
class Inputs:
    """The arrays of a program: a state, rows, and what its functions close over."""

    state: dict[str, Any]
    rows: dict[str, Any]
    weights: list[Any]


def inputs_of(seed: int) -> Inputs:
    """The arrays of a program."""
    rng, numbers = Random(seed), np.random.default_rng(seed)
    dtype = rng.choice(["float64", "float32"])

    def array(*shape: int) -> Any:
        return numbers.uniform(-1, 1, shape).astype(dtype)

    length = rng.choice([1, 2, 5, 17])
    shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 3))]
    state = {f"s{n}": array(*shape) for n, shape in enumerate(shapes)}
    rows = {f"x{n}": array(length, *rng.choice(SHAPES)) for n in range(rng.randint(0, 2))}
    return Inputs(state, rows, [array(3), array(3, 3)])


def _next(lib: Library, rng: Random, state: dict[str, Any], others: Sequence[Any], weights: Sequence[Any]) -> Any:
    """A new state, sometimes through a product, a branch or a loop inside."""
    made = {}
    for name, value in state.items():
        extra = [*others, weights[0]]
        if value.ndim and rng.random() < 0.4:
            extra.append(lib.xp.matmul(value, weights[1]))
        new = mixed(lib.xp, rng, [*state.values(), *extra], value.shape)
        inside = rng.random()
        if inside < 0.15:
            inner = rng.randrange(1000)
            new = lib.cond(
                lib.xp.sum(new) > 0.1,
                lambda v, s=inner: mixed(lib.xp, Random(s), [v, weights[0]], v.shape),
                lambda v, w=weights: v * 0.5 + _fitted(lib.xp, w[0], v.shape),
                new,
            )
        elif inside < 0.25:
            inner = rng.randrange(1000)
            new = lib.fori_loop(0, 3, lambda i, v, s=inner: _turn(lib.xp, s, i, v, weights[0]), new)
        made[name] = new
    return made


def _turn(xp: Any, seed: int, i: Any, v: Any, w: Any) -> Any:
    return mixed(xp, Random(seed), [v, v * xp.asarray(i, dtype=v.dtype) * 0.1, w], v.shape)


def scan_program(lib: Library, seed: int, state: Any, rows: Any, weights: Any) -> Any:
    """A scan; of every third, the state has an integer beside it."""
    rng = Random(seed)
    reverse, counts, inner = rng.random() < 0.4, seed % 3 == 0, rng.randrange(1 << 30)
    length = next((len(x) for x in rows.values()), rng.choice([0, 1, 6]))

    def body(carry: Any, row: Any) -> Any:
        choose = Random(inner)
        now, count = carry if counts else (carry, None)
        others = [] if row is None else list(row.values())
        new = _next(lib, choose, now, others, weights)
        y = mixed(lib.xp, choose, [*new.values(), *others], choose.choice(SHAPES))
        emitted = None if choose.random() < 0.1 else (y, new)
        return ((new, count + 1) if counts else new), emitted

    carry = (state, lib.xp.asarray(0)) if counts else state
    return lib.scan(body, carry, rows or None, length=length, reverse=reverse)


def cond_program(lib: Library, seed: int, state: Any, rows: Any, weights: Any) -> Any:
    """A branch by the sign of a sum, in every second program inside a branch by a number."""
    rng = Random(seed)
    seeds = [rng.randrange(1 << 30) for _ in range(3)]
    values = list(state.values())

    def branch(n: int) -> Callable[..., Any]:
        return lambda s, r: (
            _next(lib, Random(seeds[n]), s, [x[0] for x in r.values()], weights),
            mixed(lib.xp, Random(seeds[n] + 1), [*s.values(), weights[0]], (2, 3)),
        )

    def by_sign(s: Any, r: Any) -> Any:
        return lib.cond(lib.xp.sum(values[0]) > 0, branch(0), branch(1), s, r)

    if seed % 2:
        return by_sign(state, rows)
    return lib.cond(lib.xp.sum(weights[0]) > 0, by_sign, branch(2), state, rows)


def loop_program(lib: Library, seed: int, state: Any, rows: Any, weights: Any) -> Any:
    """A while loop, or a loop over a range, with integers or with a tensor as a bound."""
    rng = Random(seed)
    inner, count = rng.randrange(1 << 30), rng.choice([0, 1, 4, 9])
    table = next(iter(rows.values()), None)

    def step(i: Any, s: Any) -> Any:
        others = [] if table is None else [lib.xp.take(table, i % len(table), axis=0)]
        return _next(lib, Random(inner), s, others, weights)

    if seed % 3 == 0:
        limit = rng.uniform(0, 2)
        return lib.while_loop(
            lambda c: (c[0] < count) & (lib.xp.sum(c[1]["s0"]) < limit),
            lambda c: (c[0] + 1, step(c[0], c[1])),
            (lib.xp.asarray(0), state),
        )
    upper = count + 1 if seed % 3 == 1 else lib.xp.asarray(count + 1)
    return lib.fori_loop(1, upper, step, state)


PROGRAMS = {"scan": scan_program, "cond": cond_program, "loop": loop_program}


# Comparison


def results_of(lib: Library, kind: str, seed: int, jit: Callable[..., Any], convert: Callable[[Any], Any]) -> list[Any]:
    """All arrays of a program: its values, and gradients of their sum where there are any."""
    given = inputs_of(seed)
    state, rows = ({k: convert(v) for k, v in d.items()} for d in (given.state, given.rows))
    weights = [convert(w) for w in given.weights]
    program = PROGRAMS[kind]

    def value(s: Any, r: Any, w: Any) -> Any:
        return program(lib, seed, s, r, w)

    def loss(s: Any, r: Any, w: Any) -> Any:
        leaves = [v for v in ys.tree_leaves(value(s, r, w)) if "float" in str(v.dtype)]
        total = lib.xp.sum(leaves[0])
        for leaf in leaves[1:]:
            total = total + lib.xp.sum(leaf * leaf)
        return total

    found = ys.tree_leaves(jit(value)(state, rows, weights))
    if kind == "loop" and seed % 3 != 1:
        return found  # no gradient in reverse mode
    gradients = lib.grad(loss, (0, 2))
    found += ys.tree_leaves(jit(gradients)(state, rows, weights))
    if seed % 10 == 0:
        squares = lambda s: sum(lib.xp.sum(g * g) for g in ys.tree_leaves(lib.grad(loss)(s, rows, weights)))
        found += ys.tree_leaves(jit(lib.grad(squares))(state))
    return found


def expected(kind: str, seed: int) -> list[Any]:
    """JAX's arrays of a program."""
    import jax

    return [np.asarray(v) for v in results_of(jax_library(), kind, seed, jax.jit, jax.numpy.asarray)]


def failures(kind: str, seed: int, devices: Sequence[str]) -> list[str]:
    """What is wrong with a program on these devices, with `jit` and without."""
    wanted = expected(kind, seed)
    found = []
    for device in devices:
        for way, jit in (("plain", lambda f: f), ("jit", twice)):
            with ys.options(device=device):
                try:
                    got = [np.asarray(v) for v in results_of(YOSEGI, kind, seed, jit, ys.asarray)]
                except Exception as error:
                    found.append(f"{kind} {seed} on {device}, {way}: {type(error).__name__}: {error}")
                    continue
            found += [f"{kind} {seed} on {device}, {way}: {text}" for text in differences(wanted, got)]
    return found


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """The second run of a jitted function: that of compiled kernels."""
    jitted = ys.jit(function)

    def run(*args: Any) -> Any:
        ys.eval(jitted(*args))
        return jitted(*args)

    return run


def differences(wanted: Sequence[Any], got: Sequence[Any]) -> list[str]:
    """Where arrays differ by more than rounding explains."""
    if len(wanted) != len(got):
        return [f"{len(wanted)} arrays expected, {len(got)} found"]
    texts = []
    for n, (w, g) in enumerate(zip(wanted, got, strict=True)):
        if w.shape != g.shape or (w.dtype.kind == "f" and w.dtype != g.dtype):
            texts.append(f"result {n}: {w.dtype}{w.shape} expected, {g.dtype}{g.shape} found")
            continue
        tolerance = TOLERANCES.get(str(w.dtype), 0.0)
        error = float(np.max(np.abs(w - g), initial=0.0)) / max(1.0, float(np.max(np.abs(w), initial=0.0)))
        if not error <= tolerance:
            texts.append(f"result {n} of {w.dtype}{w.shape}: a relative error of {error:.1e}")
    return texts


def devices() -> list[str]:
    """The devices of this machine, once each."""
    return [d.name for d in ys.devices()]


def main() -> int:
    """Run the programs and print every failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--device", action="append")
    chosen = parser.parse_args()
    names = chosen.device or devices()
    wrong = 0
    for kind in [chosen.kind] if chosen.kind else KINDS:
        for seed in range(chosen.first, chosen.first + chosen.programs):
            for text in failures(kind, seed, names):
                print(text, flush=True)
                wrong += 1
            if (seed + 1) % 25 == 0:
                print(f"{kind}: up to program {seed}, {wrong} failures so far", flush=True)
        print(f"{kind}: {chosen.programs} programs on {', '.join(names)}", flush=True)
    print(f"{wrong} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
