"""Losses against PyTorch's: values, and gradients by the predictions."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from yosegi import nn
from yosegi.errors import ArgumentError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch, the peer of these tests, is not installed")
F = torch.nn.functional

X, Y, Z = np.random.default_rng(0).normal(size=(3, 6, 5)).astype(np.float32)
P, Q = (1 / (1 + np.exp(-t)) for t in (X, Y))
LOGS = np.log(np.exp(X) / np.exp(X).sum(-1, keepdims=True))
SHARES = np.exp(Y) / np.exp(Y).sum(-1, keepdims=True)
LABELS = np.array([0, 4, 2, -100, 1, 1])
LOSSES = [
    (nn.mse_loss, F.mse_loss, (X, Y), {}),
    (nn.l1_loss, F.l1_loss, (X, Y), {}),
    (nn.huber_loss, F.huber_loss, (X, Y), {"delta": 0.7}),
    (nn.binary_cross_entropy, F.binary_cross_entropy, (P, Q), {}),
    (nn.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, (X * 30, Q), {}),
    (nn.kl_div, F.kl_div, (LOGS, SHARES), {}),
    (nn.kl_div, F.kl_div, (LOGS, np.log(SHARES)), {"log_target": True}),
    (nn.triplet_margin_loss, F.triplet_margin_loss, (X, Y, Z), {"margin": 0.4}),
    (nn.triplet_margin_loss, F.triplet_margin_loss, (X, Y, Z), {"swap": True}),
    (nn.nll_loss, F.nll_loss, (LOGS, LABELS), {}),
    (nn.cross_entropy, F.cross_entropy, (X, LABELS), {}),
    (nn.cross_entropy, F.cross_entropy, (X, LABELS), {"label_smoothing": 0.2}),
    (nn.cross_entropy, F.cross_entropy, (X, np.abs(LABELS) % 5), {"ignore_index": 1}),
]
NAMES = [f"{row[0].__name__}-{row[3]}" for row in LOSSES]


def compare(ours, theirs, args, settings, rtol=2e-4):
    x = torch.tensor(args[0], requires_grad=True)
    expected = theirs(x, *map(torch.tensor, args[1:]), **settings)
    weights = np.arange(1, expected.numel() + 1, dtype=np.float32).reshape(expected.shape)
    (expected * torch.tensor(weights)).sum().backward()

    def loss(x):
        made = ours(x, *map(ys.asarray, args[1:]), **settings)
        return ys.sum(made * weights), made

    (_, made), slope = ys.value_and_grad(loss, has_aux=True)(ys.asarray(args[0]))
    np.testing.assert_allclose(made.numpy(), expected.detach().numpy(), rtol=rtol, atol=1e-5)
    np.testing.assert_allclose(slope.numpy(), x.grad.numpy(), rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("ours", "theirs", "args", "settings"), LOSSES, ids=NAMES)
@pytest.mark.filterwarnings("ignore:reduction")
def test_a_loss(ours, theirs, args, settings, reduction):
    compare(ours, theirs, args, {**settings, "reduction": reduction})


def test_settings_of_single_losses():
    compare(nn.kl_div, F.kl_div, (LOGS, SHARES), {"reduction": "batchmean"})
    weight = np.array([0.5, 1, 2, 3, 4], np.float32)
    expected = F.binary_cross_entropy_with_logits(torch.tensor(X), torch.tensor(Q), pos_weight=torch.tensor(weight))
    made = nn.binary_cross_entropy_with_logits(X, Q, pos_weight=weight)
    assert float(made) == pytest.approx(float(expected), rel=1e-5)
    zero = np.zeros_like(SHARES)
    assert float(nn.kl_div(LOGS, zero)) == 0.0
    assert np.isfinite(ys.grad(lambda y: nn.kl_div(LOGS, y))(ys.asarray(zero)).numpy()).all()


def compare_ctc(args, settings):
    """By logits: PyTorch's gradient by the logarithms holds only for those that `log_softmax` has made."""
    compare(
        lambda x, *args, **settings: nn.ctc_loss(nn.log_softmax(x), *args, **settings),
        lambda x, *args, **settings: F.ctc_loss(F.log_softmax(x, -1), *args, **settings),
        args,
        settings,
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc(reduction):
    logits = np.random.default_rng(0).normal(size=(9, 4, 5)).astype(np.float32)
    targets = np.array([[1, 2, 2, 3], [4, 1, 1, 1], [3, 1, 2, 4], [2, 2, 2, 2]])
    args = (logits, targets, np.array([9, 7, 8, 9]), np.array([4, 2, 0, 4]))
    compare_ctc(args, {"reduction": reduction})


def test_ctc_without_an_alignment():
    logs = torch.log_softmax(torch.zeros(3, 2, 4), -1).numpy()
    args = (logs, np.array([[1, 1, 1], [1, 2, 3]]), np.array([3, 3]), np.array([3, 3]))
    assert nn.ctc_loss(*map(ys.asarray, args), reduction="none").tolist()[0] == float("inf")
    compare_ctc(args, {"reduction": "sum", "zero_infinity": True})


def test_mistakes():
    with pytest.raises(ArgumentError, match=r"\[l1_loss\] expected reduction among"):
        nn.l1_loss(X, Y, reduction="most")
    with pytest.raises(ShapeError, match=r"\[nll_loss\] expected labels of shape \(6,\)"):
        nn.nll_loss(LOGS, LABELS[:3])
    with pytest.raises(ShapeError, match=r"\[ctc_loss\] expected log_probs \(length, batch, classes\)"):
        nn.ctc_loss(LOGS, LABELS, LABELS, LABELS)
