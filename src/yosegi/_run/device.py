"""Devices: their protocol, and the devices of this machine.

A device lives in a folder of its own under `devices/`, which nothing else names. The folder's `discover()` gives the
devices it finds, `Absent` with the reason for one that is not there, or `Pending` for one whose driver has to qualify
first. The host's device is ready at once. The others are searched in the background, and join the chain when they are
ready: a first result never waits for a driver.
"""

from __future__ import annotations

import atexit
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from logging import getLogger
from math import inf
from threading import Event, RLock, Thread
from typing import Any, Final, NoReturn, Protocol, final, runtime_checkable

from .._place.cost_model import Speed
from .._schedule.fuse import Region
from .._tensor.dtype import DType
from .._tensor.environment import setting
from .._tensor.html import table
from .._tensor.op import OpKind
from .._tensor.options import DEVICE_CHECKS, current
from .._tensor.precision import Precision
from .._tune.projection import Projected
from ..errors import ArgumentError
from .background import Job
from .child import Closed, close_all
from .drivers import Driver, Verdict
from .forks import in_forked_child
from .memory import HOST
from .progress import announced
from .shutdown import join

Kernel = Callable[..., tuple[Any, ...]]
"""A compiled region: the data of its inputs in, the data of its outputs out, all in the device's space.

It may return before the work is done; `Device.to_host` and `Device.synchronize` wait for it.
"""


@runtime_checkable
class Launched(Protocol):
    """A kernel that reports how it is launched."""

    @property
    def launched(self) -> str:
        """How it is launched, such as "one launch of 12 kernels"; empty as long as that is not known."""


@runtime_checkable
class Fuses(Protocol):
    """A device that reports the kernels of a unit."""

    def kernels(self, region: Region) -> Sequence[Region]:
        """The kernels that a region is cut into, in order; none if each op is a call of its own."""


@runtime_checkable
class Projects(Protocol):
    """A device whose kernels of products can compute their own random projections."""

    def projected(self, region: Region, vectors: int, draw: Callable[[int], Any]) -> Projected | None:
        """The kernel of one product that projects it on some random vectors; `draw` gives those of a length. `None` if
        no kernel does it."""


class Ranks(Protocol):
    """A group of ranks that exchange arrays of the host."""

    rank: int
    size: int
    deadline: float
    """The seconds that a rank waits for another."""

    def all_gather(self, array: Any) -> list[Any]:
        """The arrays of all ranks."""

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks, in a collective of this name. Raises an error with the name of a rank that is missing."""

    def find_missing(self, name: str) -> NoReturn:
        """Raise an error with the names of the ranks that are missing in a collective."""


class Connection(Protocol):
    """A connection over which a device exchanges data with devices of other ranks."""

    @property
    def device(self) -> Device:
        """The device of this rank."""

    def __str__(self) -> str:
        """The engine and the device."""


@runtime_checkable
class Connects(Protocol):
    """A device that exchanges data of its memory with other ranks."""

    def connected(self, ranks: Ranks) -> Connection:
        """Connect the devices of all ranks, which all call it. Raises `Unsupported`, on all ranks, with the reason."""


@runtime_checkable
class Saves(Protocol):
    """A device that copies data to the host beside its other work."""

    def saving(self, data: Sequence[Any]) -> Callable[[], list[Any]]:
        """Begin to copy data, which the caller may drop when this returns. The returned function, called in another
        thread, waits for the copies and gives them as arrays."""


Link = Callable[[Any], Any]
"""Takes the data of another device, and gives the same in a device's own space.

