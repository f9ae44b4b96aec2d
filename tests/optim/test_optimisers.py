"""Optimisers beside PyTorch's, and beside NumPy where PyTorch has none: ten steps on the same gradients."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from yosegi.errors import ArgumentError

SHAPES = {"weight": (4, 3), "bias": (4,), "wide": (3, 5)}
RNG = np.random.default_rng(0)
START = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
GRADIENTS = [{name: RNG.normal(size=s).astype(np.float32) for name, s in SHAPES.items()} for _ in range(10)]


def steps(rule, start=START, gradients=GRADIENTS, values=None):
    """The parameters after one jitted step for each gradient, and the state."""

    @ys.jit
    def step(params, state, grads, value):
        updates, state = rule.update(grads, state, params, value)
        return ys.optim.apply_updates(params, updates), state

    params = {name: ys.asarray(a) for name, a in start.items()}
    state = rule.init(params)
    for n, grads in enumerate(gradients):
        value = ys.asarray(np.float32(n if values is None else values[n]))
        params, state = step(params, state, {k: ys.asarray(g) for k, g in grads.items()}, value)
    assert len(step.plans) == 1
    return params, state


def torch_steps(make, start=START, gradients=GRADIENTS, after=lambda n: None):
    """The parameters after PyTorch's steps."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    params = {name: torch.nn.Parameter(torch.tensor(a)) for name, a in start.items()}
    optimiser = make(torch.optim, params)
    for n, grads in enumerate(gradients):
        for name, g in grads.items():
            params[name].grad = torch.tensor(g)
        optimiser.step()
        after(n)
    return {name: p.detach().numpy() for name, p in params.items()}


def check(ours, theirs, rtol=2e-6, atol=2e-7):
    for name, expected in theirs.items():
        assert ours[name].dtype is ys.float32
        np.testing.assert_allclose(ours[name].numpy(), expected, rtol=rtol, atol=atol, err_msg=name)


