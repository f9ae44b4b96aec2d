"""Generated kernels that read and write elements at indices, compared with the reference bodies."""

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from yosegi._graph.reference import bind
from yosegi._tensor.tensor import Tensor
from yosegi.devices.cpu.indexing import Indexed
from yosegi.devices.cpu.native_groups import Natives
from yosegi.errors import IndexingError
from yosegi.ops.index import gather, scatter, scatter_add

NATIVES = Natives()
pytestmark = pytest.mark.skipif(NATIVES.runtime is None, reason=str(NATIVES.reason))
RNG = np.random.default_rng(0)
SHAPES = [((700, 64), 0, (900,)), ((97,), 0, (71, 97)), ((3, 300, 7), 1, (500,)), ((60, 500), 1, (450,)),
          ((5, 1, 1001), 1, (3, 1)), ((4099, 3), 0, (4099,)), ((1, 33, 130), 2, (1, 150))]  # fmt: skip
"""Of the indexed array, the axis, and of the indices."""
DTYPES = ["float32", "float64", "int64", "int8", "uint16", "float16", "bfloat16", "complex64", "complex128", "bool"]


def values(dtype: str, *shape: int) -> Any:
    return (RNG.normal(size=shape) * 50).astype(getattr(ys, dtype).numpy)


def check(call: Any, arrays: list[Any]) -> None:
    """The kernel's result has the bits of the reference's."""
    assert NATIVES.runtime is not None
    native = Indexed(NATIVES.runtime, NATIVES.results)._body(call)
    wanted = bind(call)(*arrays)
    for _ in range(2):
        got = native(*arrays)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(got, wanted)


def call_of(op: Any, arrays: list[Any], axis: int) -> Any:
    return op(*[ys.asarray(a) for a in arrays], axes=(axis,), at=axis)._node.call


@pytest.mark.parametrize("index", ["int64", "int16", "uint8"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis", "count"), SHAPES)
def test_kernels_give_the_bits_of_the_reference(shape, axis, count, dtype, index):
    length = min(shape[axis], np.iinfo(index).max)
    places = RNG.integers(0 if index == "uint8" else -length, length, count).astype(index)
    x, new = values(dtype, *shape), values(dtype, *shape[:axis], *count, *shape[axis + 1 :])
    check(call_of(gather, [x, places], axis), [x, places])
    check(call_of(scatter, [x, new, places], axis), [x, new, places])
    if dtype not in ("float16", "bfloat16", "complex64", "complex128", "bool"):
        check(call_of(scatter_add, [x, new, places], axis), [x, new, places])


def test_many_values_for_one_place_are_added_in_order():
    x, new = values("float32", 3, 40), values("float32", 20000, 40) * 1e6
    places = RNG.integers(0, 3, 20000)
    check(call_of(scatter_add, [x, new, places], 0), [x, new, places])


@pytest.mark.parametrize("index", ["int64", "int16", "uint8"])
def test_neighbouring_axes_are_one(index):
    x = values("float32", 30, 7, 40, 3)
    whole = (30, 1, 1, 1), (7, 1, 1), (40, 1), (30, 7, 40, 3)
    cases = [((60, 1), (7,)), ((2, 40, 9), (2, 1, 9)), ((9, 1), (1, 80), ()), whole]
    for axes, counts in zip([(0, 1), (1, 2), (0, 1, 2), (0, 1, 2, 3)], cases, strict=True):
        at, lengths = axes[0], [x.shape[a] for a in axes]
        low = [0 if index == "uint8" else -n for n in lengths]
        places = [RNG.integers(b, n, c).astype(index) for b, n, c in zip(low, lengths, counts, strict=True)]
        shape = np.broadcast_shapes(*counts)
        new = values("float32", *x.shape[:at], *shape, *x.shape[axes[-1] + 1 :])
        for op, arrays in ((gather, [x]), (scatter, [x, new]), (scatter_add, [x, new])):
            tensors = [ys.asarray(a) for a in (*arrays, *places)]
            check(op(*tensors, axes=axes, at=at)._node.call, [*arrays, *places])


def test_an_index_out_of_range_of_one_of_several_axes_raises():
    x, rows, columns = ys.asarray(values("float32", 50, 60)), np.zeros(9000, np.int64), np.zeros(9000, np.int64)
    columns[77] = 60
    f = ys.jit(lambda x, i, j: x[i, j])
    for _ in range(3):
        with pytest.raises(IndexingError, match="60"):
            f(x, ys.asarray(rows), ys.asarray(columns)).numpy()


def test_arrays_in_any_order_and_of_any_alignment():
    x, new, places = values("float32", 64, 300).T, values("float32", 500, 128)[:, ::-2], RNG.integers(0, 300, 1000)[::2]
    unaligned = np.frombuffer(b"0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    for array in (x, unaligned):
        check(call_of(gather, [array, places], 0), [array, places])
        check(call_of(scatter_add, [array, new, places], 0), [array, new, places])


@pytest.mark.parametrize("far", [300, -301, 2**62])
def test_an_index_out_of_range_raises(far):
    x, places = values("float32", 300, 64), np.array([*range(299), far])
    assert NATIVES.runtime is not None
    indexed = Indexed(NATIVES.runtime, NATIVES.results)
    with pytest.raises(IndexingError):
        indexed._body(call_of(gather, [x, places[:-1]], 0))(x, places[1:])
    with pytest.raises(IndexingError):
        indexed._body(call_of(scatter_add, [x, x, places], 0))(x, x, places)


def test_whole_programs_use_the_kernels(monkeypatch):
    """A graph convolution, and its gradient, jitted on the host."""
    made = []
    body = Indexed._body
    monkeypatch.setattr(Indexed, "_body", lambda self, call: made.append(call.op) or body(self, call))
    x, start, end = values("float32", 500, 33), RNG.integers(0, 500, 3000), RNG.integers(0, 500, 3000)

    @ys.jit
    def step(x: Tensor, start: Tensor, end: Tensor) -> Any:
        return ys.value_and_grad(lambda x: ys.sum(ys.zeros_like(x).at[end].add(x[start]) ** 2))(x)

    with ys.options(device="cpu"):
        for _ in range(3):
            total, slope = step(*map(ys.asarray, (x, start, end)))
        wanted = np.zeros((500, 33))
        np.add.at(wanted, end, x[start].astype(np.float64))
        back = np.zeros((500, 33))
        np.add.at(back, start, 2 * wanted[end])
        assert float(total) == pytest.approx((wanted**2).sum(), rel=1e-5)
        np.testing.assert_allclose(slope, back, rtol=1e-3, atol=0.5)
    assert set(made) == {gather, scatter_add}
