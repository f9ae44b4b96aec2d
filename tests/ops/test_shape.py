"""Movement of elements, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from values import check, specials
from yosegi._tensor.dtype import ALL, DType
from yosegi.errors import ArgumentError, AxisError, DTypeError, ShapeError

X = np.arange(24.0).reshape(2, 3, 4)
ROW = np.arange(4.0)
FLAT = np.ones((2, 1, 3, 1))
EMPTY = np.ones((2, 0, 3))
POINT = np.array(5.0)


def both(function: Callable[[Any, Any], Any], array: Any) -> None:
    """The function of the namespace and of the array gives the same in Yosegi and in NumPy."""
    got, expected = function(ys, ys.asarray(array)), function(np, array)
    if not isinstance(got, tuple):
        got, expected = (got,), (expected,)
    assert len(got) == len(expected)
    for tensor, wanted in zip(got, expected, strict=True):
        check(tensor, np.asarray(wanted))


# The table: what is done to which arrays ----------------------------------------------------------------------------

CASES: dict[str, tuple[list[Any], list[Callable[[Any, Any], Any]]]] = {
    "reshape": ([X], [lambda xp, x, s=s: xp.reshape(x, s) for s in
                      [24, (24,), (4, 6), (-1,), -1, (2, -1, 2), (1, 24, 1), (4, 3, 2), [6, -1], (np.int64(3), 8)]]),
    "reshape nothing": ([EMPTY], [lambda xp, x, s=s: xp.reshape(x, s) for s in [0, (3, 0), (-1, 2), (0, 7, 9)]]),
    "reshape a point": ([POINT, np.ones((1, 1))],
                        [lambda xp, x, s=s: xp.reshape(x, s) for s in [(), (1,), -1, (1, 1)]]),
    "permute_dims": ([X], [lambda xp, x, a=a: xp.permute_dims(x, a) for a in
                           [(0, 1, 2), (2, 1, 0), (1, 2, 0), (-1, 0, 1), [2, 0, 1]]]),
    "permute_dims of a point": ([POINT], [lambda xp, x: xp.permute_dims(x, ())]),
    "broadcast_to": ([ROW], [lambda xp, x, s=s: xp.broadcast_to(x, s) for s in [4, (3, 4), (2, 0, 4), (1, 1, 4)]]),
    "broadcast_to more": ([FLAT, np.ones((1, 1))], [lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 3, 2))]),
    "flip": ([X, EMPTY], [lambda xp, x, a=a: xp.flip(x, axis=a) for a in [None, 0, -1, (0, 2), (), (2, 1, 0)]]),
    "flip a point": ([POINT], [lambda xp, x: xp.flip(x)]),
    "roll": ([X, EMPTY], [lambda xp, x, s=s, a=a: xp.roll(x, s, axis=a) for s, a in
                          [(1, None), (-5, None), (100, None), (1, 0), (-1, -1), (7, 1), ((1, -2), (0, 2)), (2, (0, 1)),
                           ((1, 1), (2, 2)), ((1, 2), 2), (0, 0)]]),
    "roll a point": ([POINT], [lambda xp, x: xp.roll(x, 3)]),
    "expand_dims": ([X, EMPTY, POINT],
                    [lambda xp, x, a=a: xp.expand_dims(x, axis=a) for a in [0, -1, (0, 1), (0, -1)]]),
    "squeeze": ([FLAT], [lambda xp, x, a=a: xp.squeeze(x, axis=a) for a in [1, -1, (1, 3), (-1, 1), ()]]),
    "moveaxis": ([X, EMPTY], [lambda xp, x, s=s, d=d: xp.moveaxis(x, s, d) for s, d in
                              [(0, 2), (-1, 0), (1, 1), ((0, 1), (1, 2)), ((0, 2), (1, 0)), ((), ())]]),
    "tile": ([X, EMPTY, POINT], [lambda xp, x, r=r: xp.tile(x, r) for r in
                                 [(2,), 2, (1, 2), (2, 1, 3), (2, 1, 1, 1), (0,), (0, 2), ()]]),
    "repeat": ([X, EMPTY, POINT], [lambda xp, x, n=n: xp.repeat(x, n) for n in [2, 0, 1]]),
    "repeat along": ([X], [lambda xp, x, a=a: xp.repeat(x, 3, axis=a) for a in [0, 1, -1]]),
    "repeat by counts": ([X], [lambda xp, x, c=c: xp.repeat(x, xp.asarray(c), axis=1) for c in
                               [[1, 2, 0], [0, 0, 0], [2], 2, [3, 1, 1]]]),
    "concat": ([X], [lambda xp, x, a=a: xp.concat([x, x * 2, x], axis=a) for a in [0, 1, -1, None]]),
    "concat unlike": ([X], [lambda xp, x: xp.concat([x, x[:, :1], x[:, :0]], axis=1), lambda xp, x: xp.concat((x,))]),
    "stack": ([X, EMPTY, POINT], [lambda xp, x, a=a: xp.stack([x, x + 1, x], axis=a) for a in [0, -1]]),
    "stack inside": ([X], [lambda xp, x, a=a: xp.stack((x, x), axis=a) for a in [1, 2, 3, -2, -4]]),
    "unstack": ([X, EMPTY], [lambda xp, x, a=a: xp.unstack(x, axis=a) for a in [0, 1, -1]]),
    "tril": ([X, EMPTY, np.ones((3, 3), np.int8)], [lambda xp, x, k=k: xp.tril(x, k=k) for k in [0, 1, -1, 9, -9]]),
    "triu": ([X, EMPTY, np.ones((3, 3), np.int8)], [lambda xp, x, k=k: xp.triu(x, k=k) for k in [0, 1, -1, 9, -9]]),
    "matrix_transpose": ([X, EMPTY], [lambda xp, x: xp.matrix_transpose(x), lambda xp, x: x.mT]),
    "broadcast_arrays": ([ROW], [lambda xp, x: tuple(xp.broadcast_arrays(x, xp.reshape(x, (4, 1)), xp.asarray(2.0)))]),
    "methods": ([ROW],
                [lambda xp, x: x.reshape(2, 2), lambda xp, x: x.reshape((2, -1)), lambda xp, x: x.reshape(2, 2).T]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    arrays, functions = CASES[name]
    for array in arrays:
        for function in functions:
            both(function, array)


MOVES: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda xp, x: xp.reshape(x, (-1, 1)),
    "permute_dims": lambda xp, x: xp.permute_dims(xp.expand_dims(x, axis=0), (1, 0)),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (2, *x.shape)),
    "flip": lambda xp, x: xp.flip(x),
    "roll": lambda xp, x: xp.roll(x, 1),
    "repeat": lambda xp, x: xp.repeat(x, 2),
    "tile": lambda xp, x: xp.tile(x, (2, 2)),
    "concat": lambda xp, x: xp.concat([x, x]),
    "stack": lambda xp, x: xp.stack([x, x], axis=1),
    "tril": lambda xp, x: xp.tril(xp.broadcast_to(x, (3, *x.shape))),
    "triu": lambda xp, x: xp.triu(xp.broadcast_to(x, (3, *x.shape))),
    "unstack": lambda xp, x: xp.unstack(x),
}


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_every_dtype_moves_unchanged(name: str, dtype: DType) -> None:
    both(MOVES[name], specials(dtype))


@settings(max_examples=80)
@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.data())
def test_chains_of_views(shape: tuple[int, ...], data: Any) -> None:
    """Views of views, computed at once: what simplification makes of them, and strides, must not matter."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    x = ys.asarray(array)
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["permute_dims", "reshape", "flip", "expand_dims", "roll", "slice"]))
        if kind == "permute_dims":
            axes = tuple(data.draw(st.permutations(range(array.ndim))))
            x, array = ys.permute_dims(x, axes), np.permute_dims(array, axes)
        elif kind == "reshape":
            lengths = tuple(data.draw(st.permutations([*array.shape, 1])))
            x, array = ys.reshape(x, lengths), np.reshape(array, lengths)
        elif kind == "expand_dims":
            axis = data.draw(st.integers(-array.ndim - 1, array.ndim))
            x, array = ys.expand_dims(x, axis=axis), np.expand_dims(array, axis)
        elif array.ndim:
            axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
            if kind == "flip":
                x, array = ys.flip(x, axis=axis), np.flip(array, axis)
            elif kind == "roll":
                x, array = ys.roll(x, 2, axis=axis), np.roll(array, 2, axis)
            else:
                x, array = x[..., ::-2], array[..., ::-2]
    check(x, array)
    check(x + 1, array + 1)


