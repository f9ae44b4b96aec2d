"""`options(check_nan=True)` names the op, the module and the line that first made a NaN or an infinity."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import yosegi as ys
from yosegi.errors import NotFinite


class Mlp(ys.nn.Module):
    def __init__(self, root=False, rng=None):
        self.layers = [ys.nn.Linear(2, 2, rng=rng), ys.nn.ReLU()]
        self.root = root

    def forward(self, x):
        y = self.layers[0](x)
        return ys.sqrt(y * 0.0) if self.root else ys.log(y * 0.0)  # the op that fails


class Block(ys.nn.Module):
    def __init__(self, root):
        self.norm = ys.nn.LayerNorm(2)
        self.mlp = Mlp(root)

    def forward(self, x):
        return self.mlp(self.norm(x))


class Model(ys.nn.Module):
    def __init__(self, root):
        self.blocks = [ys.nn.Identity(), ys.nn.Identity(), Block(root)]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


LINE = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the op that fails" in text)
WHERE = rf"in Model\.blocks\.2\.mlp, at {re.escape(__file__)}:{LINE}"
X = np.asarray([[1.0, 2.0], [3.0, 5.0]], np.float32)


def _loss(model, x):
    return ys.sum(model(x))


@pytest.fixture(params=["plain", "jit"])
def run(request):
    """A function of a module and an input, run as it is or jitted."""

    def call(function, *args):
        with ys.options(check_nan=True):
            ys.eval((ys.jit(function) if request.param == "jit" else function)(*args))

    return call


def test_forward(run):
    with pytest.raises(
        NotFinite, match=rf"^\[log\] expected finite values, got -inf at index \(0, 0\) {WHERE}; its inp"
    ):
        run(_loss, Model(False), ys.asarray(X))


def test_backward(run):
    def step(model, x):
        return ys.nn.value_and_grad(model, _loss)(x)[1]

    with pytest.raises(NotFinite, match=rf"got -?inf at index .* in the gradient of sqrt, {WHERE}"):
        run(step, Model(True), ys.asarray(X))


def test_layer_of_the_package(run):
    """A layer's path goes down to the layer; the line is the user's."""
    model = ys.nn.Sequential(ys.nn.Linear(2, 2), ys.nn.Linear(2, 2, bias=False))
    model = model.load_state_dict({**model.state_dict(), "1.weight": np.full((2, 2), 3e38, np.float32)})
    with pytest.raises(NotFinite, match=rf"got -?inf at index .* in Sequential\.1, at {re.escape(__file__)}"):
        run(lambda m, x: m(x), model, ys.asarray(X * 1e30))


def test_nan_of_infinities(run):
    with pytest.raises(NotFinite, match=r"^\[subtract\] expected finite values, got nan"):
        run(lambda x: x - x, ys.asarray([np.inf, 1.0]))


def test_body_of_a_scan(run):
    def body(carry, row):
        return carry * row, ys.log(carry - 1.0)

    with pytest.raises(NotFinite, match=r"^\[log\] expected finite values, got -inf"):
        run(lambda x: ys.scan(body, x[0], x)[1], ys.asarray([1.0, 2.0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ys.where(x > 2, x, -ys.inf),
        lambda x: ys.nn.softmax(ys.where(x > 1, x, -ys.inf)),
        lambda x: ys.concat([x, ys.full((1, 2), ys.nan, dtype=ys.float32)]) * 2.0,
        lambda x: ys.max(x.astype(ys.bfloat16)),
        lambda x: ys.exp(x) + 1j,
    ],
)
def test_values_that_are_given_are_no_fault(run, function):
    run(function, ys.asarray(X))


def test_a_bfloat16_is_checked(run):
    with pytest.raises(NotFinite, match=r"^\[divide\]"):
        run(lambda x: x / 0.0, ys.asarray(X).astype(ys.bfloat16))


def test_the_same_values_without_the_option(run):
    with ys.options(check_nan=False):
        assert np.isneginf(ys.jit(_loss)(Model(False), ys.asarray(X)).numpy())


def test_nothing_is_recorded_before_the_first_use():
    code = "from yosegi._tensor.options import NAN_CHECKS; from yosegi._tensor.node import Node; import yosegi\n"
    code += "assert NAN_CHECKS and Node.__init__.__module__ == Node.__module__"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_training_run_under_the_option_gives_the_same_numbers():
    def step(optimizer, x):
        value, grads = ys.nn.value_and_grad(optimizer.params, lambda m, x: ys.mean(m(x) ** 2))(x)
        return optimizer.step(grads), value

    made = []
    for check in (False, True):
        optimizer, jitted = ys.optim.AdamW(ys.nn.Linear(2, 2, rng=ys.random.default_rng(0)), lr=0.1), ys.jit(step)
        with ys.options(check_nan=check):
            for _ in range(3):
                optimizer, value = jitted(optimizer, ys.asarray(X))
        made.append(float(value))
        assert len(jitted.plans) == (0 if check else 1)
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5)
