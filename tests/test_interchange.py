"""Values on their way in and out: NumPy, DLPack, buffers, pickles, copies, text."""

import copy
import pickle
import sys

import numpy as np
import pytest

import yosegi as ys
from yosegi._tensor.dtype import ALL

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def some(dtype):
    return ys.asarray(np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype.numpy))


def address(array):
    return array.__array_interface__["data"][0]


# NumPy


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_numpy_round_trip(dtype):
    x = some(dtype)
    assert x.numpy().dtype == dtype.numpy
    np.testing.assert_array_equal(ys.asarray(x.numpy()).numpy(), x.numpy())


def test_numpy_sees_the_memory_and_cannot_write_it():
    x = ys.asarray(X) + 1
    assert address(np.asarray(x)) == address(x.numpy())
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 9
    writable = np.array(x)
    writable[0] = 9
    assert x[0, 0].item() == 1


def arrays_of(x):
    """Every array that NumPy gets of a tensor without a copy."""
    own, protocol, exchanged = x.numpy(), np.asarray(x), np.from_dlpack(x)
    views = [own, own[:1], own.T, own.view(), protocol, exchanged, np.asarray(memoryview(own)), np.asarray(own.data)]
    return [v for v in views if np.shares_memory(v, own)]


@pytest.mark.parametrize("make", [lambda: ys.asarray(X) + 1, lambda: ys.asarray(X), lambda: ys.ones((2, 3)),
                                  lambda: ys.asarray(X).T, lambda: pickle.loads(pickle.dumps(ys.asarray(X))),
                                  lambda: ys.asarray(np.frombuffer(X.tobytes(), np.float32))])  # fmt: skip
def test_arrays_that_are_handed_out_cannot_be_made_writeable(make):
    x = make()
    before = x.numpy().copy()
    for v in arrays_of(x):
        owner = v
        while isinstance(owner, np.ndarray):
            with pytest.raises(ValueError, match=r"WRITEABLE|writeable"):
                owner.flags.writeable = True
            with pytest.raises(ValueError, match=r"WRITEABLE|writeable"):
                owner.setflags(write=True)
            owner = owner.base
        with pytest.raises(TypeError, match="read-only"):
            memoryview(v)[(0,) * v.ndim] = 99
    np.testing.assert_array_equal(x.numpy(), before)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_that_are_handed_out_are_the_tensors_own_memory(dtype, shape):
    x = ys.zeros(shape, dtype=dtype)
    v = x.numpy()
    assert (v.shape, v.dtype) == (shape, dtype.numpy)
    assert address(v) == address(x.numpy())


def test_array_protocol_arguments():
    x = ys.asarray(X)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert address(np.array(x, copy=True)) != address(x.numpy())
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, dtype=np.int8, copy=False)


def test_a_later_write_to_the_source_changes_nothing():
    source = X.copy()
    x = ys.asarray(source)
    y = x * 2
    source[:] = 99
    np.testing.assert_array_equal(y.numpy(), X * 2)


def test_memory_that_nobody_can_ever_write_is_shared():
    source = np.frombuffer(X.tobytes(), np.float32)
    assert address(ys.asarray(source).numpy()) == address(source)
    locked = X.copy()
    locked.flags.writeable = False
    x = ys.asarray(locked)
    locked.flags.writeable = True  # NumPy allows it: the flag was no promise
    locked[:] = 9
    np.testing.assert_array_equal(x.numpy(), X)


def test_copy_false_shares():
    source = X.copy()
    assert address(ys.from_numpy(source, copy=False).numpy()) == address(source)


# DLPack


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not ys.bfloat16], ids=lambda d: d.name)
def test_dlpack_with_numpy_is_zero_copy_both_ways(dtype):
    x = some(dtype)
    there = np.from_dlpack(x)
    assert address(there) == address(x.numpy())
    assert not there.flags.writeable
    source = np.array([[0, 1], [2, 3]]).astype(dtype.numpy)
    assert address(ys.from_dlpack(source).numpy()) == address(source)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_dlpack_with_torch_is_zero_copy_both_ways(dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = some(dtype)
    there = torch.from_dlpack(x)
    assert str(there.dtype) == f"torch.{dtype.name}"
    assert there.data_ptr() == address(x.numpy())
    back = ys.from_dlpack(there * 1 if dtype is not ys.bool else there)
    np.testing.assert_array_equal(back.numpy(), x.numpy())
    source = there.clone()
    assert address(ys.from_dlpack(source).numpy()) == source.data_ptr()


def test_dlpack_of_ourselves_keeps_bfloat16():
    x = some(ys.bfloat16)
    assert ys.from_dlpack(x).dtype is ys.bfloat16
    np.testing.assert_array_equal(ys.from_dlpack(x).numpy(), x.numpy())


def test_consumers_that_cannot_be_told_read_only_get_a_copy():
    class OldConsumer:
        def __init__(self, producer):
            self.producer = producer

        def __dlpack__(self, **kwargs):
            return self.producer.__dlpack__()

        def __dlpack_device__(self):
            return self.producer.__dlpack_device__()

    x = ys.asarray(X) + 1
    assert address(np.from_dlpack(OldConsumer(x))) != address(x.numpy())


def test_dlpack_copies_on_request():
    x = ys.asarray(X)
    assert address(np.from_dlpack(x, copy=True)) != address(x.numpy())
    source = X.copy()
    assert address(ys.from_dlpack(source, copy=True).numpy()) != address(source)


def test_dlpack_mistakes():
    with pytest.raises(TypeError, match=r"\[from_dlpack\] expected an object with __dlpack__, got int"):
        ys.from_dlpack(3)
    with pytest.raises(BufferError, match=r"\[__dlpack__\] expected dl_device"):
        ys.asarray(X).__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match=r"\[__dlpack__\] expected stream=None"):
        ys.asarray(X).__dlpack__(stream=1)


