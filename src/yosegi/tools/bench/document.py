"""A run of the benchmark as plain data: written, read, and checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ...errors import ArgumentError
from .timing import Timing

FORMAT: Final = "yosegi-bench"
VERSION: Final = 1
STATUSES: Final = ("ok", "wrong", "failed", "elsewhere", "skipped")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a contender in a case."""

    case: str
    suite: str
    name: str
    size: int
    dtype: str
    contender: str
    device: str | None
    """The device it ran on, if the contender is Yosegi."""
    mode: str
    status: str
    """ok; wrong: its result is not right, so there is no time; failed; elsewhere: another device runs it; skipped."""
    reason: str = ""
    error: float | None = None
    """The largest error over the largest value, against float64."""
    tolerance: float | None = None
    flops: float = 0.0
    nbytes: int = 0
    peak_bytes: int | None = None
    sittings: tuple[tuple[float, ...], ...] = ()
    """Seconds per call: a list of rounds for each sitting."""
    limit_seconds: float | None = None
    """The least time of this machine, by its measured limits."""
    bound: str = ""
    """The kind of that limit: memory or arithmetic."""

    @property
    def timing(self) -> Timing:
        """The times of all sittings."""
        return Timing(self.sittings)

    @property
    def of_limit(self) -> float | None:
        """How much of the machine's limit it reaches: 1 is all."""
        return self.limit_seconds / self.timing.median if self.limit_seconds and self.sittings else None


@dataclass(frozen=True, slots=True)
class Document:
    """A run."""

    created: str
    machine: dict[str, Any]
    limits: dict[str, Any]
    settings: dict[str, Any]
    results: tuple[Result, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    """Peers and devices that were asked for and are not there, with the reason."""
    placement: dict[str, Any] = field(default_factory=dict)
    """A program, and where its steps ran."""

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain data."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def write(self, path: str | Path) -> None:
        """Write the run to a file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")

    def of_case(self, case: str) -> list[Result]:
        """The results of one case."""
        return [r for r in self.results if r.case == case]

    def yardstick(self, case: str) -> Result | None:
        """NumPy's result in a case."""
        return next((r for r in self.of_case(case) if r.contender == "numpy" and r.status == "ok"), None)


class _DocumentReader:
    """Fields of a file, with errors that name the file and the field."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def fail(self, what: str) -> ArgumentError:
        return ArgumentError(f"[bench] {self.path}: {what}; write it again with yosegi bench --json")

    def get(self, data: Any, where: str, name: str, kinds: type | tuple[type, ...]) -> Any:
        if not isinstance(data, dict) or name not in data:
            raise self.fail(f"expected a field {where}{name}, got none")
        if not isinstance(data[name], kinds) or isinstance(data[name], bool):
            wanted = " or ".join(k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise self.fail(f"expected {where}{name} to be {wanted}, got {type(data[name]).__name__}")
        if isinstance(data[name], float) and not isfinite(data[name]) and name != "error":
            raise self.fail(f"expected {where}{name} to be finite, got {data[name]}")
        return data[name]


_NUMBER: Final = (int, float)
_RESULT_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "case": str, "suite": str, "name": str, "size": int, "dtype": str, "contender": str,
    "device": (str, type(None)), "mode": str, "status": str, "reason": str,
    "error": (*_NUMBER, type(None)), "tolerance": (*_NUMBER, type(None)), "flops": _NUMBER, "nbytes": int,
    "peak_bytes": (int, type(None)), "sittings": list, "limit_seconds": (*_NUMBER, type(None)), "bound": str,
}  # fmt: skip


def read(path: str | Path) -> Document:
    """A run from a file; raises with the file and the field when it is not one."""
    reader = _DocumentReader(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"[bench] expected a file that can be read, got {path}: {error.strerror}") from None
    except ValueError as error:
        raise reader.fail(f"expected JSON, got something else ({error})") from None
    if reader.get(data, "", "format", str) != FORMAT:
        raise reader.fail(f"expected format {FORMAT!r}, got {data['format']!r}")
    if reader.get(data, "", "version", int) != VERSION:
        raise reader.fail(f"expected version {VERSION}, got {data['version']}")
    machine = reader.get(data, "", "machine", dict)
    for name, kinds in {
        "fingerprint": str,
        "processor": str,
        "threads": int,
        "devices": list,
        "packages": dict,
    }.items():
        reader.get(machine, "machine.", name, kinds)
    for n, device in enumerate(machine["devices"]):
        for name in ("name", "description"):
            reader.get(device, f"machine.devices[{n}].", name, str)
    rows = reader.get(data, "", "results", list)
    return Document(
        created=reader.get(data, "", "created", str),
        machine=machine,
        limits=_limits(reader, reader.get(data, "", "limits", dict)),
        settings=reader.get(data, "", "settings", dict),
        results=tuple(_results(reader, rows)),
        skipped=reader.get(data, "", "skipped", dict),
        placement=reader.get(data, "", "placement", dict),
    )


def _limits(reader: _DocumentReader, limits: dict[str, Any]) -> dict[str, Any]:
    for kind in ("copy", "device_copy"):
        tables = reader.get(limits, "limits.", kind, dict)
        for who in tables:
            table, where = reader.get(tables, f"limits.{kind}.", who, dict), f"limits.{kind}.{who}."
            for size in table:
                if not size.isdecimal():
                    raise reader.fail(f"expected numbers of bytes in {where.rstrip('.')}, got {size!r}")
                reader.get(table, where, size, _NUMBER)
    products = reader.get(limits, "limits.", "products", dict)
    for dtype, product in products.items():
        reader.get(product, f"limits.products.{dtype}.", "gflops", _NUMBER)
        reader.get(product, f"limits.products.{dtype}.", "by", str)
    return limits


def _results(reader: _DocumentReader, rows: Iterable[Any]) -> Iterable[Result]:
    rounds: dict[str, list[int]] = {}
    for n, row in enumerate(rows):
        where = f"results[{n}]."
        fields = {name: reader.get(row, where, name, kinds) for name, kinds in _RESULT_FIELDS.items()}
        if fields["status"] not in STATUSES:
            raise reader.fail(f"expected {where}status among {', '.join(STATUSES)}, got {fields['status']!r}")
        for sitting in fields["sittings"]:
            if not isinstance(sitting, list) or not sitting or not all(_is_time(t) for t in sitting):
                raise reader.fail(f"expected {where}sittings to be lists of seconds, got {sitting!r}")
        if (fields["status"] == "ok") != bool(fields["sittings"]):
            raise reader.fail(f"expected {where}sittings for a result that is ok and for no other")
        if fields["sittings"]:  # those of a case took turns, so that ratios can be taken within a round
            own = [len(s) for s in fields["sittings"]]
            if rounds.setdefault(fields["case"], own) != own:
                raise reader.fail(
                    f"expected {where}sittings of {rounds[fields['case']]} rounds as in the case, got {own}"
                )
        if fields["size"] < 1:
            raise reader.fail(f"expected {where}size to be 1 or more, got {fields['size']}")
        yield Result(**{**fields, "sittings": tuple(tuple(s) for s in fields["sittings"])})


def _is_time(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool) and 0 < value < float("inf")
