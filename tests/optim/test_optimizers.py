"""The familiar classes: parameters and state as one immutable tree, with modules and with groups."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import yosegi as ys


class Model(ys.nn.Module):
    def __init__(self, rng):
        self.first = ys.nn.Linear(4, 8, rng=rng)
        self.norm = ys.nn.BatchNorm1d(8)
        self.drop = ys.nn.Dropout(0.1, rng=rng)
        self.second = ys.nn.Linear(8, 1, rng=rng)

    def forward(self, x):
        return self.second(self.drop(ys.nn.relu(self.norm(self.first(x)))))


@ys.jit
def train(optimizer, x, y):
    def loss(model, x, y):
        return ys.mean((model(x)[:, 0] - y) ** 2)

    (value, model), grads = ys.nn.value_and_grad(optimizer.params, loss, has_state=True)(x, y)
    return optimizer.step(grads, params=model, value=value), value


def test_a_model_learns_with_one_plan_and_flat_memory():
    rng = ys.random.default_rng(0)
    x = rng.normal((64, 4), dtype=ys.float32)
    rate = ys.optim.cosine_decay(0.03, 250)
    optimizer = ys.optim.AdamW(Model(rng), lr=rate, weight_decay=1e-3)
    losses, used = [], []
    tracemalloc.start()
    try:
        for _ in range(250):
            optimizer, loss = train(optimizer, x, x[:, 0] - x[:, 1])
            losses.append(float(loss))
            used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert losses[-1] < 0.1 * losses[0]
    assert len(train.plans) == 1
    assert used[-1] - used[50] < 50_000
    assert float(ys.sum(ys.abs(optimizer.params.norm.running_mean))) > 0


def test_a_new_optimizer_with_equal_settings_keeps_the_trace():
    @ys.jit
    def step(optimizer, x):
        return optimizer.step(optimizer.params - x)

    for rate in (0.1, 0.1, 0.2):
        made = step(ys.optim.Adam(ys.zeros((3,)), lr=rate, betas=(0.9, 0.99)), ys.ones((3,)))
        np.testing.assert_allclose(made.params.numpy(), np.full(3, rate), rtol=1e-5)
    assert len(step.plans) == 2


def test_groups_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    first, second = np.ones((2, 2), np.float32), np.full((3,), 2.0, np.float32)
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in (first, second)]
    settings = {"momentum": 0.9}
    peer = torch.optim.SGD([{"params": [theirs[0]]}, {"params": [theirs[1]], "lr": 1.0}], lr=0.1, **settings)
    ours = ys.optim.SGD(
        [{"params": ys.asarray(first)}, {"params": {"b": ys.asarray(second)}, "lr": 1.0}], lr=0.1, **settings
    )
    for _ in range(3):
        for p in theirs:
            p.grad = p.detach() * 0.1
        peer.step()
        ours = ours.step(ys.tree_map(lambda p: p * 0.1, ours.params))
    np.testing.assert_allclose(ours.params[0].numpy(), theirs[0].detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(ours.params[1]["b"].numpy(), theirs[1].detach().numpy(), rtol=1e-6)


def test_an_optimizer_is_a_tree():
    optimizer = ys.optim.Adam({"w": ys.ones((2,))}, lr=0.1)
    assert ys.tree_map_with_path(lambda path, leaf: path, optimizer).params["w"] == ".params['w']"
    assert optimizer.step({"w": ys.ones((2,))}) is not optimizer
    assert optimizer.params["w"].tolist() == [1.0, 1.0]
