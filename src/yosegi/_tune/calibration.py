"""Measuring how fast the devices of this machine are, on small real graphs and through nothing but their protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Any, Final

import numpy as np

from .._graph.graph import capture, graph_of
from .._place.candidates import refusal
from .._place.cost_model import Speed, Task, TransferCost, Work, works_of
from .._place.costs import costs
from .._run.background import Job, background
from .._run.device import BEFORE_JOINING, Device, devices, is_ending, waits_for_drivers
from .._run.health import health
from .._run.memory import HOST
from .._run.trace import log
from .._schedule.fuse import Region, fuse, join
from .._tensor.environment import is_measuring
from .._tensor.node import Call, Node, spec
from .._tensor.op import embedded
from .._tensor.precision import Precision
from .._tensor.tensor import Tensor
from ..ops.conv import conv
from ..ops.creation import asarray
from ..ops.elementwise import add, exp, multiply, tanh
from ..ops.products import matmul
from ..ops.reduce import sum as total
from ..ops.shape import permute_dims
from ..ops.sort import sort
from .timing import seconds_of

_THOROUGH: Final = 2.0  # seconds a device, when it is asked for
_QUICK: Final = 0.5  # seconds a device, on first use
_ROW: Final = 64  # calls in a row, of which one is a share
_ROUNDS: Final = 3
_IN_PRECISIONS: Final = ("products", "thin")  # what is timed in every precision
_GROWING: Final = ("bandwidth", "loops", "products", "reductions", "movement", "thin")  # what there is a larger one of
_MOVED: Final = ("launch", "bandwidth")  # what is moved: few bytes, and many
_NEEDED: Final = (*_MOVED, "loops", "products")  # timed however long they compile: all else follows from these
_BY_BYTES: Final = frozenset({Task.LOOPS, Task.REDUCTIONS, Task.MOVEMENT})  # few operations for a byte
_PARTS: Final = 8  # regions of a call that is made of several
_LARGE: Final = 3072  # rows and columns of what fast devices are measured with
_LITTLE: Final = 4.0  # times the time of a launch: a probe that takes less says more of the launch than of the work
_LEAST: Final = 0.05  # of a time: the least that a call takes beyond its launch, and that bytes take of a transfer
_NOISE: Final = 0.15  # of a time: what is left of it when the rest is explained, and may be an error of measurement


@dataclass(frozen=True, slots=True)
class Probe:
    """A region of known work, and inputs for it."""

    name: str
    region: Region
    work: Work
    arrays: tuple[Any, ...]


@cache
def probes() -> dict[str, Probe]:
    """The probes that devices are measured with, the most informative first."""
    rng = np.random.default_rng(0)

    def array(*shape: int, dtype: Any = np.float32) -> Any:
        return rng.uniform(0.5, 1.5, shape).astype(dtype)

    small, large, other, square = array(64), array(1 << 20), array(1 << 20), array(384, 384)
    constant, table = _constant(square), array(1024, 512)
    picture, kernel = array(1, 16, 48, 48), array(16, 16, 3, 3)
    doubles = array(256, 256, dtype=np.float64)
    given: list[tuple[str, Callable[..., Tensor], Sequence[Any]]] = [
        ("launch", add, (small, small)),
        ("bandwidth", lambda x, y: add(multiply(x, y), x), (large, other)),
        ("loops", lambda x: tanh(multiply(exp(tanh(x)), x)), (large[: 1 << 18],)),
        ("products", matmul, (square, square[::-1].copy())),
        ("weighted", lambda x: matmul(x, constant), (square,)),
        ("reductions", lambda x: total(multiply(x, x), axis=1), (table,)),
        ("movement", lambda x: permute_dims(x, (1, 0)), (table,)),
        ("convolutions", lambda x, w: conv(x, w), (picture, kernel)),
        ("doubles", matmul, (doubles, doubles)),
        ("order", sort, (large[: 1 << 15],)),
        ("thin", matmul, (square[:8], square)),
        ("parts", _product_of_several, (square[:16, :16], square[:16, :16] / 16)),
    ]
    return {name: _probe(name, function, arrays) for name, function, arrays in given}


@cache
def larger_probes() -> dict[str, Probe]:
    """Larger probes, for devices that finish the others faster than they are launched."""
    rng = np.random.default_rng(0)
    square, large = (rng.random(shape, np.float32) for shape in ((_LARGE, _LARGE), (1 << 24,)))
    given: list[tuple[str, Callable[..., Tensor], Sequence[Any]]] = [
        ("bandwidth", lambda x, y: add(multiply(x, y), x), (large, large[::-1].copy())),
        ("loops", lambda x: tanh(multiply(exp(tanh(x)), x)), (large,)),
        ("products", matmul, (square, square[::-1].copy())),
        ("reductions", lambda x: total(multiply(x, x), axis=1), (square,)),
        ("movement", lambda x: permute_dims(x, (1, 0)), (square,)),
        ("thin", matmul, (square[:8], square)),
    ]
    return {name: _probe(name, function, arrays) for name, function, arrays in given}


def _constant(array: Any) -> Tensor:
    value = asarray(array)
    return Tensor(Node(Call(embedded, {"array": array}, (), (spec(value.shape, value.dtype),)), ()))


def _product_of_several(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(_PARTS):
        x = matmul(x, y)
    return x


def _probe(name: str, function: Callable[..., Tensor], arrays: Sequence[Any]) -> Probe:
    key, leaves, _ = capture([function(*map(asarray, arrays))._node])
    graph = graph_of(key)
    region = join(fuse(graph), graph.outputs)
    given = tuple(leaf.buffer.data for leaf in leaves if leaf.buffer is not None)
    return Probe(name, replace(region, repeats=True), works_of(graph, fuse(graph))[-1], given)


# One device


class _Meter:
    """Measures one device: everything is compiled first, and then timed in rounds, so that a disturbance of the machine
    falls on one round of all and not on all rounds of one."""

    def __init__(self, device: Device, seconds: float, tell: Callable[[str], None]) -> None:
        self.device = device
        self.seconds = seconds
        self.tell = tell
        self.compiling: list[float] = []
        self.probes: dict[str, Probe] = {}
        """The probes that the device supports, by name."""
        self.best: dict[str, float] = {}
        """The shortest time of each call, from an idle device until it is idle again."""

    def speed(self) -> Speed | None:
        """All that could be measured in time; `None` if not even a launch could be."""
        probes()  # making them is not the device's time
        until = perf_counter() + self.seconds
        calls = dict(self._calls(until))
        if "row" not in calls:
            return None
        self.tell("timing")
        self._time(calls, max(until - perf_counter(), self.seconds / 2))
        launch = self.best["row"] / _ROW
        speed = Speed(launch=launch, bandwidth=1e10, wait=max(0.0, self.best["launch"] - launch), is_measured=True)
        if "bandwidth" in self.best:
            speed = replace(speed, bandwidth=self.probes["bandwidth"].work.nbytes / self._body("bandwidth", speed))
        if "parts" in self.best:
            speed = replace(speed, part=self._body("parts", speed) / _PARTS)
        upload, download = self._transfers(speed)
        reduced, conversion = self._reduced(speed)
        return replace(
            speed, upload=upload, download=download, rates=dict(self._rates(speed)) | reduced, conversion=conversion,
            compiling=median(self.compiling),
        )  # fmt: skip

    # What is timed

    def _calls(self, until: float) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Everything that can be timed, as far as it could be compiled until then."""
        device, launch = self.device, 0.0
        for probe in probes().values():
            if probe.name == "parts" and not device.coalesces:
                continue
            found = self._compiled(probe, Precision.FULL, until)
            if found is not None and probe.name in _GROWING and self._once(found) < _LITTLE * launch:
                start = perf_counter()
                larger = larger_probes()[probe.name]
                until += perf_counter() - start  # making them is not the device's time
                call = self._compiled(larger, Precision.FULL, until)
                if call is not None:
                    probe, found = larger, call
            self.probes[probe.name] = probe
            if found is not None:
                launch = self._once(found) if probe.name == "launch" else launch
                yield probe.name, found
            if probe.name in _IN_PRECISIONS:
                for precision in sorted(device.limits.precisions, key=lambda p: p.value):
                    reduced = self._compiled(probe, precision, until)
                    if reduced is not None:
                        yield f"{probe.name} {precision.value}", reduced
            if found is not None and probe.name == "launch":
                yield "row", lambda call=found: [call() for _ in range(_ROW)]  # type: ignore[misc]
            if found is not None and probe.name in _MOVED and device.space != HOST:
                yield f"{probe.name} up", partial(device.from_host, probe.arrays[0])
                yield f"{probe.name} down", lambda call=found: device.to_host(call()[0])  # type: ignore[misc]

    def _compiled(self, probe: Probe, precision: Precision, until: float) -> Callable[[], Any] | None:
        """A probe, compiled and run once; `None` if the device cannot, or time is up."""
        region = replace(probe.region, precision=precision)
        is_late = perf_counter() > until and not (probe.name in _NEEDED and precision is Precision.FULL)
        if is_late or is_ending() or health.reason_against(self.device.name, region) is not None:
            return None
        self.tell(probe.name if precision is Precision.FULL else f"{probe.name} in {precision.value}")
        if refusal(self.device, region) is not None:
            return None
        try:
            start = perf_counter()
            call = partial(self.device.compile(region), *[self.device.from_host(a) for a in probe.arrays])
            call()
            self.device.synchronize()
        except Exception as error:  # any driver failure: the plans' own steps meet it too, and record it
            log.info("%s could not be measured on %s: %s", probe.name, self.device.name, str(error))
            return None
        self.compiling.append(perf_counter() - start)
        return call

    def _once(self, call: Callable[[], Any]) -> float:
        """The approximate seconds of a call."""
        return min(seconds_of(call, wait=self.device.synchronize) for _ in range(3))

    def _time(self, calls: dict[str, Callable[[], Any]], seconds: float) -> None:
        """Rounds of all calls, each call for a share of the time, but twice at least."""
        share = seconds / _ROUNDS / len(calls)
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                end, runs = perf_counter() + share, 0
                while runs < 2 or perf_counter() < end:
                    taken = seconds_of(call, wait=self.device.synchronize)
                    self.best[name] = min(self.best.get(name, float("inf")), taken)
                    runs += 1

    # What the times say

    def _body(self, name: str, speed: Speed) -> float:
        """The seconds of a call beyond its launch."""
        taken = self.best[name]
        return max(taken - speed.wait - speed.launch, _LEAST * taken)

    def _rates(self, speed: Speed) -> Iterator[tuple[tuple[Task, str], float]]:
        """Operations a second, beyond what reading and writing takes.

        Of a class with few operations for a byte, those that take no longer than the bytes take no time. Of others,
        whose operations outgrow their bytes, all of the time is the operations' then. A probe that takes little longer
        than a launch says nothing of those, and the nearest class stands for its own.
        """
        for name in ("loops", "products", "weighted", "reductions", "movement", "convolutions", "doubles", "order"):
            if name in self.best:
                work, taken = self.probes[name].work, self.best[name]
                body = taken - speed.wait - speed.launch
                beyond = body - work.nbytes / speed.bandwidth
                is_visible = body > _NOISE * taken
                if is_visible and beyond > _NOISE * body:
                    yield (work.task, work.dtype), work.operations / beyond
                elif work.task in _BY_BYTES:
                    yield (work.task, work.dtype), float("inf")
                elif is_visible:
                    yield (work.task, work.dtype), work.operations / body

    def _reduced(self, speed: Speed) -> tuple[dict[tuple[Task, str], float], float]:
        """Products in the precisions that it has below the inputs' own, and how fast it brings operands there.

        A thin product has many operands for its operations, a square one few: two equations for two unknowns. If they
        leave nothing for the operations, or for the operands, the square product is all operations.
        """
        rates: dict[tuple[Task, str], float] = {}
        conversion = float("inf")
        works = [self.probes[name].work for name in _IN_PRECISIONS]
        for precision in self.device.limits.precisions:
            names = [f"{name} {precision.value}" for name in _IN_PRECISIONS]
            if all(name in self.best for name in names):
                bodies = [self._body(name, speed) for name in names]
                per_operation, per_byte = np.linalg.solve([[w.operations, w.operands] for w in works], bodies)
                if per_byte <= 0 or per_operation < _LEAST * bodies[0] / works[0].operations:
                    per_operation, per_byte = bodies[0] / works[0].operations, 0.0
                rates[Task.PRODUCTS, precision.value] = 1 / float(per_operation)
                conversion = min(conversion, 1 / float(per_byte) if per_byte else float("inf"))
        return rates, conversion

    def _transfers(self, speed: Speed) -> tuple[TransferCost, TransferCost]:
        """The costs of transfers to the device's memory and back, from the times of few bytes and of many."""
        if not all(f"{name} up" in self.best for name in _MOVED):
            return TransferCost(), TransferCost()
        sizes = [self.probes[name].arrays[0].nbytes for name in _MOVED]
        there = [self.best[f"{name} up"] for name in _MOVED]
        back = [self.best[f"{name} down"] - self.best[name] + speed.wait for name in _MOVED]
        return _line(sizes, there), _line(sizes, back)


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> TransferCost:
    (few, many), (short, long) = sizes, seconds
    per_byte = (long - short) / (many - few) if long - short > _LEAST * long else 0.0
    return TransferCost(max(short - few * per_byte, 0.0), 1 / per_byte if per_byte else float("inf"))


