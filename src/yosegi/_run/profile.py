"""`ys.profile`: the steps that run in a block, as a table and as a trace for Chrome or Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Final, final

from .._tensor.html import preformatted
from .trace import Record, trace

_lock: Final = Lock()


@final
class Profile:
    """The steps that ran in the block of a `ys.profile`. `print` shows a table, `to_json` gives the trace."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        """One record per step, in the order in which the steps ended."""
        self.seconds = 0.0
        """The time that the block took."""
        self._start = perf_counter()

    def to_json(self) -> dict[str, Any]:
        """Return the steps in the Trace Event Format, which chrome://tracing and ui.perfetto.dev read.

        Each device has one row per thread that used it. Times are in microseconds from the start of the block.
        """
        rows: dict[tuple[str, str], int] = {}
        events = [self._event(r, rows.setdefault((r.device, r.thread), len(rows))) for r in self.records]
        names = [_named("thread_name", f"{device} ({thread})", n) for (device, thread), n in rows.items()]
        return {"traceEvents": [_named("process_name", "yosegi", 0), *names, *events], "displayTimeUnit": "ms"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json()), encoding="utf-8")

    def _event(self, record: Record, row: int) -> dict[str, Any]:
        known = record.to_json()
        args = {name: known[name] for name in ("planned", "bytes_moved", "failures")}
        times = {"ts": (record.start - self._start) * 1e6, "dur": record.milliseconds * 1e3}
        return {
            "name": record.ops, "cat": record.device, "ph": "X", **times, "pid": os.getpid(), "tid": row, "args": args,
        }  # fmt: skip

    def __repr__(self) -> str:
        totals: dict[tuple[str, str], list[float]] = {}
        for record in self.records:
            totals.setdefault((record.device, record.ops), []).append(record.milliseconds)
        rows = sorted(totals.items(), key=lambda item: -sum(item[1]))
        lines = [f"{len(self.records)} steps in {self.seconds * 1e3:.3f} ms"]
        for (device, ops), times in rows:
            share = sum(times) / max(self.seconds * 1e3, 1e-9)
            lines.append(f"{sum(times):10.3f} ms {share:4.0%} {len(times):6} × on {device}: {ops}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return preformatted(repr(self))


def _named(kind: str, name: str, row: int) -> dict[str, Any]:
    """An event that gives the process or a row its name."""
    return {"name": kind, "ph": "M", "pid": os.getpid(), "tid": row, "args": {"name": name}}


@contextmanager
def profile(path: str | os.PathLike[str] | None = None) -> Iterator[Profile]:
    """Record the steps that run in a `with` block: their ops, device, start and duration.

    Each recorded step waits for its device, so that its duration is that of the work. Tensors that the block does not
    compute are not recorded: end the block with `ys.eval` or a read. Steps of all threads are recorded. A step that
    runs for the first time includes its compilation.

    Parameters
    ----------
    path : str or path-like, optional
        The file to write at the end of the block. Open it in chrome://tracing or https://ui.perfetto.dev.

    Returns
    -------
    context manager
        It gives a `Profile`: `print` shows the steps with their total times, `to_json()` and `save(path)` give the
        trace.

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.ones((100, 100))
    >>> with ys.profile() as profile:
    ...     ys.eval(ys.exp(x) + 1)
    >>> [record.device for record in profile.records]
    ['cpu']
    >>> sorted(profile.to_json())
    ['displayTimeUnit', 'traceEvents']
    """
    made = Profile()
    with _lock:
        trace.profiles = (*trace.profiles, made.records)
    try:
        yield made
    finally:
        made.seconds = perf_counter() - made._start
        with _lock:
            trace.profiles = tuple([records for records in trace.profiles if records is not made.records])
        if path is not None:
            made.save(path)
