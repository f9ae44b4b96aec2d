"""Layers against PyTorch's: outputs, and gradients by the input and by all parameters, from the same `state_dict`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layer_peer import array, compare
from yosegi import nn

torch = pytest.importorskip("torch", reason="PyTorch, the peer of these tests, is not installed")
tnn = torch.nn

X1, X2, X3 = (2, 4, 9), (2, 4, 8, 7), (1, 4, 5, 6, 5)
LAYERS = [
    (nn.Linear(5, 3), tnn.Linear(5, 3), (2, 4, 5)),
    (nn.Linear(5, 3, bias=False), tnn.Linear(5, 3, bias=False), (5,)),
    (nn.Conv1d(4, 6, 3), tnn.Conv1d(4, 6, 3), X1),
    (nn.Conv1d(4, 6, 3, 2, 1, 2, 2), tnn.Conv1d(4, 6, 3, 2, 1, 2, 2), X1),
    (nn.Conv2d(4, 6, 3, padding="same"), tnn.Conv2d(4, 6, 3, padding="same"), X2),
    (nn.Conv2d(4, 8, (3, 2), (2, 1), (1, 0), 2, 4), tnn.Conv2d(4, 8, (3, 2), (2, 1), (1, 0), 2, 4), X2),
    *[(nn.Conv2d(4, 2, 3, padding=(2, 1), padding_mode=m), tnn.Conv2d(4, 2, 3, padding=(2, 1), padding_mode=m), X2)
      for m in ("reflect", "replicate", "circular")],
    (nn.Conv2d(4, 2, 4, padding="same", padding_mode="reflect"),
     tnn.Conv2d(4, 2, 4, padding="same", padding_mode="reflect"), X2),
    (nn.Conv3d(4, 2, 3, bias=False), tnn.Conv3d(4, 2, 3, bias=False), X3),
    (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), tnn.ConvTranspose1d(4, 6, 3, 2, 1, 1), X1),
    (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, True, 2), tnn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, True, 2), X2),
    (nn.ConvTranspose3d(4, 2, 2, 2), tnn.ConvTranspose3d(4, 2, 2, 2), X3),
    (nn.BatchNorm1d(4), tnn.BatchNorm1d(4), (6, 4)),
    (nn.BatchNorm1d(4, momentum=None), tnn.BatchNorm1d(4, momentum=None), X1),
    (nn.BatchNorm2d(4, 1e-3, 0.3), tnn.BatchNorm2d(4, 1e-3, 0.3), X2),
    (nn.BatchNorm2d(4, affine=False, track_running_stats=False),
     tnn.BatchNorm2d(4, affine=False, track_running_stats=False), X2),
    (nn.BatchNorm3d(4), tnn.BatchNorm3d(4), X3),
    (nn.BatchNorm2d(4).eval(), tnn.BatchNorm2d(4).eval(), X2),
    (nn.LayerNorm(7), tnn.LayerNorm(7), X2),
    (nn.LayerNorm((8, 7), bias=False), tnn.LayerNorm((8, 7), bias=False), X2),
    (nn.RMSNorm(7), tnn.RMSNorm(7), X2),
    (nn.GroupNorm(2, 4), tnn.GroupNorm(2, 4), X2),
    (nn.InstanceNorm(4, affine=True), tnn.InstanceNorm2d(4, affine=True), X2),
    (nn.InstanceNorm(4), tnn.InstanceNorm3d(4), X3),
    (nn.MaxPool1d(3, 2, 1), tnn.MaxPool1d(3, 2, 1), X1),
    (nn.MaxPool2d(3, 2, 1, 2), tnn.MaxPool2d(3, 2, 1, 2), X2),
    (nn.MaxPool3d(2), tnn.MaxPool3d(2), X3),
    (nn.AvgPool1d(3, 2, 1, False), tnn.AvgPool1d(3, 2, 1, count_include_pad=False), X1),
    (nn.AvgPool2d((3, 2), 2, 1), tnn.AvgPool2d((3, 2), 2, 1), X2),
    (nn.AvgPool3d(2), tnn.AvgPool3d(2), X3),
    (nn.AdaptiveAvgPool1d(4), tnn.AdaptiveAvgPool1d(4), X1),
    (nn.AdaptiveAvgPool2d((3, 5)), tnn.AdaptiveAvgPool2d((3, 5)), X2),
    (nn.AdaptiveAvgPool2d((4, 7)), tnn.AdaptiveAvgPool2d((4, 7)), X2),
    (nn.AdaptiveAvgPool3d(3), tnn.AdaptiveAvgPool3d(3), X3),
    (nn.AdaptiveMaxPool1d(4), tnn.AdaptiveMaxPool1d(4), X1),
    (nn.AdaptiveMaxPool2d((3, 5)), tnn.AdaptiveMaxPool2d((3, 5)), X2),
    (nn.AdaptiveMaxPool3d((5, 2, 3)), tnn.AdaptiveMaxPool3d((5, 2, 3)), X3),
    (nn.Upsample((5, 16)), tnn.Upsample((5, 16)), X2),
    (nn.Upsample(scale_factor=1.7), tnn.Upsample(scale_factor=1.7), X2),
    (nn.Upsample(5, mode="linear"), tnn.Upsample(5, mode="linear"), X1),
    (nn.Upsample(scale_factor=(2.0, 0.5), mode="bilinear"), tnn.Upsample(scale_factor=(2.0, 0.5), mode="bilinear"), X2),
    (nn.Upsample((12, 3), mode="bilinear", align_corners=True),
     tnn.Upsample((12, 3), mode="bilinear", align_corners=True), X2),
    (nn.Upsample(7, mode="trilinear"), tnn.Upsample(7, mode="trilinear"), X3),
    *[(getattr(nn, name)(), getattr(tnn, name)(), X1) for name in (
        "ReLU", "LeakyReLU", "ELU", "SELU", "GELU", "SiLU", "Mish", "Hardswish", "Sigmoid", "Tanh", "Softplus",
        "ReLU6", "Hardsigmoid", "LogSigmoid")],
    (nn.GLU(1), tnn.GLU(1), X2),
    (nn.GELU(approximate="tanh"), tnn.GELU("tanh"), X1),
    (nn.Softmax(axis=1), tnn.Softmax(1), X1),
    (nn.LeakyReLU(0.2), tnn.LeakyReLU(0.2), X1),
    (nn.ELU(0.5), tnn.ELU(0.5), X1),
    (nn.Softmax(1), tnn.Softmax(1), X1),
    (nn.LogSoftmax(axis=1), tnn.LogSoftmax(1), X1),
    (nn.PReLU(), tnn.PReLU(), X1),
    (nn.PReLU(4), tnn.PReLU(4), X2),
    (nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)),
     tnn.Sequential(tnn.Linear(5, 3), tnn.ReLU(), tnn.Linear(3, 2)), (2, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "shape"), LAYERS, ids=[repr(row[1]).partition("\n")[0] for row in LAYERS])
def test_a_layer(ours, theirs, shape):
    compare(ours, theirs, array(*shape))


def test_an_activation_refuses_settings_that_its_function_does_not_have():
    with pytest.raises(TypeError, match=r"^\[LeakyReLU\] got an unexpected keyword argument 'slope'"):
        nn.LeakyReLU(slope=0.2)


def test_embedding():
    compare(nn.Embedding(7, 3), tnn.Embedding(7, 3), np.array([[1, 2, 6], [0, 1, 1]]))


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_convolutions_of_any_parameters(data):
    number = lambda low, high: data.draw(st.integers(low, high))
    groups, transposed = number(1, 2), data.draw(st.booleans())
    channels, outputs, kernel, stride, dilation = (
        groups * number(1, 2),
        groups * number(1, 2),
        *[number(1, 3) for _ in "123"],
    )
    padding = number(0, kernel - 1)
    length = number(dilation * (kernel - 1) + 1, 9)
    if transposed:
        extra = number(0, max(stride, dilation) - 1)
        args = (channels, outputs, kernel, stride, padding, extra, groups, True, dilation)
        compare(nn.ConvTranspose1d(*args), tnn.ConvTranspose1d(*args), array(2, channels, length))
    else:
        args = (channels, outputs, kernel, stride, padding, dilation, groups)
        compare(nn.Conv1d(*args), tnn.Conv1d(*args), array(2, channels, length))


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_pools_of_any_parameters(data):
    number = lambda low, high: data.draw(st.integers(low, high))
    kernel, stride = number(1, 4), number(1, 4)
    padding, lengths = number(0, kernel // 2), (number(kernel, 9), number(kernel, 9))
    x = array(1, 2, *lengths)
    compare(nn.MaxPool2d(kernel, stride, padding), tnn.MaxPool2d(kernel, stride, padding), x)
    counts = data.draw(st.booleans())
    theirs = tnn.AvgPool2d(kernel, stride, padding, count_include_pad=counts)
    compare(nn.AvgPool2d(kernel, stride, padding, counts), theirs, x)
    sizes = number(1, 9), number(1, 9)
    compare(nn.AdaptiveAvgPool2d(sizes), tnn.AdaptiveAvgPool2d(sizes), x)
    compare(nn.AdaptiveMaxPool2d(sizes), tnn.AdaptiveMaxPool2d(sizes), x)


@pytest.mark.parametrize("name", ["glu", "hardsigmoid", "hardswish", "log_sigmoid", "mish", "relu6", "selu"])
def test_activation_functions(name):
    x = array(4, 6) * 5
    theirs = torch.nn.functional.logsigmoid if name == "log_sigmoid" else getattr(torch.nn.functional, name)
    np.testing.assert_allclose(getattr(nn, name)(x).numpy(), theirs(torch.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_initial_values_are_spread_as_pytorchs():
    for ours, theirs in [
        (nn.Linear(64, 96, rng=0), tnn.Linear(64, 96)),
        (nn.Conv2d(16, 32, 5, groups=2, rng=0), tnn.Conv2d(16, 32, 5, groups=2)),
        (nn.ConvTranspose2d(16, 32, 5, groups=2, rng=0), tnn.ConvTranspose2d(16, 32, 5, groups=2)),
        (nn.Embedding(100, 50, rng=0), tnn.Embedding(100, 50)),
    ]:
        for name, value in theirs.state_dict().items():
            found = ours.state_dict()[name].numpy()
            assert found.std() == pytest.approx(float(value.std()), rel=0.25), name
            assert abs(found).max() == pytest.approx(float(value.abs().max()), rel=0.25), name
