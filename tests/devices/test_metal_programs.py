"""Ops with kernels of their own on the Metal device, over a double of Metal's objects: against the reference.

`YOSEGI_TEST_METAL=whole` runs every case; otherwise a few are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import apple_doubles
import yosegi as ys
from device_regions import numbers, regions, run
from program_cases import BAD, ELEMENTS, INDEXING, RNG, SCANS, SEARCHES, array, call
from program_code import expected
from values import same
from yosegi._tensor.dtype import ALL, bool_, float64
from yosegi.errors import IndexingError
from yosegi.ops.index import gather, scatter, scatter_add

pytestmark = pytest.mark.skipif(apple_doubles.NO_METAL is not None, reason=str(apple_doubles.NO_METAL))
IS_WHOLE = os.environ.get("YOSEGI_TEST_METAL") == "whole"
CASES: dict[str, Callable[[], ys.Tensor]] = {**INDEXING, **SEARCHES, **ELEMENTS}
EACH = 1 if IS_WHOLE else 6
"""One in so many cases is run."""
DTYPES = [d for d in ALL if d is not float64 and d is not ys.complex128][::EACH]


@pytest.fixture(scope="module")
def device() -> Any:
    return apple_doubles.metal_device()


def check(tensor: ys.Tensor, device: Any, ulps: float = 0) -> None:
    """Compare a result of the device's, or the reason why it has none."""
    (region,) = regions(tensor)
    if any(c.spec.dtype in (float64, ys.complex128) for c in region.graph.calls):
        assert "no float64" in device.supports(region) or "no complex128" in device.supports(region)
        return
    same(run(tensor, device=device)[0], expected(tensor), ulps=ulps)


@pytest.mark.parametrize("name", list(CASES)[::EACH])
def test_cases(name: str, device: Any) -> None:
    check(CASES[name](), device)


@pytest.mark.parametrize(("name", "shape", "axis", "initial"), SCANS[::EACH])
def test_scans(name: str, shape: tuple[int, ...], axis: int, initial: bool, device: Any) -> None:
    check(call(name, RNG.integers(-3, 4, shape), axis=axis, include_initial=initial), device)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_dtype(dtype: Any, device: Any) -> None:
    x, i, value = array(5, 7, dtype=dtype), ys.asarray([3, -1, 0, 3, 2, -2]), array(6, 7, dtype=dtype)
    for tensor in (gather(x, i, axes=(0,), at=0), scatter(x, value, i, axes=(0,), at=0)):
        check(tensor, device)
    check(scatter_add(x, value, i, axes=(0,), at=0), device, ulps=8)
    check(call("cumulative_sum", numbers(dtype, 2, 70), axis=1, dtype=dtype), device, ulps=64)
    if not dtype.is_complex:
        found = RNG.integers(0, 2 if dtype is bool_ else 100, (3, 90)).astype(dtype.numpy)
        check(call("argmax", found, axis=1), device)


@pytest.mark.parametrize("name", list(BAD)[::EACH])
def test_indices_out_of_range_raise(name: str, device: Any) -> None:
    tensor, text = BAD[name]()
    with pytest.raises(IndexingError, match=text):
        run(tensor, device=device)
    device.synchronize()  # the mistake is known


def test_shapes_share_pipelines(device: Any) -> None:
    """A pipeline for each shape, kept for ever, ends at a limit of the system's (mlx #4464). Sizes are data here."""
    alive, counts = apple_doubles.metal_double().LIVE, []
    for n in range(2, 60):
        x = array(n, 2 * n + 1)
        run(ys.sum(x * 2, axis=1), x @ array(2 * n + 1, n), device=device)
        counts.append(alive["MTLComputePipelineState"])
    assert counts[-1] - counts[0] <= 8, "58 shapes need a few variants, and no pipeline each"
    assert counts[-1] == counts[-20]
