"""Qualification: every kernel template, compiled and run by a driver, compared with the reference.

A driver that is new to a machine may crash in its compiler, hang, or compute wrong numbers. Before its first real work
a child process runs the specimens below on it: loops and reductions of each dtype, movement, every variant of products
and convolutions, windows, rows and attention, on shapes that are odd. A family of kernels that comes out wrong is
refused from then on, by its name (`families_of`). The variants of a vendor's library are families of their own
(`library_family`): where they fail, generated kernels do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from ..._graph.expand import expand
from ..._graph.graph import capture, graph_of
from ..._graph.reference import outputs_of
from ..._graph.simplify import simplify
from ..._run.device import Device, Kernel
from ..._schedule.fuse import Region, RegionKind, fuse, is_composite, join, multiplies
from ..._tensor.dtype import (
    ALL,
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
)
from ..._tensor.op import OpKind, from_array
from ..._tensor.tensor import Tensor
from ..._trace.control.scans import scan
from ..._tune.comparison import disagreement
from ...codegen.c.op_programs import family as program_family
from ...codegen.c.op_programs import indexes
from ...errors import DeviceFailure
from ...ops import elementwise as e
from ...ops.activation import relu
from ...ops.attention import scaled_dot_product_attention
from ...ops.conv import conv
from ...ops.index import scatter_add, take
from ...ops.normal import layer_norm, softmax
from ...ops.philox import random_words
from ...ops.pool import max_pool, max_pool_gradient
from ...ops.products import matmul
from ...ops.reduce import all as every
from ...ops.reduce import cumulative_sum, mean, prod
from ...ops.reduce import max as largest
from ...ops.reduce import sum as total
from ...ops.shape import concat, flip, permute_dims, tril
from ...ops.sort import argmax, argmin, searchsorted
from ...ops.types import astype
from .launching import LIBRARY

_ROUNDINGS: Final = 64
"""Of the largest number of a result, by which an element may differ from the reference."""
_LAUNCHES: Final = 4
"""Of one kernel in a row, before anybody waits."""

Variants = Callable[[Region], Mapping[str, Callable[[], Kernel]]]
"""Every variant in which a device computes a region, by name."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """A program for one family of kernels."""

    family: str
    function: Callable[..., Tensor]
    arrays: tuple[Any, ...]
    has_variants: bool = False
    """True if it runs in every generated variant that the device has, and not in the expected one alone."""
    is_by_library: bool = False
    """True if it runs in the variants of a vendor's library. A device without them passes."""


def families_of(region: Region) -> set[str]:
    """The families of kernels that a region's parts belong to, as `loops float32`."""
    return {_family(_kind(part), dtype) for part in region.parts for dtype in _dtypes(part)}


def _family(kind: str, dtype: DType) -> str:
    """The family of a kind of kernel and a dtype. Movements depend on the width of elements alone."""
    return f"{kind} {f'{dtype.itemsize} bytes' if kind == 'movement' else dtype.name}"


def library_family(kind: str, dtype: DType) -> str:
    """The family of a library's kernels of a kind and a dtype."""
    return f"library {_family(kind, dtype)}"


def _kind(part: Region) -> str:
    if part.kind is RegionKind.LOOP:
        return "loops"
    if part.kind is RegionKind.REDUCTION:
        return "reductions"
    if any(call.op.kind is OpKind.CONVOLUTION for call in part.calls):
        return "windows"
    if any(multiplies(call) for call in part.calls):
        return "products"
    return "composites" if is_composite(part) else program_family(part.calls[-1]) or "movement"


def _dtypes(part: Region) -> set[DType]:
    return {s.dtype for call in part.calls for s in (*call.inputs, *call.outputs)}


def families(dtypes: Set[DType]) -> list[str]:
    """The families that a device with these dtypes is tried with, those that most others need first."""
    return list(dict.fromkeys(s.family for s in _specimens() if _needs(s) <= dtypes))


def _needs(specimen: Specimen) -> Set[DType]:
    return {from_array(a).dtype for a in specimen.arrays}


