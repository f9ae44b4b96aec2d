"""The precision contract: every product under a tolerance carries a certificate, on every run.

The error of a product is relative, by the Frobenius norm: the norm of all errors over the norm of all values. It is
estimated from random projections (`projection`): for random vectors r of n numbers and of length √n, the mean square of
(C − A·B)·r is the square of the error's norm, whatever the data. The vectors of a projection are orthogonal: rounding
errors, which are alike in all directions, then look alike through each of them.

The estimate is multiplied by a factor, so that an error beyond the tolerance is accepted with a probability of at most
8e-7. The factor follows from how the differences spread. The eigenvalues of their Gram matrix are much alike for
rounding errors; all but one are zero for an error of rank one. With s, their standard deviation over their mean, the
factor of eight vectors is √(1 + 22.2 s): about 2.1 for the rounding errors of a product of 512 × 512, 7.7 for an error
of rank one. The least favourable error is one of rank one beside even noise. What eight vectors see of it is nearly a
chi-squared variable of eight degrees of freedom, and less likely to be small than that. Whatever the share of noise,
the error is accepted if that variable is below 8 / (1 + 22.2 √7) = 0.134, which has a probability of 8e-7.

A kernel that projects its own result takes as few vectors as its tolerance allows (`fused_vectors`): they take less
time, but have larger factors. Where they do not suffice, eight others are taken; where this is no exception, the kernel
goes on to eight.

Where that does not suffice, sixteen other vectors are taken, in float64. These further estimates have factors for a
probability of 1e-7 each, so all estimates of a run together accept a wrong result with a probability of at most 1e-6.
Where they do not suffice, or there is no projection, the host computes the product in float64 and compares. A result
that fails is not returned: the next candidate computes it with more bits.

The vectors are drawn once in a process, from the operating system's entropy; in deterministic runs from a fixed seed.

There is no such projection of a sum. Under a tolerance, sums are accumulated in float64, except those whose terms have
one sign, so that nothing cancels.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf, isqrt, sqrt
from typing import Any, Final, Protocol

import numpy as np

from .._graph.float64 import float64_outputs, widened
from .._graph.reference import bind
from .._schedule.fuse import Region, attends, is_constant, multiplies
from .._tensor.dtype import complex64, float32
from .._tensor.node import Call
from .._tensor.op import OpKind
from .._tensor.precision import Policy, Precision
from .._tensor.role import Contraction, Nonnegative, Reduction
from ..errors import DeviceFailure, ToleranceMissed
from .projection import VECTORS, Projected, projection_of, projects, width_of

_MORE: Final = 16
"""Vectors of the last estimate."""
_FIRST: Final = {4: 912.0, 5: 211.6, 6: 78.8, 7: 38.42, VECTORS: 22.17}
"""The weight of the spread of the differences in the first estimate of a run, by the number of vectors."""
_FURTHER: Final = {VECTORS: 37.75, _MORE: 3.622}
"""Such weights in further estimates."""
_RANDOM: Final = 0.8
"""The error of random matrices, as a share of what is typical of a precision."""
_EXPECTED: Final = 0.85
"""The share of the tolerance that the bound of such an error may take: by chance it is larger or smaller."""
_SHORTFALL: Final = 20
"""Runs in which few vectors suffice that make up for one in which they do not."""
SINGLE: Final = 3e-5
"""Tolerances from which an estimate in float32 is precise enough."""
ROUNDED: Final = 1e-7
"""The error of a result that was computed in float64 and rounded to float32, in the range of normal numbers."""
_NORMAL: Final = (1e-20, 1e30)
"""Sums of squares between which float32 arithmetic has neither overflowed nor lost small numbers."""
DOUBTS: Final = 3
"""How often a product may fail to be certified by projections before it counts as too close to the tolerance."""
TOO_CLOSE: Final = "too close to be certified by projections"
_SEED: Final = secrets.randbits(128)


# Which regions a tolerance is about


def is_product(region: Region) -> bool:
    """True for a product of 32-bit floats, whose results carry a certificate."""
    return any(multiplies(call) and call.spec.dtype in (float32, complex64) for call in region.calls)


def is_delicate_sum(region: Region) -> bool:
    """True for a region with sums of 32-bit floats whose terms may cancel."""
    return bool(delicate_sums(region))


def delicate_sums(region: Region) -> list[int]:
    """The sums of 32-bit floats whose terms may cancel."""
    return [
        n
        for n in region.nodes
        if (call := region.graph.calls[n]).op.kind is OpKind.REDUCTION
        and not (isinstance(call.op.role, Reduction) and call.op.role.selects)
        and call.spec.dtype in (float32, complex64)
        and not _has_one_sign(region, n)
    ]


def _has_one_sign(region: Region, entry: int) -> bool:
    """True if the terms of a sum are made by an op whose results are never negative, of the region's inputs or of what
    one op makes of them: then each term is as precise as the inputs."""
    graph = region.graph
    role = graph.calls[entry].op.role
    if not isinstance(role, Reduction) or role.combine != "sum":
        return False
    (term,) = graph.args[entry]
    if term not in region.nodes or not isinstance(graph.calls[term].op.role, Nonnegative):
        return False
    (source,) = graph.args[term]
    return source not in region.nodes or all(a not in region.nodes for a in graph.args[source])


def precisions_for(region: Region, policy: Policy) -> Sequence[Precision]:
    """The precisions in which a region may be computed, those that are taken to be fastest first. Fewer bits are for
    products and attention, and under a tolerance for products that are large enough to be certified."""
    reduced = [p for p in policy.precisions if p is not Precision.F64]
    if policy.tolerance is None:
        is_reduced = is_product(region) or (attends(region.calls[0]) and region.calls[0].spec.dtype is float32)
        return (*reduced, Precision.FULL) if is_reduced else (Precision.FULL,)
    if is_product(region):
        is_certified = len(region.nodes) == 1 and projects(region.calls[0])
        return (*reduced, Precision.FULL, Precision.F64) if is_certified else (Precision.FULL, Precision.F64)
    return (Precision.F64,) if is_delicate_sum(region) else (Precision.FULL,)


# Certificates


Projector = Callable[..., Any]
"""Takes the operands and the result. Returns, on the host, the output of the region of `projection_of`."""


class Memory(Protocol):
    """The functions that move arrays between a device and the host."""

    def from_host(self, array: Any) -> Any:
        """An array of the host as data of the device."""

    def to_host(self, data: Any) -> Any:
        """Data of the device as an array of the host."""


class Certified:
    """A kernel under contract. Raises `ToleranceMissed` instead of returning a result that is beyond the tolerance."""

    def __init__(
        self,
        kernel: Callable[..., tuple[Any, ...]],
        region: Region,
        memory: Memory,
        tolerance: float,
        *,
        fused: Sequence[tuple[int, Projected]] = (),
        projector: Projector | None = None,
        closer: Callable[[], Projector] | None = None,
        is_fixed: bool = False,
    ) -> None:
        """`fused` are kernels that project their result themselves, on ever more vectors, with the numbers of these.
        `projector` estimates where the data are, `closer` makes one that does so by more vectors and in float64.
        `is_fixed`: the vectors are the same in every process, and no run depends on an earlier one."""
        self._kernel = kernel
        self._region = region
        self._to_host = memory.to_host
        self._tolerance = tolerance
        self._is_fixed = is_fixed
        (self._call,) = region.calls
        self._operands = operands_of(region)
        self._projects = projects(self._call)
        self._fused = fused if self._projects else ()
        self._projector = projector if self._projects else None
        self._make_closer = closer
        self._closer: Projector | None = None
        self._is_exact = region.precision is Precision.F64 and tolerance >= ROUNDED
        constants = [o for o in self._operands if not isinstance(o, int)]
        self._there = {id(c): memory.from_host(c) for c in constants} if self._projector is not None else {}
        self._doubts = self._shortfalls = 0
        self.error: float | None = None
        """An upper bound of the relative error of the last result; `None` before the first."""

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        fused, both = self._fused, None
        if fused:
            vectors, kernel = fused[0]
            both = kernel(*data)
        made = self._kernel(*data) if both is None else (both[0],)
        if self._projector is not None:
            try:
                if both is None:
                    sums = self._projector(*self._given(data), made[0])
                    self.error = error_bound(sums, self._tolerance, exact=self._is_exact)
                else:
                    mean, squared, norm = both[1].tolist()
                    self.error = _bound(mean, squared, norm, _FIRST[vectors], self._tolerance, self._is_exact)
                    if vectors < VECTORS and self._falls_short(self.error):
                        sums = self._projector(*self._given(data), made[0])
                        self.error = error_bound(sums, self._tolerance, is_first=False)
                if self.error <= self._tolerance:
                    self._doubts = 0
                    return made
                self.error = self._estimated(*self._given(data), made[0])
                if self.error <= self._tolerance:
                    return made
            except DeviceFailure:  # the check alone has failed: the host makes it
                self._projector = None
        self._compare(data, made)
        return made

    def _given(self, data: Sequence[Any]) -> list[Any]:
        """Both operands, of the inputs' data."""
        return [data[o] if isinstance(o, int) else self._there[id(o)] for o in self._operands]

    def _falls_short(self, error: float) -> bool:
        """Whether a bound by few vectors does not suffice. If that is no exception, the next runs take more."""
        if error <= self._tolerance:
            self._shortfalls = max(0, self._shortfalls - 1)
            return False
        self._shortfalls += _SHORTFALL
        if self._shortfalls > 2 * _SHORTFALL:
            self._fused = self._fused[1:]
        return True

    def _estimated(self, *data: Any) -> float:
        """An upper bound for the error, by more vectors and in float64; infinite if nothing makes them."""
        if self._closer is None:
            if self._make_closer is None:
                return inf
            self._closer = self._make_closer()
        return error_bound(self._closer(*data), self._tolerance, is_first=False)

    def _compare(self, data: Sequence[Any], made: tuple[Any, ...]) -> None:
        """Compare a result with that in float64, on the host. Raises `ToleranceMissed`."""
        given, got = [self._to_host(d) for d in data], self._to_host(made[0])
        self.error = relative_error(got, float64_outputs(self._region, given)[0])
        if self._projects and not self._is_fixed and self._region.precision is not Precision.F64:
            self._doubts += 1
        if self.error > self._tolerance or self._doubts > DOUBTS:
            why = "" if self.error > self._tolerance else f", {TOO_CLOSE}"
            raise ToleranceMissed(
                f"{self._region.precision.value}: an error of {self.error:.1e}, for a tolerance of "
                f"{self._tolerance:.1e}{why}",
                made,
            )


