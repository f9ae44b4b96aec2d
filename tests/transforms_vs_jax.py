"""Transforms of random programs against JAX's.

    python tests/transforms_vs_jax.py [--programs 300] [--seed 0] [--only KIND:SEED] [KIND ...]

A program is a random chain of steps that both libraries write alike. For each kind (vmap, jvp, jacobian, hessian) the
transforms of as many programs are compared, with gradients through them and under `jit`. A failure prints its kind and
seed; `--only` runs that one again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import yosegi as ys

# What JAX's compiler optimises is not looked at here, and takes it most of its time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

LARGEST = 150  # elements of a value
STEEPEST = 1e5  # of a value or a derivative; beyond, rounding decides


class Library(NamedTuple):
    """What the two libraries call differently."""

    np: Any
    linalg: Any
    fft: Any
    softmax: Callable[[Any], Any]
    conv: Callable[[Any, Any], Any]


def _jax_conv(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1,), [(1, 1)])


OURS = Library(ys, ys.linalg, ys.fft, ys.nn.softmax, lambda x, w: ys.nn.conv1d(x, w, padding=1))
JAX = Library(jnp, jnp.linalg, jnp.fft, jax.nn.softmax, _jax_conv)

Step = Callable[..., Any]

UNARY: dict[str, Step] = {
    "tanh": lambda m, x: m.np.tanh(x),
    "sin": lambda m, x: m.np.sin(x) * 2 + 0.1,
    "bell": lambda m, x: m.np.exp(-x * x),
    "root": lambda m, x: m.np.sqrt(1 + x * x),
    "log": lambda m, x: m.np.log1p(m.np.abs(x)) + m.np.log2(2 + x * x),
    "quotient": lambda m, x: x / (1.5 + m.np.cos(x)),
    "power": lambda m, x: (1.2 + m.np.tanh(x)) ** 1.7,
    "atan2": lambda m, x: m.np.atan2(x, 1 + x * x),
    "leaky": lambda m, x: m.np.where(x > 0.05, x, 0.3 * x),
    "clip": lambda m, x: m.np.clip(x, -0.9, 0.8) + 0.1 * x,
    "sum": lambda m, x: m.np.sum(x, axis=-1) if x.ndim else x,
    "mean": lambda m, x: m.np.mean(x, axis=0, keepdims=True) if x.ndim else x,
    "max": lambda m, x: m.np.max(x, axis=0) if x.ndim else x,
    "min of all": lambda m, x: x - m.np.min(x),
    "product": lambda m, x: m.np.prod(1 + 0.3 * m.np.tanh(x), axis=-1) if x.ndim else x,
    "spread": lambda m, x: x * m.np.std(x, axis=-1, keepdims=True) if x.ndim and x.shape[-1] > 1 else x,
    "running sum": lambda m, x: m.np.cumsum(x, axis=0) * 0.3 if x.ndim else x,
    "running product": lambda m, x: m.np.cumprod(1 + 0.2 * m.np.tanh(x), axis=-1) if x.ndim else x,
    "window": lambda m, x: x[::2] if x.ndim else x,
    "last": lambda m, x: x[..., -1] if x.ndim else x,
    "new axis": lambda m, x: x[None],
    "flip": lambda m, x: m.np.flip(x),
    "roll": lambda m, x: m.np.roll(x, 1, axis=-1) + x if x.ndim else x,
    "transpose": lambda m, x: m.np.permute_dims(x, tuple(range(x.ndim))[::-1]),
    "flatten": lambda m, x: m.np.reshape(x, (-1,)),
    "take": lambda m, x: m.np.take(m.np.reshape(x, (-1,)), m.np.asarray([0, 0, -1]), axis=0),
    "sort": lambda m, x: m.np.sort(x, axis=-1) if x.ndim else x,
    "order": lambda m, x: m.np.take_along_axis(x * x, m.np.argsort(x, axis=0), axis=0) if x.ndim else x,
    "softmax": lambda m, x: m.softmax(x) if x.ndim else x,
    "outer": lambda m, x: m.np.reshape(x, (-1,))[:, None] * m.np.reshape(x, (-1,))[None, :6],
    "square product": lambda m, x: x @ m.np.matrix_transpose(x) * 0.3 if x.ndim > 1 else x * x,
    "einsum": lambda m, x: m.np.einsum("...i,...j->...ij", x, m.np.sin(x)) if x.ndim else x,
    "triangle": lambda m, x: m.np.tril(x) + 0.5 if x.ndim > 1 else x,
    "diagonal": lambda m, x: m.np.einsum("...ii->...i", x) if x.ndim > 1 and x.shape[-1] == x.shape[-2] else x,
    "inverse": lambda m, x: m.linalg.inv(_definite(m, x)) if x.ndim > 1 else 1 / (2 + x * x),
    "determinant": lambda m, x: m.linalg.det(_definite(m, 0.3 * x)) if x.ndim > 1 else x,
    "solve": lambda m, x: m.linalg.solve(_definite(m, x), m.np.sin(x)) if x.ndim > 1 else x,
    "spectrum": lambda m, x: m.np.abs(m.fft.fft(x)) ** 2 * 0.1 if x.ndim else x,
    "half spectrum": lambda m, x: m.np.real(m.fft.rfft(x) * (1 - 0.5j)) if x.ndim else x,
    "complex": lambda m, x: m.np.abs(m.np.exp(1j * x) + x) + m.np.imag(m.np.sin(x + 0.5j)),
    "added": lambda m, x: m.np.reshape(x, (-1,)).at[m.np.asarray([0, 0])].add(0.7),
    "written": lambda m, x: m.np.reshape(x, (-1,)).at[:1].set(0.2),
    "convolution": lambda m, x: m.conv(m.np.reshape(x, (1, 1, -1)), m.np.sin(m.np.ones((2, 1, 3)))),
    "own kernel": lambda m, x: m.conv(m.np.reshape(x, (1, 1, -1)), m.np.tanh(m.np.reshape(x, (-1, 1, 1)))[:2]),
    "stacked": lambda m, x: m.np.stack([x, x * x], axis=0),
    "integers": lambda m, x: m.np.floor(x) * 0.1 + x * m.np.astype(x > 0, m.np.float64),
}  # fmt: skip

BINARY: dict[str, Step] = {
    "add": lambda m, a, b: a + b,
    "multiply": lambda m, a, b: a * m.np.tanh(b),
    "divide": lambda m, a, b: a / (1 + b * b),
    "maximum": lambda m, a, b: m.np.maximum(a, b + 0.01),
    "hypot": lambda m, a, b: m.np.hypot(a, b + 1.3),
    "where": lambda m, a, b: m.np.where(a > b, a, b * 0.5),
    "concat": lambda m, a, b: m.np.concat([m.np.reshape(a, (-1,)), m.np.reshape(b, (-1,))]),
    "dot": lambda m, a, b: m.np.sum(a) * b + m.np.mean(b),
    "matmul": lambda m, a, b: a @ b if _fit(a, b) else m.np.sum(a) + b,
    "vectors": lambda m, a, b: m.np.vecdot(m.np.reshape(a, (-1,))[:1], m.np.reshape(b, (-1,))[:1]) + a,
}


def _definite(m: Library, x: Any) -> Any:
    n = x.shape[-2]
    return x @ m.np.matrix_transpose(x) * 0.2 + m.np.eye(n) * 2


def _fit(a: Any, b: Any) -> bool:
    return a.ndim > 0 and b.ndim > 0 and a.shape[-1] == b.shape[max(0, b.ndim - 2)] and min(a.ndim, b.ndim) < 3


@dataclass(frozen=True)
class Program:
    """A function of a matrix and a vector: steps on earlier values, and the values that it returns."""

    steps: tuple[tuple[Step, tuple[int, ...]], ...]
    outputs: tuple[int, ...]

    def __call__(self, m: Library, *inputs: Any) -> dict[str, Any]:
        values = list(inputs)
        for step, args in self.steps:
            values.append(step(m, *[values[a] for a in args]))
        first, *others = [values[o] for o in self.outputs]
        return {"first": first, "others": tuple(others)}

    def loss(self, m: Library, *inputs: Any) -> Any:
        """A number."""
        made = self(m, *inputs)
        return sum(m.np.sum(m.np.tanh(part) * (n + 1)) for n, part in enumerate([made["first"], *made["others"]]))


def program(seed: int, inputs: Sequence[Any]) -> Program:
    """A random program whose values for these inputs are neither large nor many."""
    rng = np.random.default_rng(seed)
    values = [np.asarray(i) for i in inputs]
    steps: list[tuple[Step, tuple[int, ...]]] = []
    wanted = len(values) + int(rng.integers(3, 8))
    while len(values) < wanted:
        binary = rng.random() < 0.35
        table = BINARY if binary else UNARY
        name = str(rng.choice(sorted(table)))
        recent = max(0, len(values) - 3)
        args = tuple(int(rng.integers(recent, len(values))) for _ in range(1 + binary))
        try:
            made = table[name](OURS, *[ys.asarray(values[a]) for a in args]).numpy()
        except ys.errors.UserError:  # shapes that do not fit
            continue
        fits = 0 < made.size <= LARGEST and made.ndim <= 4
        if fits and np.all(np.isfinite(made)) and np.max(np.abs(made)) < 50:
            steps.append((table[name], args))
            values.append(made)
    others = [int(o) for o in rng.choice(np.arange(len(inputs), len(values)), size=int(rng.integers(0, 2)))]
    return Program(tuple(steps), (len(values) - 1, *others))


# Comparison


def close(ours: Any, theirs: Any, what: str) -> None:
    """Raise unless two trees have the same values, up to rounding."""
    mine = [np.asarray(leaf) for leaf in ys.tree_leaves(ours)]
    other = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(theirs)]
    assert len(mine) == len(other), f"{what}: {len(mine)} leaves, JAX has {len(other)}"
    for a, b in zip(mine, other, strict=True):
        assert a.shape == b.shape, f"{what}: shape {a.shape}, JAX has {b.shape}"
        assert a.dtype == b.dtype, f"{what}: dtype {a.dtype}, JAX has {b.dtype}"
        scale = 1 + (np.max(np.abs(b)) if b.size else 0)
        if not np.isfinite(scale) or scale > STEEPEST:
            raise Unusable
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * scale, err_msg=what)


class Unusable(Exception):
    """A program that cannot be compared: derivatives that are infinite or too large, or a failure of JAX's compiler."""