def test_dtypes_meet_in_concat_and_stack() -> None:
    a, b = ys.asarray([1, 2], dtype=ys.int8), ys.asarray([0.5, 1.5], dtype=ys.float32)
    check(ys.concat([a, b]), np.array([1, 2, 0.5, 1.5], np.float32))
    check(ys.stack([a, b, ys.asarray([1j, 2])], axis=1), np.array([[1, 0.5, 1j], [2, 1.5, 2]], np.complex128))
    check(ys.concat([np.array([1, 2]), a]), np.array([1, 2, 1, 2]))


def test_broadcast_shapes() -> None:
    for shapes in [((2, 1), (3,)), ((), (4,)), ((5, 1, 3), (4, 1)), ((0,), (1,)), ()]:
        assert ys.broadcast_shapes(*shapes) == np.broadcast_shapes(*shapes)


def test_arrays_and_numbers_are_taken_for_tensors() -> None:
    check(ys.roll(ROW, 1), np.roll(ROW, 1))
    check(ys.expand_dims(2.0, axis=0), np.array([2.0]))
    check(ys.tile(ROW, 2), np.tile(ROW, 2))
    check(ys.repeat(ROW, np.array([0, 1, 2, 0])), np.repeat(ROW, [0, 1, 2, 0]))
    check(ys.repeat(ROW, np.int8(2)), np.repeat(ROW, 2))