def operands_of(region: Region) -> list[Any]:
    """For both operands of a product, the place among the region's inputs, or the array, if it is a constant."""
    graph = region.graph
    return [
        np.asarray(bind(graph.calls[entry])()) if is_constant(graph, entry) else region.inputs.index(entry)
        for entry in graph.args[region.nodes[-1]]
    ]


def error_bound(sums: Any, tolerance: float, *, exact: bool = False, is_first: bool = True) -> float:
    """An upper bound for a result's error, by the output of its projection; infinite if none can be concluded.
    `is_first`: it is the first estimate of a run."""
    gram = sums[:-1]
    vectors = isqrt(len(gram))
    mean, squared = float(gram[:: vectors + 1].sum()) / vectors, float(np.vdot(gram, gram)) / vectors
    return _bound(mean, squared, float(sums[-1]), (_FIRST if is_first else _FURTHER)[vectors], tolerance, exact)


def error_bounds(sums: Any, tolerance: float, exact: Sequence[bool]) -> list[float]:
    """`error_bound` for each row of an array, in fewer calls."""
    grams = sums[:, :-1]
    vectors = isqrt(grams.shape[1])
    means, squared = grams[:, :: vectors + 1].sum(1) / vectors, np.einsum("rn,rn->r", grams, grams) / vectors
    rows = zip(means.tolist(), squared.tolist(), sums[:, -1].tolist(), exact, strict=True)
    weight = _FIRST[vectors]
    return [_bound(mean, square, norm, weight, tolerance, is_exact) for mean, square, norm, is_exact in rows]


