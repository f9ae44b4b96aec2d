"""Tables of the functions of NumPy, jax.numpy, torch and torch.nn.functional: each here under the same name, under
another one, or not here and why. `make names`.

Functions of NumPy's that are no business of a tensor library (files, text, dates, NumPy's settings), dtypes and
deprecated names do not count; they are listed with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import types
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import yosegi as ys
from names_reasons import NOT_COUNTED, REASONS
from yosegi._tensor.spellings import NAMES

PAGES = {"names.md": ("numpy", "jax.numpy"), "names-torch.md": ("torch", "torch.nn.functional")}
"""The pages, and the libraries on each."""

HOMES = {"torch.nn.functional": "nn."}
"""Namespaces here of libraries that are not for the main one."""


class Row(NamedTuple):
    """A function of another library: "same", "other" or "no", and its name here or the reason."""

    name: str
    kind: str
    text: str


def functions(module: Any) -> list[str]:
    """The public functions of a namespace: callables that are no classes, modules or dtypes."""
    return [
        name
        for name in sorted(set(getattr(module, "__all__", dir(module))))
        if not name.startswith("_")
        and callable(getattr(module, name, None))
        and not isinstance(getattr(module, name), (type, types.ModuleType))
        and type(getattr(module, name)).__name__ not in ("_ScalarMeta", "dtype")
    ]


def found(name: str) -> Any | None:
    """A function of this package by a name such as "nn.relu"."""
    at: Any = ys
    for part in name.split("."):
        at = getattr(at, part, None)
    return at


def matching(name: str, reasons: dict[str, str]) -> str | None:
    """The first reason with a pattern that fits a name."""
    return next((why for why, names in reasons.items() if any(fnmatchcase(name, p) for p in names.split())), None)


def row(library: str, name: str) -> Row:
    """The row of a function. A name that is not here has a reason, or this raises."""
    home = HOMES.get(library, "")
    here = found(home + name)
    if here is not None:
        own = getattr(here, "__name__", name)
        return Row(name, "same", "" if own == name or found(home + own) is not here else f"`ys.{home}{own}`")
    for space in ("", "nn.", "linalg.", "random."):
        if found(space + name) is not None:
            return Row(name, "other", f"`ys.{space}{name}`")
    if name in NAMES:
        advice = NAMES[name]
        return Row(name, "other", advice if {"and", "of", "or", "around"} & set(advice.split()) else f"`{advice}`")
    why = matching(name, REASONS[library])
    if why is None:
        raise LookupError(f"{library}.{name} is not here; implement it, or add its reason to names_reasons.py")
    return Row(name, "no", why)


def rows(library: str) -> list[Row]:
    """The rows of all functions of a library that count."""
    counted = [n for n in functions(importlib.import_module(library)) if matching(n, NOT_COUNTED) is None]
    return [row(library, name) for name in counted]


def share(library: str = "numpy") -> float:
    """The share of a library's functions that are here under the same name."""
    table = rows(library)
    return sum(r.kind == "same" for r in table) / len(table)


def missing_of(sub: str) -> list[str]:
    """The functions of one of NumPy's namespaces that are not here."""
    return [n for n in functions(getattr(np, sub)) if n != "test" and found(f"{sub}.{n}") is None]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def section(library: str) -> list[str]:
    """The part of a page on one library."""
    module = importlib.import_module(library)
    table = rows(library)
    numbers = {kind: sum(r.kind == kind for r in table) for kind in ("same", "other", "no")}
    version = importlib.import_module(library.partition(".")[0]).__version__
    same = [f"`{r.name}`" + (f" ({r.text})" if r.text else "") for r in table if r.kind == "same"]
    by_reason: dict[str, list[str]] = {}
    for r in table:
        if r.kind == "no":
            by_reason.setdefault(r.text, []).append(r.name)
    uncounted = {why: [n for n in functions(module) if matching(n, {why: p})] for why, p in NOT_COUNTED.items()}
    aside = "; ".join(f"{why}: {_listed(names)}" for why, names in uncounted.items() if names)
    return [
        f"## {library}",
        "",
        f"Version {version}. Of {len(table)} functions {numbers['same']} ({share(library):.1%}) are here under the "
        f"same name, {numbers['other']} under another name, {numbers['no']} are not here.",
        *(["", f"Not counted: {aside}."] if aside else []),
        "",
        "| other name | here |",
        "|---|---|",
        *[f"| `{r.name}` | {r.text} |" for r in table if r.kind == "other"],
        "",
        "| not here, because | |",
        "|---|---|",
        *[f"| {why} | {_listed(names)} |" for why, names in by_reason.items()],
        "",
        "Same name: " + ", ".join(same) + ".",
        "",
    ]  # fmt: skip


def page(name: str) -> str:
    """A page, as Markdown."""
    lines = [f"# Names of {' and '.join(PAGES[name])}", "", "Generated by `make names`.", ""]
    for library in PAGES[name]:
        lines += section(library)
    if "numpy" in PAGES[name]:
        lines += [f"`numpy.{sub}`: not here: {_listed(missing_of(sub)) or 'none'}." for sub in ("linalg", "fft")]
    return "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("docs/reference"))
    folder = parser.parse_args().folder
    for file, libraries in PAGES.items():
        (folder / file).write_text(page(file), encoding="utf-8")
        for library in libraries:
            print(f"{library}: {share(library):.1%} of the functions are here under the same name")
