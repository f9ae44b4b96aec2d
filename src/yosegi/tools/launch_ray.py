"""Ranks as actors of Ray: `yosegi launch --ray`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import ray

from .._tensor.environment import setting
from ..distributed.actors import Hub, Rank
from .bench.machine import threads

_RESTARTS: Final = 3
"""How often Ray starts an actor again."""
_LINES: Final = 2
"""Seconds in which Ray brings the last lines of the ranks here."""
_POLL: Final = 0.5
"""Seconds between looks at the ranks."""


def launch(size: int, arguments: list[str], variables: dict[str, str]) -> int:
    """Run a program on actors of the cluster `RAY_ADDRESS`, or of one on this host, and return its exit status."""
    program = str(Path(arguments[0]).resolve())
    if "RAY_ADDRESS" in os.environ:
        ray.init(runtime_env={"env_vars": variables})
    else:
        ray.init(num_cpus=max(size, threads()), include_dashboard=False, runtime_env={"env_vars": variables})
    try:
        hub = ray.remote(Hub).options(num_cpus=0, max_concurrency=4 * size + 8).remote(
            size, setting("YOSEGI_DEADLINE", 300.0)
        )  # fmt: skip
        actors = [
            ray.remote(Rank).options(num_cpus=1, max_restarts=_RESTARTS, max_task_retries=_RESTARTS).remote()
            for _ in range(size)
        ]
        running = {actor.run.remote(hub, n, [program, *arguments[1:]]): n for n, actor in enumerate(actors)}
        status = _ended(hub, actors, running)
        time.sleep(_LINES)
        return status
    finally:
        ray.shutdown()


def _ended(hub: Any, actors: list[Any], running: dict[Any, int]) -> int:
    """Wait for the end of all ranks, or for the first failure. Ray starts a rank again that misses a deadline."""
    statuses: dict[int, int] = {}
    while running:
        done, _ = ray.wait(list(running), timeout=_POLL)
        for reference in done:
            place = running.pop(reference)
            try:
                statuses[place] = ray.get(reference)
            except ray.exceptions.RayActorError:
                print(f"[launch] rank {place} did not finish", file=sys.stderr)
            if statuses.get(place):
                return statuses[place]
        for place in ray.get(hub.lost.remote()):
            ray.kill(actors[place], no_restart=False)
        if statuses and set(running.values()) <= set(ray.get(hub.waiting.remote())):
            break  # these began again when the others had no step left at which they could join
    return 0 if statuses else 1
