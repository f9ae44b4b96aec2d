"""Convolutions, against sums written out and against PyTorch."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import yosegi as ys
from gradients import check_gradient, random
from torch_peer import check_against_torch
from yosegi._graph.graph import capture, graph_of
from yosegi.ops import windows as module
from yosegi.ops.conv import conv
from yosegi.ops.windows import Windows


def written_out(x, w, windows, groups):
    """The definition: every product, one by one."""
    n, channels, *lengths = x.shape
    counts = windows.counts(tuple(lengths))
    out = np.zeros((n, w.shape[0], *counts))
    for at in product(*map(range, counts)):
        for place in product(*map(range, windows.kernel)):
            source = []
            for a, s, k, d, (low, _), i, length in zip(
                at, windows.stride, place, windows.dilation, windows.padding, windows.spread, lengths, strict=True
            ):
                position = a * s + k * d - low
                if position % i or not 0 <= position // i < length:
                    break
                source.append(position // i)
            else:
                values = x[(..., *source)].reshape(n, groups, channels // groups)
                weights = w[(..., *place)].reshape(groups, w.shape[0] // groups, channels // groups)
                out[(..., *at)] += np.einsum("ngc,goc->ngo", values, weights).reshape(n, w.shape[0])
    return out


@st.composite
def cases(draw):
    rank = draw(st.integers(1, 3))
    numbers = st.integers(1, 3)
    each = lambda s: tuple(draw(st.lists(s, min_size=rank, max_size=rank)))
    kernel, stride, dilation, spread = (each(numbers) for _ in range(4))
    padding = each(st.tuples(st.integers(-3, 6), st.integers(-3, 6)))
    lengths = each(st.integers(1, 6))
    windows = Windows(kernel, stride, padding, dilation, spread)
    spans = [(n - 1) * i + 1 for n, i in zip(lengths, spread, strict=True)]
    assume(all(span + a + b >= e for span, (a, b), e in zip(spans, padding, windows.extent, strict=True)))
    groups = draw(numbers)
    x = random((draw(st.integers(0, 2)), groups * draw(numbers), *lengths))
    return x, random((groups * draw(numbers), x.shape[1] // groups, *kernel)), windows, groups


@given(cases())
def test_the_definition(case):
    x, w, windows, groups = case
    made = conv(ys.asarray(x), ys.asarray(w), **windows.attrs(), groups=groups)
    np.testing.assert_allclose(made.numpy(), written_out(x, w, windows, groups), rtol=1e-12, atol=1e-12)


@given(cases())
def test_the_gradients_of_any_windows(case):
    x, w, windows, groups = case
    assume(x.shape[0])
    check_gradient(lambda x, w: conv(x, w, **windows.attrs(), groups=groups), x, w)


@pytest.mark.parametrize("size", [1, 200, 3000])
def test_a_little_at_a_time(monkeypatch, size):
    """However little of the windows is written out at once, the sums are the same."""
    x, w = random((3, 6, 7, 8)), random((4, 3, 3, 2))
    windows = Windows((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1), (1, 1))
    monkeypatch.setattr(module, "_BUFFER", size)
    np.testing.assert_allclose(module.convolved(x, w, windows, 2), written_out(x, w, windows, 2), rtol=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (3, 2, 2, 4)])
def test_conv_against_torch(rank, stride, padding, dilation, groups):
    name = f"conv{rank}d"
    lengths, kernel = (9, 8, 7)[:rank], (3, 2, 3)[:rank]
    arrays = random((2, 4, *lengths)), random((8, 4 // groups, *kernel)), random((8,))
    check_against_torch(
        lambda x, w, b: getattr(ys.nn, name)(x, w, b, stride, padding, dilation, groups),
        lambda f, x, w, b: getattr(f, name)(x, w, b, stride, padding, dilation, groups),
        *arrays, rtol=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups", "dilation"), [(1, 0, 0, 1, 1), (2, 1, 1, 2, 1), (3, 2, 1, 2, 2)]
)
def test_conv_transpose_against_torch(rank, stride, padding, extra, groups, dilation):
    name = f"conv_transpose{rank}d"
    lengths, kernel = (5, 4, 3)[:rank], (3, 2, 3)[:rank]
    arrays = random((2, 4, *lengths)), random((4, 6 // groups, *kernel)), random((6,))[: 6 // groups * groups]
    check_against_torch(
        lambda x, w, b: getattr(ys.nn, name)(x, w, b, stride, padding, extra, groups, dilation),
        lambda f, x, w, b: getattr(f, name)(x, w, b, stride, padding, extra, groups, dilation),
        *arrays, rtol=1e-8,
    )  # fmt: skip


def test_same_padding_against_torch():
    for kernel, dilation in ((3, 1), (5, 1), (2, 2), (3, 2), (4, 2)):  # of others PyTorch warns
        check_against_torch(
            lambda x, w, d=dilation: ys.nn.conv2d(x, w, padding="same", dilation=d),
            lambda f, x, w, d=dilation: f.conv2d(x, w, padding="same", dilation=d),
            random((1, 2, 7, 6)), random((3, 2, kernel, 3)), rtol=1e-8,
        )  # fmt: skip


@pytest.mark.parametrize(("stride", "length"), [(1, 7), (2, 4), (3, 3)])
def test_same_padding_with_a_stride_counts_strides(stride, length):
    x, w = ys.asarray(random((1, 2, 7))), ys.asarray(random((3, 2, 4)))
    assert ys.nn.conv1d(x, w, stride=stride, padding="same").shape == (1, 3, length)
    assert ys.nn.conv1d(x, w, stride=stride, padding="valid").shape == ys.nn.conv1d(x, w, stride=stride).shape


def test_more_padding_than_anything_else():
    x, w = random((2, 3, 3)), random((4, 3, 1))
    for stride in (1, 4, 20):
        check_gradient(lambda x, w, s=stride: ys.nn.conv1d(x, w, stride=s, padding=9), x, w)


def test_padding_in_pairs():
    x, w = random((1, 2, 5)), random((3, 2, 3))
    made = ys.nn.conv1d(ys.asarray(x), ys.asarray(w), padding=((2, 1),))
    np.testing.assert_allclose(made, ys.nn.conv1d(ys.asarray(np.pad(x, ((0, 0), (0, 0), (2, 1)))), ys.asarray(w)))


def test_without_a_batch_and_with_an_empty_one():
    x, w = ys.asarray(random((4, 9, 8))), ys.asarray(random((6, 4, 3, 3)))
    np.testing.assert_array_equal(ys.nn.conv2d(x, w), ys.nn.conv2d(x[None], w)[0])
    empty = ys.zeros((0, 4, 9, 8))
    value, slopes = ys.value_and_grad(lambda w: ys.nn.conv2d(empty, w).sum())(w)
    assert (float(value), slopes.shape) == (0, w.shape)
    assert not slopes.numpy().any()
    assert ys.nn.conv2d(empty, w).numpy().shape == (0, 6, 7, 6)


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16])
def test_16_bit_floats_are_summed_in_single(dtype):
    x, w = ys.ones((1, 512, 3, 3), dtype=dtype), ys.ones((1, 512, 3, 3), dtype=dtype)
    made = ys.nn.conv2d(x, w)
    assert (made.dtype, float(made[0, 0, 0, 0])) == (dtype, 4608.0)
    slope = ys.grad(lambda w: ys.nn.conv2d(ys.ones((8, 1, 40, 40), dtype=dtype), w).astype(ys.float32).sum())(
        ys.ones((1, 1, 1, 1), dtype=dtype)
    )
    assert float(slope[0, 0, 0, 0]) == 12800.0


def test_integers_and_complex_numbers():
    whole = ys.nn.conv1d(ys.asarray([[[1, 2, 3]]]), ys.asarray([[[1, -1]]]))
    assert (whole.dtype, whole.tolist()) == (ys.int64, [[[-1, -1]]])
    z = ys.nn.conv1d(ys.asarray([[[1j, 2.0]]]), ys.asarray([[[1j]]]))
    assert z.tolist() == [[[-1, 2j]]]


def test_the_gradient_of_a_transpose_by_its_weights_reads_no_zeros_between_elements():
    x, w = ys.ones((2, 3, 5, 5)), ys.ones((3, 4, 4, 4))
    y, back = ys.vjp(lambda w: ys.nn.conv_transpose2d(x, w, stride=2, padding=1), w)
    graph = graph_of(capture([back(y)[0]._node])[0])
    gradients = [c.attrs for c in graph.calls if c.op is conv and c.spec.shape[2:] == (4, 4)]
    assert [(attrs["spread"], attrs["dilation"]) for attrs in gradients] == [((1, 1), (2, 2))]


@pytest.mark.parametrize("function", [ys.nn.conv2d, lambda x, w: ys.nn.conv_transpose2d(x, w, stride=2, padding=1)])
def test_gradients_of_the_gradients(function):
    x, w = random((2, 3, 5, 4)), random((3, 3, 3, 2))

    def slopes(x, w):
        return ys.grad(lambda x, w: (function(x, w) ** 3).sum(), argnums=(0, 1))(x, w)

    check_gradient(slopes, x, w, rtol=1e-4)


def test_under_jit_with_what_is_around_it():
    x, w, b = (ys.asarray(a) for a in (random((2, 3, 8, 8)), random((4, 3, 3, 3)), random((4,))))

    def block(x, w, b):
        return ys.nn.max_pool2d(ys.nn.relu(ys.nn.conv2d(x, w, b, padding="same")), 2)

    np.testing.assert_allclose(ys.jit(block)(x, w, b), block(x, w, b), rtol=1e-12)
    slope = ys.grad(lambda w: block(x, w, b).sum())
    np.testing.assert_allclose(ys.jit(slope)(w), slope(w), rtol=1e-12)


ONES = ys.ones((1, 4, 5, 5))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 6, 3))), r"\[conv2d\] expected spatial lengths that hold a window"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 3, 3, 3))), r"\[conv2d\] expected w of shape \(outputs, 4 / groups"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 2, 3, 3)), groups=3), r"\[conv2d\] expected groups that divide the 2"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3))), r"\[conv2d\] expected x of shape \(batch, channels"),
        (lambda: ys.nn.conv1d(ONES, ys.ones((2, 4, 3))), r"\[conv1d\] expected x of 3 dimensions"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3, 3)), ys.ones((3,))), r"\[conv2d\] expected b of shape \(2,\)"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3, 3)), stride=0), r"\[conv2d\] expected stride as a number"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3, 3)), stride=(1, 1, 1)), r"\[conv2d\] expected stride as a numb"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3, 3)), padding=-1), r"\[conv2d\] expected padding as a number of"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3, 3)), padding="full"), r"\[conv2d\] expected padding among"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 3, 3)), padding=((1, 1),)), r"\[conv2d\] expected padding as 2 p"),
        (lambda: ys.nn.conv2d(ONES, ys.ones((2, 4, 0, 3))), r"\[conv2d\] expected a kernel of at least one place"),
        (lambda: ys.nn.conv2d(ys.ones((1, 4, 0, 5)), ys.ones((2, 4, 1, 1))), r"\[conv2d\] expected spatial lengths"),
        (lambda: ys.nn.conv_transpose2d(ONES, ys.ones((3, 2, 3, 3))), r"\[conv_transpose2d\] expected w of shape \(4,"),
        (
            lambda: ys.nn.conv_transpose2d(ONES, ys.ones((4, 2, 3, 3)), output_padding=1),
            r"\[conv_transpose2d\] expected output_padding below the stride",
        ),
        (
            lambda: ys.nn.conv_transpose2d(ONES, ys.ones((4, 2, 3, 3)), padding=9),
            r"\[conv_transpose2d\] expected less padding",
        ),
    ],
)
def test_mistakes(call, told):
    with pytest.raises(ys.errors.UserError, match=told):
        call()
