"""Every function that has NumPy's name gives NumPy's result: the tables of the families, and the rest here."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import names
import yosegi as ys
from against_numpy import Case, check, compare, rows

RNG = np.random.default_rng(5)
X, Y, ROW = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4)), RNG.normal(size=(4,))
NONE = np.zeros((0, 4))
HOSTILE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 1e-300])
SMALL = X.astype(np.float32)
COMPLEX = X + 1j * Y
INTS, OTHERS = RNG.integers(-9, 9, (3, 4)), RNG.integers(1, 5, (3, 4))
BYTES = RNG.integers(0, 200, (3, 4)).astype(np.uint8)
BOOLS = X > 0
UNIT, ABOVE_ONE, POSITIVE = np.tanh(X), 1 + np.abs(X), np.abs(X) + 0.1
CUBE = RNG.normal(size=(2, 3, 4))
SORTED = np.sort(ROW)

FLOAT32 = 3e-6


def _each(*arrays, **kwargs):
    return [Case(a, rtol=FLOAT32 if a.dtype == np.float32 else 1e-12, **kwargs) for a in arrays]


def _pairs(*pairs):
    return [Case(a, b, rtol=FLOAT32 if a.dtype == np.float32 else 1e-12) for a, b in pairs]


REDUCED = [Case(a, **k) for a, k in product((X, INTS, CUBE), ({}, {"axis": 0}, {"axis": -1, "keepdims": True}))]
GROUPS = {
    "cos cosh exp expm1 sin sinh tan tanh": _each(X, SMALL, COMPLEX, NONE),
    "arcsinh arctan asinh atan": _each(X, SMALL, NONE),
    "abs absolute positive negative sqrt square": _each(POSITIVE, SMALL**2, COMPLEX, INTS**2, HOSTILE**2),
    "acos arccos arcsin arctanh asin atanh": _each(UNIT, np.tanh(SMALL), COMPLEX),
    "acosh arccosh": _each(ABOVE_ONE, COMPLEX),
    "log log10 log1p log2": _each(POSITIVE, SMALL**2, HOSTILE),
    "reciprocal": _each(POSITIVE, SMALL, COMPLEX),
    "ceil fix floor trunc": _each(X * 3, SMALL, INTS, HOSTILE),
    "around rint round": _each(X * 3, SMALL, HOSTILE),
    "degrees radians": _each(X, SMALL),
    "conjugate imag real": _each(X, COMPLEX),
    "isfinite isinf isnan": _each(X, HOSTILE, COMPLEX, INTS),
    "sign": _each(X, INTS, HOSTILE, COMPLEX),
    "signbit": _each(X, HOSTILE),
    "logical_not": _each(BOOLS),
    "bitwise_invert bitwise_not invert": _each(INTS, BYTES, BOOLS),
    "add multiply subtract": _pairs((X, Y), (X, ROW), (SMALL, SMALL.T.reshape(3, 4)), (INTS, OTHERS), (COMPLEX, Y),
                                    (INTS, X), (BYTES, BYTES), (NONE, ROW), (X, HOSTILE[:4])),
    "divide true_divide": _pairs((X, Y), (COMPLEX, X), (INTS, OTHERS), (X, np.array([0.0, 1.0, np.inf, np.nan]))),
    "floor_divide mod remainder": _pairs((X, Y), (INTS, OTHERS), (INTS, -OTHERS), (SMALL, POSITIVE.astype(np.float32))),
    "pow power": _pairs((POSITIVE, Y), (INTS, OTHERS), (COMPLEX, Y), (X, OTHERS)),
    "maximum minimum": _pairs((X, Y), (INTS, OTHERS), (X, HOSTILE[:4]), (X, INTS)),
    "arctan2 atan2 copysign hypot logaddexp nextafter": _pairs((X, Y), (X, ROW), (SMALL, SMALL)),
    "equal greater greater_equal less less_equal not_equal": _pairs((X, Y), (INTS, OTHERS), (X, HOSTILE[:4]), (INTS, X),
                                                                    (BYTES, INTS)),
    "logical_and logical_or logical_xor": _pairs((BOOLS, Y > 0)),
    "bitwise_and bitwise_or bitwise_xor": _pairs((INTS, OTHERS), (BYTES, BYTES), (BOOLS, Y > 0)),
    "bitwise_left_shift bitwise_right_shift left_shift right_shift": _pairs((INTS, OTHERS), (BYTES, BYTES % 8)),
    "amax amin max min": REDUCED,
    "sum prod": [*REDUCED, Case(BYTES), Case(BOOLS), Case(COMPLEX, axis=1), Case(NONE, axis=0)],
    "var": [Case(a, **k) for a, k in product((X, CUBE), ({}, {"axis": 0}, {"axis": -1, "keepdims": True}))],
    "all any": [Case(a, **k) for a, k in product((BOOLS, INTS, X, NONE), ({}, {"axis": 0}))],
    "argmax argmin": [Case(X), Case(X, axis=0), Case(CUBE, axis=1, keepdims=True), Case(INTS, axis=1)],
    "count_nonzero": [Case(INTS), Case(BOOLS, axis=0)],
    "cumulative_prod cumulative_sum": [Case(ROW), Case(X, axis=1), Case(INTS, axis=0, include_initial=True)],
    "diff": [Case(X), Case(X, n=2, axis=0), Case(INTS)],
    "sort": [Case(X), Case(X, axis=0), Case(INTS)],
    "searchsorted": [Case(SORTED, Y), Case(SORTED, SORTED, side="right")],
    "isin": [Case(INTS, OTHERS), Case(INTS, OTHERS, invert=True)],
    "matmul": [Case(X, Y.T), Case(CUBE, ROW), Case(COMPLEX, X.T), Case(INTS, OTHERS.T), Case(ROW, ROW)],
    "vecdot": [Case(X, Y), Case(COMPLEX, X)],
    "tensordot": [Case(X, Y.T, axes=1), Case(CUBE, X, axes=([1, 2], [0, 1]))],
    "matrix_transpose": _each(X, CUBE),
    "einsum": [Case("ij,kj->ik", X, Y), Case("ii", X[:3, :3]), Case("...i,i", CUBE, ROW)],
    "broadcast_arrays": [Case(X, ROW), Case(CUBE, X)],
    "broadcast_to": [Case(ROW, (3, 4))],
    "concat concatenate": [Case([X, Y]), Case([X, INTS], axis=1), Case([X, Y], axis=None)],
    "stack": [Case([X, Y]), Case([X, Y], axis=-1)],
    "unstack": [Case(X), Case(CUBE, axis=1)],
    "expand_dims": [Case(X, axis=1), Case(X, axis=(0, 3))],
    "flip": [Case(X), Case(X, axis=1)],
    "moveaxis": [Case(CUBE, 0, 2), Case(CUBE, (0, 1), (1, 2))],
    "permute_dims": [Case(CUBE, (2, 0, 1))],
    "reshape": [Case(X, (2, 6)), Case(CUBE, (-1, 4))],
    "roll": [Case(X, 2), Case(X, (1, 2), axis=(0, 1))],
    "tile": [Case(X, 2), Case(X, (2, 1, 3))],
    "tril triu": [Case(X), Case(CUBE, k=1), Case(X, k=-1)],
    "meshgrid": [Case(ROW, X[0]), Case(ROW, X[0], indexing="ij")],
    "take_along_axis": [Case(X, np.argsort(X, axis=1), axis=1)],
    "where": [Case(BOOLS, X, Y), Case(BOOLS, X, INTS)],
    "unique_all unique_counts unique_inverse": [Case(INTS, eager=True)],
    "unique_values": [Case(INTS, eager=True, reference=np.unique)],
    "asarray asanyarray ascontiguousarray asfortranarray": _each(X, INTS, BOOLS),
    "astype": [Case(X, np.float32), Case(INTS, np.float64), Case(X, np.int64)],
    "ones_like zeros_like": _each(X, INTS, CUBE),
    "full_like": [Case(X, 3), Case(INTS, 2)],
    "ones zeros": [Case((2, 3)), Case(4, dtype=np.int32)],
    "full": [Case((2, 3), 1.5), Case(3, 2)],
    "eye": [Case(3), Case(3, 4, k=1)],
    "arange": [Case(5), Case(1.0, 2.0, 0.25), Case(8, 2, -3)],
    "linspace": [Case(0.0, 1.0, 7), Case(2, 3, 4, endpoint=False)],
    "from_dlpack": _each(X, eager=True),
    "broadcast_shapes": [Case((3, 1), (4,))],
    "argsort": [Case(X), Case(X, axis=0)],
    "clip": [Case(X, -0.5, 0.5), Case(X, None, ROW), Case(INTS, -2, 3), Case(X, min=0.0)],
    "conj": _each(X, COMPLEX),
    "mean": [*REDUCED[:3], Case(SMALL, rtol=FLOAT32), Case(COMPLEX, axis=0)],
    "std": [Case(X), Case(CUBE, axis=1, keepdims=True)],
    "nonzero": [Case(INTS, eager=True), Case(BOOLS, eager=True)],
    "repeat": [Case(X, 2), Case(X, 3, axis=1), Case(ROW, [1, 0, 2, 1])],
    "squeeze": [Case(CUBE[:1]), Case(CUBE[:, :1], axis=1)],
    "take": [Case(X, np.array([0, -1, 2]), axis=0), Case(X, np.array([[0, 5], [11, 1]]))],
    "apply_along_axis": [Case(f, axis, CUBE) for axis in (0, 1, -1) for f in (
        lambda v: v[0] - v[-1], lambda v: v * v, lambda v: v[:2, None] * v[None])]
        + [Case(lambda v, by, shift: v * by + shift, 0, X, 2.0, shift=1.0)],
    "apply_over_axes": [Case(lambda x, axis: x.sum(axis=axis), CUBE, axes) for axes in (0, (0, 2), [1, -1])]
        + [Case(lambda x, axis: x.cumsum(axis=axis), CUBE, (0, 1))],
}  # fmt: skip
TABLE = {name: cases for group, cases in GROUPS.items() for name in group.split()}

ABOUT_DTYPES = "can_cast common_type isdtype issubdtype promote_types result_type"
"""Functions of dtypes, which `tests/ops/test_types.py` and `test_comparing.py` check."""
LEFT_OPEN = "empty empty_like argpartition partition"
"""Functions whose values NumPy leaves open: shapes below, or properties in `tests/ops/test_choosing.py`."""


def _tables() -> set[str]:
    """The names in the tables of the families."""
    found = set()
    for path in (Path(__file__).parent / "ops").glob("test_*.py"):
        if "from against_numpy import" not in path.read_text(encoding="utf-8"):
            continue
        spec = importlib.util.spec_from_file_location(f"family_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= set(module.CASES)
    return found


def test_every_function_with_numpys_name_is_compared_with_numpy():
    compared = {*TABLE, *_tables(), *ABOUT_DTYPES.split(), *LEFT_OPEN.split()}
    assert [r.name for r in names.rows("numpy") if r.kind == "same" and r.name not in compared] == []


@pytest.mark.parametrize(("name", "number"), rows(TABLE))
def test_a_function_gives_numpys_result(name, number):
    check(name, TABLE[name][number])


@pytest.mark.parametrize("function", [ys.empty_like, ys.empty])
def test_empty_tensors_have_a_shape_and_a_dtype(function):
    made = function(ys.asarray(INTS)) if function is ys.empty_like else function((3, 4), dtype=ys.int64)
    assert (made.shape, made.dtype) == ((3, 4), ys.int64)


def test_numpys_own_function_is_applied_along_an_axis_of_a_tensor():
    made = np.apply_along_axis(lambda v: v * v, 1, ys.asarray(CUBE))
    assert isinstance(made, ys.Tensor)
    compare(made, CUBE**2)


def test_a_function_that_changes_the_dimensions_is_refused():
    with pytest.raises(ys.errors.ShapeError, match=r"\[apply_over_axes\] expected 3 or 2 dimensions"):
        ys.apply_over_axes(lambda x, axis: x[0, 0], ys.asarray(CUBE), (0,))
