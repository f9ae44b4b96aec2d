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


def test_an_overflow_skips_the_step_and_float32_weights_stay():
    rule = ys.optim.scale_loss(ys.optim.adamw(1e-2))

    @ys.jit
    def step(model, state, x):
        value, grads = ys.nn.value_and_grad(model, lambda m, x: _loss(m, x) * state["scale"])(x)
        updates, state = rule.update(grads, state, model)
        return ys.optim.apply_updates(model, updates), state, value / state["scale"]

    with ys.options(precision="f16"):
        model = _model()
        state = rule.init(model)
        losses = []
        for n in range(12):
            before, inner = _bits(model), _bits(state["inner"])
            if n == 6:
                with pytest.warns(RuntimeWarning, match="the step was skipped, the loss scale is now 16384"):
                    model, state, _ = step(model, state, ys.asarray(X * np.float32(1e37)))
                assert (_bits(model), _bits(state["inner"])) == (before, inner)
            else:
                model, state, value = step(model, state, ys.asarray(X))
                losses.append(float(value))
                assert _bits(model) != before
    assert {leaf.dtype for leaf in (*ys.tree_leaves(model), *ys.tree_leaves(state["inner"][0]["mean"]))} == {ys.float32}
    assert int(state["skipped"]) == 1
    assert losses[-1] < losses[0] / 2
    assert len(step.plans) == 1


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