def test_views_share_memory() -> None:
    x = ys.asarray(X)
    for view in (ys.reshape(x, (6, 4)), ys.permute_dims(x, (2, 0, 1)), ys.flip(x, axis=1), ys.expand_dims(x, axis=1)):
        assert np.shares_memory(view.numpy(), x.numpy())


# Mistakes -----------------------------------------------------------------------------------------------------------

T = ys.asarray(X)
AXIS_3 = "expected an axis from -3 to 2 for 3 dimensions, got {}"


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ys.reshape(T, (5, 5)), ShapeError,
         "[reshape] expected a shape of 24 elements, got (5, 5) for a tensor of shape (2, 3, 4)"),
        (lambda: ys.reshape(T, (-1, -1)), ShapeError,
         "[reshape] expected a shape of 24 elements, got (-1, -1) for a tensor of shape (2, 3, 4)"),
        (lambda: ys.reshape(T, (-1, 5)), ShapeError,
         "[reshape] expected a shape of 24 elements, got (-1, 5) for a tensor of shape (2, 3, 4)"),
        (lambda: ys.reshape(ys.zeros(0), (0, -1)), ShapeError,
         "[reshape] expected a shape of 0 elements, got (0, -1) for a tensor of shape (0,)"),
        (lambda: ys.reshape(T, (-2, 12)), ShapeError,
         "[reshape] expected a shape of 24 elements, got (-2, 12) for a tensor of shape (2, 3, 4)"),
        (lambda: ys.reshape(T, 2.5), DTypeError, "[reshape] expected a length as an integer, got 2.5"),
        (lambda: ys.permute_dims(T, (0, 1)), ShapeError,
         "[permute_dims] expected axes to name each of the 3 dimensions once, got (0, 1)"),
        (lambda: ys.permute_dims(T, (0, 1, 1)), AxisError, "[permute_dims] expected each axis once, got (0, 1, 1)"),
        (lambda: ys.permute_dims(T, (0, 1, 3)), AxisError, "[permute_dims] " + AXIS_3.format(3)),
        (lambda: ys.broadcast_to(T, (2, 3, 1)), ShapeError,
         "[broadcast_to] expected a shape that (2, 3, 4) broadcasts to, got (2, 3, 1)"),
        (lambda: ys.broadcast_to(T, (4,)), ShapeError,
         "[broadcast_to] expected a shape that (2, 3, 4) broadcasts to, got (4,)"),
        (lambda: ys.broadcast_to(T, (-1,)), ShapeError, "[broadcast_to] expected lengths of at least 0, got (-1,)"),
        (lambda: ys.flip(T, axis=3), AxisError, "[flip] " + AXIS_3.format(3)),
        (lambda: ys.flip(T, axis=(0, -3)), AxisError, "[flip] expected each axis once, got (0, -3)"),
        (lambda: ys.roll(T, (1, 2), axis=(0, 1, 2)), ArgumentError,
         "[roll] expected as many shifts as axes, got (1, 2) and (0, 1, 2)"),
        (lambda: ys.roll(T, 1.5), DTypeError, "[roll] expected a shift as an integer, got 1.5"),
        (lambda: ys.roll(T, 1, axis=-4), AxisError, "[roll] " + AXIS_3.format(-4)),
        (lambda: ys.expand_dims(T, axis=4), AxisError,
         "[expand_dims] expected an axis from -4 to 3 for 4 dimensions, got 4"),
        (lambda: ys.expand_dims(T, axis=(0, 0)), AxisError, "[expand_dims] expected each axis once, got (0, 0)"),
        (lambda: ys.expand_dims(T, axis="a"), DTypeError, "[expand_dims] expected an axis as an integer, got 'a'"),
        (lambda: ys.squeeze(T, axis=0), ShapeError,
         "[squeeze] expected dimension 0 to have length 1, got 2 (shape (2, 3, 4))"),
        (lambda: ys.squeeze(T, axis=5), AxisError, "[squeeze] " + AXIS_3.format(5)),
        (lambda: ys.moveaxis(T, (0, 1), (0,)), ArgumentError,
         "[moveaxis] expected as many sources as destinations, got (0, 1) and (0,)"),
        (lambda: ys.moveaxis(T, 3, 0), AxisError, "[moveaxis] " + AXIS_3.format(3)),
        (lambda: ys.tile(T, (-1,)), ShapeError, "[tile] expected lengths of at least 0, got (-1,)"),
        (lambda: ys.repeat(T, -1), ArgumentError, "[repeat] expected repeats of at least 0, got -1"),
        (lambda: ys.repeat(T, ys.asarray([1, -2]), axis=0), ArgumentError,
         "[repeat] expected repeats of at least 0, got -2"),
        (lambda: ys.repeat(T, ys.asarray([1, 2]), axis=1), ShapeError,
         "[repeat] expected 1 or 3 repeats, got shape (2,)"),
        (lambda: ys.repeat(T, ys.asarray([1.0, 2.0]), axis=0), DTypeError,
         "[repeat] expected integer repeats, got float64; cast them with astype"),
        (lambda: ys.repeat(T, 2, axis=3), AxisError, "[repeat] " + AXIS_3.format(3)),
        (lambda: ys.permute_dims(T, None), ShapeError,
         "[permute_dims] expected axes to name each of the 3 dimensions once, got None"),
        (lambda: ys.tril(T, k="a"), DTypeError, "[tril] expected k as an integer, got 'a'"),
        (lambda: ys.triu(T, k=0.5), DTypeError, "[triu] expected k as an integer, got 0.5"),
        (lambda: ys.tril(T, k=2**70), ArgumentError,
         "[tril] expected k of at most 64 bits, got 1180591620717411303424"),
        (lambda: ys.concat(3), DTypeError, "[concat] expected a sequence of tensors, got int"),
        (lambda: ys.stack(3), DTypeError, "[stack] expected a sequence of tensors, got int"),
        (lambda: ys.stack([[1], [2]]), DTypeError,
         "[stack] expected a tensor or a number, got list; convert it with ys.asarray"),
        (lambda: ys.broadcast_arrays("a"), DTypeError,
         "[broadcast_arrays] expected a tensor or a number, got str; convert it with ys.asarray"),
        (lambda: ys.broadcast_shapes(2, 3), ShapeError,
         "[broadcast_shapes] expected shapes that broadcast together, got (2,) and (3,); "
         "dimension 0 is both 2 and 3: reshape or expand_dims one of them"),
        (lambda: ys.broadcast_shapes((2,), "a"), DTypeError,
         "[broadcast_shapes] expected a length as an integer, got 'a'"),
        (lambda: ys.concat([]), ArgumentError, "[concat] expected at least one tensor, got none"),
        (lambda: ys.concat([T, T[0]]), ShapeError,
         "[concat] expected shapes equal but for dimension 0, got (2, 3, 4) and (3, 4)"),
        (lambda: ys.concat([T, T[:, :1]]), ShapeError,
         "[concat] expected shapes equal but for dimension 0, got (2, 3, 4) and (2, 1, 4)"),
        (lambda: ys.concat([ys.asarray(1.0)]), ShapeError,
         "[concat] expected tensors of at least one dimension, got a 0-d tensor; use stack, or axis=None"),
        (lambda: ys.concat([T, T], axis=3), AxisError, "[concat] " + AXIS_3.format(3)),
        (lambda: ys.stack([]), ShapeError, "[stack] expected tensors of one shape, got none"),
        (lambda: ys.stack([T, T[0]]), ShapeError, "[stack] expected tensors of one shape, got [(2, 3, 4), (3, 4)]"),
        (lambda: ys.stack([T, T], axis=4), AxisError, "[stack] expected an axis from -4 to 3 for 4 dimensions, got 4"),
        (lambda: ys.unstack(ys.asarray(1.0)), ShapeError,
         "[unstack] expected a tensor of at least one dimension, got a 0-d tensor"),
        (lambda: ys.tril(ys.zeros(3)), ShapeError, "[tril] expected a matrix or a stack of them, got shape (3,)"),
        (lambda: T.T, ShapeError, "[T] expected a 2-d tensor, got shape (2, 3, 4); use mT or ys.permute_dims"),
        (lambda: ys.broadcast_shapes((2,), (3,)), ShapeError,
         "[broadcast_shapes] expected shapes that broadcast together, got (2,) and (3,); "
         "dimension 0 is both 2 and 3: reshape or expand_dims one of them"),
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == text


