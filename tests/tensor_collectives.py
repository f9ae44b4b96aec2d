"""Checks of collectives on tensors and of their gradients against NumPy, for the ranks of any engine."""

from __future__ import annotations

import numpy as np

import yosegi as ys
from distributed_cases import SHAPES, combines, expected, value
from yosegi import distributed as dist
from yosegi.distributed import Combine, Partial


def same(got, wanted):
    """The same dtype and shape, and values up to rounding."""
    got = got.numpy()
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    rtol = {2: 1e-2, 4: 1e-5}.get(wanted.dtype.itemsize, 1e-6)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=rtol, atol=rtol)


def check_reductions(ranks, dtype):
    """All-reduces and reduce-scatters of all shapes, some without elements, some not contiguous."""
    mesh = dist.Mesh((ranks.size,), ("data",))
    for shape in SHAPES:
        arrays = [value(dtype, shape, rank) for rank in range(ranks.size)]
        for combine in combines(dtype):
            part = ys.asarray(arrays[ranks.rank])
            whole = dist.from_local(part, mesh, data=Partial(combine))
            same(dist.all_reduce(whole), expected(arrays, combine))
            if shape:
                same(dist.gather(dist.reduce_scatter(whole, 0)), expected(arrays, combine))


def check_parts(ranks, dtype):
    """Gathers and exchanges."""
    mesh = dist.Mesh((ranks.size,), ("data",))
    for shape in [(0,), (1,), (7,), (5, 4), (4, 0), (3, 5, 2)]:
        array = value(dtype, shape, 0)
        for dim in range(len(shape)):
            x = dist.shard(array, mesh, data=dim)
            assert x.shape == shape
            length = np.array_split(np.empty(shape), ranks.size, dim)[ranks.rank].shape
            assert dist.local(x).shape == length
            same(dist.all_gather(x), array)
            for other in range(len(shape)):
                y = dist.all_to_all(x, other)
                parts = np.array_split(array, ranks.size, other)
                same(dist.local(y), parts[ranks.rank])


def check_replicate(ranks, dtype):
    """Every rank gets the value of the root."""
    mesh = dist.Mesh((ranks.size,), ("data",))
    for root in range(ranks.size):
        same(dist.replicate(value(dtype, (4, 5), ranks.rank), mesh, root=root), value(dtype, (4, 5), root))


def check_gradients(ranks):
    """The gradient of a program with collectives is that of the same program in one process."""
    rng = np.random.default_rng(0)
    a, w = rng.normal(size=(5, 3)), rng.normal(size=(3, 4))
    mesh = dist.Mesh((ranks.size,), ("data",))
    x = dist.shard(a, mesh, data=0)
    square = ys.grad(lambda x: ys.sum(dist.all_reduce(ys.sum(x**2, axis=0))))(x)
    assert square.layout == x.layout
    same(dist.gather(square), 2 * a)

    def loss(x, w):
        return ys.mean(ys.tanh(dist.all_to_all(x @ w, 1)))

    to_x, to_w = ys.grad(loss, argnums=(0, 1))(x, ys.asarray(w))
    slope = (1 - np.tanh(a @ w) ** 2) / 20
    assert to_w.layout is None
    same(dist.gather(to_x), slope @ w.T)
    same(to_w, a.T @ slope)
    scattered = ys.grad(lambda x: dist.all_reduce(ys.sum(dist.reduce_scatter(ys.sum(x, axis=0), 0) ** 2)))(x)
    same(dist.gather(scattered), np.broadcast_to(2 * a.sum(axis=0), a.shape))
    gathered = ys.grad(lambda x: ys.sum(dist.all_gather(x) ** 3))(x)
    same(dist.gather(gathered), 3 * a**2)
    sent = ys.grad(lambda w: ys.sum(dist.replicate(w, mesh) ** 2))(ys.asarray(w))
    same(sent, 2 * w)


def check_gradients_of_parts(ranks, dtype):
    """The gradient of the sum of squares of a combination, by the part of a rank. Ties share it."""
    mesh = dist.Mesh((ranks.size,), ("data",))
    for shape in [(0,), (3,), (2, 3)]:
        arrays = [np.nan_to_num(value(dtype, shape, rank)).round() for rank in range(ranks.size)]
        for combine in combines(dtype):

            def loss(part, combine=combine):
                whole = dist.all_reduce(dist.from_local(part, mesh, data=Partial(combine)))
                return ys.sum(ys.abs(whole) ** 2)

            total = expected(arrays, combine).astype(np.complex128 if dtype.kind == "c" else np.float64)
            slope = 2 * total / (ranks.size if combine is Combine.MEAN else 1)
            if combine in (Combine.MAX, Combine.MIN):
                is_best = np.stack(arrays) == total
                slope = slope * is_best[ranks.rank] / is_best.sum(axis=0)
            same(ys.grad(loss)(ys.asarray(arrays[ranks.rank])), slope.astype(dtype))
