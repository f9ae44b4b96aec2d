"""The command line."""

import json
import signal
import sys

import pytest

from fakes import FakeDevice
from yosegi._run.device import Absent, devices
from yosegi._run.drivers import Driver, Verdict
from yosegi._run.memory import HOST
from yosegi.tools import cli
from yosegi.tools.bench import suite
from yosegi.tools.bench.document import read
from yosegi.tools.cli import main

QUICK = ["--sittings", "1", "--rounds", "2", "--seconds", "0.01", "--budget", "0", "--device", "cpu"]


def test_devices(capsys):
    assert main(["devices"]) == 0
    assert "cpu" in capsys.readouterr().out


def test_a_verdict_is_forgotten(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cli, "discovered", tuple)
    driver = Driver("some:0", "version 1")
    driver.qualified(lambda d: Verdict(failure="it crashed"))
    assert main(["devices", "--forget", "some:0"]) == 0
    assert capsys.readouterr().out.startswith("some:0: forgot 1 verdict\n")
    assert main(["devices", "--forget", "some:0"]) == 2
    assert "a device with a verdict to forget, got 'some:0'" in capsys.readouterr().err


class Wordy(FakeDevice):
    """A device that has much to say about itself."""

    description = "Gizmo 3000, 12 units, driver 7.1; no f16: its product was off by 3e-03 when it was tried here"


