"""The command line."""

import json
import sys

import pytest

from yosegi import cli
from yosegi.bench.document import read
from yosegi.cli import main
from yosegi.device import Absent

QUICK = ["--sittings", "1", "--rounds", "2", "--seconds", "0.01", "--budget", "0", "--device", "cpu"]


def test_devices(capsys):
    assert main(["devices"]) == 0
    assert "cpu" in capsys.readouterr().out


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


def test_a_run_compared_with_itself_shows_no_difference(capsys, tmp_path):
    target = tmp_path / "run.json"
    main(["bench", *QUICK, "--filter", "overhead", "--json", str(target)])
    assert main(["bench", "compare", str(target), str(target)]) == 0
    assert "0 faster, 0 slower, 2 no difference" in capsys.readouterr().out


def test_a_run_can_be_told_in_words(capsys, tmp_path):
    target = tmp_path / "run.json"
    main(["bench", *QUICK, "--filter", "overhead", "--json", str(target)])
    assert main(["bench", "analyse", str(target), "--output", str(tmp_path / "run.md")]) == 0
    assert "The cost of a call" in (tmp_path / "run.md").read_text()


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