def difference(device: Device, family: str, variants: Variants) -> str | None:
    """The mistake of a device in a family, or `None`. A specimen that the device refuses is passed over."""
    for specimen in _specimens():
        if specimen.family == family and _needs(specimen) <= device.limits.dtypes:
            region, arrays = region_of(specimen, device)
            if device.supports(region) is None:
                found = _tried(specimen, region, device, variants)
                wrong = difference_of(device, region, arrays, found)
                if wrong is not None:
                    return wrong
    return None


def _tried(
    specimen: Specimen, region: Region, device: Device, variants: Variants
) -> Mapping[str, Callable[[], Kernel]]:
    """The variants of a region that a specimen is run in."""
    if not (specimen.has_variants or specimen.is_by_library):
        return {"": partial(device.compile, region)}
    found = variants(region)
    return {name: found[name] for name in found if name.startswith(LIBRARY) == specimen.is_by_library}


def difference_of(
    device: Device, region: Region, arrays: Sequence[Any], variants: Mapping[str, Callable[[], Kernel]]
) -> str | None:
    """The mistake of a device in a region for these inputs, in any of these variants, or `None`."""
    expected = outputs_of(region, arrays)
    for name, make in variants.items():
        label = f"{region}{f' ({name})' if name else ''}"
        try:
            kernel = make()
            data = [device.from_host(a) for a in arrays]
            made = [kernel(*data) for _ in range(_LAUNCHES)]  # in a row: the queue is asynchronous
            results = [device.to_host(d) for d in made[-1]]
        except DeviceFailure as failure:
            return f"{label}: {type(failure).__name__}: {str(failure).splitlines()[0]}"
        wrong = disagreement(expected, results, _ROUNDINGS)
        if wrong is not None:
            return f"{label}: {wrong}"
    return None


def inputs_for(region: Region) -> list[Any]:
    """Arrays of numbers without a pattern, for a region's inputs. Integers are small enough to be indices in it."""
    specs = [region.graph.calls[entry].spec for entry in region.inputs]
    made = [_array(s.shape, s.dtype, n) for n, s in enumerate(specs)]
    lengths = [call.inputs[0].shape[a] for call in region.calls if indexes(call) for a in call.attrs["axes"]]
    if not lengths:
        return made
    least = max(1, min(lengths))
    return [a % least if s.dtype.is_integer else a for a, s in zip(made, specs, strict=True)]


def region_of(specimen: Specimen, device: Device) -> tuple[Region, list[Any]]:
    """A specimen as one region, and its inputs."""
    made = specimen.function(*[from_array(a) for a in specimen.arrays])
    key, leaves, _ = capture([made._node])
    graph = simplify(expand(graph_of(key), (device,)))
    given = {entry: leaf.buffer.data for entry, leaf in zip(graph.inputs, leaves, strict=True) if leaf.buffer}
    region = join(fuse(graph), graph.outputs)
    return region, [given[entry] for entry in region.inputs]


# The specimens

_ODD: Final = (3, 37, 65)


def _specimens() -> Iterator[Specimen]:
    """All of them, by families. There are few of each: a compiler may take a third of a second for one. Those that take
    longest come first, so that child processes side by side end at the same time."""
    others = [d for d in ALL if d is not float32]
    for dtype in (float32, float64, float16, bfloat16, int32):
        yield from _products(dtype)
    yield from _windows(float32)
    for dtype in (float32, float16):
        yield from _library_windows(dtype)
    for dtype in (float32, float16):
        yield from _composites(dtype)
    for dtype in (float32, *others):
        x, y = _array(_ODD, dtype, 1), _array(_ODD[-1:], dtype, 2)
        yield Specimen(_family("loops", dtype), _loop_of(dtype), (x, y))
    for dtype in (float32, float64, float16, bfloat16, int8, int64, bool_, complex64):
        yield from _reductions(dtype)
    for dtype in (float32, uint8, float16, float64, complex128):  # of each width
        yield from _movements(dtype)
    for dtype in (float32, float64, float16, int32):
        yield from _indexings(dtype)
        yield from _searches(dtype)
        yield from _scans(dtype)
        yield from _repeats(dtype)
    yield Specimen(_family("random words", uint32), lambda s: random_words(s, shape=_ODD), (_array((4,), uint32, 15),))


