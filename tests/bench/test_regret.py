"""The regret benchmark: what it runs, what it says, and that its figures are what they are called."""

import json
from dataclasses import replace

import pytest

import yosegi as ys
import yosegi.tools.bench.regret as regret
from yosegi.errors import ArgumentError
from yosegi.tools.bench.programs import programs
from yosegi.tools.cli import main


def outcome(program, auto, **devices):
    seconds = {"auto": auto, **devices}
    return regret.Outcome(program, "products", ("one",), {d: ((s, s * 1.1, s * 0.9),) * 2 for d, s in seconds.items()})


RUN = regret.Run(
    "2026-11-15T00:00:00+00:00",
    {"processor": "an abacus", "devices": [{"name": "one", "description": "a bead"}]},
    ("one", "two"),
    (
        outcome("a", 1.0, one=1.0, two=4.0),
        outcome("b", 1.2, one=4.0, two=1.0),
        outcome("c", 0.5, one=1.0, two=1.0),
        outcome("d", 1.0, one=1.0, two=1.0),
    ),
)


def test_regret_is_the_time_over_that_of_the_best_device():
    assert [o.best for o in RUN.outcomes[:2]] == ["one", "two"]
    assert [round(o.regret.median, 6) for o in RUN.outcomes] == [1.0, 1.2, 0.5, 1.0]
    assert RUN.within == 0.75
    assert RUN.worst.program == "b"
    assert RUN.gain_over("one") == pytest.approx((1.0 * (4 / 1.2) * 2 * 1) ** 0.25)


def test_a_run_is_written_and_read(tmp_path):
    path = tmp_path / "run.json"
    RUN.write(path)
    assert regret.read(path) == RUN


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}', '{"format": "yosegi-regret"}'])
def test_a_file_that_is_something_else_is_refused(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"\[regret\] expected a file that yosegi regret --json wrote"):
        regret.read(path)
    assert main(["regret", str(tmp_path / "nothing.json")]) == 2


def test_the_bar():
    good = replace(RUN, outcomes=(RUN.outcomes[0], *RUN.outcomes[2:]))
    assert not RUN.is_good
    assert good.is_good
    assert not replace(RUN, outcomes=(*good.outcomes * 20, outcome("far", 1.3, one=1.0))).is_good, "one is beyond 1.2"
    assert replace(RUN, outcomes=(*good.outcomes * 20, outcome("near", 1.15, one=1.0))).is_good


def test_a_hopeless_device_is_timed_once():
    only = replace(outcome("a", 1.0, one=1.0), hopeless={"two": 7.0})
    assert (only.best, only.ratio("two", "auto")) == ("one", 7.0)
    run = replace(RUN, outcomes=(only,))
    assert "| a | one | one | 1000.000 ms | 1000.000 ms | 7000.000 ms |" in regret.page([run])


def test_programs_are_chosen_by_name_and_in_parts():
    names = [p.name for p in programs()]
    assert [p.name for p in regret._chosen("")] == names
    assert [p.name for n in (1, 2, 3) for p in regret._chosen(f"{n}/3")] == names
    assert [p.name for p in regret._chosen("einsum;softmax")] == ["softmax", "einsum"]
    assert not regret._chosen("4/3")


def test_parts_of_a_run_are_joined():
    parts = [replace(RUN, outcomes=RUN.outcomes[:1]), replace(RUN, outcomes=RUN.outcomes[1:])]
    other = replace(RUN, devices=("one",))
    assert regret.joined([*parts, other]) == [RUN, other]
    assert regret.joined([RUN, RUN]) == [RUN, RUN], "the same programs twice are two runs"


def test_the_page_says_which_plans_are_the_same(tmp_path):
    same = replace(outcome("b", 1.2, one=1.0, two=4.0), alike=("one",))
    run = replace(RUN, outcomes=(same,))
    text = regret.page([run])
    assert "Above 1.05: b (1.20, same plan)." in text
    assert "| b | one | same | 1200.000 ms |" in text
    run.write(tmp_path / "run.json")
    assert regret.read(tmp_path / "run.json") == run


def test_a_regret_near_a_limit_is_open():
    def around(*ratios):
        seconds = {"auto": tuple((r, r) for r in ratios), "one": ((1.0, 1.0),) * len(ratios)}
        return regret.Outcome("a", "products", ("one",), seconds)

    assert not around(1.0, 1.01, 1.02, 1.0).is_open
    assert around(1.0, 1.1, 1.02, 1.08).is_open
    assert not around(1.1, 1.11, 1.12, 1.1).is_open
    assert around(1.1, 1.3, 1.25, 1.15).is_open


def test_ratios_are_of_the_sittings_that_both_had():
    seconds = {"auto": ((1.0,), (2.0,), (9.0,)), "one": ((1.0,), (1.0,)), "two": ((0.5,), (1.0,), (9.0,))}
    only = regret.Outcome("a", "products", ("one",), seconds)
    assert only.ratio("auto", "one") == 1.5
    assert only.ratio("auto", "two") == 2.0


def test_the_page_says_what_the_figures_say(tmp_path, capsys):
    path, output = tmp_path / "run.json", tmp_path / "regret.md"
    RUN.write(path)
    assert main(["regret", str(path), "--output", str(output)]) == 1, "three of four are not enough"
    text = output.read_text()
    assert "| 75.0% |" in text
    assert "| 1.20 (b) |" in text
    assert "Above 1.05: b (1.20)." in text
    assert "| b | one | two | 1200.000 ms | 4000.000 ms | 1000.000 ms | 1.20 (1.20 – 1.20) |" in text
    assert main(["regret", str(path)]) == 1
    assert "an abacus" in capsys.readouterr().out


def test_there_are_programs_of_every_kind():
    names = [p.name for p in programs()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert {p.family for p in programs()} == {
        "elementwise", "products", "reductions", "layers", "networks", "models", "mixed", "an op is missing",
    }  # fmt: skip


@pytest.mark.parametrize("program", [p for p in programs() if p.size < 100_000], ids=str)
def test_programs_run(program):
    function, inputs = program.prepared()
    with ys.options(device="cpu"):
        for result in regret._call(ys.jit(function), inputs):
            assert result.size


def test_programs_are_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(regret, "_ROUNDS", 2)
    monkeypatch.setattr(regret, "_MOST_SITTINGS", 3)
    said = []
    run = regret.measure("product, 32", said.append, sittings=2)
    (only,) = run.outcomes
    assert {*only.seconds, *only.hopeless} == {"auto", *[d.name for d in ys.devices()]}
    assert only.runs == 200
    assert all(len(sittings) >= 2 for sittings in only.seconds.values())
    assert "cpu" in only.alike, "the plan of the host is the plan of auto"
    assert only.placed == ("cpu",)
    assert "sitting 2 of 2" in said
    path = tmp_path / "run.json"
    run.write(path)
    assert json.loads(path.read_text())["format"] == regret.FORMAT
    with pytest.raises(ArgumentError, match="expected a part of some program's name"):
        regret.measure("juggling")


def test_who_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(regret, "agree", lambda ours, theirs: False)
    with pytest.raises(ArgumentError, match="expected equal results of 'product, 32' everywhere"):
        regret.measure("product, 32")