It may return before the data is there, and before the work that makes it is done: both devices keep the order.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The capabilities of a device."""

    dtypes: frozenset[DType]
    kinds: frozenset[OpKind]
    """The operation classes that it supports at all; `supports` decides on each region."""
    natives: frozenset[str] = frozenset()
    """The composites that it runs natively; it gets all others decomposed."""
    compiles_slowly: bool = False
    """True if another device should compute while it compiles."""
    prior: Speed | None = None
    """Its cost model until it is measured; `None` for the default prior."""
    precisions: Set[Precision] = frozenset()
    """The precisions below the inputs' own in which it computes products faster. A device may determine them when the
    attribute is first read."""
    unit: int | None = 256
    """The ops that are compiled as one unit, `None` for any number, if the device coalesces. A bound keeps the time of
    a compiler linear that slows down with the size of its program, and lets the equal stretches of a long chain share
    compiled code. A device that compiles each kernel by itself has no use for it: a unit is one call."""


class Device(Protocol):
    """One device of this machine.

    Its methods raise a subclass of `DeviceFailure` if the device cannot do the work, and nothing else.
    """

    name: str
    rank: int
    """Its position in the chain: lower ranks come first. The host has the highest."""
    space: str
    """The memory of its kernels' inputs and outputs. Devices that share memory share the name.

    When the device is lost, the runtime gives its memory a new name, so that old replicas are not found.
    """
    is_gpu: bool
    is_volatile: bool
    """True if data in its memory is lost with the device."""
    coalesces: bool
    """True if neighbouring regions are compiled as one unit, with one launch per call."""
    limits: Limits

    @property
    def identity(self) -> str:
        """Its hardware, driver and libraries: measurements are stored for these. Empty if nothing should be stored."""

    @property
    def description(self) -> str:
        """A description in one line."""

    def supports(self, region: Region) -> str | None:
        """The reason why it cannot run the region, or `None` if it can."""

    def compile(self, region: Region) -> Kernel:
        """A kernel for a region that it supports."""

    def from_host(self, array: Any) -> Any:
        """An array as data in the device's memory, without a copy where possible. The array is not written to again."""

    def to_host(self, data: Any) -> Any:
        """Data in the device's memory as a host array, without a copy where possible. Waits for the data."""

    def link_from(self, source: Device) -> Link | None:
        """A function that copies data directly from another device; `None` if data goes through the host."""

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""

    def memory(self) -> tuple[int, int]:
        """Free bytes and total bytes."""

    def trim(self) -> int:
        """Release memory that is kept for reuse, and return the number of bytes."""

    def statistics(self) -> dict[str, int | None]:
        """Counters of its memory: bytes in use, kept for reuse, the peak since the last trim, and the limit."""

    def __repr__(self) -> str:
        """Its name."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A device that is absent, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A device whose driver is new to this machine and must qualify first."""

    name: str
    description: str
    is_gpu: bool
    job: Job[Device | Absent]
    """Qualifies the driver, which takes seconds. Its result is the device, or `Absent` with the reason."""

    def resolved(self) -> Device | Absent:
        """Wait for the qualification, and return the device or `Absent`."""
        with announced(f"qualifying the driver of {self.name} ({self.description}), once"):
            return self.job.result()


Found = Device | Absent | Pending
"""Results of a folder's `discover`."""


def found(
    driver: Driver, description: str, qualify: Callable[[Driver], Verdict], make: Callable[[], Device], *, is_gpu: bool
) -> Found:
    """The device of a driver that has a verdict; otherwise `Pending`, until `qualify` has found one."""

    def made() -> Device | Absent:
        if driver.absence is not None:
            return Absent(driver.name, driver.absence)
        try:
            return make()
        except Exception as error:  # a broken installation raises whatever it likes
            return Absent(driver.name, f"it does not work: {type(error).__name__}: {error}")

    def qualified() -> Device | Absent:
        driver.qualified(qualify)
        return made()

    return made() if driver.verdict is not None else Pending(driver.name, description, is_gpu, Job(qualified, inf))


_DELAY: Final = 1.0
"""Seconds from the first evaluation until the search for devices begins. Short programs end before."""

BEFORE_JOINING: Final[list[Callable[[Device], None]]] = []
"""The measurement of a device before it joins the chain, in the background; filled in where devices are measured."""


