"""Learning from tables, graphs and rewards, and the classical methods."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn as tnn
from torch.nn import functional as F

import yosegi as ys

from .program import PROGRAMS, RNG, Program, add_function, add_training, both, integers, normal


def perceptron(lib: Any) -> Any:
    m, rng = lib.nn, lib.rng
    drop = (lambda: m.Dropout(0.2, **rng)) if rng else (lambda: m.Dropout(0.2))
    return m.Sequential(
        m.Linear(64, 256, **rng), m.BatchNorm1d(256), m.ReLU(), drop(),
        m.Linear(256, 256, **rng), m.BatchNorm1d(256), m.ReLU(), drop(), m.Linear(256, 10, **rng),
    )  # fmt: skip


def policy(lib: Any) -> Any:
    """The policy and the value of PPO."""
    m, rng = lib.nn, lib.rng

    class Policy(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.a, self.b = m.Linear(8, 64, **rng), m.Linear(64, 64, **rng)
            self.choice, self.value = m.Linear(64, 4, **rng), m.Linear(64, 1, **rng)

        def forward(self, x: Any) -> Any:
            h = lib.xp.tanh(self.b(lib.xp.tanh(self.a(x))))
            return lib.F.log_softmax(self.choice(h), -1), self.value(h)[:, 0]

    return Policy()


def clipped(xp: Any, pick: Any) -> Any:
    """PPO's loss."""

    def loss(model: Any, seen: Any, taken: Any, before: Any, gain: Any, worth: Any) -> Any:
        logs, value = model(seen)
        ratio = xp.exp(pick(logs, taken) - before)
        gained = xp.minimum(ratio * gain, xp.clip(ratio, 0.8, 1.2) * gain)
        entropy = -xp.mean(xp.sum(xp.exp(logs) * logs, axis=-1))
        return -xp.mean(gained) + 0.5 * xp.mean((value - worth) ** 2) - 0.01 * entropy

    return loss


def add_networks() -> None:
    adam = (lambda m: ys.optim.Adam(m, lr=1e-3), lambda p: torch.optim.Adam(p, 1e-3))
    words = (lambda m, x, y: ys.nn.cross_entropy(m(x), y), lambda m, x, y: F.cross_entropy(m(x), y))
    batch = [normal(512, 64), integers(10, 512)]
    add_training("Tabular MLP with batch norm and dropout, training", both(perceptron), words, adam, batch, 0.2)
    losses = (
        clipped(ys, lambda x, at: ys.take_along_axis(x, at[:, None], axis=1)[:, 0]),
        clipped(torch, lambda x, at: x.gather(1, at[:, None])[:, 0]),
    )
    batch = [normal(64, 8), integers(4, 64), normal(64, scale=0.1) - 1.4, normal(64), normal(64)]
    add_training("PPO step of a small MLP", both(policy), losses, adam, batch)


