"""PyTorch as a second opinion: values and gradients of its functions beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import Array, random


def check_against_torch(
    ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Array, rtol: float = 1e-9, atol: float = 1e-10
) -> None:
    """The same value, and the same gradients by the arrays of floats, from both for the same arrays.

    `theirs` is called with `torch.nn.functional` before the tensors. Skips where PyTorch is not installed.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    smooth = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    leaves = [torch.tensor(a, requires_grad=i in smooth) for i, a in enumerate(arrays)]
    expected = theirs(torch.nn.functional, *leaves)
    g = random(tuple(expected.shape), arrays[smooth[0]].dtype, seed=3)
    slopes = torch.autograd.grad(expected, [leaves[i] for i in smooth], torch.tensor(g))

    def of_smooth(*xs: Any) -> Any:
        inputs: list[Any] = [ys.asarray(a) for a in arrays]
        for i, x in zip(smooth, xs, strict=True):
            inputs[i] = x
        return ours(*inputs)

    value, back = ys.vjp(of_smooth, *[ys.asarray(arrays[i]) for i in smooth])
    np.testing.assert_allclose(value.numpy(), expected.detach().numpy(), rtol=rtol, atol=atol)
    for slope, wanted in zip(back(ys.asarray(g)), slopes, strict=True):
        np.testing.assert_allclose(slope.numpy(), wanted.numpy(), rtol=rtol, atol=atol)
