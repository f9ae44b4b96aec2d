"""A training step in which communication can overlap with the backward pass, and the overlap that a profile shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread
from unittest.mock import patch

import numpy as np

import yosegi as ys
from yosegi import distributed as dist
from yosegi import nn
from yosegi.distributed import runtime
from yosegi.distributed.channel import Channel

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


@contextmanager
def first_communication_held() -> Iterator[None]:
    """Let the first communication of each plan end only when its rank waits for one.

    A step ends under this only if the rank computes while it communicates, however loaded the machine is.
    """
    start, wait, waiting = Channel.start, Channel.wait, {}

    def held_start(channel, name, work, *, is_first=False):
        if not is_first:
            return start(channel, name, work)
        begun, waiting[channel] = Event(), Event()

        def held():
            begun.set()
            assert waiting[channel].wait(60), "the rank did not compute beside the communication"
            return work()

        ticket = start(channel, name, held, is_first=True)
        assert begun.wait(60), "the communication did not begin beside the rank's work"
        return ticket

    def held_wait(channel, ticket):
        waiting[channel].set()
        return wait(channel, ticket)

    with patch.object(Channel, "start", held_start), patch.object(Channel, "wait", held_wait):
        yield


def communications(profile):
    """The records of this rank's communications, in its background thread and in its own."""
    names = {f"communication of rank {runtime.rank()}", current_thread().name}
    return [r for r in profile.records if r.device == "network" and r.thread in names]


def hidden(profile):
    """The share of the time of communications in which this rank computes."""
    own = current_thread().name
    work = [r for r in profile.records if r.thread == own and r.device != "network" and "wait" not in r.ops]
    ends = [(r.start, r.start + r.milliseconds / 1e3) for r in work]
    sent = [(r.start, r.start + r.milliseconds / 1e3) for r in communications(profile)]
    both = sum(max(0.0, min(b, d) - max(a, c)) for a, b in ends for c, d in sent)
    return both / max(1e-9, sum(d - c for c, d in sent))