# All devices


def calibrate(
    chosen: Iterable[Device] | None = None,
    *,
    seconds: float = _THOROUGH,
    tell: Callable[[str, str], None] = lambda device, what: None,
) -> dict[str, Speed]:
    """Measure the devices, so that plans follow their real speed.

    The result is kept for this process and on disk for later processes, until the hardware, the driver or a library
    changes.

    Parameters
    ----------
    chosen : iterable of Device, optional
        The devices to measure. All devices of this machine by default.
    seconds : float
        The time to spend on each device, about.
    tell : callable
        Called with the name of the device and the name of each measurement, to show progress.

    Returns
    -------
    dict of str to Speed
        The cost model of each device: launch time, bytes per second, operations per second. Devices that could not be
        measured are left out.

    Examples
    --------
    >>> import yosegi as ys
    >>> speeds = ys.calibrate()  # doctest: +SKIP
    >>> ys.calibrate([])  # no device chosen
    {}
    """
    found: dict[str, Speed] = {}
    for device in devices() if chosen is None else chosen:
        speed = _measured(device, seconds, tell)
        if speed is not None:
            found[device.name] = speed
    return found


def _measured(device: Device, seconds: float, tell: Callable[[str, str], None]) -> Speed | None:
    costs.load(device)
    speed = _Meter(device, seconds, lambda what: tell(device.name, what)).speed()
    if speed is None:
        log.warning("%s could not be measured: priors stand for it", device.name)
    else:
        costs.set_speed(device, speed)
        log.info("%s: %s", device.name, str(speed))
    return speed


