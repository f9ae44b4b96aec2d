"""HTML, safely: what is not markup already is escaped when it becomes part of an element."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any, Final

_EMPTY: Final = frozenset({"meta", "input", "br", "hr", "path", "circle", "rect", "line"})


class Markup(str):
    """Text that is HTML and stays as it is."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: Any) -> Markup:
    """An element. Underscores in the names of attributes are hyphens, one at the end is dropped.

    >>> tag("p", "a < b ", tag("b", "&"), class_="x")
    '<p class="x">a &lt; b <b>&amp;</b></p>'
    """
    text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY and not children:
        return Markup(f"<{name}{text}/>")
    return Markup(f"<{name}{text}>{joined(*children)}</{name}>")


def joined(*parts: str | None) -> Markup:
    """The parts one after another, as markup."""
    return Markup("".join(p if isinstance(p, Markup) else escape(p, quote=False) for p in parts if p is not None))


def code_of(value: Any) -> str:
    """Data as JSON that may stand inside of a script element.

    >>> code_of("</script>")
    '"\\\\u003c/script>"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def in_script(source: str) -> str:
    """Code that may stand inside of a script element: what would end it early is written otherwise, to the same effect.

    >>> in_script("x = '</script>'")
    "x = '<\\\\/script>'"
    """
    return re.sub(r"<(?=/script|!--)", r"<\\", source, flags=re.IGNORECASE)