def _bound(mean: float, squared: float, norm: float, weight: float, tolerance: float, exact: bool) -> float:
    """An upper bound for an error, by the mean of the Gram matrix' eigenvalues, the mean of their squares, the sum of
    the result's squares, and the weight of the spread."""
    if exact and _NORMAL[0] < norm < _NORMAL[1]:
        return ROUNDED
    if not (0 <= mean < _NORMAL[1] and _NORMAL[0] < norm < _NORMAL[1]):  # a NaN is not, either
        return inf
    spread = sqrt(max(0.0, squared - mean * mean)) / mean if mean else 0.0
    # The norm of the result has the error in it, hence the tolerance.
    return sqrt(mean / norm * (1 + weight * spread)) * (1 + tolerance)


def projector_for(
    region: Region,
    compile: Callable[[Region], Callable[..., Any]],
    memory: Memory,
    tolerance: float,
    *,
    is_fixed: bool,
    closely: bool = False,
) -> Projector:
    """A projector that a device runs on its own data, `closely` by more vectors and in float64. Raises `DeviceFailure`
    if the device cannot run it."""
    kernel = compile(projection_for(region, tolerance, closely=closely))
    drawn = memory.from_host(vectors_for(region, is_fixed=is_fixed, closely=closely))
    return lambda *data: memory.to_host(kernel(*data, drawn)[0])