_asked: Final[set[str]] = set()
"""The devices that were looked for on disk, and measured if they were not found there."""
_asking: Final = Lock()


def ensure_measured(chain: Sequence[Device]) -> bool:
    """On first use: what earlier processes measured of these devices, else a quick measurement; whether either was done
    at once.

    A measurement is made in the background, unless evaluation waits for all it needs (`options(background=False)`).
    """
    if not is_measuring() or all(d.name in _asked for d in chain) or not _asking.acquire(blocking=False):
        return False
    try:
        unknown = [device for device in chain if _is_unknown(device)]
        if not waits_for_drivers():
            if unknown:
                background.add(Job(lambda: [_measured(d, _QUICK, lambda *_: None) for d in unknown]))
            return len(unknown) < len(chain)
        for device in unknown:
            _measured(device, _QUICK, lambda *_: None)
        return True
    finally:
        _asking.release()


def _is_unknown(device: Device) -> bool:
    """True if a device has to be measured: nobody has, here or in an earlier process. Asked once."""
    if device.name in _asked:
        return False
    _asked.add(device.name)
    return costs.load(device) is None and bool(device.identity)


def _measure_quietly(device: Device) -> None:
    """Measure a device that is about to join the chain, unless that is known."""
    if is_measuring() and _is_unknown(device):
        _measured(device, _QUICK, lambda *_: None)


BEFORE_JOINING.append(_measure_quietly)
