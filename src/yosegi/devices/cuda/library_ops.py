"""Ops by functions of CuPy: sorts by Thrust, linear algebra by cuSOLVER and cuBLAS.

A body is an op's reference body, written for CuPy's arrays. CuPy works on the device's own stream, on views of the
device's data, and takes its memory from the device's pool, so that blocks come back in the order of the stream.

These calls allocate memory, and most of linear algebra waits for the library's status: they cannot be captured into a
CUDA graph. The device never makes them part of a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from ..._graph.reference import bind
from ..._run.device import Kernel
from ..._schedule.fuse import Region, RegionKind
from ..._tensor.dtype import bfloat16, uint8
from ..._tensor.node import Call
from ..._tensor.op import pick
from ...errors import DeviceFailure
from ..kernel.launching import arguments_of
from .errors import translated
from .launch import Queue
from .memory import Data

Arr = Any
"""CuPy's array; NumPy's in tests."""
Body = Callable[..., Any]

_LARGEST: Final = 2**31 - 1
"""The elements that cuSOLVER counts."""
_NO_GENERAL_EIGENVALUES: Final = "not every version of cuSOLVER has eigenvalues of general matrices"
_REFUSED: Final = {"eig": _NO_GENERAL_EIGENVALUES, "eigvals": _NO_GENERAL_EIGENVALUES}


# Order


def _with_one_nan(xp: Any, x: Arr) -> Arr:
    """A copy with one bit pattern for NaN: a radix sort puts those with a sign first."""
    return xp.where(xp.isnan(x), x.dtype.type(np.nan), x) if x.dtype.kind == "f" else x.copy()


def _sort(xp: Any, x: Arr, *, axis: int, descending: bool) -> Arr:
    made = _with_one_nan(xp, xp.flip(x, axis) if descending else x)
    made = xp.ascontiguousarray(made)
    made.sort(axis=axis, kind="stable")
    return xp.flip(made, axis) if descending else made


def _argsort(xp: Any, x: Arr, *, axis: int, descending: bool) -> Arr:
    x = _with_one_nan(xp, x)
    if descending:
        return x.shape[axis] - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)
    return xp.argsort(x, axis=axis, kind="stable")


def _argtopk(xp: Any, x: Arr, *, k: int, axis: int, descending: bool) -> Arr:
    return xp.take(_argsort(xp, x, axis=axis, descending=descending), xp.arange(k), axis=axis)


def _isin(xp: Any, x1: Arr, x2: Arr, *, invert: bool) -> Arr:
    ordered = xp.sort(_with_one_nan(xp, x2.reshape(-1)))
    place = xp.minimum(xp.searchsorted(ordered, x1), ordered.size - 1)
    return (ordered[place] == x1) != invert


# Linear algebra


def _nan_where_it_fails(xp: Any, function: Callable[..., tuple[Arr, ...]], x: Arr, *rest: Arr) -> tuple[Arr, ...]:
    """The results of a function on a stack of matrices, with NaN for those on which the library gives up.

    A stack with such a matrix is halved until that matrix is alone.
    """
    try:
        return tuple(function(x, *rest))
    except np.linalg.LinAlgError:
        if x.ndim == 2:
            pattern = function(xp.eye(*x.shape, dtype=x.dtype), *rest)
            return tuple([xp.full_like(p, np.nan) for p in pattern])
        if len(x) == 1:
            return tuple([p[None] for p in _nan_where_it_fails(xp, function, x[0], *[r[0] for r in rest])])
        half = len(x) // 2
        first = _nan_where_it_fails(xp, function, x[:half], *[r[:half] for r in rest])
        second = _nan_where_it_fails(xp, function, x[half:], *[r[half:] for r in rest])
        return tuple([xp.concatenate(parts) for parts in zip(first, second, strict=True)])


def _nan_unless_finite(xp: Any, function: Callable[..., tuple[Arr, ...]], x: Arr) -> tuple[Arr, ...]:
    """`function` on finite matrices, NaN for the others: iterations might not end on infinities and NaN."""
    finite = xp.isfinite(x).all(axis=(-2, -1))
    made = _nan_where_it_fails(xp, function, xp.where(finite[..., None, None], x, x.dtype.type(0)))
    return tuple([xp.where(finite.reshape(finite.shape + (1,) * (m.ndim - finite.ndim)), m, np.nan) for m in made])


def _adjoint(xp: Any, x: Arr) -> Arr:
    return xp.swapaxes(x, -2, -1).conj()


def _inv(xp: Any, x: Arr) -> Arr:
    return _nan_where_it_fails(xp, lambda a: (xp.linalg.inv(a),), x)[0]


def _solve(xp: Any, x1: Arr, x2: Arr) -> Arr:
    columns = x2[:, None] if x2.ndim == 1 else x2
    batch = np.broadcast_shapes(x1.shape[:-2], columns.shape[:-2])
    matrices = xp.broadcast_to(x1, (*batch, *x1.shape[-2:]))
    sides = xp.broadcast_to(columns, (*batch, *columns.shape[-2:]))
    (solved,) = _nan_where_it_fails(xp, lambda a, b: (xp.linalg.solve(a, b),), matrices, sides)
    return solved[..., 0] if x2.ndim == 1 else solved


def _det(xp: Any, x: Arr) -> Arr:
    return xp.linalg.det(x)


def _slogdet(xp: Any, x: Arr) -> tuple[Arr, ...]:
    return tuple(xp.linalg.slogdet(x))


def _cofactors(xp: Any, x: Arr) -> Arr:
    n = x.shape[-1]
    stack = x.reshape(-1, n, n)
    determinant = xp.linalg.det(stack)[:, None, None]
    result = determinant * xp.swapaxes(_inv(xp, stack), -2, -1)
    singular = determinant[:, 0, 0] == 0
    if singular.any():
        u, s, vh = _svd(xp, stack[singular], full_matrices=True)
        others = xp.where(xp.eye(n, dtype=bool), s.dtype.type(1), s[:, None, :]).prod(axis=-1)
        turn = xp.linalg.det(u) * xp.linalg.det(vh)
        result[singular] = turn[:, None, None] * (u.conj() * others[:, None, :]) @ vh.conj()
    return result.reshape(x.shape)


def _cholesky(xp: Any, x: Arr, *, upper: bool) -> Arr:
    (made,) = _nan_where_it_fails(xp, lambda a: (xp.linalg.cholesky(a),), _adjoint(xp, x) if upper else x)
    # All of a result is NaN if its matrix holds one. The library passes it on, to the diagonal at last.
    failed = xp.isnan(xp.diagonal(made, axis1=-2, axis2=-1)).any(axis=-1)
    made = xp.where(failed[..., None, None], np.nan, made)
    return _adjoint(xp, made) if upper else made


def _qr(xp: Any, x: Arr, *, mode: str) -> tuple[Arr, ...]:
    return tuple(xp.linalg.qr(x, mode))


def _svd(xp: Any, x: Arr, *, full_matrices: bool) -> tuple[Arr, ...]:
    return _nan_unless_finite(xp, partial(xp.linalg.svd, full_matrices=full_matrices), x)


def _svdvals(xp: Any, x: Arr) -> Arr:
    return _nan_unless_finite(xp, lambda a: (xp.linalg.svd(a, compute_uv=False),), x)[0]


def _pinv(xp: Any, x: Arr, rtol: Arr) -> Arr:
    u, s, vh = _svd(xp, x, full_matrices=False)
    inverse = xp.where(s <= rtol[..., None] * s[..., :1], s.dtype.type(0), xp.reciprocal(s))
    return _adjoint(xp, vh * inverse[..., None]) @ _adjoint(xp, u)


def _eigh(xp: Any, x: Arr) -> tuple[Arr, ...]:
    return _nan_unless_finite(xp, xp.linalg.eigh, x)


def _eigvalsh(xp: Any, x: Arr) -> Arr:
    return _nan_unless_finite(xp, lambda a: (xp.linalg.eigvalsh(a),), x)[0]


BODIES: Final[dict[str, Body]] = {
    "sort": _sort, "argsort": _argsort, "argtopk": _argtopk, "isin": _isin,
    "inv": _inv, "solve": _solve, "det": _det, "slogdet": _slogdet, "cofactors": _cofactors, "cholesky": _cholesky,
    "qr": _qr, "svd": _svd, "svdvals": _svdvals, "pinv": _pinv, "eigh": _eigh, "eigvalsh": _eigvalsh,
}  # fmt: skip
"""The ops by name: each a function of CuPy, arrays and the op's attributes."""