@dataclass(frozen=True)
class Case:
    """A transform of a function, called with some arrays."""

    what: str
    transform: Callable[[Any, Callable[..., Any]], Callable[..., Any]]
    """Of a library (`ys` or `jax`) and a function of its arrays."""
    function: Callable[..., Any]
    """Of a `Library` and arrays."""
    inputs: Sequence[Any]

    def of(self, library: Any, names: Library, arrays: Sequence[Any]) -> Any:
        """The result of one library."""
        return self.transform(library, lambda *xs: self.function(names, *xs))(*arrays)


def compare(cases: Sequence[Case]) -> None:
    """Raise unless both libraries agree. JAX compiles all cases as one program, which is by far the quickest."""
    inputs = [case.inputs for case in cases]
    try:
        theirs = jax.jit(lambda arrays: [c.of(jax, JAX, a) for c, a in zip(cases, arrays, strict=True)])(inputs)
        jax.block_until_ready(theirs)  # a failure at run time is raised here
    except jax.errors.JaxRuntimeError as error:  # its compiler fails on some layouts of a Fourier transform
        raise Unusable from error
    for case, expected in zip(cases, theirs, strict=True):
        close(case.of(ys, OURS, [ys.asarray(i) for i in case.inputs]), expected, case.what)


def check_vmap(seed: int) -> None:
    """vmap, nested in and around gradients and jit."""
    rng = np.random.default_rng((seed, 1))
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(4,))
    made = program(seed, (x, y))
    axes = [(int(rng.integers(0, 3)), None), (0, int(rng.integers(0, 2))), (None, 1)][int(rng.integers(0, 3))]
    many = [v if a is None else np.stack([v, v * 0.9, v + 0.05], axis=a) for v, a in zip((x, y), axes, strict=True)]
    out = int(rng.integers(0, 2)) - 1
    pairs = [np.stack([v, v * 1.1]) for v in many]

    def gradient_of_all(lib: Any, f: Any) -> Any:
        return lib.grad(lambda *xs: total(lib, lib.vmap(f, axes)(*xs)), argnums=(0, 1))

    compare([
        Case(f"vmap {axes} {out}", lambda lib, f: lib.vmap(f, axes, out), made, many),
        Case("jit(vmap)", lambda lib, f: lib.jit(lib.vmap(f, axes, out)), made, many),
        Case("vmap(jit)", lambda lib, f: lib.vmap(lib.jit(f), axes), made, many),
        Case("vmap(vmap)", lambda lib, f: lib.vmap(lib.vmap(f, axes)), made, pairs),
        Case("vmap(grad)", lambda lib, f: lib.vmap(lib.grad(f, argnums=(0, 1)), axes), made.loss, many),
        Case("grad(vmap)", gradient_of_all, made.loss, many),
        Case("jit(grad(vmap))", lambda lib, f: lib.jit(gradient_of_all(lib, f)), made.loss, many),
    ])  # fmt: skip


