"""`yosegi doctor`: what it finds out, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeDevice
from yosegi._run.device import Absent, host_device
from yosegi.devices.kernel import qualification
from yosegi.tools import cli, doctor
from yosegi.tools.bench import suite
from yosegi.tools.bench.suite import Settings


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two families of programs and one case of the benchmark."""
    monkeypatch.setattr(doctor, "families", lambda dtypes: ["products float32", "loops float32"])
    monkeypatch.setattr(doctor, "_QUICK_CASES", "elementwise/add/*/1000")
    monkeypatch.setattr(doctor, "calibrate", lambda chosen, seconds: {})


def test_a_machine_that_is_well() -> None:
    told: list[str] = []
    found = doctor.diagnose([host_device(), Absent("some:0", "it is not there")], quick=True, tell=told.append)
    host, absent = found.findings
    assert found.is_well
    assert host.families == {"products float32": None, "loops float32": None}
    assert (absent.name, absent.absent) == ("some:0", "it is not there")
    assert {r.case for r in found.bench.results} == {"elementwise/add/float32/1000"}
    assert any(line.startswith("cpu: ") for line in told)


class Wrong(FakeDevice):
    """A device that adds one to every result."""

    def compile(self, region: Any) -> Any:
        kernel = super().compile(region)

        def run(*data: Any) -> Any:
            return tuple(self.from_host(self.to_host(made) + 1) for made in kernel(*data))

        return run


def test_a_device_that_computes_something_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = Wrong()
    monkeypatch.setattr(suite, "run", lambda settings: _nothing(settings))
    found = doctor.diagnose([device], quick=True, tell=lambda line: None)
    assert not found.is_well
    assert set(found.findings[0].mistakes) == {"products float32", "loops float32"}


def _nothing(settings: Settings) -> Any:
    """A run of no cases."""
    return suite.Document("", {"processor": "none", "threads": 1}, {}, {}, ())


def test_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "discovered", lambda: (host_device(), Absent("some:0", "it is <not> there")))
    assert cli.main(["doctor", "--quick", "--output", str(tmp_path / "found")]) == 0
    data = json.loads((tmp_path / "found.json").read_text())
    page = (tmp_path / "found.html").read_text()
    assert [d["name"] for d in data["devices"]] == ["cpu", "some:0"]
    assert data["bench"]["results"]
    assert "some:0" in page
    assert "it is &lt;not&gt; there" in page
    assert str(tmp_path / "found.html") in capsys.readouterr().out


def test_a_place_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "discovered", lambda: (host_device(),))
    assert cli.main(["doctor", "--quick", "--output", "/no/such/folder/found"]) == 2
    assert "[doctor] expected a place that can be written" in capsys.readouterr().err


def test_the_cases_are_there() -> None:
    chosen = [c for c in suite.cases() if suite.matches(c, doctor._CASES)]
    assert {c.suite for c in chosen} == {"matmul", "elementwise", "reduction", "transfer", "patterns"}
    sizes = {name: [c.size for c in chosen if c.name == name] for name in {c.name for c in chosen}}
    squares, patterns, others = [64, 128, 256, 512, 1024], [128, 256, 512, 1024], [1000, 10_000, 100_000, 1_000_000]
    for name in ("add", "multiply", "relu", "gelu", "sum", "upload", "download"):
        assert sizes.pop(name) == others
    assert sizes.pop("matmul") == squares
    assert list(sizes.values()) == [patterns] * 7  # the fused patterns, each also as separate kernels
    assert doctor._SQUARES == (64, 256, 1024)
    assert qualification.families(host_device().limits.dtypes)
