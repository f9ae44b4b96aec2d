"""Run the steps of a plan on their devices, and handle failures.

A device's failure moves the step to its next candidate. Values that only a lost device had are computed again. A
user's mistake is raised at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from threading import current_thread
from time import perf_counter
from typing import Any, Final

from .._place.candidates import Candidate
from .._place.plan import Plan, Schedule, Step
from .._schedule.fuse import Region, communicates, is_constant
from .._tensor.node import Call
from .._tensor.options import current
from .._tensor.precision import Precision
from ..errors import (
    DeviceFailure,
    DeviceLost,
    FallbackWarning,
    LaunchFailure,
    NotReady,
    OutOfMemory,
    PlanRefused,
    ToleranceMissed,
    Unsupported,
    ValuesLost,
    YosegiError,
)
from .device import Device, not_ready, owner_of, present
from .health import health
from .memory import HOST, Buffer, Transfers
from .trace import Failure, Record, log, trace


def _device_of_space(space: str) -> Device:
    device = owner_of(space)
    if device is None:
        raise DeviceLost(f"the memory {space} is gone")
    return device


transfers: Final = Transfers(_device_of_space, lambda space, failure: lost(space, failure))
_generations = count(1)


def run_plan(plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer]:
    """Compute the outputs of a plan. Raises `ValuesLost` if an input, or a value between steps, is lost."""
    made = None if plan.unit is None else _run_unit(plan, inputs)
    return run_steps(plan.schedule, inputs, run_step) if made is None else made


def _run_unit(plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer] | None:
    """The outputs of a plan whose products are certified together. `None` if the unit is not compiled yet, or fails:
    then its steps run one by one."""
    job, schedule = plan.unit, plan.schedule
    if job is None or (plan.watch is not None and not plan.watch.has_tried_precisions):
        return None
    try:
        unit = job.result() if _waits(False) else job.result_if_ready()
    except NotReady:
        return None
    except DeviceFailure as failure:
        _give_up_unit(plan, failure)
        return None
    device = unit.device
    if unit.space != device.space or unit.candidates != [step.candidate for step in schedule.steps]:
        plan.become(schedule)
        return None
    if health.reason_against(device.name, unit.region) is not None:
        return None
    values = dict(zip(schedule.inputs, inputs, strict=True))
    for step in unit.before:
        values |= zip(step.region.outputs, run_step(step, [values[i] for i in step.region.inputs]), strict=True)
    start = perf_counter()
    try:
        data, moved = _in_space(
            [values[i] for i in unit.inputs], unit.space, lambda n: schedule.graph.calls[unit.inputs[n]]
        )
        made = attempted(False, partial(unit, data))
    except ToleranceMissed as missed:
        log.info("certified step by step: %s", str(missed))
        return None
    except DeviceFailure as failure:
        _give_up_unit(plan, failure)
        return None
    milliseconds, thread = (perf_counter() - start) * 1e3, current_thread().name
    trace.add(Record(f"{len(schedule.steps)} steps", device.name, device.name, milliseconds, moved, (), start, thread))
    is_pinned = any(step.is_pinned for step in schedule.steps)
    return [
        values[entry] if entry in unit.inputs else Buffer(d, unit.space, is_pinned)
        for entry, d in zip(schedule.graph.outputs, made, strict=True)
    ]


def _give_up_unit(plan: Plan, failure: DeviceFailure) -> None:
    """Run the steps of a plan one by one from now on."""
    plan.unit = None
    trace.failed(f"{len(plan.steps)} steps", plan.steps[0].device.name, failure)


def run_short(plan: Plan, inputs: Sequence[Buffer]) -> list[Buffer] | None:
    """The outputs of a plan that is one call of the host's kernel. `None` if it is not, if a profile records the steps,
    or if memory does not suffice: `run_plan` trims the pools and has other devices."""
    kernel = plan.host_kernel  # once: another thread may change the plan
    if kernel is None or trace.profiles:
        return None
    try:
        return [Buffer(made) for made in kernel(*[b.data for b in inputs])]
    except OutOfMemory:
        return None


def run_steps(
    schedule: Schedule, inputs: Sequence[Buffer], run: Callable[[Step, Sequence[Buffer]], list[Buffer]]
) -> list[Buffer]:
    """Compute the outputs of a schedule, each of its steps by `run`."""
    values: dict[int, Buffer] = dict(zip(schedule.inputs, inputs, strict=True))
    for step in schedule.steps:
        made = run(step, [values[i] for i in step.region.inputs])
        values.update(zip(step.region.outputs, made, strict=True))
        for entry in step.frees:
            del values[entry]
    return [values[o] for o in schedule.graph.outputs]


def run_step(step: Step, inputs: Sequence[Buffer]) -> list[Buffer]:
    """Run a step on the first of its candidates that succeeds."""
    failures: list[Failure] = []
    missed: dict[Candidate, tuple[Any, ...]] = {}
    candidates = step.candidates
    for candidate in candidates:
        device = candidate.device
        is_last = candidate is candidates[-1]
        if not is_last and not is_worth_trying(step, candidate, missed):
            continue
        against = None if is_last else health.reason_against(device.name, step.region_on(candidate))
        if against is not None:
            if current().on_fallback == "error":
                raise LaunchFailure(f"{device.name} is in quarantine: {against}")
            failures.append(Failure(device.name, "quarantined", against))
            continue
        for attempt in (1, 2):
            start = perf_counter()
            try:
                made, moved = run_on(step, candidate, inputs, wait=_waits(is_last), is_last=is_last)
            except NotReady as failure:
                failures.append(Failure(device.name, type(failure).__name__, str(failure)))
                break
            except ToleranceMissed as failure:
                failures.append(Failure(device.name, type(failure).__name__, str(failure)))
                fail(step, candidate, failure)
                missed[candidate] = failure.made
                if step.is_replayed and candidate.precision is not Precision.F64:  # nothing has more bits than that
                    raise PlanRefused(f"[plan] {failure}; make a plan for such inputs") from failure
                if not is_last:
                    break
                candidate = min(missed, key=lambda c: c.precision.typical)  # there is no better one
                device = candidate.device
                made, moved = [Buffer(d, device.space) for d in missed[candidate]], 0
            except DeviceFailure as failure:
                failures.append(Failure(device.name, type(failure).__name__, str(failure)))
                fail(step, candidate, failure)
                if current().on_fallback == "error":
                    raise
                is_retried = isinstance(failure, OutOfMemory) and attempt == 1 and not communicates(step.region)
                if is_retried and _trim() > 0:
                    continue
                if is_last:
                    raise
                break
            if step.missed and not step.policy.is_fixed:
                step.candidate = candidate  # from now on, before those that missed
            _finish(step, device, start, moved, failures)
            return made
    raise AssertionError("the last candidate either runs a step or raises")


def is_worth_trying(step: Step, candidate: Candidate, missed: Iterable[Candidate] = ()) -> bool:
    """True if no candidate with as many bits has missed the tolerance. Under a fixed policy only the candidates in
    `missed`, which missed it in this run, count."""
    known = missed if step.policy.is_fixed else step.missed
    return all(candidate.precision.typical < other.precision.typical for other in known)


def run_on(
    step: Step, candidate: Candidate, inputs: Sequence[Buffer], *, wait: bool, is_last: bool = False
) -> tuple[list[Buffer], int]:
    """Run a step on one candidate. Returns the results, and the bytes that were copied for them.

    Without `wait`, `NotReady` is raised while a slow compiler works. Any exception of a device is a failure of the
    device, except that of the last candidate.
    """
    space = candidate.device.space  # another thread may lose the device meanwhile, and rename its memory
    kernel = attempted(is_last, partial(step.kernel_on, candidate, wait=wait))
    data, moved = gathered(step.region, inputs, space)
    made = attempted(is_last, partial(kernel, *data))
    if trace.profiles:
        candidate.device.synchronize()
    is_pinned = step.is_pinned and candidate == step.candidate
    return [Buffer(d, space, is_pinned) for d in made], moved


def _waits(is_last: bool) -> bool:
    """True if a step waits for a slow compiler: there is no other candidate, or the options admit none."""
    options = current()
    return is_last or not options.background or options.deterministic or options.on_fallback == "error"


def attempted(is_last: bool, work: Callable[[], Any]) -> Any:
    """Compile or launch; other exceptions than Yosegi's are `LaunchFailure`, unless the candidate is the last."""
    try:
        return work()
    except YosegiError:
        raise
    except Exception as error:
        if is_last:
            raise
        raise LaunchFailure(f"{type(error).__name__}: {error}") from error