def total(library: Any, x: Any) -> Any:
    """The sum of all elements."""
    return ys.sum(x) if library is ys else jnp.sum(x)


def check_jvp(seed: int) -> None:
    """jvp, linearize, products of Hessians and vectors, jit, vmap and grad of them."""
    rng = np.random.default_rng((seed, 2))
    inputs = rng.normal(size=(3, 4)), rng.normal(size=(4,))
    tangents = rng.normal(size=(3, 4)), rng.normal(size=(4,))
    made = program(seed, inputs)
    every = (*inputs, *tangents)
    many = (*inputs, *[np.stack([t, -2 * t]) for t in tangents])

    def of(lib: Any, f: Any) -> Any:
        return lambda a, b, c, d: lib.jvp(f, (a, b), (c, d))

    compare([
        Case("jvp", of, made, every),
        Case("jit(jvp)", lambda lib, f: lib.jit(of(lib, f)), made, every),
        Case("linearize", lambda lib, f: lambda a, b, c, d: lib.linearize(f, a, b)[1](c, d), made, every),
        Case("vmap(jvp)", lambda lib, f: lib.vmap(of(lib, f), (None, None, 0, 0)), made, many),
        Case("jvp(grad)", lambda lib, f: of(lib, lib.grad(f, argnums=(0, 1))), made.loss, every),
        Case("jit(jvp(grad))", lambda lib, f: lib.jit(of(lib, lib.grad(f, argnums=(0, 1)))), made.loss, every),
        Case("grad(jvp)", lambda lib, f: lib.grad(lambda *xs: of(lib, f)(*xs)[1], argnums=(0, 1, 2, 3)), made.loss,
             every),
    ])  # fmt: skip