def test_sequences_of_arrays_and_numbers() -> None:
    check(ys.stack([1, 2]), np.array([1, 2]))
    check(ys.stack(iter([1, 2.5])), np.array([1, 2.5]))
    check(ys.stack([1.5, ys.zeros((), dtype=ys.float32)]), np.array([1.5, 0], np.float32))
    check(ys.concat([1.5, ys.zeros(2, dtype=ys.float32)], axis=None), np.array([1.5, 0, 0], np.float32))
    check(ys.concat([ROW, ys.asarray(ROW)]), np.concat([ROW, ROW]))
    check(ys.expand_dims(2, 0), np.array([2]))
    first, second = ys.broadcast_arrays(1, ROW)
    check(first, np.ones(4, np.int64))
    check(second, ROW)
    assert ys.broadcast_shapes(3, (2, 1)) == (2, 3)


def test_no_more_dimensions_on_the_way_than_there_may_be() -> None:
    x = np.arange(6.0).reshape((1,) * 30 + (2,) + (1,) * 32 + (3,))
    for counts in [(2,), (2, 1, 2), (0,), (2,) + (1,) * 63]:
        np.testing.assert_array_equal(ys.tile(x, counts).numpy().ravel(), np.tile(x, counts).ravel())
    for axis in (0, 30, -1):
        np.testing.assert_array_equal(ys.repeat(x, 2, axis=axis).numpy().ravel(), np.repeat(x, 2, axis).ravel())
    assert ys.tile(ys.ones((1,) * 40), (2,) * 33).shape == (1,) * 7 + (2,) * 33
    assert ys.tile(ys.ones((0,) * 40), (2,) * 40).shape == (0,) * 40


def test_repeats_that_are_not_known_yet_cannot_be_traced() -> None:
    with pytest.raises(ys.errors.TraceError, match=r"^\[jit\]"):
        ys.jit(ys.repeat)(ys.asarray([1, 2]), ys.asarray([1, 2]))
