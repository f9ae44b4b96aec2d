"""Schedules beside PyTorch's schedulers."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from yosegi.errors import ArgumentError

CASES = {
    "step": (ys.optim.step_decay(0.1, 4, 0.5), lambda s, o: s.StepLR(o, 4, 0.5)),
    "exponential": (ys.optim.exponential_decay(0.1, 0.9), lambda s, o: s.ExponentialLR(o, 0.9)),
    "linear": (ys.optim.linear(0.025, 0.1, 6), lambda s, o: s.LinearLR(o, 0.25, 1.0, 6)),
    "cosine": (ys.optim.cosine_decay(0.1, 20, 0.01), lambda s, o: s.CosineAnnealingLR(o, 20, 0.01)),
    "one cycle": (ys.optim.one_cycle(0.1, 20), lambda s, o: s.OneCycleLR(o, 0.1, total_steps=20)),
    "one cycle, linear": (
        ys.optim.one_cycle(0.1, 20, warmup=0.4, curve="linear", start=10, end=100),
        lambda s, o: s.OneCycleLR(
            o, 0.1, total_steps=20, pct_start=0.4, anneal_strategy="linear", div_factor=10, final_div_factor=100
        ),
    ),
    "warm-up": (
        ys.optim.warmup(ys.optim.cosine_decay(0.1, 15), 5, start=0.01),
        lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 15)], [5]),
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # PyTorch's own SequentialLR
@pytest.mark.parametrize("name", CASES)
def test_rates(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    schedule, theirs = CASES[name]
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.1)
    scheduler = theirs(torch.optim.lr_scheduler, optimiser)
    rate = ys.jit(schedule)
    for step in range(20):
        ours = float(rate(ys.asarray(step, dtype=ys.int32)))
        np.testing.assert_allclose(ours, scheduler.get_last_lr()[0], rtol=1e-5, atol=1e-8, err_msg=str(step))
        optimiser.step()
        scheduler.step()
    assert len(rate.plans) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_makes_no_new_plan(name):
    rule = ys.optim.adamw(CASES[name][0])

    @ys.jit
    def step(p, state):
        updates, state = rule.update(2 * p, state, p)
        return p + updates, state

    p = ys.asarray([1.0, 2.0])
    state = rule.init(p)
    for _ in range(10):
        p, state = step(p, state)
    assert len(step.plans) == 1
    assert int(state[-1]["count"]) == 10


def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"\[one_cycle\] expected curve among cosine, linear, got 'square'"):
        ys.optim.one_cycle(0.1, 10, curve="square")
    with pytest.raises(ArgumentError, match=r"\[join\] expected 1 boundaries, got 2"):
        ys.optim.join([ys.optim.linear(0, 1, 2)] * 2, [1, 2])