def fused_vectors(call: Call, precision: Precision, tolerance: float, *, is_fixed: bool) -> Sequence[int]:
    """The number of random vectors on which the kernel of a product projects its result in float32, and the number that
    it goes on to if the first does not suffice. None if float32 is not precise enough.

    The first number is the least that is expected to certify the rounding errors of random matrices. For m × k by
    k × n, the eigenvalues of the Gram matrix of v differences then have a spread of √((v + 1) (1/n + 1/2k)).
    """
    if tolerance < SINGLE or call.op.role is not Contraction.MATRICES:
        return ()
    unevenness = 1 / call.spec.shape[-1] + 0.5 / call.inputs[0].shape[-1]

    def suffices(vectors: int) -> bool:
        factor = sqrt(1 + _FIRST[vectors] * sqrt((vectors + 1) * unevenness))
        return _RANDOM * precision.typical * factor <= _EXPECTED * tolerance

    few = next((v for v in _FIRST if suffices(v)), VECTORS)
    return (VECTORS,) if is_fixed or few == VECTORS else (few, VECTORS)


def projection_for(region: Region, tolerance: float, *, closely: bool = False) -> Region:
    """The projection that certifies a product, in float32 or, for small tolerances and `closely`, in float64."""
    (call,) = region.calls
    check = projection_of(call, _MORE if closely else VECTORS)
    is_precise = tolerance >= SINGLE or region.precision is Precision.F64
    return check if is_precise and not closely else replace(widened(check), kind=check.kind)


def vectors_for(region: Region, *, is_fixed: bool, closely: bool = False) -> Any:
    """The random vectors that certify a product."""
    (call,) = region.calls
    return random_matrix(_width(call), _MORE if closely else VECTORS, is_fixed=is_fixed)


@cache
def random_matrix(width: int, vectors: int, *, is_fixed: bool) -> Any:
    """Random vectors as columns: a secret of this process, or, if `is_fixed`, the same in every one."""
    drawn = random_vectors(np.random.default_rng([0 if is_fixed else _SEED, width, vectors]), width, vectors)
    drawn.flags.writeable = False
    return drawn


def random_vectors(rng: np.random.Generator, width: int, vectors: int) -> Any:
    """Orthogonal columns of length √width, in all directions alike (by Haar's measure); independent normally
    distributed numbers if there are more columns than rows."""
    drawn = rng.standard_normal((width, vectors))
    if width >= vectors:
        orthogonal, triangle = np.linalg.qr(drawn)
        drawn = orthogonal * np.copysign(sqrt(width), np.diagonal(triangle))
    return drawn.astype(np.float32)


def _width(call: Any) -> int:
    width = width_of(call)
    assert width is not None
    return width


def relative_error(got: Any, wanted: Any) -> float:
    """How far a result is from the truth, which is in a wider dtype; infinite if a number is another kind of number."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(got.dtype)
        finite = np.isfinite(rounded)
        alike = (got == rounded) | ((got != got) & (rounded != rounded))
        if not np.all(np.where(finite, np.isfinite(got), alike)):
            return inf
        size = np.abs(wanted[finite]).astype(np.float64)
        error = np.abs(got[finite].astype(wanted.dtype) - wanted[finite]).astype(np.float64)
        if not error.any():
            return 0.0
        return float(np.sqrt(np.sum(np.square(error))) / np.sqrt(np.sum(np.square(size))))