def gathered(region: Region, inputs: Sequence[Buffer], space: str) -> tuple[list[Any], int]:
    """The inputs of a region in a memory, and the bytes copied for that."""
    return _in_space(inputs, space, lambda n: region.graph.calls[region.inputs[n]])


def _in_space(buffers: Sequence[Buffer], space: str, call: Callable[[int], Call]) -> tuple[list[Any], int]:
    """Values in a memory, and the bytes copied for that; `call` gives the call that made the value at a position."""
    data, total = [b.data for b in buffers], 0
    for n in [n for n, b in enumerate(buffers) if b.space is not space]:
        there = buffers[n].on(space)
        if there is None:
            there, moved = transfers.fetch(buffers[n], space, call(n).spec.nbytes)
            total += moved
        data[n] = there
    return data, total


def lost(space: str, failure: DeviceFailure) -> ValuesLost:
    """Note that a memory is lost, and return the exception to raise."""
    for device in present():
        if device.space == space:
            _forget_device(device, failure)
    return ValuesLost(space, str(failure))


def _forget_device(device: Device, failure: DeviceFailure) -> None:
    """Quarantine a lost device, and give its memory a new name, so that old replicas are not found."""
    health.note(device.name, None, failure if isinstance(failure, DeviceLost) else DeviceLost(str(failure)))
    if device.space != HOST:  # what a device left in the host's memory is not lost with it
        device.space = f"{device.name}/{next(_generations)}"
    log.warning("%s is lost: %s", device.name, str(failure))