def check_jacobian(seed: int) -> None:
    """jacrev, jacfwd, jacobian, their jit and vmap, and a gradient through one."""
    rng = np.random.default_rng((seed, 3))
    inputs = rng.normal(size=(2, 3)), rng.normal(size=(3,))
    made = program(seed, inputs)
    argnums = [0, 1, (0, 1)][int(rng.integers(0, 3))]
    many = [np.stack([i, i * 1.05]) for i in inputs]

    def chosen(lib: Any, f: Any) -> Any:
        return (lib.jacobian if lib is ys else lib.jacrev)(f, argnums=argnums)

    def size(lib: Any, f: Any) -> Any:
        leaves = ys.tree_leaves if lib is ys else jax.tree_util.tree_leaves
        return lib.grad(lambda *xs: sum(total(lib, j * j) for j in leaves(chosen(lib, f)(*xs))), argnums=(0, 1))

    compare([
        Case(f"jacrev {argnums}", lambda lib, f: lib.jacrev(f, argnums=argnums), made, inputs),
        Case(f"jacfwd {argnums}", lambda lib, f: lib.jacfwd(f, argnums=argnums), made, inputs),
        Case(f"jit(jacobian) {argnums}", lambda lib, f: lib.jit(chosen(lib, f)), made, inputs),
        Case(f"vmap(jacobian) {argnums}", lambda lib, f: lib.vmap(chosen(lib, f)), made, many),
        Case(f"grad(jacobian) {argnums}", size, made, inputs),
    ])  # fmt: skip


