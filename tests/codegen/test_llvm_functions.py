"""The elementary functions of generated code: how far they are from the truth, in units in the last place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from llvm_code import LESSER, Program, written
from values import Array
from yosegi._tensor.dtype import DType, float32, float64
from yosegi.codegen.llvm import ir
from yosegi.codegen.llvm.functions import FUNCTIONS, LANEWISE

BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (1.25, 1.0), "expm1": (1.6, 2.0), "log": (1.0, 1.0), "log1p": (1.75, 1.75), "log2": (1.75, 1.75),
    "log10": (1.9, 1.9), "sinh": (1.75, 2.0), "cosh": (1.5, 1.5), "tanh": (1.5, 1.5), "asinh": (1.5, 1.5),
    "acosh": (1.75, 1.75), "atanh": (1.6, 1.6), "sin": (1.25, 1.25), "cos": (1.25, 1.25), "tan": (1.4, 1.4),
    "asin": (1.4, 1.4), "acos": (1.4, 1.4), "atan": (2.0, 2.0), "atan2": (2.0, 2.0), "pow": (0.75, 1.0),
    "hypot": (0.75, 1.4), "fmod": (0.0, 0.0), "nextafter": (0.0, 0.0),
    "erf": (1.5, 2.5),
}  # fmt: skip
"""What a function may be off by, as float32 and as float64. Half a unit is a result rounded once."""
BINARY = {"atan2", "pow", "hypot", "fmod", "nextafter"}
NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh",
         "acosh": "arccosh", "atanh": "arctanh", "pow": "power"}  # fmt: skip
INTERVALS = {"log": (0, 4), "log1p": (-1, 4), "log2": (0, 4), "log10": (0, 4), "asin": (-1, 1), "acos": (-1, 1),
             "acosh": (1, 4), "atanh": (-1, 1), "sin": (-1e5, 1e5), "cos": (-1e5, 1e5), "tan": (-1e5, 1e5),
             "expm1": (-40, 40)}  # fmt: skip
COUNT = 60_000
ERF = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none; as float64 it may be off by a unit itself
WIDER = {float32: np.float64, float64: np.longdouble}
DTYPES = [
    float32,
    pytest.param(
        float64, marks=pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="no float wider than double")
    ),
]


def _module(name: str, dtype: DType, width: int) -> ir.Module:
    return written(lambda k, *x: [k.function(name, *x)], [dtype] * (1 + (name in BINARY)), width)


def _specials(dtype: DType) -> Array:
    info = np.finfo(dtype.numpy)
    one, two, zero = (dtype.numpy.type(v) for v in (1, 2, 0))
    positive = [0.0, info.smallest_subnormal, info.tiny / 2, info.tiny, 1e-3, 0.3, 0.5, 1, 1.5, 2, 3, 10, 100, 1e4,
                1e10, info.max / 2, info.max, np.inf, np.nextafter(one, two), np.nextafter(one, zero)]  # fmt: skip
    return np.array([np.nan, *[s * float(v) for v in positive for s in (1, -1)]], dtype.numpy)


def _inputs(name: str, dtype: DType) -> Iterator[list[Array]]:
    """Special values; any bits at all; and where the function does most of its work."""
    rng, real, arity = np.random.default_rng(11), dtype.numpy, 1 + (name in BINARY)
    yield [np.asarray(a).ravel() for a in np.meshgrid(*[_specials(dtype)] * arity)]
    whole = np.uint32 if dtype is float32 else np.uint64
    yield [rng.integers(0, np.iinfo(whole).max, COUNT, whole).view(real) for _ in range(arity)]
    low, high = INTERVALS.get(name, (-10, 10))
    yield [rng.uniform(low, high, COUNT).astype(real) for _ in range(arity)]
    yield [(rng.choice([-1, 1], COUNT) * np.exp2(rng.uniform(-30, 4, COUNT))).astype(real) for _ in range(arity)]
    if name in ("sin", "cos", "tan"):  # next to their zeros and poles
        turns = rng.integers(0, 60_000 if dtype is float32 else 2**28, COUNT)
        yield [(turns * (np.pi / 2)).astype(real)]
    if name in ("exp", "expm1", "sinh", "cosh"):  # at both ends of their range
        edge = 104 if dtype is float32 else 746
        yield [rng.uniform(-edge, edge, COUNT).astype(real)]
    if name == "pow":
        edge = 150 if dtype is float32 else 1075
        base = np.exp2(rng.uniform(-edge / 2, edge / 2, COUNT)).astype(real)
        yield [base, (rng.uniform(-edge, edge, COUNT) / np.log2(base.astype(np.float64))).astype(real)]
        yield [(1 + rng.normal(0, 1e-3, COUNT)).astype(real), rng.normal(0, 1e4, COUNT).astype(real)]


def _error(got: Array, want: Any) -> Any:
    """Units in the last place that a result is off by, from the truth; infinite where it is another kind of number."""
    info = np.finfo(got.dtype)
    rounded = want.astype(got.dtype)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(want)[1], info.minexp + 1)
        error = np.abs(got.astype(want.dtype) - want) / np.ldexp(want.dtype.type(1), exponent - 1 - info.nmant)
    # The largest number is as good as infinity where the truth lies between them.
    is_edge = np.isinf(rounded) & np.isfinite(want) | (np.abs(want) > float(info.max) * (1 - float(info.eps)))
    error = np.where(is_edge & (np.abs(got) >= info.max) & (np.sign(got) == np.sign(rounded)), 0, error)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(np.isfinite(want) | is_edge, error, np.where(same, 0, np.inf))
    error = np.where(np.isnan(got) != np.isnan(rounded), np.inf, error)
    is_zero = (got == 0) & (want == 0)
    return np.where(is_zero & (np.signbit(got) != np.signbit(want)), np.inf, error)


def _check(name: str, dtype: DType, width: int, cpu: str = "") -> None:
    bound = BOUNDS[name][dtype is float64]
    program = Program(_module(name, dtype, width), cpu)
    for arrays in _inputs(name, dtype):
        (got,) = program(arrays, [dtype])
        with np.errstate(all="ignore"):
            function = ERF if name == "erf" else getattr(np, NAMES.get(name, name))
            exact = name in ("fmod", "nextafter")
            want = function(*arrays) if exact else function(*[a.astype(WIDER[dtype]) for a in arrays])
            error = _error(got, want)
        worst = int(np.argmax(error))
        given = ", ".join(repr(a[worst]) for a in arrays)
        assert error[worst] <= bound, f"{name}({given}) = {got[worst]!r}, not {want[worst]!r}: off by {error[worst]}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list(BOUNDS))
def test_a_function_is_as_near_to_the_truth_as_it_says(name: str, dtype: DType) -> None:
    _check(name, dtype, 16)


@pytest.mark.parametrize(("cpu", "width"), LESSER)
@pytest.mark.parametrize("name", list(BOUNDS))
def test_it_is_so_on_lesser_processors(name: str, cpu: str, width: int) -> None:
    _check(name, float32, width, cpu)


def test_every_function_has_a_bound() -> None:
    assert FUNCTIONS.keys() == BOUNDS.keys()


def test_only_what_is_said_to_be_is_called_lane_by_lane() -> None:
    declared = [d for name in FUNCTIONS for t in (float32, float64) for d in _module(name, t, 16).declarations]
    called = {d.split("@")[1].split("(")[0] for d in declared}
    assert {name for name in called if not name.startswith("llvm.")} == set(LANEWISE)
