"""Losses."""

import numpy as np
import pytest

import yosegi as ys
from gradients import random
from torch_peer import check_against_torch

LOGITS, LABELS = random((6, 5)) * 3, np.array([0, 4, 2, -100, 1, 1])
MAPS, MAP_LABELS = random((2, 5, 3, 4)), np.random.default_rng(0).integers(0, 5, (2, 3, 4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_against_torch(reduction, smoothing):
    check_against_torch(
        lambda x, y: ys.nn.cross_entropy(x, y, reduction=reduction, label_smoothing=smoothing),
        lambda f, x, y: f.cross_entropy(x, y, reduction=reduction, label_smoothing=smoothing),
        LOGITS, LABELS, rtol=1e-8,
    )  # fmt: skip


def test_cross_entropy_of_maps_against_torch():
    check_against_torch(
        lambda x, y: ys.nn.cross_entropy(x, y, axis=1, ignore_index=3),
        lambda f, x, y: f.cross_entropy(x, y, ignore_index=3),
        MAPS, MAP_LABELS, rtol=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_against_torch(reduction):
    check_against_torch(
        lambda x, y: ys.nn.mse_loss(x, y, reduction=reduction),
        lambda f, x, y: f.mse_loss(x, y, reduction=reduction),
        random((3, 4)), random((3, 4), seed=1),
    )  # fmt: skip


def test_cross_entropy_stays_finite_where_the_softmax_does_not():
    logits = ys.asarray([[1e4, 0.0], [0.0, 1e4]])
    value, slope = ys.value_and_grad(lambda x: ys.nn.cross_entropy(x, ys.asarray([1, 1])))(logits)
    assert float(value) == 5000
    np.testing.assert_array_equal(slope, [[0.5, -0.5], [0, 0]])


@pytest.mark.parametrize("dtype", [ys.int8, ys.uint8, ys.int32, ys.uint64])
def test_labels_of_any_integer_dtype(dtype):
    labels = np.array([0, 4, 2, 3, 1, 1])
    made = ys.nn.cross_entropy(ys.asarray(LOGITS), ys.asarray(labels, dtype=dtype))
    np.testing.assert_allclose(float(made), float(ys.nn.cross_entropy(ys.asarray(LOGITS), ys.asarray(labels))))


def test_a_single_prediction_and_none():
    assert float(ys.nn.cross_entropy(ys.asarray([0.0, 0.0]), ys.asarray(1))) == pytest.approx(np.log(2))
    assert ys.nn.cross_entropy(ys.zeros((0, 3)), ys.zeros((0,), dtype=ys.int64), reduction="none").numpy().shape == (0,)
    assert np.isnan(float(ys.nn.cross_entropy(ys.zeros((1, 3)), ys.asarray([-100]))))


def test_labels_that_are_no_classes():
    logits = ys.asarray(LOGITS)
    with pytest.raises(ys.errors.IndexingError, match=r"\[cross_entropy\] expected labels from 0 to 4, got 5"):
        ys.nn.cross_entropy(logits, ys.asarray([0, 1, 2, 3, 4, 5]))
    with pytest.raises(ys.errors.IndexingError, match="got -100"):
        ys.nn.cross_entropy(logits, ys.asarray(LABELS), ignore_index=None)
    later = ys.jit(lambda x, y: ys.nn.cross_entropy(x, y, reduction="none"))(logits, ys.asarray([0, 1, 2, -100, -1, 5]))
    assert np.isnan(later.numpy()).tolist() == [False, False, False, False, True, True]
    assert later.numpy()[3] == 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: ys.nn.cross_entropy(ys.asarray(MAPS), ys.asarray(MAP_LABELS)),
            r"expected labels of shape \(2, 5, 3\)",
        ),
        (lambda: ys.nn.cross_entropy(ys.asarray(LOGITS), ys.ones((6,))), "expected labels of an integer dtype"),
        (
            lambda: ys.nn.cross_entropy(ys.asarray(LOGITS), ys.asarray(LABELS), reduction="max"),
            "expected reduction among 'mean', 'sum', 'none'",
        ),
        (
            lambda: ys.nn.cross_entropy(ys.asarray(LOGITS), ys.asarray(LABELS), label_smoothing=2.0),
            "expected label_smoothing from 0 to 1",
        ),
    ],
)
def test_mistakes(call, told):
    with pytest.raises(ys.errors.UserError, match=rf"\[cross_entropy\] {told}"):
        call()
