"""Devices of known speed: what placement and learning are tested with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import yosegi as ys
import yosegi._tune.calibration as calibration
import yosegi._tune.learn as learn_module
import yosegi._tune.timing as timing_module
from fakes import Clock, FakeDevice, installed
from yosegi._place.cost_model import Speed, TransferCost
from yosegi._place.costs import costs
from yosegi._run.device import host_device

HOST = Speed(launch=1e-6, bandwidth=1e10, part=1e-6, is_measured=True)


def speed(times: float, *, launch: float = 1e-6, way: TransferCost = TransferCost()) -> Speed:
    """So many times as fast as the host, with a launch and a way of its own."""
    return Speed(launch=launch, bandwidth=HOST.bandwidth * times, upload=way, download=way, is_measured=True)


@contextmanager
def machine(monkeypatch: Any, tmp_path: Any, fakes: dict[FakeDevice, Speed], *, host: Speed = HOST) -> Iterator[None]:
    """A machine of these devices and the host, of these speeds; nothing else is there, and nothing is known of before.

    Measuring is on, but the speeds are as given.
    """
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("YOSEGI_CALIBRATE", "1")
    monkeypatch.setattr(calibration, "_asked", {d.name for d in (*fakes, *ys.devices())})
    costs.clear()
    with installed(*fakes, alone=True), ys.options(device="auto"):
        for device, known in fakes.items():
            costs.set_speed(device, known)
        costs.set_speed(host_device(), host)
        try:
            yield
        finally:
            costs.clear()


@contextmanager
def paced_host(monkeypatch: Any, clock: Clock, seconds: float) -> Iterator[dict[str, float]]:
    """By the clock, a call to the host takes so long; the dict says how long, and can be changed."""
    for module in (learn_module, timing_module):
        monkeypatch.setattr(module, "perf_counter", clock)
    host: Any = host_device()
    pace = {"seconds": seconds}
    compiled = host.compile

    def compile(region: Any) -> Any:
        kernel = compiled(region)

        def paced(*data: Any) -> Any:
            clock.now += pace["seconds"]
            return kernel(*data)

        return paced

    monkeypatch.setattr(host, "compile", compile)
    yield pace


def numbers(*shape: int) -> Any:
    """An array of random numbers."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)