def fail(step: Step, candidate: Candidate, failure: DeviceFailure) -> None:
    """Remember that a candidate has failed on a step."""
    device = candidate.device
    if isinstance(failure, ToleranceMissed):  # not a fault of the device
        step.missed[candidate] = str(failure)
        log.warning("%s on %s: %s", str(step.region), str(candidate), str(failure))
        return
    health.note(device.name, step.region_on(candidate), failure)
    if not isinstance(failure, OutOfMemory):  # not a fault of the kernel
        step.kernels.pop(candidate, None)
    if isinstance(failure, DeviceLost):
        _forget_device(device, failure)
    # As text: a handler that keeps its records must not keep the failed step's data alive through the exception.
    log.warning("%s failed on %s: %s: %s", str(step.region), device.name, type(failure).__name__, str(failure))


def _trim() -> int:
    """Trim the pools of all devices. A device that turns out to be lost is skipped."""
    freed = 0
    for device in present():
        try:
            freed += device.trim()
        except DeviceLost as failure:
            _forget_device(device, failure)
    return freed


def _finish(step: Step, device: Device, start: float, moved: int, failures: list[Failure]) -> None:
    planned, milliseconds, thread = step.device.name, (perf_counter() - start) * 1e3, current_thread().name
    step.last = Record(step.title, planned, device.name, milliseconds, moved, tuple(failures), start, thread)
    trace.add(step.last)
    if failures and current().on_fallback == "warn":
        told = "; ".join(f"{f.device}: {f.kind}: {f.message}" for f in failures)
        warnings.warn(FallbackWarning(f"{step.region} ran on {device.name} ({told})"), stacklevel=2)


def check_fallback(plan: Plan, asked_for: Device) -> None:
    """Warn or raise, by `on_fallback`, if a named device does not run a part of the plan."""
    policy = current().on_fallback
    if policy == "silent":
        return
    for name, why in not_ready(current().device).items():
        warnings.warn(FallbackWarning(f"{name} does not run it: {why}"), stacklevel=2)
    for step in plan.steps:
        if all(is_constant(step.region.graph, node) for node in step.region.nodes):
            continue  # they are known already: nothing runs anywhere
        reason = dict(step.refused).get(asked_for.name)
        if reason is not None and step.device is not asked_for:
            text = f"{step.region} runs on {step.device.name}, not on {asked_for.name}: {reason}"
            if policy == "error":
                raise Unsupported(text)
            warnings.warn(FallbackWarning(text), stacklevel=2)


def moved_to(buffer: Buffer, device: Device, nbytes: int) -> Buffer:
    """The buffer, pinned to a device's memory; unchanged if the device has no room or is lost."""
    space = device.space
    try:
        data = transfers.fetch(buffer, space, nbytes)[0]
    except DeviceFailure as failure:
        if isinstance(failure, DeviceLost):
            _forget_device(device, failure)
        if current().on_fallback == "error":
            raise
        if current().on_fallback == "warn":
            warnings.warn(FallbackWarning(f"a tensor stays where it is: {device.name}: {failure}"), stacklevel=2)
        return buffer
    moved = Buffer(data, space, is_pinned=space != HOST)
    for other in buffer.spaces():
        if other != space:
            moved.add(other, buffer.on(other))
    if moved.on(HOST) is None:
        moved.depth = buffer.depth + 1  # copied directly: if both devices are lost, it is computed again
    return moved


def to_host(buffer: Buffer) -> Any:
    """The values as a host array. Raises `ValuesLost` if their memory is lost."""
    return transfers.fetch(buffer, HOST, 0)[0]
