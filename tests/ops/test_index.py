"""Reading and writing by keys, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from yosegi._tensor.op import REGISTRY
from yosegi.errors import AxisError, DTypeError, IndexingError, ShapeError, TraceError, UserError

rng = np.random.default_rng(0)

# Random keys ------------------------------------------------------------------------------------------------------

_shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
_spreads = st.sampled_from([(), (1,), (3,), (2, 1), (1, 3), (2, 3)])  # they all broadcast together


@st.composite
def _slices(draw: Any) -> slice:
    bound = st.none() | st.integers(-6, 6)
    return slice(draw(bound), draw(bound), draw(st.none() | st.integers(-3, 3).filter(bool)))


@st.composite
def _index_arrays(draw: Any, length: int) -> Any:
    shape = draw(_spreads)
    low = -length if length else -1
    elements = st.integers(low, max(length - 1, 0)) if draw(st.integers(0, 9)) else st.integers(-5, 5)
    size = int(np.prod(shape))
    array = np.array(draw(st.lists(elements, min_size=size, max_size=size)), dtype=np.int64).reshape(shape)
    return array.tolist() if shape and draw(st.booleans()) else array


@st.composite
def _keys(draw: Any, shape: tuple[int, ...], masks: bool = True) -> Any:
    """A key for the shape; one in many does not fit it."""
    items: list[Any] = []
    dim = 0
    ellipsis = False
    while draw(st.integers(0, 4)) and len(items) < 6:
        kind = draw(st.sampled_from(["int", "slice", "none", "ellipsis", "array", "mask", "bool"]))
        length = shape[dim] if dim < len(shape) else 2
        if kind == "none":
            items.append(None)
        elif kind == "ellipsis" and not ellipsis:
            ellipsis = True
            items.append(...)
            dim = max(dim, draw(st.integers(dim, max(dim, len(shape)))))
        elif kind == "bool" and masks and draw(st.booleans()):
            items.append(draw(st.booleans()))
        elif kind == "mask" and masks and dim < len(shape):
            over = shape[dim : dim + draw(st.integers(1, 2))]
            size = int(np.prod(over))
            flags = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            items.append(np.array(flags, bool).reshape(over))
            dim += len(over)
        elif kind == "array":
            items.append(draw(_index_arrays(length)))
            dim += 1
        elif kind == "slice":
            items.append(draw(_slices()))
            dim += 1
        elif kind == "int":
            items.append(draw(st.integers(-length, max(length - 1, 0))))
            dim += 1
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def _with_tensors(key: Any) -> Any:
    """The key with every other array as a tensor, computed or not."""
    if not isinstance(key, tuple):
        return _with_tensors((key,))[0]
    turn = iter(range(100))

    def convert(item: Any) -> Any:
        if not isinstance(item, np.ndarray):
            return item
        t = ys.asarray(item)
        return (item, t, t & True if item.dtype == bool else t + 0)[next(turn) % 3]

    return tuple(convert(i) for i in key)


def _outcome(function: Any) -> Any:
    try:
        return function()
    except IndexError:
        return IndexError
    except ValueError:
        return ValueError


@settings(max_examples=800, deadline=None)
@given(st.data())
def test_reading_is_numpys(data: Any) -> None:
    shape = data.draw(_shapes)
    key = data.draw(_keys(shape))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = _outcome(lambda: array[key])
    got = _outcome(lambda: ys.asarray(array)[_with_tensors(key)])
    if expected is IndexError or got is IndexError:
        # NumPy lets an out-of-range index pass where nothing is read; here it is always an error.
        assert got is IndexError
        assert expected is IndexError or np.size(expected) == 0
        return
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)


@settings(max_examples=800, deadline=None)
@given(st.data())
def test_writing_is_numpys(data: Any) -> None:
    shape = data.draw(_shapes)
    key = data.draw(_keys(shape))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    region = _outcome(lambda: array[key])
    region = () if region is IndexError else np.shape(region)
    cut = data.draw(st.integers(0, len(region)))
    value_shape = tuple(1 if data.draw(st.integers(0, 3)) == 0 else n for n in region[cut:])
    # NumPy's short way for a lone mask has rules of its own for values of other shapes.
    has_mask = any(np.asarray(i).dtype == bool for i in (key if isinstance(key, tuple) else (key,)))
    if region and not has_mask and data.draw(st.integers(0, 9)) == 0:
        value_shape = (1, *value_shape) if data.draw(st.booleans()) else (5, *value_shape)
    value: Any = -1 - np.arange(np.prod(value_shape, dtype=int)).reshape(value_shape)
    value = -7 if value_shape == () and data.draw(st.booleans()) else value

    def write(into: Any, key: Any, value: Any) -> Any:
        into[key] = value
        return into

    expected = _outcome(lambda: write(array.copy(), key, value))
    before = ys.asarray(array)
    x = ys.asarray(before, copy=True)
    got = _outcome(lambda: write(x, _with_tensors(key), value))
    if isinstance(expected, type) or isinstance(got, type):
        assert got is expected or (isinstance(got, type) and 0 in region)  # as in reading
        return
    assert got.dtype is before.dtype
    np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(before.numpy(), array)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_gradients_of_reading_and_writing(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    key = data.draw(_keys(shape))
    array = rng.normal(size=shape)
    if _outcome(lambda: ys.asarray(array)[key]) is IndexError:
        return
    places = np.arange(array.size).reshape(shape)[key]
    g = rng.normal(size=places.shape)
    _, back = ys.vjp(lambda x: x[key], ys.asarray(array))
    np.testing.assert_allclose(back(ys.asarray(g))[0].numpy().ravel(), _added(places, g, array.size))

    value = rng.normal(size=places.shape[data.draw(st.integers(0, places.ndim)) :])

    def write(x: Any, v: Any) -> Any:
        x = ys.asarray(x, copy=True)
        x[key] = v
        return x

    whole = rng.normal(size=shape)
    _, back = ys.vjp(write, ys.asarray(array), ys.asarray(value))
    to_x, to_value = (t.numpy() for t in back(ys.asarray(whole)))
    kept = np.ones(shape)
    kept[key] = 0
    np.testing.assert_allclose(to_x, whole * kept)
    # The last value written to a place is the one that shows.
    numbers = np.arange(places.size).reshape(places.shape)
    last = np.zeros(shape, int)
    last[key] = numbers
    shows = np.where(last[key] == numbers, whole[key], 0.0)
    np.testing.assert_allclose(to_value, shows.sum(tuple(range(places.ndim - value.ndim))), atol=1e-12)


def _added(places: np.ndarray, g: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size)
    np.add.at(out, np.ravel(places), np.ravel(g))
    return out


# Chosen cases -----------------------------------------------------------------------------------------------------


def test_where_the_advanced_dimensions_go() -> None:
    x = ys.zeros((2, 3, 4, 5))
    i = ys.asarray([0, 1, 0, 1, 0, 1, 0])
    assert x[:, i, i].shape == (2, 7, 5)
    assert x[:, i, :, i].shape == (7, 2, 4)
    assert x[:, 0, i].shape == (2, 7, 5)
    assert x[0, :, i].shape == (7, 3, 5)
    assert x[:, i, ..., i].shape == (7, 2, 4)
    assert x[:, ys.asarray(0), i].shape == (2, 7, 5)
    assert x[:, True, i].shape == (2, 7, 4, 5)


def test_basic_keys_are_one_view_and_the_whole_tensor_is_itself() -> None:
    x = ys.asarray(np.arange(12.0).reshape(3, 4))
    pending = x * 1
    assert pending[1:, ::-2]._node.call.op.name == "slice_view"
    assert pending[...]._node is pending[:, 0:4]._node is pending._node
    assert np.shares_memory(x[1:, ::-2].numpy(), x.numpy())
    assert x[2, 3].shape == pending[2, 3].shape == ()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "uint64", "int64"])
def test_indices_of_every_integer_dtype(dtype: str) -> None:
    x = ys.asarray([10, 20, 30])
    i = ys.asarray([2, 0], dtype=dtype)
    assert x[i].tolist() == [30, 10]
    assert x[i[0]].tolist() == 30
    assert ys.take(x, i).tolist() == [30, 10]
    x[i] = 1
    assert x.tolist() == [1, 20, 1]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "bfloat16", "float32", "complex64"])
def test_values_of_every_kind(dtype: str) -> None:
    x = ys.asarray([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    plain = x.numpy()
    assert x[1, ::-1].dtype == x.dtype
    np.testing.assert_array_equal(x[ys.asarray([1, 0]), ys.asarray([2, 0])].numpy(), plain[[1, 0], [2, 0]])
    x[:, ys.asarray([0, 2])] = x[:, ys.asarray([2, 0])]
    np.testing.assert_array_equal(x.numpy(), plain[:, ::-1])


def test_a_zero_dimensional_tensor_is_an_index_that_need_not_be_known() -> None:
    x = ys.asarray(np.arange(12).reshape(3, 4))
    assert ys.jit(lambda x, i: x[i])(x, 2).tolist() == [8, 9, 10, 11]
    assert ys.jit(lambda x, i: x[:, i])(x, ys.asarray(-1)).tolist() == [3, 7, 11]


def test_of_several_values_for_one_place_the_last_stays() -> None:
    x = ys.zeros((2,), dtype=ys.int64)
    x[np.zeros((2, 3), int, order="F")] = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert x.tolist() == [5, 0]


def test_tensors_are_values() -> None:
    x = ys.asarray([1, 2, 3])
    y, z = x, ys.asarray(x, copy=True)
    view = x[1:]
    x[0] = 9
    assert (y is x, z.tolist(), view.tolist()) == (True, [1, 2, 3], [2, 3])


def test_masks_write_without_being_known() -> None:
    @ys.jit
    def relu(x: Any) -> Any:
        x = x * 1
        x[x < 0] = 0
        return x

    assert relu(ys.asarray([-1.0, 2.0])).tolist() == [0.0, 2.0]
    x = ys.asarray(np.zeros((2, 3)))
    x[ys.asarray([True, False])] = ys.asarray([1.0, 2.0, 3.0])
    assert x._node.call.op.name == "where"
    assert x.tolist() == [[1, 2, 3], [0, 0, 0]]
    x[x == 2] = ys.asarray([7.0])
    x[x > 2] = ys.asarray([5.0, 6.0])
    assert x.tolist() == [[1, 5, 6], [0, 0, 0]]


def test_reading_by_a_mask_in_a_trace_is_an_error() -> None:
    with pytest.raises(TraceError):
        ys.jit(lambda x: x[x > 0])(ys.asarray([1.0, -1.0]))


def test_a_traced_number_written_over_all_takes_the_dtype_of_the_tensor() -> None:
    @ys.jit
    def f(x: Any, number: Any) -> Any:
        x = x * 1
        x[...] = number
        return x * ys.ones((2,), dtype=ys.float32)

    assert f(ys.asarray(1.0), 3.0).dtype is ys.float64


def test_writing_keeps_the_dtype() -> None:
    x = ys.asarray([1.0, 2.0], dtype=ys.float32)
    x[0] = 3
    x[1:] = ys.asarray([4], dtype=ys.int64)
    assert (x.dtype, x.tolist()) == (ys.float32, [3.0, 4.0])
    x[:] = np.float64(0.5)
    assert (x.dtype, x.tolist()) == (ys.float32, [0.5, 0.5])
    flags = ys.asarray([True, False])
    flags[1] = True
    assert flags.tolist() == [True, True]


def test_higher_derivatives() -> None:
    x = ys.asarray([1.0, 2.0, 3.0])
    i = ys.asarray([0, 2, 2])
    second = ys.grad(lambda x: ys.sum(ys.grad(lambda x: ys.sum(x[i] ** 3))(x)))
    np.testing.assert_allclose(second(x).numpy(), [6.0, 0.0, 36.0])

    def write(x: Any) -> Any:
        y = x * 1
        y[1:] = x[:2] * x[1:]
        y[i] = y[i] * y[0]
        return ys.sum(y**2)

    def numeric(f: Any, x: np.ndarray) -> np.ndarray:
        steps = np.eye(x.size) * 1e-6
        return np.array([(float(f(ys.asarray(x + s))) - float(f(ys.asarray(x - s)))) / 2e-6 for s in steps])

    np.testing.assert_allclose(ys.grad(write)(x).numpy(), numeric(write, x.numpy()), rtol=1e-6)
    first = ys.grad(write)
    np.testing.assert_allclose(
        ys.grad(lambda x: first(x)[1])(x).numpy(), numeric(lambda x: first(x)[1], x.numpy()), rtol=1e-5
    )


@pytest.mark.parametrize(("shape", "axes", "at"), [((4, 3), (0,), 0), ((2, 4, 3), (1,), 1), ((4, 3, 2), (0, 2), 1)])
def test_scatter_add_adds_repeated_places(shape: tuple[int, ...], axes: tuple[int, ...], at: int) -> None:
    x = rng.normal(size=shape)
    indices = [rng.integers(-shape[a], shape[a], size=(5, 2)) for a in axes]
    body = REGISTRY["gather"].body
    value = rng.normal(size=body(x, *indices, axes=axes, at=at).shape)
    got = REGISTRY["scatter_add"].body(x, value, *indices, axes=axes, at=at)
    places = body(np.arange(x.size).reshape(shape), *indices, axes=axes, at=at)
    np.testing.assert_allclose(got.ravel(), x.ravel() + _added(places, value, x.size))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.complex64])
@pytest.mark.parametrize(("shape", "axis"), [((6, 200), 0), ((3, 5, 70), 1), ((4, 64), 0), ((64, 4), 1)])
def test_scatter_add_adds_long_rows_in_numpys_order(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x, indices = rng.normal(size=shape).astype(dtype), rng.integers(-shape[axis], shape[axis], size=(8, 3))
    body = REGISTRY["gather"].body
    value = rng.normal(size=body(x, indices, axes=(axis,), at=axis).shape).astype(dtype)
    expected = x.copy()
    np.add.at(np.moveaxis(expected, axis, 0), indices, np.moveaxis(value, (axis, axis + 1), (0, 1)))
    add = REGISTRY["scatter_add"].body
    np.testing.assert_array_equal(add(x, value, indices, axes=(axis,), at=axis), expected)
    with pytest.raises(IndexError):
        add(x, value, indices + shape[axis], axes=(axis,), at=axis)


def test_half_precision_gradients_add_up_in_single() -> None:
    x = ys.zeros((1,), dtype=ys.float16)
    i = ys.zeros((5000,), dtype=ys.int64)
    _, back = ys.vjp(lambda x: x[i], x)
    assert back(ys.ones((5000,), dtype=ys.float16))[0].tolist() == [5000.0]


# take and take_along_axis


def test_take() -> None:
    x = rng.normal(size=(3, 4))
    i = np.array([2, -1, 0, 0])
    for axis in (0, 1, -1):
        j = i % 3 if axis == 0 else i
        np.testing.assert_array_equal(ys.take(ys.asarray(x), ys.asarray(j), axis=axis).numpy(), np.take(x, j, axis))
    np.testing.assert_array_equal(ys.take(ys.asarray(x), ys.asarray(i)).numpy(), np.take(x, i))
    with pytest.raises(AxisError, match=r"\[take\] expected an axis from -2 to 1"):
        ys.take(ys.asarray(x), ys.asarray(i), axis=2)
    with pytest.raises(IndexingError, match=r"\[take\] expected indices from -3 to 2 .* got 3"):
        ys.take(ys.asarray(x), ys.asarray([3]), axis=0)
    with pytest.raises(DTypeError, match=r"\[take\] expected integer indices, got float64; cast it with astype"):
        ys.take(ys.asarray(x), ys.asarray([0.0]), axis=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis(axis: int) -> None:
    x = rng.normal(size=(3, 4, 2))
    i = rng.integers(-2, 2, size=[5 if a == axis % 3 else n for a, n in enumerate(x.shape)])
    got = ys.take_along_axis(ys.asarray(x), ys.asarray(i), axis=axis)
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(x, i, axis))
    g = rng.normal(size=i.shape)
    _, back = ys.vjp(lambda x: ys.take_along_axis(x, ys.asarray(i), axis=axis), ys.asarray(x))
    places = np.take_along_axis(np.arange(x.size).reshape(x.shape), i, axis)
    np.testing.assert_allclose(back(ys.asarray(g))[0].numpy().ravel(), _added(places, g, x.size))


def test_take_along_axis_broadcasts() -> None:
    x, i = rng.normal(size=(1, 4)), rng.integers(0, 4, size=(3, 2))
    np.testing.assert_array_equal(
        ys.take_along_axis(ys.asarray(x), ys.asarray(i)).numpy(), np.take_along_axis(np.repeat(x, 3, 0), i, 1)
    )
    np.testing.assert_array_equal(
        ys.take_along_axis(ys.asarray(x), ys.asarray(i[:1])).numpy(), np.take_along_axis(x, i[:1], 1)
    )
    with pytest.raises(ShapeError, match=r"\[take_along_axis\] expected as many dimensions as \(1, 4\) has"):
        ys.take_along_axis(ys.asarray(x), ys.asarray([0]))


# Errors


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (3, IndexingError, r"\[getitem\] expected indices from -3 to 2 for a dimension of length 3, got 3"),
        ((0, -5), IndexingError, r"\[getitem\] expected indices from -4 to 3 for a dimension of length 4, got -5"),
        ([0, 7], IndexingError, r"\[getitem\] expected indices from -3 to 2 .* got 7"),
        ((0, 0, 0), IndexingError, r"\[getitem\] expected at most 2 indices for shape \(3, 4\), got 3; drop some"),
        ((..., ...), IndexingError, r"\[getitem\] expected at most one \.\.\., got 2"),
        (1.0, IndexingError, r"\[getitem\] expected ints, slices, .* got float"),
        ("a", IndexingError, r"\[getitem\] expected ints, slices, .* got str"),
        ([0.5], IndexingError, r"\[getitem\] expected an integer or bool index, got float64; cast it with astype"),
        (([0, 1], [0, 1, 2]), IndexingError, r"\[getitem\] expected indices that broadcast .* \(2,\) and \(3,\)"),
        ([True, False], IndexingError, r"\[getitem\] expected a mask of shape \(3,\), got \(2,\)"),
        (slice(None, None, 0), IndexingError, r"\[getitem\] expected ints and a step other than 0"),
        (slice(0.5), IndexingError, r"\[getitem\] expected ints and a step other than 0"),
        ([[0], [1, 2]], IndexingError, r"\[getitem\] expected numbers as indices, got a list"),
    ],
)
def test_keys_that_do_not_fit(key: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ys.zeros((3, 4))[key]
    with pytest.raises(error, match=text.replace("getitem", "setitem")):
        ys.zeros((3, 4))[key] = 0.0


@pytest.mark.parametrize(
    ("dtype", "value", "error", "text"),
    [
        (
            "int64",
            1.5,
            DTypeError,
            r"a value that a tensor of int64 can hold, got float64; cast it with astype",
        ),
        ("int64", np.float32(1), DTypeError, r"int64 can hold, got float32; cast it with astype"),
        ("float32", 1j, DTypeError, r"float32 can hold, got complex128; cast it with astype"),
        ("bool", 1, DTypeError, r"bool can hold, got int64; cast it with astype"),
        ("uint8", 300, DTypeError, r"expected a number that fits uint8, got 300"),
        ("int64", [1, 2, 3], ShapeError, r"expected a value that broadcasts to \(2,\), got shape \(3,\); reshape it"),
    ],
)
def test_values_that_do_not_fit(dtype: str, value: Any, error: type[Exception], text: str) -> None:
    x = ys.zeros((2,), dtype=dtype)
    for key in (slice(None), slice(1, None, -1), [0, 1], ys.asarray([True, True])):
        with pytest.raises(error, match=r"\[setitem\] .*" + text):
            x[key] = value


def test_an_index_that_is_not_computed_yet_is_checked_at_the_call() -> None:
    x, i = ys.asarray([1, 2, 3]), ys.asarray([1, 2])
    with pytest.raises(IndexingError, match="got 4"):
        x[i * 2]
    with pytest.raises(IndexingError, match="got 4"):
        x[i * 2] = 0


def test_positions_found_by_a_search_need_no_check() -> None:
    x = ys.asarray([3.0, 1.0, 2.0])
    order = ys.argsort(x)
    assert x[order].tolist() == [1.0, 2.0, 3.0]
    y = ys.asarray([[1.0, 5.0], [7.0, 2.0]])
    best = ys.reshape(ys.argmax(y + 0, axis=1), (2, 1))
    taken = ys.take_along_axis(y, best, axis=1)
    assert best._node.buffer is None
    assert taken.tolist() == [[5.0], [7.0]]
    with pytest.raises(IndexingError, match="got 2"):
        y[0][ys.argmax(ys.asarray([0, 0, 1]) + 0)]


def test_in_a_trace_the_replay_checks() -> None:
    x = ys.asarray([1.0, 2.0, 3.0])
    read = ys.jit(lambda x, i: x[i])
    assert read(x, ys.asarray([2])).tolist() == [3.0]
    with pytest.raises(IndexingError, match=r"\[getitem\] expected indices from -3 to 2 .* got 5"):
        read(x, ys.asarray([5])).numpy()

    @ys.jit
    def write(x: Any, i: Any) -> Any:
        x = x * 1
        x[i, ...] = 0
        return x

    with pytest.raises(IndexingError, match="got 5"):
        write(x, ys.asarray([0, 5])).numpy()
    with pytest.raises(IndexingError, match="got -4"):
        ys.jit(lambda x, i: ys.vjp(lambda x: x[i], x)[1](ys.ones((1,)))[0])(x, ys.asarray([-4])).numpy()


REPLAYED: dict[str, Callable[[Any, Any], Any]] = {
    "getitem": lambda x, i: x[i],
    "setitem": lambda x, i: _written(x * 1, i),
    "take": lambda x, i: ys.take(x, i, axis=0),
    "take_along_axis": lambda x, i: ys.take_along_axis(x, i, axis=0),
}


def _written(x: Any, i: Any) -> Any:
    x[i] = 0
    return x


@pytest.mark.parametrize("index", [5, -4, np.uint64(2**63), np.uint64(2**64 - 1)])
@pytest.mark.parametrize("name", REPLAYED)
def test_at_a_replay_an_index_out_of_range_is_told_by_the_public_name(name: str, index: Any) -> None:
    x, read = ys.asarray([1.0, 2.0, 3.0]), REPLAYED[name]
    i = ys.asarray(np.array([index]))
    for f in (read, lambda x, i: ys.vjp(lambda x: read(x, i), x)[1](ys.ones_like(read(x, i)))[0]):
        with pytest.raises(IndexingError, match=rf"^\[{name}\] expected indices from -3 to 2 .* got {int(index)}$"):
            ys.jit(f)(x, i).numpy()


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("getitem", "expected ints and a step other than 0", lambda x: x[::0]),
        ("getitem", "expected ints and a step other than 0", lambda x: (x * 1)[::0]),
        ("getitem", "expected ints and a step other than 0", lambda x: x[1.5:]),
        ("setitem", "expected numbers, an array or a buffer, got str", lambda x: x.__setitem__(0, "a")),
        ("setitem", "expected a number that fits float64", lambda x: x.__setitem__(0, 10**400)),
        ("take", "expected a tensor or a number, got str", lambda x: ys.take("a", x)),
        ("take", "expected an axis as an integer, got 1.5", lambda x: ys.take(x, [0], axis=1.5)),
        ("take_along_axis", "expected an axis as an integer, got 'a'", lambda x: ys.take_along_axis(x, [0], axis="a")),
    ],
)
def test_mistakes_are_told_by_the_public_name(name: str, text: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match=rf"^\[{name}\] {text}"):
        call(ys.asarray([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "key",
    [
        0, slice(1, 3), np.s_[:, [0, 2, 2]], ([1, 1], [0, 0]), (0, slice(None), [5, 5, 1]), (..., [0, 0]), None,
        ([[0, 1], [1, 0]], slice(None), [[2, 2], [2, 2]]), np.s_[::-1, [3, 3]], ([True, False, True, True], [0, 0, 1]),
        np.arange(120).reshape(4, 5, 6) % 7 == 0, (np.arange(20).reshape(4, 5) % 3 == 0,),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_added_at_places_as_numpy_does(key):
    x = np.arange(120.0).reshape(4, 5, 6)
    for value in (2.5, np.random.default_rng(0).normal(size=x[key].shape)):
        wanted = x.copy()
        np.add.at(wanted, key, value)
        for add in (lambda x, v: x.at[key].add(v), ys.jit(lambda x, v: x.at[key].add(v))):
            np.testing.assert_allclose(add(ys.asarray(x), ys.asarray(value)), wanted)
