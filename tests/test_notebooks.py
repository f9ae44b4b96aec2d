"""The tutorial runs as a notebook, and the notebook in the docs is that of the page."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("nbclient", reason="nbclient runs notebooks")
pytest.importorskip("ipykernel", reason="ipykernel runs Python in notebooks")
notebooks = pytest.importorskip("notebooks")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("YOSEGI_DEVICE", "cpu")


def outputs(cell):
    return "".join(o.get("text", "") + o.get("data", {}).get("text/html", "") for o in cell["outputs"])


def test_the_tutorial_runs(page):
    made = notebooks.notebook(page)
    notebooks.execute(made)
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    shown = {cell["source"].splitlines()[-1]: outputs(cell) for cell in code}
    assert "True True" in shown["print(float(value) < 0.2, float(accuracy) > 0.93)"]
    fields = [outputs(cell) for cell in code if cell["source"].endswith("field")]
    assert "not computed yet" in fields[0]
    assert "<img" in fields[1]
    assert "on cpu" in shown["plan"]


def test_the_notebook_of_the_docs_is_up_to_date(page):
    kept = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in kept["cells"]]
    assert sources == [cell["source"] for cell in notebooks.notebook(page)["cells"]], "make notebooks"


def test_messages_are_no_errors_in_a_notebook():
    made = notebooks.notebook("```python\nfrom yosegi._run.progress import show\n\nshow('at work')\n```\n")
    notebooks.execute(made)
    (output,) = made["cells"][0]["outputs"]
    assert output["output_type"] == "display_data"
    assert "yosegi: at work" in output["data"]["text/html"]
