"""Settings of Sphinx for `make docs`: Markdown pages, and reference pages from the docstrings of the live package."""

import ast
import importlib
import inspect
import re
from itertools import chain
from operator import attrgetter
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import yosegi

project = "Yosegi"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "Yosegi"
html_show_copyright = False
default_role = "code"
autodoc_typehints = "none"  # the docstrings name the types
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_ambiguous"]

_PROTECTED = re.compile(r"(``[^`]*``|`[^`]*`)")


class Functions(SphinxDirective):
    """The public functions that a module defines: `{functions} yosegi.ops.shape`, with the namespace as content."""

    required_arguments = 1
    has_content = True
    of_classes = False

    def run(self) -> list[nodes.Node]:
        """One `autofunction` or `autoclass` for each."""
        module = importlib.import_module(self.arguments[0])
        public = "".join(self.content) or "yosegi"
        namespace = yosegi if public == "yosegi" else attrgetter(public.removeprefix("yosegi."))(yosegi)
        names = _defined(module) if namespace is not module else getattr(module, "__all__", _defined(module))
        shown = [n for n in names if getattr(namespace, n, None) is getattr(module, n, ...)]
        shown = [n for n in shown if _is_shown(module, n) and isinstance(getattr(module, n), type) == self.of_classes]
        kind = "autoclass" if self.of_classes else "autofunction"
        lines = ["```{eval-rst}", *chain(*((f".. {kind}:: {public}.{name}", "") for name in shown)), "```"]
        return self.parse_text_to_nodes("\n".join(lines))


class Classes(Functions):
    """The public classes that a module defines: `{classes} yosegi.nn.layers.linear`."""

    of_classes = True


def _defined(module: ModuleType) -> list[str]:
    """The names that a module defines, in order; imported names are left out."""
    found = []
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            found.append(statement.name)
        elif isinstance(statement, ast.Assign):
            found += [n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return found


def _is_shown(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return not name.startswith("_") and callable(value) and bool(value.__doc__)


def _escaped(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: stars, bars and trailing underscores are no markup, except in examples."""
    in_example = False
    for n, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            parts = _PROTECTED.split(line)
            parts[::2] = [re.sub(r"([*|]|_\b)", r"\\\1", part) for part in parts[::2]]
            lines[n] = "".join(parts)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("functions", Functions)
    app.add_directive("classes", Classes)
    app.connect("autodoc-process-docstring", _escaped, priority=400)  # before napoleon's
