"""Ops with kernels of their own: indexing, searches, scans, sources, random words. In each language, on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation
import yosegi as ys
from opencl_regions import numbers
from program_cases import BAD, ELEMENTS, INDEXING, RNG, SCANS, SEARCHES, array, call
from program_code import TARGETS, Emulated, expected
from values import same
from yosegi._tensor.dtype import ALL, bool_, float32
from yosegi.codegen.c.op_programs import has_program, refusal
from yosegi.errors import IndexingError
from yosegi.ops.index import gather, scatter, scatter_add

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("language", ["cuda", "msl"])
@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str, language: str, folder: Path) -> None:
    tensor = INDEXING[name]()
    same(Emulated(language, TARGETS["small"], folder)(tensor), expected(tensor))  # to the bit: in the same order


@pytest.mark.parametrize("name", [n for n in INDEXING if n.startswith("added")])
def test_sums_in_any_order(name: str, folder: Path) -> None:
    tensor = INDEXING[name]()
    same(Emulated("cuda", TARGETS["small"], folder, ordered=False)(tensor), expected(tensor), ulps=64)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_indexing_of_every_dtype(dtype: Any, folder: Path) -> None:
    run = Emulated("cuda", TARGETS["small"], folder)
    x, i = array(5, 16, dtype=dtype), ys.asarray(np.array([3, -1, 0, 3, 2, -2]))
    value = array(6, 16, dtype=dtype)
    for tensor in (gather(x, i, axes=(0,), at=0), scatter(x, value, i, axes=(0,), at=0)):
        same(run(tensor), expected(tensor))
    added = scatter_add(x, value, i, axes=(0,), at=0)
    got, wanted = run(added), expected(added)
    if dtype.is_half:  # the reference rounds after each addition
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=0.02)
    else:
        same(got, wanted)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_indices_out_of_range_are_told_as_by_the_reference(name: str, ordered: bool, folder: Path) -> None:
    tensor, text = BAD[name]()
    with pytest.raises(IndexingError, match=text) as told:
        Emulated("cuda", TARGETS["small"], folder, ordered)(tensor)  # which also sees that nothing is written outside
    with pytest.raises(IndexingError) as by_reference:
        expected(tensor)
    assert str(told.value) == str(by_reference.value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SEARCHES)
def test_searches(name: str, target: str, folder: Path) -> None:
    tensor = SEARCHES[name]()
    same(Emulated("cuda", TARGETS[target], folder)(tensor), expected(tensor))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "shape", "axis", "initial"), SCANS)
def test_scans(name: str, shape: tuple[int, ...], axis: int, initial: bool, target: str, folder: Path) -> None:
    tensor = call(name, RNG.integers(-3, 4, shape), axis=axis, include_initial=initial)
    same(Emulated("cuda", TARGETS[target], folder)(tensor), expected(tensor))
    real = call(name, RNG.uniform(0.9, 1.1, shape), axis=axis, include_initial=initial)
    same(Emulated("cuda", TARGETS[target], folder)(real), expected(real), ulps=256)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_scans_of_every_dtype(dtype: Any, folder: Path) -> None:
    run = Emulated("cuda", TARGETS["small"], folder)
    for shape, axis in (((2, 70), 1), ((70, 2), 0)):
        for name in ("cumulative_sum", "cumulative_prod"):
            given = numbers(dtype, *shape) if dtype is not bool_ else RNG.random(shape) < 0.1
            tensor = call(name, given, axis=axis, dtype=dtype)
            same(run(tensor), expected(tensor), ulps=64)


@pytest.mark.parametrize("language", ["cuda", "msl"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name: str, language: str, folder: Path) -> None:
    tensor = ELEMENTS[name]()
    if language == "msl" and tensor.dtype is ys.complex128:
        pytest.skip("it has no double")
    same(Emulated(language, TARGETS["small"], folder)(tensor), expected(tensor))


def test_what_has_no_kernels_is_refused() -> None:
    empty = ys.asarray(np.zeros((0, 3), np.float32))
    refused = {
        "gather with an array without elements": gather(empty, ys.asarray([0]), axes=(0,), at=0),
        "cumulative_sum of an array without elements": call("cumulative_sum", np.zeros(0), axis=0,
                                                            include_initial=True),
        "isin with a list of 257 elements": call("isin", np.zeros(3), np.zeros(257), invert=False),
    }  # fmt: skip
    assert [refusal(tensor._node.call) for tensor in refused.values()] == list(refused)
    assert not has_program(call("count", start=0.5, stop=3, step=1, dtype=float32)._node.call)