def _loop_of(dtype: DType) -> Callable[..., Tensor]:
    if dtype is bool_:
        return lambda x, y: e.logical_or(e.logical_not(e.logical_and(x, y)), y)
    if dtype.is_complex:
        return lambda x, y: e.conj(e.multiply(x, y)) + x
    return _integers if dtype.is_integer else _floats


def _floats(x: Tensor, y: Tensor) -> Tensor:
    """Each op reads the one before it, so that all are one kernel."""
    z = x * y
    z = e.where(z > y, z, y)
    z = e.exp(e.negative(e.abs(z))) + e.sin(z)
    z = e.tanh(z) / (e.sqrt(e.abs(z)) + 1) + e.log(e.abs(z) + 1)
    return e.floor(z) * y + astype(astype(z * 8, int32), x.dtype)


def _integers(x: Tensor, y: Tensor) -> Tensor:
    z = e.floor_divide(x, y) + y
    z = e.remainder(z * x, y) + z
    return e.bitwise_xor(e.maximum(z, y), y) + astype(astype(z, float32), x.dtype)


def _movements(dtype: DType) -> Iterator[Specimen]:
    family, x = _family("movement", dtype), _array(_ODD, dtype, 4)
    yield Specimen(family, lambda x: permute_dims(x, (2, 0, 1)), (x,))
    if dtype is float32:
        yield Specimen(family, lambda x: concat([flip(x, axis=1), x[:, ::2]], axis=1), (x,))
        yield Specimen(family, lambda x: tril(x, k=3), (x,))


def _indexings(dtype: DType) -> Iterator[Specimen]:
    """Rows by indices that repeat: read, replaced and added to."""
    family, x, value = _family("indexing", dtype), _array((37, 20), dtype, 16), _array((65, 20), dtype, 17)
    rows = np.random.default_rng(18).integers(-37, 37, 65)
    columns = rows % 20
    yield Specimen(family, lambda x, i: take(x, i, axis=0), (x, rows))
    yield Specimen(family, lambda x, v, i: scatter_add(x, v, i, axes=(0,), at=0), (x, value, rows))
    if dtype is float32:
        yield Specimen(family, lambda x, i, j: x[i, j], (x, rows, columns))
        yield Specimen(family, _replaced, (x, value, rows))


def _replaced(x: Tensor, value: Tensor, rows: Tensor) -> Tensor:
    made = x + 0
    made[rows] = value
    return made


def _searches(dtype: DType) -> Iterator[Specimen]:
    """In rows, across them, and in all: long ones have two stages."""
    family, x = _family("searches", dtype), _array(_ODD, dtype, 19)
    yield Specimen(family, lambda x: argmax(x, axis=2), (x,))
    if dtype is float32:
        yield Specimen(family, lambda x: argmin(x, axis=1), (x,))
        yield Specimen(family, argmax, (_array((20011,), dtype, 20),))
        yield Specimen(family, searchsorted, (np.sort(_array((65,), dtype, 21)), x))


def _scans(dtype: DType) -> Iterator[Specimen]:
    """Along rows and across them; in tiles whose totals are scanned, too."""
    family, x = _family("scans", dtype), _array((3, 4001), dtype, 22)
    yield Specimen(family, lambda x: cumulative_sum(x, axis=1, dtype=dtype), (x,))
    if dtype is float32:
        yield Specimen(family, lambda x: cumulative_sum(x, axis=1, include_initial=True), (_array(_ODD, dtype, 23),))


def _repeats(dtype: DType) -> Iterator[Specimen]:
    """A loop inside each work item, with rows that are shared by some items."""
    arrays = _array(_ODD, dtype, 24), _array((5, *_ODD[1:]), dtype, 25)
    yield Specimen(
        _family("repeats", dtype),
        lambda x, rows: scan(lambda c, row: (e.minimum(c + row, row - c), None), x, rows, reverse=True)[0],
        arrays,
    )


