"""Gradients of layers and losses against central differences, in float64. No peer is needed."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from yosegi import nn

FLOAT = {"rng": 0, "dtype": ys.float64}
LABELS = ys.asarray([[1, 2, 2], [3, 1, 0]])
FUNCTIONS = {
    "adaptive_avg_pool2d": (lambda x: nn.adaptive_avg_pool2d(x, (3, 2)), (1, 2, 5, 4)),
    "adaptive_max_pool2d": (lambda x: nn.adaptive_max_pool2d(x, (3, 2)), (1, 2, 5, 4)),
    "interpolate nearest": (lambda x: nn.interpolate(x, 7), (1, 2, 5)),
    "interpolate bilinear": (lambda x: nn.interpolate(x, (7, 3), mode="bilinear"), (1, 2, 5, 4)),
    "rotary_embedding": (nn.rotary_embedding, (2, 5, 6)),
    "huber_loss": (lambda x: nn.huber_loss(x, 0.3, delta=0.5), (4, 3)),
    "binary_cross_entropy_with_logits": (lambda x: nn.binary_cross_entropy_with_logits(x, 0.3, pos_weight=2.0), (4, 3)),
    "kl_div": (lambda x: nn.kl_div(nn.log_softmax(x), nn.softmax(x * 2)), (4, 3)),
    "triplet_margin_loss": (lambda x: nn.triplet_margin_loss(x[0], x[1], x[2], swap=True), (3, 4, 5)),
    "ctc_loss": (lambda x: nn.ctc_loss(x, LABELS, ys.asarray([6, 5]), ys.asarray([3, 2]), reduction="none"), (6, 2, 4)),
}
LAYERS = {
    "Conv2d": (nn.Conv2d(2, 4, 3, 2, 1, groups=2, padding_mode="circular", **FLOAT), (1, 2, 5, 4)),
    "ConvTranspose1d": (nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, 2, **FLOAT), (1, 2, 5)),
    "BatchNorm1d": (nn.BatchNorm1d(3, dtype=ys.float64), (4, 3)),
    "GroupNorm": (nn.GroupNorm(2, 4, dtype=ys.float64), (2, 4, 3)),
    "LSTM": (nn.LSTM(3, 2, bidirectional=True, **FLOAT), (2, 4, 3)),
    "GRU": (nn.GRU(3, 2, num_layers=2, **FLOAT), (2, 4, 3)),
    "MultiHeadAttention": (nn.MultiHeadAttention(8, 4, 2, rotary_base=100.0, **FLOAT), (2, 3, 8)),
    "TransformerEncoderLayer": (nn.TransformerEncoderLayer(4, 2, 6, 0.5, nn.gelu, **FLOAT), (2, 3, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name):
    function, shape = FUNCTIONS[name]
    check_gradient(function, random(shape), rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_by_its_input_and_parameters(name):
    layer, shape = LAYERS[name]
    params, rest = nn.partition(layer)
    leaves, structure = ys.tree_flatten(params)

    def function(x, *leaves):
        made, _ = nn.stateful(nn.combine(ys.tree_unflatten(structure, leaves), rest))(x)
        return made[0] if isinstance(made, tuple) else made

    check_gradient(function, random(shape), *[leaf.numpy() for leaf in leaves], rtol=1e-5)


def test_initial_values_follow_their_formulas():
    shape = (40, 30, 3)
    inputs, outputs = 90, 120
    made = {
        "xavier_uniform": np.sqrt(2 / (inputs + outputs)), "xavier_normal": np.sqrt(2 / (inputs + outputs)),
        "kaiming_uniform": np.sqrt(2 / inputs), "kaiming_normal": np.sqrt(2 / inputs),
    }  # fmt: skip
    for name, std in made.items():
        values = getattr(nn.init, name)(shape, rng=0)
        assert values.dtype == ys.float32
        assert float(ys.std(values)) == pytest.approx(std, rel=0.05), name
        assert values.tolist() == getattr(nn.init, name)(shape, rng=0).tolist()
    out = nn.init.kaiming_normal(shape, nn.init.gain("leaky_relu", 1.0), mode="fan_out", rng=0)
    assert float(ys.std(out)) == pytest.approx(np.sqrt(1 / outputs), rel=0.05)
    for lengths in ((3, 8), (8, 3)):
        w = nn.init.orthogonal(lengths, 2.0, rng=0).numpy()
        w = w if lengths[0] < lengths[1] else w.T
        np.testing.assert_allclose(w @ w.T, 4 * np.eye(3), atol=1e-5)
    with pytest.raises(ys.errors.ShapeError, match=r"\[xavier_normal\] expected the shape of a weight"):
        nn.init.xavier_normal((3,))