# The buffer protocol, pickles, copies


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python classes can export buffers from Python 3.12 on")
def test_the_buffer_protocol():
    x = ys.asarray(X) + 1
    view = memoryview(x)
    assert (view.shape, view.format, view.readonly) == ((2, 3), "f", True)
    assert bytes(view) == x.numpy().tobytes()


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickles(dtype, protocol):
    x = some(dtype) * 1 if dtype is not ys.bool else some(dtype)  # lazy
    again = pickle.loads(pickle.dumps(x, protocol))
    assert again.dtype is dtype
    np.testing.assert_array_equal(again.numpy(), x.numpy())


@ys.jit
def doubled(x):
    return x * 2


def test_ops_and_jitted_functions_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(ys.tanh)) is copy.deepcopy(ys.tanh) is ys.tanh
    assert pickle.loads(pickle.dumps(doubled)) is copy.deepcopy(doubled) is doubled
    assert pickle.loads(pickle.dumps(ys.jit(ys.tanh)))(ys.zeros(2)).tolist() == [0, 0]
    with pytest.raises(ys.errors.ArgumentError, match=r"expected an op of this process, got 'tang'"):
        pickle.loads(pickle.dumps(ys.tanh, 0).replace(b"tanh", b"tang"))


def test_modules_with_ops_are_pickled():
    model = ys.nn.Sequential(ys.nn.Linear(3, 3, rng=0), ys.nn.relu, ys.nn.TransformerEncoderLayer(3, 1, 4, 0.0, rng=0))
    x = ys.ones((1, 2, 3))
    expected = model(x).tolist()
    assert pickle.loads(pickle.dumps(model))(x).tolist() == copy.deepcopy(model)(x).tolist() == expected


def test_a_jitted_method_is_pickled_with_its_object():
    module = ys.nn.Linear(2, 1, rng=0)
    again = pickle.loads(pickle.dumps(ys.jit(module.forward)))
    assert again(ys.ones((2,))).tolist() == module(ys.ones((2,))).tolist()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_are_values_of_their_own(duplicate):
    x = ys.asarray(X)
    y = duplicate(x)
    x[0, 0] = 7
    assert y[0, 0].item() == 0


# Text


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (lambda: ys.asarray([1.0, 2.5]), "Tensor([1. , 2.5], dtype=float64, device=cpu)"),
        (lambda: ys.asarray(3), "Tensor(3, dtype=int64, device=cpu)"),
        (lambda: ys.zeros((0, 2)), "Tensor([], shape=(0, 2), dtype=float64, device=cpu)"),
        (lambda: ys.asarray([1.5], dtype=ys.bfloat16), "Tensor([1.5], dtype=bfloat16, device=cpu)"),
        (lambda: ys.asarray([[True]]), "Tensor([[ True]], dtype=bool, device=cpu)"),
    ],
)
def test_repr(tensor, text):
    assert repr(tensor()) == text


def test_long_tensors_are_shortened_like_numpys():
    assert "..." in repr(ys.zeros((2000,)))


def test_format():
    assert f"{ys.asarray(3.14159):.2f}" == "3.14"
    assert f"{ys.asarray([1])}" == "Tensor([1], dtype=int64, device=cpu)"


# Python numbers


def test_numbers():
    assert (float(ys.asarray(2.5)), int(ys.asarray(2.5)), complex(ys.asarray(1j)), bool(ys.asarray(0))) == (
        2.5,
        2,
        1j,
        False,
    )
    assert [10, 20, 30][ys.asarray(1)] == 20
    assert list(range(3))[ys.asarray(0, dtype=ys.uint8) :] == [0, 1, 2]
    assert ys.asarray([[4.0]]).item() == 4.0
    assert ys.asarray([1, 2]).tolist() == [1, 2]
    assert 2 in ys.asarray([1, 2])
    assert [int(v) for v in ys.asarray([1, 2])] == [1, 2]
    assert len(ys.asarray([1, 2])) == 2


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (lambda: float(ys.asarray([1.0])), r"\[float\] expected a 0-d tensor, got shape \(1,\)"),
        (lambda: float(ys.asarray(1j)), r"\[float\] expected a real tensor, got complex128"),
        (lambda: [1][ys.asarray(0.0)], r"\[index\] expected an integer tensor, got float64"),
        (lambda: ys.asarray([1, 2]).item(), r"\[item\] expected a tensor of one element, got shape \(2,\)"),
        (lambda: len(ys.asarray(1)), r"\[len\] expected a tensor of at least one dimension"),
        (lambda: list(ys.asarray(1)), r"\[iter\] expected a tensor of at least one dimension"),
        (lambda: hash(ys.asarray(1)), r"unhashable type: 'Tensor'"),
    ],
)
def test_numbers_that_are_none(convert, text):
    with pytest.raises((TypeError, ValueError), match=text):
        convert()
