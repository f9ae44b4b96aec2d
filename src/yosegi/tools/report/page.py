"""The page: sections, style and scripts in one file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import importlib
from functools import cache
from importlib import resources

from ...errors import ArgumentError
from ..bench.document import Document
from . import appendix, changes, fusion, placement, precision, roofline, speed, summary, theme
from .charts import CONFIG
from .digest import Digest
from .html import Markup, code_of, in_script, tag
from .parts import Section
from .units import when


def report(document: Document, before: Document | None = None) -> str:
    """A run as a page of HTML, compared with another run if one is given."""
    scripts = [in_script(libraries()), in_script(_file("page.js"))]
    digest = Digest(document)
    chapters = sections(digest, before)
    drawn = {"charts": {f.id: f.spec for s in chapters for f in s.figures}, "config": CONFIG}
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        _header(document, before),
        _contents(chapters),
        tag("main", *[s.html(digest.players) for s in chapters], id="main", tabindex="-1"),
        tag("footer", tag("p", "Made by ", tag("code", "yosegi report"), ". This page is one file and loads nothing.")),
        tag("script", Markup(in_script(code_of(drawn))), type="application/json", id="data"),
        *[tag("script", Markup(s), type="module") for s in scripts],
    )
    return f'<!DOCTYPE html>\n<html lang="en">{_head(document, scripts)}{body}</html>\n'


def sections(digest: Digest, before: Document | None = None) -> list[Section]:
    """The chapters, in order."""
    made = [summary.section(digest)]
    if before is not None:
        made.append(changes.section(digest, before))
    made += [part.section(digest) for part in (speed, roofline, fusion, precision, placement)]
    return [*made, appendix.machine(digest), appendix.results(digest)]


def _head(document: Document, scripts: list[str]) -> Markup:
    style = theme.rules() + _file("style.css")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"Yosegi benchmark, {document.machine['processor']}"),
        tag("style", Markup(style)),
    )


def policy(scripts: list[str]) -> str:
    """The permissions of the page: run these scripts and no other, and load nothing at all.

    The drawing library makes functions of its expressions, hence `unsafe-eval`; it is given no text of the run's to
    make them from.
    """
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{h}'" for h in hashes)
    rest = "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed} 'unsafe-eval'; {rest}"


def _header(document: Document, before: Document | None) -> Markup:
    against = f", against the run of {when(before.created)}" if before is not None else ""
    words = tag(
        "div",
        tag("p", "Yosegi", class_="brand"),
        tag("h1", "Benchmark report"),
        tag("p", f"{document.machine['processor']}, {when(document.created)}{against}", class_="sub"),
    )
    button = tag("button", "Dark", type="button", id="theme", aria_pressed="false", hidden=True)
    return tag("header", tag("div", class_="inlay", aria_hidden="true"), tag("div", words, button, class_="top"))


def _contents(chapters: list[Section]) -> Markup:
    items = [tag("li", tag("a", s.title, href=f"#{s.id}")) for s in chapters]
    note = tag(
        "noscript", "The charts need scripts, which are off here; the tables below each chart have the same figures."
    )
    return tag("nav", tag("ul", *items), note, aria_label="Contents")


@cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the package that brings them."""
    try:
        bundler = importlib.import_module("vl_convert")
    except ImportError as error:
        raise ArgumentError(
            f"[report] expected vl-convert-python, which brings what draws the charts ({error}); "
            'pip install "yosegi[report]"'
        ) from None
    bundle: str = bundler.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
