"""The instructions of generated code for AArch64: vectors, fused products, conversions of halves, sums in registers.

The code compiles and does not run here: `test_cpu_aarch64.py` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import yosegi as ys
from native_code import region_of
from yosegi._graph.expand import in_parts
from yosegi._schedule.groups import Group, RowLimits, grouped
from yosegi._tensor.dtype import DType
from yosegi.codegen.llvm.convolution import convolution_shape, convolution_source
from yosegi.codegen.llvm.minimal_filters import FILTERS
from yosegi.codegen.llvm.nest import VectorTarget
from yosegi.codegen.llvm.projections import projection_source
from yosegi.codegen.llvm.register_tiles import tile_shape, tile_source
from yosegi.codegen.llvm.rows import kernel
from yosegi.codegen.llvm.small_products import product_source
from yosegi.codegen.llvm.winograd import winograd_shape, winograd_source
from yosegi.codegen.llvm.winograd_gradients import FILTERINGS, gradient_shape, gradient_source
from yosegi.devices.cpu.compiler import Compiler, HostMachine

import llvmlite.binding as llvm  # isort: skip

MODELS = ["apple-m1", "generic", "neoverse-n1", "neoverse-v2"]
EACH_MODEL = pytest.mark.parametrize("model", MODELS)
FLOATS = pytest.mark.parametrize("dtype", [ys.float32, ys.float64], ids=lambda d: d.name)
LANES = {ys.float32: "4s", ys.float64: "2d"}


@cache
def compiler(model: str) -> Compiler:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return Compiler(HostMachine("arm64-apple-darwin24.0.0", model, "", ""))


class Assembly:
    """The text of a module for a processor, in blocks that begin with a label."""

    def __init__(self, source: str, model: str = "apple-m1") -> None:
        self.text = compiler(model).assembly(source)
        self.blocks = re.split(r"\n(?=\w+:)", self.text)

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"^\t{instruction}\b", self.text, re.MULTILINE))

    def loop(self, instruction: str) -> tuple[int, str]:
        """How often an instruction stands in the block that has most of it, and that block."""
        return max((len(re.findall(rf"^\t{instruction}\b", b, re.MULTILINE)), b) for b in self.blocks)


def rows(made: ys.Tensor) -> str:
    """The module of a program that is one kernel over rows."""
    (part,) = grouped(in_parts(region_of(made)[0]), RowLimits())
    return kernel(Group.of(part), compiler("apple-m1").machine.target)[0]


def target(model: str) -> VectorTarget:
    return compiler(model).machine.target


def array(*shape: int, dtype: DType = ys.float32) -> ys.Tensor:
    return ys.asarray(np.ones(shape, dtype.numpy))


# Loops and rows


@FLOATS
def test_loops_and_rows_are_vectors(dtype: DType) -> None:
    lanes = LANES[dtype]
    loop = Assembly(rows(ys.tanh(array(1000, dtype=dtype)) * 2))
    assert loop.loop(rf"fmla\.{lanes}")[0] >= 12  # a polynomial, for several vectors at a time
    assert loop.loop(rf"fdiv\.{lanes}")[0] >= 2
    for made in (ys.sum(array(40, 300, dtype=dtype), axis=1), ys.sum(array(300, 40, dtype=dtype), axis=0)):
        assert Assembly(rows(made)).loop(rf"fadd\.{lanes}")[0] >= 2
    softmax = Assembly(rows(ys.nn.softmax(array(40, 300, dtype=dtype))))
    assert softmax.loop(rf"fmla\.{lanes}")[0] >= 12
    assert softmax.count(rf"fmaxnm\.{lanes}|fcmgt\.{lanes}") >= 2
    normal = Assembly(rows(ys.nn.layer_norm(array(40, 300, dtype=dtype), array(300, dtype=dtype))))
    assert normal.loop(rf"fmul\.{lanes}")[0] >= 2


HALVES = {"a loop": lambda x: x * x + 1, "softmax": ys.nn.softmax, "sums": lambda x: ys.sum(x, axis=1)}


@pytest.mark.parametrize("function", HALVES.values(), ids=HALVES)
def test_halves_are_converted_as_vectors(function: Callable[[ys.Tensor], ys.Tensor]) -> None:
    """By FCVTL and FCVTN; bfloat16 by shifts."""
    made = Assembly(rows(function(array(40, 300, dtype=ys.float16))))
    few, block = made.loop(r"fcvtl2?")
    assert few >= 2
    assert not re.search(r"\tfcvt\t[sh]", block)
    made = Assembly(rows(function(array(40, 300, dtype=ys.bfloat16))))
    assert made.loop(r"u?shll2?\.4s")[0] >= 2
    assert "\tfcvt\t" not in made.text
    assert "\tbl\t" not in made.text


# Products and convolutions


def no_spills(made: Assembly, dtype: DType, products: int) -> None:
    """Raise unless so many fused products are in one block, whose sums stay in registers."""
    found, block = made.loop(rf"fmla\.{LANES[dtype]}")
    assert found == products
    assert "[sp" not in block, block
    assert len(block.splitlines()) < 2 * products + 12, block


@EACH_MODEL
@FLOATS
def test_tiles_of_products_stay_in_registers(dtype: DType, model: str) -> None:
    shape = tile_shape(target(model), dtype)
    assert shape.rows * shape.vectors == 24
    no_spills(Assembly(tile_source(target(model), dtype, shape.rows, shape.vectors), model), dtype, 24)


@EACH_MODEL
@pytest.mark.parametrize(("outputs", "products"), [(64, 16), (5, 20), (2, 16), (1, 8)])
@FLOATS
def test_tiles_of_convolutions_fill_the_registers(dtype: DType, outputs: int, products: int, model: str) -> None:
    """There were as many as x86-64 with 16 registers has: 8 of 32."""
    shape = convolution_shape(target(model), dtype, outputs, 9600)
    no_spills(Assembly(convolution_source(dtype, shape, target(model)), model), dtype, products)


@EACH_MODEL
@FLOATS
def test_tiles_of_winograds_algorithm_stay_in_registers(dtype: DType, model: str) -> None:
    shape = winograd_shape(target(model), dtype, 64)
    source = winograd_source(dtype, shape, FILTERS[2], target(model))  # those of larger squares are the same
    no_spills(Assembly(source, model), dtype, shape.rows * shape.vectors)


@EACH_MODEL
@pytest.mark.parametrize("step", [1, 2])
@FLOATS
def test_tiles_of_filtered_gradients_stay_in_registers(dtype: DType, step: int, model: str) -> None:
    shape = gradient_shape(target(model), dtype, 64)
    source = gradient_source(dtype, shape, FILTERINGS[step], target(model))
    no_spills(Assembly(source, model), dtype, shape.rows * shape.vectors)


@FLOATS
def test_small_products_are_fused(dtype: DType) -> None:
    assert Assembly(product_source(dtype, target("apple-m1"))).loop(rf"fmla\.{LANES[dtype]}")[0] == 4


def test_projections_are_fused() -> None:
    assert Assembly(projection_source(target("apple-m1"))).loop(r"fml[as]\.4s")[0] >= 16