def check_hessian(seed: int) -> None:
    """hessian, its jit and vmap, and a gradient through it."""
    rng = np.random.default_rng((seed, 4))
    inputs = rng.normal(size=(2, 3)), rng.normal(size=(3,))
    made = program(seed, inputs)
    argnums = [0, 1, (0, 1)][int(rng.integers(0, 3))]
    many = [np.stack([i, i * 1.05]) for i in inputs]

    def third(lib: Any, f: Any) -> Any:
        return lib.grad(lambda *xs: total(lib, lib.hessian(f, argnums=1)(*xs)), argnums=(0, 1))

    compare([
        Case(f"hessian {argnums}", lambda lib, f: lib.hessian(f, argnums=argnums), made.loss, inputs),
        Case("jit(hessian)", lambda lib, f: lib.jit(lib.hessian(f, argnums=argnums)), made.loss, inputs),
        Case("vmap(hessian)", lambda lib, f: lib.vmap(lib.hessian(f, argnums=1)), made.loss, many),
        Case("grad(hessian)", third, made.loss, inputs),
    ])  # fmt: skip


CHECKS = {"vmap": check_vmap, "jvp": check_jvp, "jacobian": check_jacobian, "hessian": check_hessian}


def seeds(kind: str, first: int) -> Iterator[int]:
    """Seeds of programs for a kind, without end."""
    offset = 1_000_000 * list(CHECKS).index(kind)
    return iter(range(offset + first, offset + 1_000_000))


def run(kind: str, programs: int, first: int = 0) -> tuple[int, list[str]]:
    """Check so many programs; returns how many others were left out, and the failures."""
    left_out, failures = 0, []
    done = 0
    for seed in seeds(kind, first):
        if done == programs:
            break
        try:
            CHECKS[kind](seed)
        except Unusable:
            left_out += 1
            continue
        except Exception as error:
            failures.append(f"{kind}:{seed}: {type(error).__name__}: {str(error)[:600]}")
            print(failures[-1], flush=True)
        done += 1
        if done % 25 == 0:
            print(f"{kind}: {done} programs, {len(failures)} failures", flush=True)
    return left_out, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only")
    parser.add_argument("kinds", nargs="*", default=list(CHECKS))
    given = parser.parse_args()
    if given.only:
        kind, _, seed = given.only.partition(":")
        CHECKS[kind](int(seed))
        return 0
    failed = 0
    for kind in given.kinds:
        start = time.perf_counter()
        left_out, failures = run(kind, given.programs, given.seed)
        failed += len(failures)
        seconds = time.perf_counter() - start
        print(f"{kind}: {given.programs - len(failures)} of {given.programs} programs agree with JAX {jax.__version__} "
              f"({left_out} others left out: derivatives above {STEEPEST:g}, or JAX's compiler failed; "
              f"{seconds:.0f} s)", flush=True)  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