# 16-bit floats: computed in float32 and rounded once, as by the reference


def _widened(xp: Any, x: Arr, is_bfloat16: bool) -> Arr:
    """Numbers that can be computed with; bfloat16 comes as its bits."""
    if is_bfloat16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _bfloat16_bits(xp: Any, x: Arr) -> Arr:
    """float32 rounded to the nearest bfloat16, ties to even, as its bits."""
    bits = xp.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return xp.where(xp.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)


# On the device


class LibraryOps:
    """The ops of this file on one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def takes(self, region: Region) -> bool:
        """True if a region is one of these ops, or takes an output of one."""
        if region.kind is not RegionKind.OPAQUE:
            return False
        op = region.calls[0].op
        return op is pick or op.name in BODIES or op.name in _REFUSED

    def refusal(self, region: Region) -> str | None:
        """Why there is no call for a region that `takes` has named, or `None`."""
        call = region.calls[-1]
        if max(s.size for s in (*call.inputs, *call.outputs)) > _LARGEST:
            return f"more elements than the library counts for {call.op.name}"
        return _REFUSED.get(call.op.name)

    def compiled(self, region: Region) -> Kernel:
        """The region as a function of its inputs' data. The data of an op with several outputs is a tuple."""
        entry, memory = region.nodes[-1], self._queue.memory
        call, args = region.graph.calls[entry], region.graph.args[entry]
        if call.op is pick:
            place, index = region.inputs.index(args[0]), call.attrs["index"]
            return lambda *data: (data[place][index],)
        if not all(s.size for s in call.inputs):
            known = tuple([memory.from_host(array) for array in _of_nothing(call)])
            return lambda *data: (known if len(known) > 1 else known[0],)
        arguments = arguments_of(region, memory)
        body = partial(BODIES[call.op.name], self._queue.cupy, **call.attrs)

        def kernel(*data: Data) -> tuple[Any, ...]:
            made = self._called(call, body, arguments(data))
            return (made if len(made) > 1 else made[0],)

        return kernel

    def _called(self, call: Call, body: Body, data: Sequence[Data]) -> tuple[Data, ...]:
        queue, xp = self._queue, self._queue.cupy
        queue.undecided()  # a recording that is under way would not have this call
        with translated(f"[{queue.name}] calling a library for {call.op.name}"), queue.lock:
            queue.runtime.setDevice(queue.number)
            with memory_from_pool(queue), queue.stream, _checked():
                made = body(*[_widened(xp, _view(queue, d), d.dtype is bfloat16) for d in data])
                outputs = tuple([queue.memory.new(s.shape, s.dtype) for s in call.outputs])
                for output, result in zip(outputs, made if isinstance(made, tuple) else (made,), strict=True):
                    if output.block is not None:
                        bits = output.dtype is bfloat16
                        _view(queue, output)[...] = _bfloat16_bits(xp, result) if bits else result
        return outputs


