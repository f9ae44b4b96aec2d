"""A layer and its peer in PyTorch: outputs, new states, and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from yosegi import nn


def compare(ours, theirs, *inputs):
    """Outputs, new states, and gradients of two modules of one `state_dict`, for arrays as inputs."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ours = ours.load_state_dict(theirs.state_dict())
    given = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in inputs]
    expected = theirs(*given)
    weights = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    (expected * torch.tensor(weights)).sum().backward()
    params, rest = nn.partition(ours)
    floats = [ys.asarray(x) for x in inputs if x.dtype.kind == "f"]

    def loss(params, floats):
        left = iter(floats)
        args = [next(left) if x.dtype.kind == "f" else ys.asarray(x) for x in inputs]
        made, new = nn.stateful(nn.combine(params, rest))(*args)
        return ys.sum(made * weights), (made, new)

    ((_, (made, new)), (grads, slopes)) = ys.value_and_grad(loss, (0, 1), has_aux=True)(params, floats)
    close = {"rtol": 2e-4, "atol": 2e-5}
    np.testing.assert_allclose(made.numpy(), expected.detach().numpy(), **close)
    for slope, x in zip(slopes, [g for g in given if g.requires_grad], strict=True):
        np.testing.assert_allclose(slope.numpy(), x.grad.numpy(), **close)
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    found = dict(grads.named_parameters())
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value, err_msg=name, **close)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(new.state_dict()[name].numpy(), value.numpy(), err_msg=name, **close)


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
