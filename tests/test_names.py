"""NumPy's names: how many are here, that each reason is still true, and that the page is the newest."""

from __future__ import annotations

import inspect
from pathlib import Path

import names
import yosegi as ys


def test_nearly_all_of_numpys_names_are_here():
    assert names.share() >= 0.95


def test_every_name_that_is_not_here_has_a_reason():
    for name in names.counted():
        names.row(name)  # a name without one is a KeyError


def test_no_reason_is_given_for_a_name_that_is_here():
    assert [n for n in (*names.OTHER_NAMES, *names.REASONS) if names.found(n) is not None] == []


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


def test_the_page_tells_the_same():
    page = (Path(__file__).parents[1] / "docs" / "reference" / "names.md").read_text(encoding="utf-8")
    for name in names.counted():
        assert f"`{name}`" in page, f"docs/reference/names.md has nothing on {name}; run make names"


def test_dir_shows_the_public_names_alone():
    hidden = [n for n in dir(ys) if n.startswith("_") and not n.startswith("__")]
    assert hidden == []
    assert {"codegen", "ops", "_run"} & set(dir(ys)) == set()
    assert {"jit", "exp", "linalg", "float32", "bool"} <= set(ys.__all__)
