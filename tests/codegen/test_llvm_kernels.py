"""Kernels of generated loops, against NumPy: shapes, layouts, dtypes, reductions, passes over rows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from native_code import both, needs_llvm, region_of
from values import Array, same
from yosegi._graph.graph import capture
from yosegi._schedule.groups import Group, RowLimits, grouped
from yosegi._tensor.dtype import ALL, DType
from yosegi.codegen.llvm.nest import Nest, operands_of

pytestmark = needs_llvm

LENGTHS = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 31, 64, 67, 130])
SHAPES = st.lists(LENGTHS, min_size=0, max_size=3).filter(lambda s: prod(s) <= 20_000).map(tuple)
DTYPES = st.sampled_from(list(ALL))


def values(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind.startswith("un") else -20, 20, shape).astype(dtype.numpy)
    numbers = rng.uniform(-2, 2, shape)
    return (numbers + 1j * rng.uniform(-2, 2, shape) if dtype.is_complex else numbers).astype(dtype.numpy)


@st.composite
def broadcastable(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Three shapes that broadcast to the first."""
    shape = draw(SHAPES)
    shapes = [shape]
    for _ in range(2):
        other = [1 if draw(st.booleans()) else n for n in shape]
        shapes.append(tuple(other[draw(st.integers(0, len(other))) :]))
    return shapes


def close(got: Array, expected: Array, dtype: DType) -> None:
    ulps = 8 if dtype.is_inexact else 0
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if dtype.is_inexact:
        eps = float(ys.finfo(dtype).eps)
        wide = np.complex128 if dtype.is_complex else np.float64
        scale = np.max(np.abs(expected.astype(wide)), initial=1)
        np.testing.assert_allclose(got.astype(wide), expected.astype(wide), rtol=ulps * eps, atol=ulps * eps * scale)
    else:
        np.testing.assert_array_equal(got, expected)


@given(broadcastable(), DTYPES, st.booleans(), st.integers(0, 99))
def test_loops_of_any_shape(shapes: list[tuple[int, ...]], dtype: DType, chunked: bool, seed: int) -> None:
    x, y, z = (ys.asarray(values(s, dtype, seed + n)) for n, s in enumerate(shapes))
    if dtype.name == "bool":
        results = (x & y) | z, ~(x ^ z)
    else:
        results = (x + y) * z - x, x * y
    for got, expected in both(*results, chunked=chunked):
        if dtype.is_complex:
            close(got, expected, dtype)  # NumPy rounds complex products once, in some builds
        else:
            same(got, expected, ulps=0)


@given(
    st.sampled_from([ys.float16, ys.float32, ys.float64, ys.complex64]), st.integers(2000, 9000), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_the_last_vector_of_a_long_row(dtype: DType, length: int, in_rows: bool, chunked: bool) -> None:
    x, y = (ys.asarray(values((3, length)[not in_rows :], dtype, n)) for n in range(2))
    factor = ys.asarray(values((3, 1)[not in_rows :], dtype, 2))
    for got, expected in both((x - y) * factor, x + y, chunked=chunked):
        close(got, expected, dtype)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...] | None, bool]:
    shape = draw(SHAPES)
    axes = (
        draw(st.none() | st.lists(st.sampled_from(range(max(1, len(shape)))), unique=True).map(tuple))
        if shape
        else None
    )
    return shape, axes, draw(st.booleans())


@given(reductions(), DTYPES, st.sampled_from(["sum", "prod", "max", "min", "all", "any", "mean"]), st.booleans())
def test_reductions_along_any_axes(what: Any, dtype: DType, name: str, chunked: bool) -> None:
    shape, axes, keepdims = what
    if (dtype.is_complex and name in ("max", "min")) or (dtype.name == "bool" and name == "mean"):
        return
    array = values(shape, dtype, 3)
    if name == "prod" and dtype.name != "bool":  # factors that neither overflow nor round
        array = np.sign(array.real).astype(array.dtype) * (1j if dtype.is_complex else 1)
        array = array.astype(dtype.numpy)
    result = getattr(ys, name)(ys.asarray(array), axis=axes, keepdims=keepdims)
    of_nothing = not shape or axes == ()
    for got, expected in both(result, chunked=chunked, reference_only=of_nothing):
        close(got, expected, result.dtype)


def test_vectors_run_along_the_large_arrays() -> None:
    # Statistics of channels, as a batch norm has them: many small results, and two as large as the input.
    x = ys.asarray(values((4, 16, 8, 8), ys.float32, 0))
    mean = ys.mean(x, axis=(0, 2, 3), keepdims=True)
    moved = x - mean
    variance = ys.mean(moved * moved, axis=(0, 2, 3), keepdims=True)
    small = [v + n for v in (mean, variance) for n in range(3, 7)]
    results = moved, moved * variance, *small
    region, _ = region_of(*results)
    (kernel,) = grouped(region, RowLimits())
    group = Group.of(kernel)
    assert len(group.outputs) >= len(results)
    reads, writes = operands_of(group, {})
    nest = Nest(group, [*reads, *writes], counts=False)
    assert nest.vector.reduced, "vectors run along the channels, where elements of the input are far apart"
    for got, expected in both(*results, chunked=False):
        close(got, expected, ys.float32)