def test_devices_are_listed_in_a_line_each(capsys, monkeypatch):
    """A paragraph stood for each."""
    monkeypatch.setenv("COLUMNS", "80")
    absent = Absent("some:0", "it is not there;\ninstall yosegi[some]")
    monkeypatch.setattr(cli, "discovered", lambda: (Wordy(), *devices(), absent))
    assert main(["devices"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(devices()) + 2
    first, last = lines[0].split(), lines[-1].split()
    assert first[1:] == ["ready", "1.0", "/", "1.0", "GiB", "Gizmo", "3000,", "12", "units,", "driver", "7.1"]
    assert last == ["some:0", "absent", "it", "is", "not", "there;", "install", "yosegi[some]"]


def test_everything_about_a_device_is_shown_to_those_who_ask(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(cli, "discovered", lambda: (Wordy(), Absent("some:0", "it is not there")))
    assert main(["devices", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert Wordy.description in shown
    assert "bfloat16, bool, complex128" in shown
    assert "linear algebra" in shown
    assert "absent: it is not there" in shown


def test_a_device_in_the_hosts_memory_says_so(capsys, monkeypatch):
    tenant = FakeDevice()
    tenant.space = HOST
    monkeypatch.setattr(cli, "discovered", lambda: (tenant,))
    assert main(["devices"]) == 0
    assert "the host's" in capsys.readouterr().out


def test_what_to_install_is_shown_as_it_is_written(capsys, monkeypatch):
    """Brackets are markup to the table, and were left out."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cli, "discovered", lambda: (Absent("some:0", "it is not there; install yosegi[some]"),))
    assert main(["devices"]) == 0
    assert "install yosegi[some]" in capsys.readouterr().out


def test_bench_shows_and_writes_a_run(capsys, tmp_path):
    target = tmp_path / "run.json"
    assert main(["bench", *QUICK, "--filter", "overhead,add*1000", "--json", str(target)]) == 0
    document = read(target)
    assert {r.contender for r in document.results} == {"numpy", "cpu, jit", "cpu, plan cache"}
    assert all(r.status == "ok" for r in document.results)
    shown = capsys.readouterr().out
    assert "threads for everyone" in shown
    assert "peaks" in shown


def test_tables_are_whole_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["bench", *QUICK, "--filter", "overhead"]) == 0
    shown = capsys.readouterr().out
    assert "× NumPy's speed" in shown
    assert "cpu, plan cache" in shown
    assert "…" not in shown


def test_whoever_names_a_width_gets_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["devices"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.fixture(autouse=True)
def interrupts():
    """A process that was started in the background of a shell ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(monkeypatch, count):
    """A SIGINT comes in the middle of the sitting after so many."""
    sit, seen = suite._sit, []

    def sit_or_interrupt(*arguments):
        seen.append(1)
        if len(seen) > count:
            signal.raise_signal(signal.SIGINT)
        return sit(*arguments)

    monkeypatch.setattr(suite, "_sit", sit_or_interrupt)


def test_an_interrupted_bench_keeps_what_it_has_measured(capsys, monkeypatch, tmp_path):
    """Nothing was left of it."""
    interrupt_after(monkeypatch, 1)
    target = tmp_path / "run.json"
    assert main(["bench", *QUICK, "--filter", "add", "--json", str(target)]) == 130
    document = read(target)
    assert len({r.case for r in document.results}) == 1
    assert all(r.status == "ok" for r in document.results)
    assert document.settings["is_interrupted"]
    shown = capsys.readouterr()
    assert "threads for everyone" in shown.out
    assert shown.err == f"[bench] interrupted: 1 of 4 cases timed, written to {target}\n"


def test_a_bench_that_is_interrupted_before_its_first_time_writes_nothing(capsys, monkeypatch, tmp_path):
    interrupt_after(monkeypatch, 0)
    target = tmp_path / "run.json"
    assert main(["bench", *QUICK, "--filter", "overhead", "--json", str(target)]) == 130
    assert not target.exists()
    assert capsys.readouterr().err == "[bench] interrupted: no case timed\n"


def test_a_case_that_an_interrupt_cut_off_has_the_sittings_that_all_have(monkeypatch, tmp_path):
    sit, target = suite._sit, tmp_path / "run.json"

    def half(case, group, sitting, settings):
        sit(case, group[: 1 if sitting else None], sitting, settings)  # the second is one contender's alone
        if sitting:
            raise KeyboardInterrupt

    monkeypatch.setattr(suite, "_sit", half)
    arguments = ["bench", *QUICK, "--sittings", "3", "--filter", "overhead", "--json", str(target)]
    assert main(arguments) == 130
    results = read(target).results  # which refuses a case whose contenders sat together less often than alone
    assert [len(r.sittings) for r in results] == [1, 1, 1]


def test_any_command_that_is_interrupted_says_so_in_a_line(capsys, monkeypatch):
    monkeypatch.setattr(cli, "discovered", lambda: signal.raise_signal(signal.SIGINT))
    assert main(["devices"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_run_compared_with_itself_shows_no_difference(capsys, tmp_path):
    target = tmp_path / "run.json"
    main(["bench", *QUICK, "--filter", "overhead", "--json", str(target)])
    assert main(["bench", "compare", str(target), str(target)]) == 0
    assert "0 faster, 0 slower, 2 no difference" in capsys.readouterr().out


def test_a_run_can_be_told_in_words(capsys, tmp_path):
    target = tmp_path / "run.json"
    main(["bench", *QUICK, "--filter", "overhead", "--json", str(target)])
    assert main(["bench", "analyse", str(target), "--output", str(tmp_path / "run.md")]) == 0
    assert "Call overhead" in (tmp_path / "run.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--device", "abacus:0"], "expected one of"),
        (["bench", "--against", "abacus"], "expected peers among numpy, torch"),
        (["bench", "--filter", "no such case"], "expected a filter that some case matches"),
        (["bench", "compare", "nowhere.json", "nowhere.json"], "expected a file that can be read, got nowhere.json"),
    ],
)
def test_mistakes_are_told_in_a_line(capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_peer_that_is_not_installed_is_listed_with_what_brings_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)  # its import fails
    target = tmp_path / "run.json"
    assert main(["bench", *QUICK, "--filter", "overhead", "--against", "torch", "--json", str(target)]) == 0
    assert json.loads(target.read_text())["skipped"]["torch"].endswith("pip install torch")
    assert "torch: skipped, not installed" in capsys.readouterr().out


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["fly"])
    assert "invalid choice" in capsys.readouterr().err
