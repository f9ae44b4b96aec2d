"""Checks of all collectives against NumPy, for any communicator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import yosegi as ys
from yosegi.distributed.communicator import Combine

DTYPES = [np.dtype(d) for d in (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", ml_dtypes.bfloat16,
)]  # fmt: skip
SHAPES = ((), (0,), (3, 0), (1,), (7,), (4, 5), (9000,))


def value(dtype, shape, rank):
    """The array of a rank: with a NaN in floats, and not contiguous where it has two dimensions."""
    rng = np.random.default_rng([rank, *shape])
    if dtype.kind in "biu":
        return np.asarray(rng.integers(0, 120, shape)).astype(dtype)
    drawn = rng.normal(size=(*shape, 2))
    array = np.asarray(drawn @ [1, 1j] if dtype.kind == "c" else drawn[..., 0] * 9).astype(dtype)
    if dtype.kind != "c" and array.size > 2:
        array.flat[rank % array.size] = np.nan
    return np.asfortranarray(array) if array.ndim == 2 else array


def expected(arrays, combine):
    """NumPy's answer: sums of 16-bit floats in float64, rounded at the end."""
    dtype = arrays[0].dtype
    stack = np.stack(arrays)
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        stack = stack.astype(np.float64)
    fold = {Combine.MAX: np.maximum, Combine.MIN: np.minimum}.get(combine, np.add)
    total = fold.reduce(stack, axis=0, dtype=stack.dtype)
    return np.asarray(total / len(arrays) if combine is Combine.MEAN else total).astype(dtype)


def combines(dtype):
    """The reductions that a dtype has."""
    undefined = {"c": (Combine.MAX, Combine.MIN), "b": (Combine.MEAN,), "i": (Combine.MEAN,), "u": (Combine.MEAN,)}
    return [combine for combine in Combine if combine not in undefined.get(dtype.kind, ())]


def assert_same(got, wanted, exact=True):
    """The same dtype, shape and values, in a new contiguous array."""
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.flags.c_contiguous
    assert got.flags.writeable
    if exact or got.dtype.kind in "biu":
        same = np.array_equal(got, wanted, equal_nan=got.dtype.kind not in "biu")
        assert same, f"{got.dtype}{list(got.shape)}: {got}, expected {wanted}"
    else:
        rtol = 1e-2 if got.dtype.itemsize == 2 else 1e-5
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=rtol, atol=rtol)


def check_collectives(ranks, dtype):
    """All collectives of a communicator, over all shapes."""
    n, own = ranks.size, ranks.rank
    for shape in SHAPES:
        values = [value(dtype, shape, rank) for rank in range(n)]
        mine = values[own].copy(order="K")
        rows = [[value(dtype, shape, 10 * a + b) for b in range(n)] for a in range(n)]
        for combine in combines(dtype):
            for fixed in (False, True):
                assert_same(ranks.all_reduce(mine, combine, fixed_order=fixed), expected(values, combine), False)
                column = expected([row[own] for row in rows], combine)
                assert_same(ranks.reduce_scatter(rows[own], combine, fixed_order=fixed), column, False)
        for got, wanted in zip(ranks.all_gather(mine), values, strict=True):
            assert_same(got, wanted)
        for got, wanted in zip(ranks.all_to_all(rows[own]), [row[own] for row in rows], strict=True):
            assert_same(got, wanted)
        for root in range(n):
            assert_same(ranks.broadcast(mine if own == root else None, root), values[root])
        after, before = (own + 1) % n, (own - 1) % n
        ranks.send(mine, after, tag=1)
        ranks.send(mine.T, after, tag=2)
        assert_same(ranks.receive(before, tag=2), values[before].T)
        assert_same(ranks.receive(before, tag=1), values[before])
        assert np.array_equal(mine, values[own], equal_nan=dtype.kind not in "biu"), "an input was changed"
    check_different_shapes(ranks, dtype)
    check_groups(ranks, dtype)


def check_different_shapes(ranks, dtype):
    """Gathers and exchanges of arrays that differ in shape between ranks."""
    n, own = ranks.size, ranks.rank
    shapes = [(rank, 2) for rank in range(n)]
    for rank, got in enumerate(ranks.all_gather(value(dtype, shapes[own], own))):
        assert_same(got, value(dtype, shapes[rank], rank))
    got = ranks.all_to_all([value(dtype, (own, to), own) for to in range(n)])
    for rank in range(n):
        assert_same(got[rank], value(dtype, (rank, own), rank))
    pieces = [[value(dtype, (part,), 10 * rank + part) for part in range(n)] for rank in range(n)]
    total = ranks.reduce_scatter(pieces[own], Combine.SUM)
    assert_same(total, expected([row[own] for row in pieces], Combine.SUM), False)


def check_groups(ranks, dtype):
    """Groups of even and odd ranks, in reverse order, and a group of one inside of them."""
    group = ranks.split(ranks.rank % 2, -ranks.rank)
    members = [rank for rank in reversed(range(ranks.size)) if rank % 2 == ranks.rank % 2]
    assert group.members == tuple(ranks.members[rank] for rank in members)
    assert (group.rank, group.size) == (members.index(ranks.rank), len(members))
    got = group.all_gather(value(dtype, (3,), ranks.rank))
    for rank, array in zip(members, got, strict=True):
        assert_same(array, value(dtype, (3,), rank))
    assert group.split(group.rank, 0).size == 1
    ranks.barrier()


ROW = np.arange(6, dtype=np.float32)
MISTAKES = {
    "collectives": lambda ranks, odd: ranks.broadcast(ROW, ranks.rank) if odd else ranks.all_reduce(ROW, Combine.SUM),
    "collectives without an array": lambda ranks, odd: ranks.barrier() if odd else ranks.all_gather(ROW),
    "lengths": lambda ranks, odd: ranks.all_reduce(ROW[odd:], Combine.SUM),
    "lengths of large arrays": lambda ranks, odd: ranks.all_reduce(np.ones((1 << 20) - odd), Combine.SUM),
    "shapes": lambda ranks, odd: ranks.all_reduce(ROW.reshape(2 + odd, -1), Combine.SUM),
    "dtypes": lambda ranks, odd: ranks.all_reduce(ROW.astype([np.float32, np.int32][odd]), Combine.SUM),
    "combinations": lambda ranks, odd: ranks.all_reduce(ROW, [Combine.SUM, Combine.MAX][odd]),
    "orders": lambda ranks, odd: ranks.all_reduce(ROW, Combine.SUM, fixed_order=bool(odd)),
    "dtypes of a gather": lambda ranks, odd: ranks.all_gather(ROW.astype([np.float32, np.float64][odd])),
    "roots": lambda ranks, odd: ranks.broadcast(ROW, odd),
    "parts": lambda ranks, odd: ranks.reduce_scatter([ROW[odd:]] * ranks.size, Combine.SUM),
    "exchanges": lambda ranks, odd: ranks.all_gather(ROW) if odd else ranks.all_to_all([ROW] * ranks.size),
}
"""Calls that differ on the odd ranks."""


def check_mistake(ranks, name):
    """Ranks that call different things all learn of it, and of the calls."""
    with pytest.raises(ys.errors.ArgumentError, match=r"\] expected the same call on all ranks, got .+ on 0, .+ on 1"):
        MISTAKES[name](ranks, ranks.rank % 2)
