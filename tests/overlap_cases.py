"""A training step in which communication can overlap with the backward pass, and the overlap that a profile shows."""

from __future__ import annotations

from threading import current_thread

import numpy as np

import yosegi as ys
from yosegi import distributed as dist
from yosegi import nn
from yosegi.distributed import runtime

WIDTH, LAYERS, BATCH = 512, 6, 128
LAYER = 4 * WIDTH * (WIDTH + 1)
"""The bytes of a layer's gradients."""


def trained(steps, axis="data"):
    """Train a model on all ranks. Returns the last plan, the parameters, and the profile of the last step.

    The step is not jitted: NumPy computes it, and the tests do not wait for a compiler.
    """
    mesh, rng = dist.Mesh((runtime.size(),), (axis,)), ys.random.default_rng(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH, rng=rng), ys.tanh)]
    optimizer = ys.optim.SGD(nn.Sequential(*layers), lr=0.1, momentum=0.9)
    with ys.options(device="cpu"):
        ys.eval(optimizer)
    drawn = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)
    x, y = (dist.shard(a, mesh, **{axis: 0}) for a in (drawn, np.tanh(drawn)))
    for _ in range(steps):
        _, grads = nn.value_and_grad(optimizer.params, lambda m, x, y: ys.mean((m(x) - y) ** 2))(x, y)
        optimizer = optimizer.step(ys.tree_map(dist.all_reduce, grads))
        del grads
        with ys.options(device="cpu"), ys.profile() as profile:
            plan = ys.plan(optimizer)
            ys.eval(optimizer)
    return plan, [p.numpy() for p in ys.tree_leaves(optimizer.params)], profile


def communications(profile):
    """The records of this rank's communications."""
    name = f"communication of rank {runtime.rank()}"
    return [r for r in profile.records if r.device == "network" and r.thread == name]


def hidden(profile):
    """The share of the time of communications in which this rank computes."""
    work = [r for r in profile.records if r.thread == current_thread().name and "wait" not in r.ops]
    ends = [(r.start, r.start + r.milliseconds / 1e3) for r in work]
    sent = [(r.start, r.start + r.milliseconds / 1e3) for r in communications(profile)]
    both = sum(max(0.0, min(b, d) - max(a, c)) for a, b in ends for c, d in sent)
    return both / max(1e-9, sum(d - c for c, d in sent))