def _view(queue: Queue, data: Data) -> Arr:
    """Data as an array of CuPy's on the same memory, whose block it keeps; bfloat16 as its bits."""
    dtype = np.dtype(np.uint16) if data.dtype is bfloat16 else data.dtype.numpy
    return queue.cupy.ndarray(data.shape, dtype, _pointer(queue, data))


def _pointer(queue: Queue, data: Data) -> Any:
    cuda = queue.cupy.cuda
    return cuda.MemoryPointer(cuda.UnownedMemory(data.pointer, data.nbytes, data.block, queue.number), 0)


@contextmanager
def memory_from_pool(queue: Queue) -> Iterator[None]:
    """Let CuPy take this thread's memory from the device's pool. A failure is raised at the end, whatever has become
    of it on the way: not every version of Thrust's allocator passes it on."""
    failures: list[DeviceFailure] = []

    def allocate(nbytes: int) -> Any:
        try:
            return _pointer(queue, queue.memory.new((nbytes,), uint8))
        except DeviceFailure as failure:
            failures.append(failure)
            raise MemoryError(str(failure)) from failure

    with queue.cupy.cuda.using_allocator(allocate):
        try:
            yield
        finally:
            if failures:
                raise failures[0]


def _checked() -> AbstractContextManager[Any]:
    """Let cuSOLVER's and cuBLAS's failures on values raise `LinAlgError`, for which CuPy waits."""
    import cupyx

    checked: AbstractContextManager[Any] = cupyx.errstate(linalg="raise")
    return checked


def _of_nothing(call: Call) -> list[Any]:
    """The results of a call of which an input has no elements: they depend on shapes alone."""
    with np.errstate(all="ignore"):
        made = bind(call)(*[np.zeros(s.shape, s.dtype.numpy) for s in call.inputs])
    results = made if len(call.outputs) > 1 else (made,)
    return [np.asarray(m).astype(s.dtype.numpy) for m, s in zip(results, call.outputs, strict=True)]