class _Folder:
    """One folder under `devices/`, and the devices that it found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = RLock()
        self.found: tuple[Found, ...] | None = None
        self.failed: dict[str, str] = {}
        """The devices whose drivers did not qualify in this process, and why."""

    def listed(self) -> tuple[Found, ...]:
        """The result of `discover`. It is called once: two devices of one name would not know each other's memory."""
        if self.found is None:
            with self.lock:
                if self.found is None:
                    self.found = self._discovered()
                    refresh()
        return self.found

    def resolved(self) -> tuple[Device | Absent, ...]:
        """The devices after all drivers have qualified or failed. Waits for them."""
        for pending in self.listed():
            if isinstance(pending, Pending):
                self.settle(pending)
        return tuple([d for d in self.listed() if not isinstance(d, Pending)])

    def settle(self, pending: Pending) -> None:
        """Replace a pending device by the device, or by `Absent`."""
        try:
            found: Device | Absent = pending.resolved()
        except Closed:
            raise
        except Exception as error:  # whatever a driver does, the other devices are there
            found = Absent(pending.name, f"qualifying its driver failed: {type(error).__name__}: {error}")
        with self.lock:
            self.found = tuple([found if d is pending else d for d in self.listed()])
            if isinstance(found, Absent):
                self.failed[found.name] = found.reason
        refresh()

    def _discovered(self) -> tuple[Found, ...]:
        try:
            discover: Callable[[], Iterable[Found]]
            discover = importlib.import_module(f"yosegi.devices.{self.name}").discover
            found = tuple(discover())
        except Exception as error:
            return (Absent(self.name, f"looking for it failed: {type(error).__name__}: {error}"),)
        if setting("YOSEGI_DISABLE_GPU", False):
            reason = "a GPU, and YOSEGI_DISABLE_GPU=1 is set"
            return tuple([Absent(d.name, reason) if not isinstance(d, Absent) and d.is_gpu else d for d in found])
        return found


class _Registry:
    """The folders, and the threads that search them."""

    def __init__(self) -> None:
        package = importlib.import_module("yosegi.devices")
        names = {m.name for m in pkgutil.iter_modules(package.__path__)} - package.SHARED
        self.folders = {name: _Folder(name) for name in sorted(names)}
        self.host: str = package.HOST
        self._lock = RLock()
        self._threads: dict[str, Thread] = {}
        """The thread that searches all folders, under "", and those that qualify a named device."""
        self._ending = Event()
        self.is_done = False
        self.joined: set[str] = set()
        """The names of devices that the program has named. They join the chain "auto" before the search is done."""
        atexit.register(self.stop)

    @property
    def is_ending(self) -> bool:
        """True once the process ends: work in the background should end, too."""
        return self._ending.is_set()

    @property
    def is_settled(self) -> bool:
        """True if all folders have been searched, and no driver is qualifying."""
        known = [folder.found for folder in self.folders.values()]
        return not any(found is None or any(isinstance(d, Pending) for d in found) for found in known)

    def search(self) -> None:
        """Search for all devices in the background, after a delay."""
        self._start("", self._search)

    def settle(self, pending: Pending) -> None:
        """Qualify the driver of one device in the background."""
        self._start(pending.name, lambda: self.folders[_folder_of(pending.name)].settle(pending))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if name in self._threads or self.is_ending:
                return
            self._threads[name] = Thread(target=_until_closed, args=(work,), name="yosegi discovery", daemon=True)
            self._threads[name].start()

    def _search(self) -> None:
        if self._ending.wait(_DELAY):
            return
        for folder in self.folders.values():
            folder.resolved()
        others = len(present()) > 1
        for device in reversed(present()) if others else ():  # the host first: the others are compared with it
            for prepare in BEFORE_JOINING:
                if not self.is_ending:
                    prepare(device)
        self.is_done = True
        refresh()

    def stop(self) -> None:
        """At the end of the process: end children, and wait a moment for threads."""
        self._ending.set()
        close_all()
        join(self._threads.values())

    def reset(self) -> None:
        """Replace locks in a forked child, where threads do not exist and drivers do not survive. The search ends."""
        self._lock = RLock()
        self._threads = {"": Thread()}
        for folder in self.folders.values():
            folder.lock = RLock()
            reason = "this process was forked while its driver was being qualified"
            folder.found = tuple([Absent(d.name, reason) if isinstance(d, Pending) else d for d in folder.found or ()])


