"""Names of other libraries: how many are here, that each reason is still true, and that the pages are the newest."""

from __future__ import annotations

import inspect
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest

import names
import yosegi as ys
from names_reasons import NUMPY, REASONS, TORCH

LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name.partition(".")[0]) is None, reason=f"no {name}"))
    for name in REASONS
]


def test_nearly_all_of_numpys_names_are_here():
    assert names.share() >= 0.95


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_name_that_is_not_here_has_a_reason(library):
    assert names.rows(library)  # a name without one is a LookupError


@pytest.mark.parametrize(("reasons", "libraries"), [
    pytest.param(NUMPY, ["numpy"], id="numpy"),
    pytest.param(TORCH, ["torch", "torch.nn.functional"], id="torch"),
])  # fmt: skip
def test_every_reason_is_for_a_name_that_is_not_here(reasons, libraries):
    pytest.importorskip(libraries[0])
    absent = {r.name for library in libraries for r in names.rows(library) if r.kind == "no"}
    patterns = [p for text in reasons.values() for p in text.split()]
    assert [p for p in patterns if not any(fnmatchcase(name, p) for name in absent)] == []


def test_linalg_and_fft_are_whole():
    assert names.missing_of("linalg") == []
    assert names.missing_of("fft") == []


def test_every_public_function_has_a_docstring():
    missing = [
        f"{space.__name__}.{name}"
        for space in (ys, ys.linalg, ys.fft, ys.nn, ys.random)
        for name in dir(space)
        if not name.startswith("_")
        and name not in ("Callable",)
        and callable(getattr(space, name))
        and not inspect.getdoc(getattr(space, name))
    ]
    assert missing == []


@pytest.mark.parametrize("file", names.PAGES)
def test_the_page_is_the_newest(file):
    """Up to the versions of the libraries, which need not be those that the page was made with."""
    for library in names.PAGES[file]:
        pytest.importorskip(library)
    page = (Path(__file__).parents[1] / "docs" / "reference" / file).read_text(encoding="utf-8")
    for library in names.PAGES[file]:
        for row in names.rows(library):
            assert f"`{row.name}`" in page, f"docs/reference/{file} has nothing on {row.name}; run make names"


def test_dir_shows_the_public_names_alone():
    hidden = [n for n in dir(ys) if n.startswith("_") and not n.startswith("__")]
    assert hidden == []
    assert {"codegen", "ops", "_run"} & set(dir(ys)) == set()
    assert {"jit", "exp", "linalg", "float32", "bool"} <= set(ys.__all__)
