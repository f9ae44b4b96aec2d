"""Records on disk: one that was edited is used only if it is one that could have been written; else it is as if absent,
and nothing raises. Each case of `test_a_bad_record_is_as_if_absent` was an exception, or a wild number, before."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice
from plan_edits import edit_once
from yosegi._graph import decode
from yosegi._graph.graph import capture, graph_of
from yosegi._place.candidates import Candidate
from yosegi._place.cost_model import Speed, Task, TransferCost, works_of
from yosegi._place.costs import Costs
from yosegi._run.child import ChildResult
from yosegi._run.drivers import Driver, Verdict, remembered
from yosegi._schedule.fuse import fuse
from yosegi._tune.autotune import TrialSetup, TuningResult
from yosegi._tune.measurements import path_of
from yosegi._tune.records import TuningRecords
from yosegi._tune.store import cache_folder, verdict

EDITS = 400


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))


class Known(FakeDevice):
    """Says what it is, so that what is measured of it is kept."""

    identity = "a device of this test, driver 1.0"

    def __init__(self) -> None:
        super().__init__()
        self.name = "known:0"


def twice(x: Any) -> tuple[Any]:
    return (x + x,)


X = np.arange(10, dtype=np.float32)
TRIAL = TrialSetup(lambda: (X,), twice)
CANDIDATES = {"one": lambda: twice, "other": lambda: twice}
SPEED = Speed(
    launch=1e-5, bandwidth=1e10, part=1e-6, rates={(Task.PRODUCTS, "float32"): 1e11, (Task.LOOPS, "bf16"): 1e10},
    upload=TransferCost(1e-5, 1e9), download=TransferCost(2e-5), wait=1e-5, compiling=0.1, is_measured=True,
)  # fmt: skip
_GRAPH = graph_of(
    capture([(ys.asarray(np.ones((4, 5), np.float32)) @ ys.asarray(np.ones((5, 3), np.float32)))._node])[0]
)
(REGION,) = fuse(_GRAPH)
WORKS = works_of(_GRAPH, (REGION,))


def tuning(content: bytes | None) -> Any:
    """A tuning record, written so; what is used of it, after all that is done with one was done."""
    choices = TuningRecords("the machine of the records")
    name = choices._stored.name("twice")
    if content is None:
        choices.best("twice", CANDIDATES, TRIAL)
        return choices._stored.get(name)
    choices._stored.put(name, content)
    found = TuningRecords("the machine of the records").known("twice")
    chosen = TuningRecords("the machine of the records").best("twice", CANDIDATES, TRIAL)
    assert chosen.kernel is not None
    assert np.array_equal(chosen.kernel(X)[0], 2 * X)
    assert isinstance(chosen.verdict.is_open, bool)
    assert chosen.verdict.runs > 0
    if found is None:
        return None
    assert isinstance(found, TuningResult)
    assert all(0 <= s <= decode.LONGEST_TIME for s in found.seconds.values())
    return found


def ledger(content: bytes | None) -> Any:
    """The page of a device, and what its predictions are like."""
    device, table = Known(), Costs()
    candidate = Candidate.of(device)
    if content is None:
        table.set_speed(device, SPEED)
        for _ in range(4):
            table.observe(REGION, WORKS, candidate, 1e-3)
        table.save()
        return path_of(device).read_bytes()
    path_of(device).parent.mkdir(exist_ok=True)
    path_of(device).write_bytes(content)
    found = table.load(device)
    for cost in (table.predict(REGION, WORKS, candidate), table.modelled(WORKS, candidate)):
        assert 0 < cost.total < 1e30
    assert isfinite(table.transfer("known", "host").latency)
    if path_of(device).exists():
        table.save()
        return found or "a page without a speed"
    return None


def driver(content: bytes | None) -> Any:
    """The verdict on a driver."""
    made = Driver("some:0", "version 1", keeps=("against",))
    if content is None:
        tables = {"against": {"bf16": "it is wrong"}}
        made.qualified(lambda d: Verdict("it crashed", {"sort": "wrong"}, ("sort: it died",), {"ab": "no"}, tables))
        return made._path.read_bytes()
    made._path.write_bytes(content)
    again = Driver("some:0", "version 1", keeps=("against",))
    assert again.absence is None or isinstance(again.absence, str)
    if again.verdict is not None:
        assert isinstance(again.verdict.is_trusted, bool)
        assert all(isinstance(v, str) for v in again.verdict.more["against"].values())
    return again.verdict


def listing(content: bytes | None) -> Any:
    """The outcome of a call that is remembered."""

    def check(result: Any, place: str) -> None:
        for n, item in enumerate(decode.items(result, place)):
            decode.text(item, f"{place}[{n}]")

    fresh = ChildResult(["fresh"])
    path = Path(cache_folder()) / "drivers"
    if content is None:
        remembered("list", "version 1", lambda: ChildResult(["a", "b"]), check)
        (file,) = path.glob("list-*.json")
        return file.read_bytes()
    (file,) = path.glob("list-*.json")
    file.write_bytes(content)
    found = remembered("list", "version 1", lambda: fresh, check)
    assert found.failure is None or isinstance(found.failure, str)
    assert found.failure is not None or all(isinstance(item, str) for item in found.result)
    return None if found is fresh else found


def trial(content: bytes | None) -> Any:
    """What came of a trial of something that is installed."""
    folder = Path(cache_folder())
    if content is None:
        verdict("thing", "version 1", lambda: "it died")
        (file,) = folder.glob("thing-*.json")
        return file.read_bytes()
    (file,) = folder.glob("thing-*.json")
    file.write_bytes(content)
    found = verdict("thing", "version 1", lambda: "fresh")
    assert found is None or isinstance(found, str)
    return None if found == "fresh" else (found,)


RECORDS: dict[str, Callable[[bytes | None], Any]] = {
    "tuning": tuning, "ledger": ledger, "driver": driver, "listing": listing, "trial": trial,
}  # fmt: skip


@pytest.mark.parametrize("kind", RECORDS)
def test_edited_records_never_raise(kind: str) -> None:
    record = RECORDS[kind]
    content = record(None)
    assert record(content) is not None
    chance = random.Random(kind)
    absent = 0
    for _ in range(EDITS):
        data = deepcopy(json.loads(content))
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            edit_once(data, chance)
        absent += record(json.dumps(data).encode()) is None
    assert absent > 0
    assert record(content) is not None


BAD: dict[str, list[Any]] = {
    "tuning": [
        {"sittings": [[{"one": float("nan")}]]}, {"sittings": [[{"one": -1.0}]]}, {"sittings": [[{"one": 1e300}]]},
        {"sittings": [[{"one": "1"}]]}, {"sittings": [[{"one": True}]]}, {"winner": 3}, {"winner": None},
        {"kind": "thrice"}, {"refused": {"one": "it was wrong"}, "winner": "one"}, {"refused": {"one": 1}}, {"more": 1},
    ],
    "ledger": [
        {"ratios": {"juggling": {"a": 1.0}}}, {"ratios": {"loops": {"a": 1e300}}}, {"speed": {"launch": 1e300}},
        {"times": {"a": {"full": [1e300]}}}, {"times": {"a": {"f8": [1.0]}}}, {"times": {"a": {"full": [True]}}},
        {"version": True}, {"more": 1},
    ],
    "driver": [
        {"since": 1e300}, {"since": float("nan")}, {"since": -1.0}, {"since": "1"}, {"since": True}, {"more": {}},
        {"more": {"against": {"bf16": 3}}}, {"crashes": "text"}, {"refused": {"sort": 3}}, {"identity": "another"},
        {"device": "another"}, {"format": True}, {"programs": [["ab", "no"]]},
    ],
    "listing": [{"result": 3}, {"result": [3]}, {"result": None}, {"failure": 3}, {"more": 1}],
    "trial": [{"failure": 3}, {"failure": ["it died"]}, {"more": 1}],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), [(kind, change) for kind, changes in BAD.items() for change in changes])
def test_a_bad_record_is_as_if_absent(kind: str, change: Any) -> None:
    record = RECORDS[kind]
    data = json.loads(record(None))
    if "speed" in change:
        change = {"speed": data["speed"] | change["speed"]}
    assert record(json.dumps(data | change).encode()) is None


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff\xfe", b"null", b"9" * 5000, b'{"a": 1, "a": 1}'])
def test_a_file_of_another_kind_is_as_if_absent(kind: str, content: bytes) -> None:
    RECORDS[kind](None)
    assert RECORDS[kind](content) is None