def graph_net(lib: Any) -> Any:
    """Two graph convolutions: the mean of neighbours, by edges."""
    m, rng = lib.nn, lib.rng

    class Net(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.a, self.b = m.Linear(64, 128, **rng), m.Linear(128, 16, **rng)

        def forward(self, x: Any, source: Any, target: Any, share: Any) -> Any:
            def mixed(h: Any) -> Any:
                rows = h[source] * share[:, None]
                if lib.xp is torch:
                    return torch.zeros_like(h).index_add(0, target, rows)
                return ys.zeros_like(h).at[target].add(rows)

            return mixed(self.b(lib.F.relu(mixed(self.a(x)))))

    return Net()


def add_graph() -> None:
    nodes, edges = 4000, 40_000
    source, target = integers(nodes, edges), integers(nodes, edges)
    share = (1 / np.bincount(target, minlength=nodes)[target]).astype(np.float32)
    losses = (
        lambda m, x, s, t, w, y: ys.nn.cross_entropy(m(x, s, t, w), y),
        lambda m, x, s, t, w, y: F.cross_entropy(m(x, s, t, w), y),
    )
    rules = (lambda m: ys.optim.Adam(m, lr=1e-2), lambda p: torch.optim.Adam(p, 1e-2))
    batch = [normal(nodes, 64), source, target, share, integers(16, nodes)]
    add_training("Graph convolution, training", both(graph_net), losses, rules, batch)


def add_factors() -> None:
    """Matrix factorisation of ratings, and plain gradient descent."""
    users, items, ratings = integers(5000, 8192), integers(3000, 8192), normal(8192)

    class Ours(ys.nn.Module):
        def __init__(self) -> None:
            self.u, self.v = ys.nn.Embedding(5000, 32, rng=0), ys.nn.Embedding(3000, 32, rng=1)
            self.a, self.b = ys.nn.Embedding(5000, 1, rng=2), ys.nn.Embedding(3000, 1, rng=3)

        def forward(self, i: Any, j: Any) -> Any:
            return ys.sum(self.u(i) * self.v(j), axis=1) + self.a(i)[:, 0] + self.b(j)[:, 0]

    class Theirs(tnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v = tnn.Embedding(5000, 32), tnn.Embedding(3000, 32)
            self.a, self.b = tnn.Embedding(5000, 1), tnn.Embedding(3000, 1)

        def forward(self, i: Any, j: Any) -> Any:
            return (self.u(i) * self.v(j)).sum(1) + self.a(i)[:, 0] + self.b(j)[:, 0]

    losses = (lambda m, i, j, r: ys.nn.mse_loss(m(i, j), r), lambda m, i, j, r: F.mse_loss(m(i, j), r))
    rules = (lambda m: ys.optim.Adam(m, lr=1e-2), lambda p: torch.optim.Adam(p, 1e-2))
    add_training("Matrix factorisation, training", (Ours(), Theirs()), losses, rules, [users, items, ratings])


def means(xp: Any, sums: Any) -> Any:
    """Five rounds of k-means."""

    def rounds(x: Any, centres: Any) -> Any:
        for _ in range(5):
            apart = xp.sum(x**2, axis=1, keepdims=True) - 2 * x @ centres.T + xp.sum(centres**2, axis=1)
            nearest = xp.argmin(apart, axis=1)
            total, count = sums(x, nearest, len(centres))
            centres = xp.where(count[:, None] > 0, total / xp.clip(count, 1, None)[:, None], centres)
        return centres

    return rounds


def add_classics() -> None:
    def our_sums(x: Any, at: Any, n: int) -> Any:
        ones = ys.ones(x.shape[:1], dtype=x.dtype)
        return ys.zeros((n, x.shape[1]), dtype=x.dtype).at[at].add(x), ys.zeros(n, dtype=x.dtype).at[at].add(ones)

    def their_sums(x: Any, at: Any, n: int) -> Any:
        total = torch.zeros(n, x.shape[1], dtype=x.dtype).index_add(0, at, x)
        return total, torch.zeros(n, dtype=x.dtype).index_add(0, at, torch.ones(len(x), dtype=x.dtype))

    points = (normal(20_000, 16) + 4 * integers(3, 20_000, 1)).astype(np.float32)
    add_function("k-means, 20,000 points", means(ys, our_sums), means(torch, their_sums), [points, points[:32]], 1e-2)

    def neighbours(xp: Any, smallest: Any, vote: Any) -> Any:
        def classify(x: Any, given: Any, labels: Any) -> Any:
            apart = xp.sum(x**2, axis=1, keepdims=True) - 2 * x @ given.T + xp.sum(given**2, axis=1)
            values, places = smallest(apart)
            return values, xp.argmax(vote(labels[places]), axis=-1)

        return classify

    ours = neighbours(
        ys,
        lambda x: ys.topk(x, 8, axis=1, largest=False),
        lambda x: ys.sum(ys.nn.one_hot(x, 10, dtype=ys.float32), axis=1),
    )
    theirs = neighbours(torch, lambda x: torch.topk(x, 8, 1, largest=False), lambda x: F.one_hot(x, 10).float().sum(1))
    arrays = [normal(512, 32), normal(10_000, 32), integers(10, 10_000)]
    add_function("Nearest neighbours, 512 in 10,000", ours, theirs, arrays, 1e-3)


def add_regression() -> None:
    """Logistic regression by L-BFGS: ten steps from nothing. Gradients are computed in float64."""
    x, y = normal(4000, 100).astype(np.float64), RNG.random(4000) < 0.5

    def ours() -> Any:
        def loss(w: Any, x: Any, y: Any) -> Any:
            return ys.mean(ys.nn.softplus(x @ w) - y * (x @ w)) + 1e-3 * ys.sum(w**2)

        @ys.jit
        def step(held: Any, x: Any, y: Any) -> Any:
            value, grads = ys.value_and_grad(loss)(held.params, x, y)
            return held.step(grads), value

        given = ys.asarray(x), ys.asarray(y.astype(np.float64))

        def run() -> Any:
            held = ys.optim.LBFGS(ys.zeros((100,), dtype=ys.float64), lr=1.0, history_size=5)
            for _ in range(10):
                held, value = step(held, *given)
            return float(value)

        return run

    def theirs(wrap: Any, dtype: Any) -> Any:
        del dtype
        given, target = torch.from_numpy(x), torch.from_numpy(y).double()
        call = wrap(lambda w: (F.softplus(given @ w) - target * (given @ w)).mean() + 1e-3 * (w**2).sum())

        def run() -> Any:
            w = torch.zeros(100, dtype=torch.float64, requires_grad=True)
            rule, values = torch.optim.LBFGS([w], 1.0, 1, history_size=5), []

            def closure() -> Any:
                rule.zero_grad()
                values.append(call(w))
                values[-1].backward()
                return values[-1]

            for _ in range(10):
                rule.step(closure)
            return float(values[-1].detach())

        return run

    PROGRAMS.append(Program("Logistic regression by L-BFGS, 10 steps", ours, theirs, 2e-2))


def add_physics_informed() -> None:
    """A network whose second derivative by its input is in the loss."""
    sizes = [1, 64, 64, 64, 1]
    arrays = [a for i, o in pairwise(sizes) for a in (normal(o, i, scale=i**-0.5), normal(o, scale=0.1))]
    points = np.linspace(0, 1, 256, dtype=np.float32)[:, None]

    def ours() -> Any:
        def u(p: Any, x: Any) -> Any:
            for n in range(0, 8, 2):
                x = x @ p[n].T + p[n + 1]
                x = ys.tanh(x) if n < 6 else x
            return ys.sum(x)

        def loss(p: Any, x: Any) -> Any:
            first = ys.grad(lambda x: u(p, x))
            second = ys.grad(lambda x: ys.sum(first(x)))(x)
            return ys.mean((second + ys.sin(3 * x)) ** 2)

        @ys.jit
        def step(p: Any, x: Any) -> Any:
            value, grads = ys.value_and_grad(loss)(p, x)
            return ys.tree_map(lambda p, g: p - 1e-3 * g, p, grads), value

        held, x = [[ys.asarray(a) for a in arrays]], ys.asarray(points)

        def run() -> Any:
            held[0], value = step(held[0], x)
            return float(value)

        return run

    def theirs(wrap: Any, dtype: Any) -> Any:
        del wrap  # torch.compile does not take gradients of gradients
        p = [torch.from_numpy(a.copy()).to(dtype).requires_grad_() for a in arrays]
        x = torch.from_numpy(points).to(dtype).requires_grad_()

        def run() -> Any:
            h = x
            for n in range(0, 8, 2):
                h = F.linear(h, p[n], p[n + 1])
                h = torch.tanh(h) if n < 6 else h
            (first,) = torch.autograd.grad(h.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
            value = ((second + torch.sin(3 * x)) ** 2).mean()
            grads = torch.autograd.grad(value, p, allow_unused=True)
            with torch.no_grad():
                for t, g in zip(p, grads, strict=True):
                    if g is not None:
                        t -= 1e-3 * g
            return float(value.detach())

        return run

    PROGRAMS.append(Program("Physics-informed net, second derivatives, training", ours, theirs, 1e-3))


def add_all() -> None:
    add_networks()
    add_graph()
    add_factors()
    add_classics()
    add_regression()
    add_physics_informed()
