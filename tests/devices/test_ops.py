"""Every op on every device present, against its reference body."""

import numpy as np
import pytest

import yosegi as ys
from samples import SAMPLES, calls
from yosegi._graph.reference import bind
from yosegi._tensor.dtype import float_info
from yosegi._tensor.op import REGISTRY

CALLS = calls()
RECOMPOSED = {"svd": lambda u, s, vh: (u * s[..., None, :]) @ vh,
              "eigh": lambda w, v: (v * w[..., None, :]) @ np.swapaxes(v, -1, -2)}  # fmt: skip
"""Decompositions whose vectors may have either sign: the matrix from their parts."""


def close(result, expected, op):
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(result, expected)
    else:
        rtol = op.tolerance.ulps * float_info(ys.asarray(expected).dtype).eps
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol * np.max(np.abs(expected), initial=0))


@pytest.mark.parametrize("device", [d.name for d in ys.devices()])
@pytest.mark.parametrize("layout", ["contiguous", "reversed"])
@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{a}-{b}" for a, b in CALLS])
def test_op(device, layout, name, number):
    op, sample = REGISTRY[name], SAMPLES[name][number]
    arrays = [np.flip(np.flip(np.asarray(a)).copy()) if layout == "reversed" else a for a in sample.arrays]
    inputs = [ys.asarray(a, copy=False) for a in arrays]
    node = op._node(tuple(inputs), sample.attrs)
    with np.errstate(all="ignore"):
        made = bind(node.call)(
            *[i._node.buffer.data.astype(s.dtype.numpy) for i, s in zip(inputs, node.call.inputs, strict=True)]
        )
    many = len(node.call.outputs) > 1
    with ys.options(device=device):
        results = op.outputs(*inputs, **sample.attrs) if many else (op(*inputs, **sample.attrs),)
        claims = all(step.device.name == device for step in ys.plan(*results).steps)
    with ys.options(device=device, on_fallback="error" if claims else "silent"):  # what it claims, it runs itself
        ys.eval(*results)
    found, wanted = [r.numpy() for r in results], [np.asarray(m) for m in (made if many else (made,))]
    if name in RECOMPOSED:
        close(RECOMPOSED[name](*found), RECOMPOSED[name](*wanted), op)
        found, wanted = [np.abs(a) for a in found], [np.abs(a) for a in wanted]
    for result, expected in zip(found, wanted, strict=True):
        close(result, expected, op)
