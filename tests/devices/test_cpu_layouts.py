"""Every op with a scalar rule, in every dtype, on arrays of every layout: native code against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_code import both, needs_llvm
from scalar_calls import Read, calls, check, operands
from values import Array
from yosegi._graph.graph import capture
from yosegi._tensor.dtype import ALL, DType
from yosegi._tensor.node import Call, Node
from yosegi._tensor.op import from_array
from yosegi._tensor.tensor import Tensor

pytestmark = needs_llvm

ROWS = 7  # of the matrix that the values are laid out in


def _reversed(a: Array) -> Array:
    return np.flip(np.flip(a).copy())


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: np.asfortranarray(a),
    "backwards": _reversed,
    "backwards in steps": lambda a: np.repeat(a[:, ::-1], 3, 1)[:, ::-3],
    "a row for all": lambda a: np.broadcast_to(a[:1], a.shape),
    "a column for all": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "no elements": lambda a: a[:, :0],
    "no dimensions": lambda a: a[ROWS - 1, a.shape[1] - 1],
}
SHARED = ("no elements", "no dimensions")
"""Layouts that change the shape: all arrays have them, or none."""
CASES = [(dtype, arity) for dtype in ALL for arity in (1, 2) if calls(dtype, arity)]


def laid_out(array: Array, name: str) -> Array:
    """The values as a matrix in a layout."""
    columns = -(-array.size // ROWS)
    made = LAYOUTS[name](np.resize(array, (ROWS, columns)))
    return made if isinstance(made, np.ndarray) else np.asarray(made)


@pytest.mark.parametrize(("dtype", "arity"), CASES, ids=lambda c: str(c).removeprefix("yosegi."))
@settings(max_examples=6)
@given(st.lists(st.sampled_from(list(LAYOUTS)), min_size=3, max_size=3))
def test_every_rule_in_any_layout(dtype: DType, arity: int, layouts: list[str]) -> None:
    shared = next((name for name in layouts if name in SHARED), None)
    names = [shared or name for name in layouts]
    given_ = [laid_out(a, n) for a, n in zip(operands(dtype, arity, 64), names, strict=False)]
    leaves = [from_array(np.array(a, order="C"))._node for a in given_]
    read: list[Read] = []
    nodes: list[Node] = []
    for call, places in calls(dtype, arity):
        own: Call = call.op.call(tuple(leaves[p].spec for p in places), call.attrs)
        read.append((own, places))
        nodes.append(Node(own, tuple(leaves[p] for p in places)))
    order = dict(zip(leaves, given_, strict=True))
    tensors = [Tensor(n) for n in nodes]
    arrays = [order[n] for n in capture(nodes)[1]]
    results = [made for made, _ in both(*tensors, arrays=arrays, reference_only=shared == "no elements")]
    check(read, given_, results)
