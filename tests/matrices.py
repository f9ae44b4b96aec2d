"""What the tests of linear algebra share: dtypes and stacks of matrices, and how results are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

import yosegi as ys
from gradients import random

la = ys.linalg
FLOATS = [np.float32, np.float64, np.complex64, np.complex128]
FIELDS = [np.float64, np.complex128]
HALVES = [ys.float16, ys.bfloat16]
STACKS: list[tuple[int, ...]] = [(), (2,), (2, 1), (0,)]
INF = float("inf")


def close(got: ys.Tensor, wanted: Any, digits: float = 1) -> None:
    """Equal in shape and dtype, and in value to some multiple of the dtype's precision."""
    array, wanted = got.numpy(), np.asarray(wanted)
    assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
    exact = wanted.dtype.kind in "iub"
    tolerance = 0 if exact else 100 * digits * np.finfo(wanted.dtype).eps
    np.testing.assert_allclose(array, wanted, rtol=tolerance, atol=tolerance)


def adjoint(x: Any) -> Any:
    """The conjugate transpose, of a tensor or an array."""
    return ys.conj(x.mT) if isinstance(x, ys.Tensor) else np.swapaxes(x, -2, -1).conj()


def positive(shape: tuple[int, ...], dtype: Any) -> Any:
    """Positive definite matrices."""
    x = random(shape, dtype)
    return x @ adjoint(x) + np.eye(shape[-1], dtype=dtype)