CASES = [
    ("sgd", "SGD", {}),
    ("sgd", "SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ("sgd", "SGD", {"momentum": 0.9, "nesterov": True}),
    ("adam", "Adam", {}),
    ("adam", "Adam", {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("adamw", "AdamW", {"weight_decay": 0.1}),
    ("rmsprop", "RMSprop", {}),
    ("rmsprop", "RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("adagrad", "Adagrad", {}),
    ("adagrad", "Adagrad", {"initial_accumulator_value": 0.5, "weight_decay": 0.1}),
    ("adamax", "Adamax", {"weight_decay": 0.1}),
    ("radam", "RAdam", {"betas": (0.9, 0.9)}),
    ("radam", "RAdam", {"weight_decay": 0.1}),
    ("nadam", "NAdam", {}),
    ("nadam", "NAdam", {"momentum_decay": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "theirs", "settings"), CASES, ids=str)
def test_ten_steps(name, theirs, settings):
    expected = torch_steps(lambda optim, params: getattr(optim, theirs)(params.values(), lr=0.01, **settings))
    check(steps(getattr(ys.optim, name)(0.01, **settings))[0], expected)


def test_the_defaults_are_those_of_pytorch():
    for name, theirs in {(ours, theirs) for ours, theirs, _ in CASES}:
        check(
            steps(getattr(ys.optim, name)())[0],
            torch_steps(lambda optim, params, theirs=theirs: getattr(optim, theirs)(params.values())),
        )


def test_lion():
    expected = {}
    for name, p in START.items():
        p, mean = p.astype(np.float64), 0.0
        for grads in GRADIENTS:
            p = p * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.9 * mean + 0.1 * grads[name])
            mean = 0.99 * mean + 0.01 * grads[name]
        expected[name] = p
    check(steps(ys.optim.lion(0.01, weight_decay=0.1))[0], expected)


MATRICES = {"weight": START["weight"], "wide": START["wide"]}
ON_MATRICES = [{name: grads[name] for name in MATRICES} for grads in GRADIENTS]


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon(nesterov):
    ours, _ = steps(ys.optim.muon(0.02, nesterov=nesterov), MATRICES, ON_MATRICES)
    check(ours, {name: _muon(name, nesterov) for name in MATRICES}, rtol=1e-4, atol=1e-5)
    # PyTorch iterates in bfloat16.
    check(
        ours,
        torch_steps(lambda o, p: o.Muon(p.values(), lr=0.02, nesterov=nesterov), MATRICES, ON_MATRICES),
        rtol=0.02, atol=0.01,
    )  # fmt: skip


def _muon(name, nesterov):
    p, mean = START[name].astype(np.float64), 0.0
    for grads in GRADIENTS:
        mean = 0.95 * mean + 0.05 * grads[name]
        x = 0.05 * grads[name] + 0.95 * mean if nesterov else mean
        x = x / np.linalg.norm(x)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        p = p * (1 - 0.02 * 0.1) - 0.02 * max(1, p.shape[0] / p.shape[1]) ** 0.5 * x
    return p


def test_muon_takes_matrices():
    with pytest.raises(ArgumentError, match=r"\[muon\] expected matrices, got shape \(4,\); use groups"):
        steps(ys.optim.muon())


@pytest.mark.parametrize("history", [3, 20])
def test_lbfgs(history):
    """On Rosenbrock's function, whose gradients depend on the steps before."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def rosenbrock(x, y):
        return 100 * (y - x * x) ** 2 + (1 - x) ** 2

    theirs = [torch.nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (-0.5, 0.7)]
    optimiser = torch.optim.LBFGS(theirs, lr=0.5, max_iter=1, history_size=history)

    def closure():
        optimiser.zero_grad()
        loss = rosenbrock(*theirs)
        loss.backward()
        return loss

    rule = ys.optim.lbfgs(0.5, history_size=history)
    ours = [ys.asarray(-0.5), ys.asarray(0.7)]
    state = rule.init(ours)

    @ys.jit
    def step(ours, state):
        updates, state = rule.update(ys.grad(lambda p: rosenbrock(*p))(ours), state, ours)
        return ys.optim.apply_updates(ours, updates), state

    for _ in range(10):
        optimiser.step(closure)
        ours, state = step(ours, state)
        np.testing.assert_allclose([float(p) for p in ours], [p.item() for p in theirs], rtol=1e-6)


def test_clipping():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def make(optim, params):
        sgd = optim.SGD(params.values(), lr=0.1)
        inner = sgd.step
        sgd.step = lambda: (torch.nn.utils.clip_grad_norm_(params.values(), 1.0), inner())
        return sgd

    check(steps(ys.optim.chain(ys.optim.clip_by_norm(1.0), ys.optim.sgd(0.1)))[0], torch_steps(make))
    clipped = [{k: np.clip(g, -0.3, 0.3) for k, g in grads.items()} for grads in GRADIENTS]
    check(
        steps(ys.optim.chain(ys.optim.clip_by_value(0.3), ys.optim.sgd(0.1)))[0],
        torch_steps(lambda optim, params: optim.SGD(params.values(), lr=0.1), gradients=clipped),
    )


def test_groups_and_masks():
    def make(optim, params):
        return optim.AdamW(
            [
                {"params": params["weight"], "lr": 0.1},
                {"params": [params["bias"], params["wide"]], "weight_decay": 0.0},
            ],
            lr=0.01,
            weight_decay=0.2,
        )

    rule = ys.optim.groups(
        {"fast": ys.optim.adamw(0.1, weight_decay=0.2), "slow": ys.optim.adamw(0.01, weight_decay=0.0)},
        lambda path, p: "fast" if path == "['weight']" else "slow",
    )
    expected = torch_steps(make)
    check(steps(rule)[0], expected)

    masked = ys.optim.adamw(0.01, weight_decay=0.2, mask=lambda path, p: p.ndim > 1)
    ours = steps(masked)[0]
    check({"bias": ours["bias"]}, {"bias": expected["bias"]})
    assert not np.allclose(ours["wide"].numpy(), expected["wide"], atol=1e-4)


def test_parameters_of_no_group_stay():
    params, _ = steps(ys.optim.groups({"fast": ys.optim.sgd(0.1)}, lambda path, p: path))
    assert all(np.array_equal(params[name].numpy(), START[name]) for name in START)


def test_accumulation():
    means = [{k: (a[k] + b[k]) / 2 for k in a} for a, b in zip(GRADIENTS[::2], GRADIENTS[1::2], strict=True)]
    expected, _ = steps(ys.optim.adam(0.01), gradients=means)
    params, state = steps(ys.optim.accumulate(ys.optim.adam(0.01), every=2))
    check(params, {k: v.numpy() for k, v in expected.items()})
    assert int(state["inner"][0]["count"]) == 5


def test_average_of_weights():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    swa = torch.optim.swa_utils
    averages = []

    def make(optim, params):
        model = torch.nn.ParameterDict(params)
        averages.append(swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.8)))
        averages.append(model)
        return optim.SGD(params.values(), lr=0.1)

    torch_steps(make, after=lambda n: averages[0].update_parameters(averages[1]))
    _, state = steps(ys.optim.chain(ys.optim.sgd(0.1), ys.optim.average_weights(0.8)))
    check(state[-1]["average"], {k: v.detach().numpy() for k, v in averages[0].module.items()})


@pytest.mark.parametrize(("cooldown", "patience"), [(0, 1), (2, 0)])
def test_plateau(cooldown, patience):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    losses = [5.0, 4.0, 4.0, 4.1, 3.9999, 4.2, 4.0, 3.0, 3.0, 3.0]
    plateau = []

    def make(optim, params):
        sgd = optim.SGD(params.values(), lr=0.1)
        plateau.append(
            torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=patience, cooldown=cooldown)
        )
        return sgd

    expected = torch_steps(make, after=lambda n: plateau[0].step(losses[n]))
    rule = ys.optim.chain(ys.optim.sgd(0.1), ys.optim.reduce_on_plateau(0.5, patience=patience, cooldown=cooldown))
    params, state = steps(rule, values=losses)
    check(params, expected)
    assert float(state[1]["scale"]) < 1


def test_plateau_needs_the_loss():
    rule, p = ys.optim.reduce_on_plateau(), ys.zeros(())
    with pytest.raises(ArgumentError, match=r"\[reduce_on_plateau\] expected the loss, got none"):
        rule.update(p, rule.init(p), p)


def test_gradients_must_fit():
    rule, p = ys.optim.sgd(), {"w": ys.zeros((2,))}
    with pytest.raises(ArgumentError, match=r"shapes, got \(3,\) for \['w'\] of shape \(2,\)$"):
        rule.update({"w": ys.zeros((3,))}, rule.init(p), p)
    with pytest.raises(ArgumentError, match="expected trees of one structure"):
        rule.update({"v": ys.zeros((2,))}, rule.init(p), p)


@pytest.mark.parametrize("dtype", [ys.bfloat16, ys.float16, ys.float64])
def test_parameters_keep_their_dtype(dtype):
    rule, p = ys.optim.adamw(0.1), ys.ones((3,), dtype=dtype)
    updates, state = rule.update(p, rule.init(p), p)
    assert ys.optim.apply_updates(p, updates).dtype is dtype
    assert state[0]["mean"].dtype is dtype
    assert float(ys.optim.apply_updates(p, updates)[0]) == pytest.approx(0.899, rel=0.01)


def test_the_scale_of_a_loss():
    rule = ys.optim.scale_loss(ys.optim.sgd(1.0, momentum=0.5), initial=4.0, every=2)

    @ys.jit
    def step(params, state, slope):
        _, grads = ys.nn.value_and_grad(params, lambda p: p * slope, scale=state["scale"])()
        updates, state = rule.update(grads, state, params)
        return ys.optim.apply_updates(params, updates), state

    params = ys.asarray(np.float32(0.0))
    state = rule.init(params)
    seen = []
    for slope in (1.0, 1.0, np.inf, 1.0):
        if slope == np.inf:
            with pytest.warns(RuntimeWarning, match="the step was skipped, the loss scale is now 4"):
                params, state = step(params, state, ys.asarray(np.float32(slope)))
        else:
            params, state = step(params, state, ys.asarray(np.float32(slope)))
        seen.append((float(params), float(state["scale"]), int(state["skipped"])))
    assert seen == [(-1.0, 4.0, 0), (-2.5, 8.0, 0), (-2.5, 4.0, 1), (-4.25, 4.0, 1)]
    assert len(step.plans) == 1


def test_float16_gradients_survive_by_the_scale():
    """The cotangent 1e-4 * 1e-4 is zero in float16; times the scale it is not."""
    rule = ys.optim.scale_loss(ys.optim.sgd(1.0))
    p = ys.asarray(np.float32(1.0))
    state = rule.init(p)

    def slope(scale):
        loss = lambda p: (p.astype(ys.float16) * 1e-4).astype(ys.float32) * 1e-4
        return ys.nn.value_and_grad(p, loss, scale=scale)()[1]

    assert float(slope(None)) == 0
    update, _ = rule.update(slope(state["scale"]), state, p)
    assert float(update) == pytest.approx(-1e-8, rel=0.01)
