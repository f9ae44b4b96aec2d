"""The tutorial as a notebook: `python tests/notebooks.py` writes docs/tutorial.ipynb, executed, and pictures of it.

The source is docs/tutorial.md. Its text and its blocks of Python become cells. The blocks of expected output are left
out: the notebook has the output of its own run. Pictures need chromium and chromium-driver.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parent / "report"))
from browser import browser, missing, picture, prefer, set_size, settle

DOCS: Final = Path(__file__).parents[1] / "docs"
BLOCK: Final = re.compile(r"```(python|text)\n(.*?)\n```\n", re.DOTALL)
REMOTE: Final = re.compile(r"<script[^>]*(?:src=|type=\"module\">).*?</script>", re.DOTALL)
"""Scripts from a network, for formulas and diagrams. The pictures need none."""
THEMES: Final = {"light": (900, 1250), "dark": (900, 1250)}
"""The pictures: the width and height of each."""


def notebook(markdown: str) -> Any:
    """A page as a notebook that has not run."""
    cells = []
    parts = BLOCK.split(markdown)  # text, then language, code, text, and so on
    for n in range(0, len(parts), 3):
        if parts[n].strip():
            cells.append(nbformat.v4.new_markdown_cell(parts[n].strip()))
        if n + 1 < len(parts) and parts[n + 1] == "python":
            cells.append(nbformat.v4.new_code_cell(parts[n + 2]))
    for n, cell in enumerate(cells):
        cell["id"] = f"cell-{n}"  # the same in every run
    return nbformat.v4.new_notebook(cells=cells)


def execute(made: Any) -> None:
    """Run a notebook in a folder of its own: a page may write files."""
    with TemporaryDirectory() as folder:
        NotebookClient(made, timeout=300, resources={"metadata": {"path": folder}}, record_timing=False).execute()


def photograph(made: Any, folder: Path) -> None:
    """Write notebook-light.png and notebook-dark.png, from the end of the notebook."""
    from nbconvert import HTMLExporter

    with TemporaryDirectory() as pages, browser() as driver:
        for theme, (width, height) in THEMES.items():
            page = Path(pages) / f"{theme}.html"
            html = HTMLExporter(theme=theme).from_notebook_node(made)[0]
            page.write_text(REMOTE.sub("", html), encoding="utf-8")
            prefer(driver, theme)
            set_size(driver, width, height)
            driver.get(page.as_uri())
            driver.execute_script("document.getElementById('In-a-notebook').scrollIntoView()")
            settle(driver)
            picture(driver, folder / f"notebook-{theme}.png")


def main() -> int:
    """Write the notebook and its pictures."""
    made = notebook((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    execute(made)
    nbformat.write(made, DOCS / "tutorial.ipynb")
    reason = missing()
    if reason is not None:
        print(f"no pictures: {reason}", file=sys.stderr)
        return 2
    photograph(made, DOCS / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
