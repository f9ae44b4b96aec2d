"""The programs of the gallery run, their assertions hold, and they print the words that the page shows."""

import re
import runpy
from pathlib import Path

import pytest

import yosegi as ys

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
SHOWN = dict(
    re.findall(
        r"gallery/(\w+\.py)\)\n.*?```text\n(.*?)```", (ROOT / "docs" / "gallery.md").read_text("utf-8"), re.DOTALL
    )
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_the_program(program, capsys):
    if "sklearn" in program.read_text(encoding="utf-8"):
        pytest.importorskip("sklearn", reason="its data, or its pipeline, is scikit-learn's")
    with ys.options(device="cpu"):
        runpy.run_path(str(program), run_name="__main__")
    assert _words(capsys.readouterr().out) == _words(SHOWN[program.name])


def test_the_page_shows_every_program():
    assert set(SHOWN) == {program.name for program in PROGRAMS}
    assert len(PROGRAMS) == 10


def _words(printed):
    """The output without its numbers, which the programs check themselves."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", printed).split()