def _until_closed(work: Callable[[], None]) -> None:
    try:
        work()
    except Closed:
        pass  # the process ends
    except Exception:  # whatever it is, the host is there
        getLogger("yosegi").warning("looking for devices failed", exc_info=True)


_registry: Final = _Registry()
_chains: Final[dict[tuple[str, bool], tuple[Device, ...]]] = {}
_ready_now: Final[list[tuple[Device, ...]]] = []
"""The result of `present`, until the devices change."""


class Generation:
    """The number of changes of the devices. A chain that was looked up under another number may have changed."""

    number = 0


def refresh() -> None:
    """Note that the devices have changed."""
    _chains.clear()
    _ready_now.clear()
    Generation.number += 1


def discovered() -> tuple[Device | Absent, ...]:
    """All present and absent devices, in the order of the chain. Waits until all drivers have qualified or failed."""
    with announced("looking for devices"):
        found = [d for folder in _registry.folders.values() for d in folder.resolved()]
    return _in_order(found)


def present() -> tuple[Device, ...]:
    """The devices that are ready now, in the order of the chain. Does not wait."""
    if _ready_now:
        return _ready_now[0]
    number = Generation.number
    found = _found_ready()
    if number == Generation.number:
        _ready_now.append(found)
    return found


def _found_ready() -> tuple[Device, ...]:
    known = [d for folder in _registry.folders.values() for d in folder.found or ()]
    ready = [d for d in known if not isinstance(d, (Absent, Pending))]
    return tuple(d for d in _in_order([*ready, *_hosts(known)]) if not isinstance(d, Absent))


def _hosts(known: list[Found]) -> Iterable[Device]:
    """The host's device, if it is not among those that are known."""
    own = _registry.folders[_registry.host].listed()
    return [d for d in own if not isinstance(d, (Absent, Pending)) and not any(d is k for k in known)]


def _in_order(found: Iterable[Device | Absent]) -> tuple[Device | Absent, ...]:
    return tuple(sorted(found, key=lambda d: (isinstance(d, Absent), getattr(d, "rank", 0))))


