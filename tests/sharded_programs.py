"""Random programs on tensors with random layouts: the values and gradients of one process, on several ranks.

python tests/sharded_programs.py [programs] [seed]
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np

import yosegi as ys
from yosegi import distributed as dist
from yosegi.distributed.fake import run_ranks

MESHES = [(1,), (2,), (3,), (4,), (2, 2), (1, 2), (4, 1), (2, 3)]
NAMES = ("a", "b")
SHAPES = [(), (4,), (6,), (5,), (4, 6), (6, 4), (5, 3), (2, 4, 6), (4, 1), (1, 6), (8, 2, 3), (0, 4), (1,), (4, 4)]


class Program:
    """A random program: the same steps for a seed, with or without a mesh."""

    def __init__(self, seed, mesh=None):
        self.random = np.random.default_rng(seed)
        self.mesh = mesh
        self.axes = NAMES[: len(MESHES[seed % len(MESHES)])]
        shapes = [SHAPES[n] for n in self.random.integers(len(SHAPES), size=4)]
        self.inputs = [self.random.normal(size=shape) for shape in shapes]
        self.steps = int(self.random.integers(3, 12))

    def layout(self, x):
        """Some dimension, or none, for each axis of the mesh. Sometimes the value is gathered on use."""
        chosen = {name: int(self.random.integers(-1, max(1, x.ndim))) for name in self.axes}
        on_use = bool(self.random.integers(2))
        axes = {name: dist.Shard(dim, on_use=on_use) for name, dim in chosen.items() if 0 <= dim < x.ndim}
        return x if self.mesh is None else dist.shard(dist.gather(x), self.mesh, **axes)

    def run(self):
        tensors = [self.layout(ys.asarray(a)) for a in self.inputs]
        state = self.random.bit_generator.state

        def loss(*given):
            self.random.bit_generator.state = state
            pool = list(given)
            for _ in range(self.steps):
                pool.append(self.step(pool))
            total = ys.asarray(0.0)
            for x in pool[len(given) :]:
                total = total + dist.all_reduce(ys.sum(ys.tanh(x)))
            return total, pool[-1]

        (value, last), gradients = ys.value_and_grad(loss, argnums=tuple(range(len(tensors))), has_aux=True)(*tensors)
        jitted = ys.jit(lambda *given: loss(*given)[0])(*tensors)
        for x, g in zip(tensors, gradients, strict=True):
            assert g.layout == x.layout, f"the gradient of {x.layout} has {g.layout}"
        return [dist.gather(t).numpy() for t in (value, jitted, last, *gradients)]

    def step(self, pool):
        x = pool[self.random.integers(len(pool))]
        steps = [self.unary, self.binary, self.reduction, self.movement, self.product, self.along, self.relayout]
        return steps[self.random.integers(len(steps))](x, pool)

    def pick(self, *choices):
        return choices[self.random.integers(len(choices))]

    def unary(self, x, pool):
        return self.pick(
            ys.tanh, ys.sin, lambda t: -t, lambda t: t * 2, lambda t: t / 3, ys.square,
            lambda t: ys.where(t > 0, t, 0), lambda t: ys.real(t.astype(ys.complex128) * 1j * -1j),
        )(x)  # fmt: skip

    def binary(self, x, pool):
        function = self.pick(ys.add, ys.subtract, ys.multiply, ys.maximum)
        fitting = [y for y in pool if _broadcasts(x.shape, y.shape)]
        y = fitting[self.random.integers(len(fitting))]
        if function in (ys.add, ys.subtract):
            x, y = dist.all_reduce(x), dist.all_reduce(y)
        return function(x, y)

    def reduction(self, x, pool):
        axes = tuple(d for d in range(x.ndim) if self.random.random() < 0.6)
        names = (ys.sum, ys.mean) if x.size == 0 else (ys.sum, ys.mean, ys.max, ys.min, ys.prod, ys.var)
        if x.size == 0:
            names = (ys.sum,)
        return self.pick(*names)(x, axis=axes, keepdims=bool(self.random.integers(2)))

    def movement(self, x, pool):
        kind = self.random.integers(6)
        if kind == 0:
            return ys.permute_dims(x, tuple(self.random.permutation(x.ndim).tolist()))
        if kind == 1:
            return ys.reshape(x, self.factors(x.size))
        if kind == 2 and x.ndim:
            return x[tuple(self.window(n) for n in x.shape)]
        if kind == 3 and x.ndim:
            return ys.concat([x, x * 2], axis=int(self.random.integers(x.ndim)))
        if kind == 4:
            return ys.broadcast_to(x, (2, *x.shape)) if x.ndim < 3 else x
        return ys.expand_dims(x, axis=0) if x.ndim < 3 else x

    def factors(self, size):
        shape = []
        while size > 1 and len(shape) < 3:
            divisors = [d for d in range(2, size + 1) if size % d == 0]
            shape.append(int(self.pick(*divisors)))
            size //= shape[-1]
        return (*shape, size)

    def window(self, n):
        if self.random.random() < 0.5 or n < 2:
            return slice(None)
        first = int(self.random.integers(n - 1))
        return self.pick(slice(first, n), slice(0, first + 1), slice(None, None, -1), first)

    def product(self, x, pool):
        if x.ndim < 1 or x.ndim > 3:
            return x
        fitting = [y for y in pool if y.ndim == 2 and y.shape[0] == x.shape[-1]]
        y = fitting[self.random.integers(len(fitting))] if fitting else ys.ones((x.shape[-1], 3))
        if x.ndim == 2 and self.random.random() < 0.3:
            return ys.einsum("ij,jk->ki", x, y)
        return x @ y

    def along(self, x, pool):
        if not x.ndim or 0 in x.shape:
            return x
        axis = int(self.random.integers(x.ndim))
        places = ys.asarray(self.random.integers(x.shape[axis], size=(3,)))
        softmax, norm = partial(ys.nn.softmax, axis=axis), partial(ys.nn.layer_norm, axis=axis)
        function = self.pick(
            softmax, norm, partial(ys.cumulative_sum, axis=axis), partial(ys.sort, axis=axis),
            partial(ys.flip, axis=axis), lambda t: ys.take(t, places, axis=axis), lambda t: t.at[0].set(1.0),
        )  # fmt: skip
        return function(x)

    def relayout(self, x, pool):
        if x.ndim and self.random.random() < 0.3:
            return dist.all_to_all(x, int(self.random.integers(x.ndim)))
        if x.ndim and self.random.random() < 0.3:
            return dist.reduce_scatter(x, int(self.random.integers(x.ndim)))
        return self.layout(x)


def _broadcasts(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False))


def check(seed):
    """Run one program in one process and on ranks. Returns the greatest difference."""
    expected = Program(seed).run()
    shape = MESHES[seed % len(MESHES)]

    def rank(communicator):
        mesh = dist.Mesh(shape, NAMES[: len(shape)])
        return Program(seed, mesh).run()

    for found in run_ranks(int(np.prod(shape)), rank, deadline=60):
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9, err_msg=f"program {seed}")


def main(programs=500, first=0):
    for seed in range(first, first + programs):
        try:
            check(seed)
        except Exception as error:
            raise SystemExit(
                f"program {seed} on mesh {MESHES[seed % len(MESHES)]}: {type(error).__name__}: {error}"
            ) from error
    print(f"{programs} sharded programs equal one process")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