def _reductions(dtype: DType) -> Iterator[Specimen]:
    """Along the last axis; of float32 also along all, the first and one in between. Long ones have two stages."""
    family, x = _family("reductions", dtype), _array(_ODD, dtype, 3)
    fold = every if dtype is bool_ else total
    yield Specimen(family, lambda x: fold(x, axis=2), (x,))
    if dtype is float32:
        yield Specimen(family, lambda x: largest(x * x, axis=1), (x,))
        yield Specimen(family, lambda x: mean(x, axis=(0, 2)), (x,))
        yield Specimen(family, lambda x: prod(x, axis=0), (x,))
        yield Specimen(family, total, (_array((3, 20011), dtype, 4),))


def _products(dtype: DType) -> Iterator[Specimen]:
    family = _family("products", dtype)
    a, b = _array((33, 65), dtype, 5), _array((65, 37), dtype, 6)
    yield Specimen(family, matmul, (a, b), has_variants=dtype is float32)
    if dtype in (float32, float16):
        yield Specimen(library_family("products", dtype), matmul, (a, b), is_by_library=True)
    if dtype is float32:
        stack, other = _array((3, 17, 33), dtype, 7), _array((3, 21, 33), dtype, 8)
        yield Specimen(family, lambda x, y: relu(matmul(x, permute_dims(y, (0, 2, 1))) + 1), (stack, other))


def _windows(dtype: DType) -> Iterator[Specimen]:
    family, image = _family("windows", dtype), _array((2, 6, 13, 11), dtype, 9)
    kernel, grouped = _array((8, 6, 3, 3), dtype, 10), _array((4, 3, 3, 2), dtype, 11)
    yield Specimen(family, lambda x, w: conv(x, w, stride=2, padding=1), (image, kernel), has_variants=True)
    yield Specimen(family, lambda x, w: conv(x, w, groups=2, dilation=2), (image, grouped))
    pool = {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1}
    yield Specimen(family, lambda x: max_pool(x, **pool), (image,))
    slopes = _array((2, 6, 7, 6), dtype, 16)
    yield Specimen(family, lambda x, g: max_pool_gradient(x, max_pool(x, **pool), g, **pool), (image, slopes))


def _library_windows(dtype: DType) -> Iterator[Specimen]:
    """Convolutions, one of them grouped and one along one length, and the gradients of one with strides."""
    made = partial(Specimen, library_family("windows", dtype), is_by_library=True)
    image, kernel = _array((2, 6, 13, 11), dtype, 26), _array((8, 6, 3, 3), dtype, 27)
    line, weights = _array((2, 6, 13), dtype, 28), _array((8, 6, 3), dtype, 29)
    gradient, grouped = _array((8, 2, 7, 6), dtype, 30), _array((4, 3, 3, 2), dtype, 31)
    yield made(lambda x, w: conv(x, w, stride=2, padding=1), (image, kernel))
    yield made(lambda x, w: conv(x, w, groups=2, dilation=2, padding=((1, 0), (0, 2))), (image, grouped))
    yield made(lambda x, w: conv(x, w, stride=3), (line, weights))
    yield made(lambda g, w: conv(g, w, spread=2, padding=1), (image, kernel))
    yield made(lambda x, g: conv(x, g, dilation=2, padding=1), (image[:, :2], gradient))


def _composites(dtype: DType) -> Iterator[Specimen]:
    family, rows = _family("composites", dtype), _array((37, 65), dtype, 12)
    yield Specimen(family, lambda x: softmax(x, axis=-1), (rows,))
    if dtype is float32:
        weight, bias = _array((65,), dtype, 13), _array((65,), dtype, 14)
        yield Specimen(family, lambda x, w, b: layer_norm(x, w, b), (rows, weight, bias))
        q, k, v = (_array((2, 3, n, 16), dtype, n) for n in (19, 23, 23))
        yield Specimen(family, lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v))


def _array(shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    """Numbers without a pattern; integers that are small, and not zero."""
    rng = np.random.default_rng(seed)
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        return rng.integers(1, 7, shape).astype(dtype.numpy)
    numbers = rng.uniform(-2, 2, shape)
    if dtype.is_complex:
        numbers = numbers + 1j * rng.uniform(-2, 2, shape)
    return numbers.astype(dtype.numpy)
