"""Gradients against differences: what the tests of differentiable functions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import yosegi as ys

Array = np.ndarray[Any, Any]


def random(shape: tuple[int, ...], dtype: Any = np.float64, seed: int = 0) -> Array:
    """Normal random numbers, complex ones in both parts."""
    rng = np.random.default_rng((seed, *shape))
    values = rng.normal(size=shape)
    return (values + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def _inner(a: list[Array], b: list[Array]) -> float:
    return float(sum(np.sum((x.conj() * y).real) for x, y in zip(a, b, strict=True)))


def check_gradient(function: Callable[..., Any], *arrays: Array, rtol: float = 1e-6) -> None:
    """The pullback of random cotangents against central differences in random directions, in float64."""

    def outputs(points: list[Array]) -> list[Array]:
        made = function(*[ys.asarray(p) for p in points])
        return [t.numpy() for t in (made if isinstance(made, tuple) else (made,))]

    value, back = ys.vjp(function, *[ys.asarray(a) for a in arrays])
    parts = value if isinstance(value, tuple) else (value,)
    cotangents = [random(p.shape, p.dtype.numpy, seed=7) for p in parts]
    sent = [ys.asarray(c) for c in cotangents]
    gradients = [g.numpy() for g in back(type(value)(sent) if type(value) is tuple else sent[0])]
    for gradient, array in zip(gradients, arrays, strict=True):
        assert gradient.shape == array.shape
        assert gradient.dtype == array.dtype
    for seed in range(3):
        directions = [random(a.shape, a.dtype, seed=seed + 20) for a in arrays]
        step = 1e-6
        ahead = outputs([a + step * d for a, d in zip(arrays, directions, strict=True)])
        behind = outputs([a - step * d for a, d in zip(arrays, directions, strict=True)])
        numeric = (_inner(cotangents, ahead) - _inner(cotangents, behind)) / (2 * step)
        np.testing.assert_allclose(_inner(gradients, directions), numeric, rtol=rtol, atol=rtol)
