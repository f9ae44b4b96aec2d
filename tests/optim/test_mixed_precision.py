"""Training under `precision="f16"` and `"adaptive"`: float32 weights, skipped steps, certified products."""

import numpy as np
import pytest

import yosegi as ys

X = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)


def _loss(model, x):
    return ys.mean((model(x) - ys.sum(x, axis=1, keepdims=True)) ** 2)


def _model():
    rng = ys.random.default_rng(1)
    return ys.nn.Sequential(ys.nn.Linear(128, 128, rng=rng), ys.nn.Tanh(), ys.nn.Linear(128, 1, rng=rng))


def _bits(tree):
    return [leaf.numpy().tobytes() for leaf in ys.tree_leaves(tree)]


@ys.jit
def train(optimizer, x):
    value, grads = optimizer.value_and_grad(_loss)(x)
    return optimizer.step(grads), value


def test_an_optimizer_made_under_f16_skips_overflows_and_keeps_float32():
    with ys.options(precision="f16"):
        optimizer = ys.optim.Chain(_model(), ys.optim.clip_by_norm(1.0), ys.optim.adamw(1e-2))
        losses = []
        for n in range(12):
            before, inner = _bits(optimizer.params), _bits(optimizer.state["inner"])
            if n == 6:
                with pytest.warns(RuntimeWarning, match="the step was skipped, the loss scale is now 16384"):
                    optimizer, _ = train(optimizer, ys.asarray(X * np.float32(1e37)))
                assert (_bits(optimizer.params), _bits(optimizer.state["inner"])) == (before, inner)
            else:
                optimizer, value = train(optimizer, ys.asarray(X))
                losses.append(float(value))
                assert _bits(optimizer.params) != before
    mean = optimizer.state["inner"][1][0]["mean"]
    assert {leaf.dtype for leaf in (*ys.tree_leaves(optimizer.params), *ys.tree_leaves(mean))} == {ys.float32}
    assert int(optimizer.state["skipped"]) == 1
    assert losses[-1] < losses[0] / 2
    assert len(train.plans) == 1


def test_only_optimizers_made_under_f16_scale_the_loss():
    assert ys.optim.SGD(_model(), lr=0.1).transform.scale is None
    with ys.options(precision="adaptive"):  # its certificate rejects a product whose operands vanish
        assert ys.optim.SGD(_model(), lr=0.1).transform.scale is None
    with ys.options(precision="f16"):
        own = ys.optim.Chain(_model(), ys.optim.scale_loss(ys.optim.sgd(0.1), initial=8.0))
    assert float(own.transform.scale(own.state)) == 8.0
    assert "inner" not in own.state


class HalfGradients(ys.nn.Module):
    """A product whose gradient is multiplied in float16, as a device with half precision does."""

    def __init__(self):
        self.weight = ys.ones((2, 2), dtype=ys.float32)

    def forward(self, x):
        return (x.astype(ys.float16) @ self.weight.astype(ys.float16)).astype(ys.float32)


def test_small_gradients_of_float16_products_survive():
    x = ys.asarray(np.full((4, 2), 1.0, np.float32))

    @ys.jit
    def gradient(optimizer, x):
        return optimizer.value_and_grad(lambda m, x: ys.sum(m(x)) * 1e-9)(x)

    lost = gradient(ys.optim.SGD(HalfGradients(), lr=1.0), x)[1].weight.numpy()
    with ys.options(precision="f16"):
        value, kept = gradient(ys.optim.SGD(HalfGradients(), lr=1.0), x)
    assert not lost.any()
    np.testing.assert_allclose(kept.weight.numpy(), 4e-9, rtol=1e-2)
    assert float(value) == pytest.approx(16e-9)


def test_products_of_a_training_step_are_certified():
    @ys.jit
    def step(optimizer, x):
        value, grads = ys.nn.value_and_grad(optimizer.params, _loss)(x)
        return optimizer.step(grads), value

    losses = {}
    for precision in ("f32", "adaptive"):
        with ys.options(precision=precision, tol=1e-2, device="cpu"):
            optimizer = ys.optim.AdamW(_model(), lr=1e-2)
            losses[precision] = []
            for _ in range(6):
                optimizer, value = step(optimizer, ys.asarray(X))
                losses[precision].append(float(value))
    plan = step.plans[1]
    products = [s for s in plan.steps if s.tolerance is not None]
    assert len(products) >= 3  # forward, and backward by the weights
    assert all(s.error_on(s.candidate) <= 1e-2 for s in products)
    np.testing.assert_allclose(losses["adaptive"], losses["f32"], rtol=3e-2)
    assert {leaf.dtype for leaf in ys.tree_leaves(optimizer.params)} == {ys.float32}