@given(reductions(), st.sampled_from(["float16", "bfloat16", "float32", "float64"]), st.booleans())
def test_rows_in_several_passes(what: Any, dtype: str, chunked: bool) -> None:
    shape, axes, keepdims = what
    x = ys.asarray(values(shape, getattr(ys, dtype), 5))
    mean = ys.mean(x, axis=axes, keepdims=True)
    apart = x - mean
    spread = ys.sqrt(ys.mean(apart * apart, axis=axes, keepdims=True) + 1)
    normal = apart / spread
    results = normal, ys.max(normal, axis=axes, keepdims=keepdims), mean * 2
    for got, expected in both(*results, chunked=chunked):
        close(got, expected, x.dtype)


@given(
    reductions(),
    st.sampled_from([d for d in ALL if not d.is_complex]),
    st.sampled_from(["argmax", "argmin"]),
    st.booleans(),
)
def test_the_place_of_an_extreme(what: Any, dtype: DType, name: str, chunked: bool) -> None:
    shape, axes, keepdims = what
    array = values(shape, dtype, 7)
    axis = axes[0] if axes else None
    result = getattr(ys, name)(ys.asarray(array), axis=axis, keepdims=keepdims)
    for got, expected in both(result, chunked=chunked, reference_only=not shape):
        np.testing.assert_array_equal(got, expected)


@given(SHAPES.filter(len), st.data(), st.sampled_from(["cumulative_sum", "cumulative_prod"]), st.booleans())
def test_running_totals(shape: tuple[int, ...], data: st.DataObject, name: str, chunked: bool) -> None:
    dtype = data.draw(DTYPES)
    axis = data.draw(st.integers(0, len(shape) - 1))
    array = values(shape, dtype, 9)
    if name == "cumulative_prod" and dtype.name != "bool":
        array = (np.sign(array.real) * (1j if dtype.is_complex else 1)).astype(dtype.numpy)
    result = getattr(ys, name)(ys.asarray(array), axis=axis)
    for got, expected in both(result, ys.sum(result, axis=axis), chunked=chunked):
        close(got, expected, result.dtype)


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: np.asfortranarray(a),
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2] if a.ndim else a,
    "cut out": lambda a: np.pad(a, 1)[(slice(1, -1),) * a.ndim],
    "broadcast": lambda a: np.broadcast_to(a[..., :1], a.shape) if a.ndim else a,
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@given(SHAPES, DTYPES, st.sampled_from(list(LAYOUTS)), st.sampled_from(list(LAYOUTS)), st.booleans(), st.data())
def test_any_layout(
    shape: tuple[int, ...], dtype: DType, first: str, second: str, chunked: bool, data: st.DataObject
) -> None:
    arrays = [LAYOUTS[name](values(shape, dtype, n)) for n, name in enumerate((first, second))]
    x, y = (ys.asarray(a) for a in arrays)
    axes = data.draw(st.none() | st.integers(0, len(shape) - 1).map(lambda a: (a,))) if shape else None
    result = ys.where(x == y, x, y)
    results = result, ys.any(result, axis=axes), ys.all(result, axis=axes, keepdims=True)
    layouts = {x._node: arrays[0], y._node: arrays[1]}
    leaves = capture([t._node for t in results])[1]
    for got, expected in both(*results, arrays=[layouts[n] for n in leaves], chunked=chunked):
        np.testing.assert_array_equal(got, expected)


# Programs

UNARY = [ys.negative, ys.abs, ys.square, lambda x: ys.sqrt(ys.abs(x)), lambda x: x * 0.5, lambda x: x + 3]
BINARY = [ys.add, ys.subtract, ys.multiply, ys.maximum, lambda a, b: ys.where(a < b, a, b)]
MOVED = [
    lambda x: ys.expand_dims(x, axis=-1),
    lambda x: ys.reshape(x, (-1,)),
    lambda x: ys.permute_dims(x, tuple(range(x.ndim))[::-1]),
]
ALONG = [ys.sum, ys.mean, ys.max, ys.min, ys.var, ys.std]


@st.composite
def programs(draw: st.DrawFn) -> list[ys.Tensor]:
    """Some results of ops on ops: elementwise ones, reductions, running totals, other shapes of the same."""
    rows, columns = draw(st.sampled_from([(4, 70), (70, 4), (33, 17), (1, 40), (9, 1), (300, 130)]))
    shapes = [(rows, columns), (columns,), (rows, 1), (rows, columns)]
    made = [ys.asarray(values(s, ys.float64, n)) for n, s in enumerate(shapes)]
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.integers(0, 9))
        x, y = (made[draw(st.integers(0, len(made) - 1))] for _ in range(2))
        axis = draw(st.sampled_from([None, *range(x.ndim)]))
        if kind < 3:
            made.append(draw(st.sampled_from(UNARY))(x))
        elif kind < 6 and all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False)):
            made.append(draw(st.sampled_from(BINARY))(x, y))
        elif kind < 8 and x.ndim:
            made.append(draw(st.sampled_from(ALONG))(x, axis=axis, keepdims=draw(st.booleans())))
        elif kind == 8 and x.ndim:
            made.append(ys.cumulative_sum(x, axis=axis or 0) if draw(st.booleans()) else
                        ys.astype(ys.argmax(x, axis=axis), ys.float64))  # fmt: skip
        elif kind == 9:
            made.append(draw(st.sampled_from(MOVED))(x))
    results = [t for t in made[len(shapes) :] if t.size < 200_000]
    return results[-draw(st.integers(1, 4)) :]


@given(programs(), st.booleans())
def test_any_program(results: list[ys.Tensor], chunked: bool) -> None:
    pending = [t for t in results if t._node.buffer is None]
    if pending:
        for got, expected in both(*pending, chunked=chunked, reference_only=True):
            scale = np.max(np.abs(expected), initial=1)
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * scale)
