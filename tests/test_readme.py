"""The code of the READMEs and of all pages runs, and prints what they say it prints."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from yosegi._tensor.op import REGISTRY

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
PAGES = ["README.md", "README.ja.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a page may write files
    declared = set(REGISTRY)
    names: dict[str, object] = {"__name__": "page"}
    for code, expected in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        if expected:
            assert re.fullmatch(_pattern(expected), printed.getvalue()), printed.getvalue()
    for name in set(REGISTRY) - declared:  # a page may declare an op of its own
        del REGISTRY[name]


def test_the_japanese_readme_has_the_same_code_and_links():
    english, japanese = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "README.ja.md"))
    links = re.compile(r"\]\((docs/[^)]*)\)")
    assert [code.split("#")[0] for code in _lines(english)] == [code.split("#")[0] for code in _lines(japanese)]
    assert sorted(links.findall(english)) == sorted(links.findall(japanese))


def _lines(text):
    """The lines of all blocks of code and output."""
    return [line for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def _pattern(expected):
    """What a page says is printed; a line of dots stands for lines that depend on the machine."""
    return "".join("(?:.*\\n)*" if line.strip() == "…" else re.escape(line) for line in expected.splitlines(True))


def test_links_lead_somewhere():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_demo_runs():
    """The first of the two commands that the README begins with."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step +\d+ +loss (\S+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < 0.1 * losses[0]


def test_the_pipeline_page_lists_every_file():
    page = (ROOT / "docs" / "explanation" / "pipeline.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(../../(src/yosegi/[^)]*\.py)\)", page))
    files = {p.relative_to(ROOT).as_posix(): p for p in (ROOT / "src" / "yosegi").rglob("*.py")}
    named = {name for name, path in files.items() if path.name != "__init__.py" or "def " in path.read_text("utf-8")}
    assert named - linked == set(), "add a row for each of these files"
