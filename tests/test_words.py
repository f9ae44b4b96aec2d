"""Words: docstrings and comments name the thing that they describe, in standard terms."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPENINGS = re.compile(r"(What|Whatever|Who|Whoever|The same)\b")
"""A docstring that begins like this names nothing, or leans on the one before it."""
ELLIPSES = re.compile(r"(Another|As|Back|In which|Nobody|Of|Somebody|That of|Those|To the)\b")
"""A description that begins like this is half a sentence. `FOLDERS` have none; they grow."""
FOLDERS = (
    "_tensor", "_graph", "_schedule", "_tune", "_place", "codegen/llvm", "codegen/scalar", "nn", "optim", "tools",
)  # fmt: skip
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


def mistakes(source: str, openings: Sequence[re.Pattern[str]] = (OPENINGS, ELLIPSES)) -> Iterator[str]:
    """The lines with an opening or a word to avoid."""
    for line, text in docstrings(source):
        if opening := next(filter(None, [known.match(text) for known in openings]), None):
            yield f"{line}: begins with {opening[0]!r}; name the thing"
    for line, text in (*docstrings(source), *comments(source)):
        for word in FORBIDDEN.findall(text):
            yield f"{line}: {word!r} has a standard term"


def test_docstrings_and_comments_use_standard_words():
    package = ROOT / "src/yosegi"
    found = []
    for file in sorted(package.rglob("*.py")):
        is_strict = file.relative_to(package).as_posix().startswith(FOLDERS)
        openings = (OPENINGS, ELLIPSES) if is_strict else (OPENINGS,)
        found += [f"{file.relative_to(ROOT)}:{m}" for m in mistakes(file.read_text(encoding="utf-8"), openings)]
    assert found == []


def test_pages_use_standard_words():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [
        f"{p.relative_to(ROOT)}: {word}" for p in pages for word in FORBIDDEN.findall(p.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_mistake_is_found():
    source = 'x = 1\n"""What it is."""\ny = 2  # whoever reads it\n"""A number, as told."""\nz = 3\n"""Of y."""\n'
    assert len(list(mistakes(source))) == 4
