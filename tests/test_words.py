"""Words: docstrings and comments name the thing that they describe, in standard terms."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPENINGS = re.compile(r"(What|Whatever|Who|Whoever|The same)\b")
"""A docstring that begins like this names nothing, or leans on the one before it."""
FORBIDDEN = re.compile(r"\b(contest|laid|rivals?|steady|told|whoever)\b", re.IGNORECASE)
"""Words of the left column of the glossary that have a standard term."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Every string that stands alone: docstrings, and the descriptions of attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def mistakes(source: str) -> Iterator[str]:
    """The lines with an opening or a word to avoid."""
    for line, text in docstrings(source):
        if opening := OPENINGS.match(text):
            yield f"{line}: begins with {opening[0]!r}; name the thing"
    for line, text in (*docstrings(source), *comments(source)):
        for word in FORBIDDEN.findall(text):
            yield f"{line}: {word!r} has a standard term"


def test_docstrings_and_comments_use_standard_words():
    files = sorted((ROOT / "src").rglob("*.py"))
    assert [f"{f.relative_to(ROOT)}:{m}" for f in files for m in mistakes(f.read_text(encoding="utf-8"))] == []


def test_pages_use_standard_words():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [
        f"{p.relative_to(ROOT)}: {word}" for p in pages for word in FORBIDDEN.findall(p.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_mistake_is_found():
    source = 'x = 1\n"""What it is."""\ny = 2  # whoever reads it\n"""A number, as told."""\n'
    assert len(list(mistakes(source))) == 3