@final
class Devices(tuple[Device, ...]):
    """Devices in order of preference. A notebook shows them as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = []
        for device in self:
            free, total = device.memory()
            rows.append((device.name, f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free", device.description))
        return table(("device", "memory", "description"), rows)


def devices() -> Devices:
    """Return the devices of this machine in order of preference.

    The host comes last and supports every operation. The call waits until all drivers that are new to this machine have
    qualified.

    Returns
    -------
    tuple of Device
        Each device has `name`, `description`, `limits` and `memory()`.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.devices()[-1].name
    'cpu'
    """
    found = present() if _registry.is_settled else discovered()
    return Devices([d for d in found if not isinstance(d, Absent)])


def is_ending() -> bool:
    """True once the process ends: work in the background should end, too."""
    return _registry.is_ending


def owner_of(space: str) -> Device | None:
    """The device of a memory; `None` if the memory is lost."""
    return next((d for d in present() if d.space == space), None)


def is_linked(source: str, target: str) -> bool:
    """True if data is copied directly from one memory to another, not through the host."""
    giver, taker = owner_of(source), owner_of(target)
    return giver is not None and taker is not None and taker.link_from(giver) is not None


def host_device() -> Device:
    """The last device of the chain. It computes in host memory and supports every operation."""
    return next(d for d in reversed(present()) if d.space == HOST)


def chain_named(name: str) -> tuple[Device, ...]:
    """The devices that a name stands for, in order of preference.

    "auto" is the whole chain, "a:0" one device, "a:0+b:0" a device with the one that takes the work it does not
    support. The host ends every chain. Devices whose drivers are still qualifying are left out, unless the options in
    force admit no other device: see `waits_for_drivers`.
    """
    waits = waits_for_drivers()
    found = _chains.get((name, waits))
    if found is None:
        number = Generation.number
        found = _chain(name, waits)
        if number == Generation.number:
            _chains[name, waits] = found
    return found


def waits_for_drivers() -> bool:
    """True if evaluation waits for drivers to qualify: the options in force admit no other device meanwhile."""
    options = current()
    return not options.background or options.deterministic or options.on_fallback == "error"


def _chain(name: str, waits: bool) -> tuple[Device, ...]:
    host = host_device()
    if name == "auto":
        if waits:
            return devices()
        if not _registry.is_done:
            _registry.search()
        return tuple([d for d in present() if d is host or _registry.is_done or d.name in _registry.joined])
    chosen = [device_named(part) if waits else _ready(part) for part in name.split("+")]
    there = tuple([d for d in chosen if d is not None])
    return there if there and there[-1] is host else (*there, host)


def _ready(name: str) -> Device | None:
    """A device by name. `None` if its driver is qualifying, which this call begins, or has failed to qualify. Raises if
    there is no such device."""
    found = _named(name)
    if isinstance(found, Pending):
        _registry.settle(found)
        return None
    if isinstance(found, Absent):
        if name in not_ready(name):
            return None
        raise _not_there(name)
    return _joined(found, name)


def _joined(found: Device | None, name: str) -> Device:
    if found is None:
        raise _not_there(name)
    if found.name not in _registry.joined:
        _registry.joined.add(found.name)
        refresh()
    return found


def not_ready(name: str) -> dict[str, str]:
    """The devices in a name whose drivers are qualifying or have failed to qualify, with the reasons."""
    reasons: dict[str, str] = {}
    for part in [] if name == "auto" else name.split("+"):
        found, folder = _named(part), _registry.folders.get(_folder_of(part))
        if isinstance(found, Pending):
            reasons[part] = "its driver is being qualified"
        elif isinstance(found, Absent) and folder is not None and found.name in folder.failed:
            reasons[part] = folder.failed[found.name]
    return reasons


def device_named(name: Any) -> Device:
    """A device by name. Waits until its driver has qualified. Raises an error with the reason if it is absent."""
    found = _named(str(name))
    if isinstance(found, Pending):
        folder = _registry.folders[_folder_of(str(name))]
        folder.settle(found)
        found = _named(str(name))
    if isinstance(found, (Absent, Pending)):
        raise _not_there(str(name))
    return _joined(found, str(name))


def check_name(name: str) -> None:
    """Raise unless a name stands for devices of this machine. Does not wait for drivers to qualify."""
    if name != "auto":
        for part in name.split("+"):
            if isinstance(_named(part), (Absent, type(None))):
                raise _not_there(part)


def _folder_of(name: str) -> str:
    return name.partition(":")[0]


def _named(name: str) -> Found | None:
    """The device of a name, if there is one. Looking it up loads no other device's driver."""
    for ready in present():
        if ready.name in (name, f"{name}:0"):
            return ready
    folder = _registry.folders.get(_folder_of(name))
    if folder is None:
        return None
    with announced(f"looking for {name}"):
        return next((d for d in folder.listed() if d.name in (name, f"{name}:0")), None)


def _not_there(name: str) -> ArgumentError:
    folder = _registry.folders.get(_folder_of(name))
    near: tuple[Found, ...] = () if folder is None else folder.listed()
    there = dict.fromkeys([*[d.name for d in near if not isinstance(d, Absent)], *[d.name for d in present()]])
    reason = next((f": {d.reason}" for d in near if isinstance(d, Absent) and d.name.startswith(name)), "")
    listed = "; `yosegi devices` lists all of this machine" if not reason else ""
    said = " from YOSEGI_DEVICE" if name in setting("YOSEGI_DEVICE", "").split("+") else ""
    return ArgumentError(f"[device] expected one of {', '.join(there)}, got {name!r}{said}{reason}{listed}")


in_forked_child(_registry.reset)

DEVICE_CHECKS.append(check_name)
