"""A table of NumPy's main namespace: each function here, under another name, or not here and why. `make names`.

Functions that are no business of a tensor library (files, text, dates, NumPy's settings), classes, dtypes and
deprecated names are left out of the count; they are listed with the reason. `jax.numpy`, `torch` and
`torch.nn.functional` are counted too, if they are installed.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import types
from pathlib import Path
from typing import Any

import numpy as np

import yosegi as ys
from yosegi._tensor.spellings import NAMES

LEFT_OUT = {
    "files (`ys.save` and `ys.load` are for trees of tensors)": "fromfile fromregex fromstring genfromtxt load "
    "loadtxt save savetxt savez savez_compressed",
    "text": "array2string array_repr array_str base_repr binary_repr format_float_positional format_float_scientific "
    "get_printoptions info printoptions set_printoptions typename",
    "dates": "busday_count busday_offset datetime_as_string datetime_data is_busday isnat",
    "NumPy's settings": "get_include getbufsize geterr geterrcall setbufsize seterr seterrcall show_config "
    "show_runtime test",
    "deprecated or for the matrix class": "asmatrix bmat mintypecode row_stack",
}
"""Names that do not count, by reason."""

OTHER_NAMES = {
    "copyto": "`x.at[...].set(values)`",
    "fill_diagonal": "`x.at[ys.diag_indices(n)].set(value)`",
    "put": "`x.at[...].set(values)`",
    "putmask": "`x.at[mask].set(values)`, `ys.where`",
    "require": "`ys.asarray`",
}
"""Functions that write in place, or ask for a memory layout: tensors are values, and have none."""

REASONS = {
    "apply_along_axis": "calls a Python function for each slice; functions here take `axis=`",
    "apply_over_axes": "functions here take several axes at once",
    "asarray_chkfinite": "would wait for the values; `ys.all(ys.isfinite(x))`",
    "einsum_path": "`ys.einsum` has no order to choose",
    "frompyfunc": "calls a Python function for each element",
    "isfortran": "tensors have no memory order",
    "may_share_memory": "tensors are values: no write shows through another",
    "min_scalar_type": "the dtype would depend on a value",
    "nested_iters": "a Python loop over elements",
    "place": "writes into its argument, and tensors are values; `ys.where` or `x.at[mask].set`",
    "real_if_close": "the dtype would depend on values; `ys.real`",
    "shares_memory": "tensors are values: no write shows through another",
}
"""Why a function is not here."""

PEERS = ("jax.numpy", "torch", "torch.nn.functional")


def functions(module: Any) -> list[str]:
    """The public functions of a namespace: what can be called and is no class, module or dtype."""
    return [
        name
        for name in sorted(dir(module))
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


def row(name: str) -> tuple[str, str]:
    """Where a function of NumPy's is: "here", "other" or "no", and a word on it."""
    here = found(name)
    if here is not None:
        own = getattr(here, "__name__", name)
        return "here", "" if own == name or found(own) is not here else f"the same as `ys.{own}`"
    if name in OTHER_NAMES:
        return "other", OTHER_NAMES[name]
    return "no", REASONS[name]


def left_out() -> set[str]:
    """The names that do not count."""
    return {name for names in LEFT_OUT.values() for name in names.split()}


def counted() -> list[str]:
    """NumPy's functions that count."""
    return [name for name in functions(np) if name not in left_out()]


def share() -> float:
    """The share of NumPy's functions that are here under the same name."""
    names = counted()
    return sum(row(name)[0] == "here" for name in names) / len(names)


def peer_lines(name: str) -> list[str]:
    """A line on another library: how many of its functions are here, and which are not."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return []
    if name == "torch":
        public = [n for n in functions(module) if not n.endswith("_") and hasattr(module, n) and _is_tensor_function(n)]
    else:
        public = functions(module)
    public = [n for n in public if n not in left_out()]
    here = [n for n in public if _has(n)]
    missing = ", ".join(f"`{n}`" for n in public if n not in here)
    return ["", f"## {name}", "", f"{len(here)} of {len(public)} names are here. Not here: {missing}."]


def _has(name: str) -> bool:
    other = NAMES.get(name, name).removeprefix("ys.")
    return any(found(each) is not None for each in (name, f"nn.{name}", f"linalg.{name}", f"random.{name}", other))


def _is_tensor_function(name: str) -> bool:
    """True for PyTorch's functions of tensors: its namespace also has those of its compiler and of its backends."""
    import torch

    prefixes = ("cudnn_", "miopen_", "mkldnn_", "quantized_", "fbgemm_", "q_", "fake_quantize", "is_", "set_", "get_")
    function = getattr(torch, name)
    return inspect.isbuiltin(function) and not name.startswith(prefixes) and hasattr(torch.Tensor, name)


def missing_of(sub: str) -> list[str]:
    """The functions of one of NumPy's namespaces that are not here."""
    return [n for n in functions(getattr(np, sub)) if n != "test" and found(f"{sub}.{n}") is None]


def page() -> str:
    """The whole page, as Markdown."""
    names = counted()
    rows = {name: row(name) for name in names}
    numbers = {kind: sum(r[0] == kind for r in rows.values()) for kind in ("here", "other", "no")}
    lines = [
        "# NumPy's names",
        "",
        f"Made by `make names`, with NumPy {np.__version__}. Of {len(names)} functions in NumPy's main namespace "
        f"{numbers['here']} ({share():.1%}) are here under the same name, {numbers['other']} have another one, "
        f"{numbers['no']} are not here.",
        "",
        "Left out of the count: " + "; ".join(f"{why} ({', '.join(n.split())})" for why, n in LEFT_OUT.items()) + ".",
        "",
        "| not here under its name | instead, or why not |",
        "|---|---|",
        *[f"| `{name}` | {text} |" for name, (kind, text) in rows.items() if kind != "here"],
        "",
        "## Here",
        "",
        ", ".join(f"`{n}`" + (f" ({text})" if text else "") for n, (kind, text) in rows.items() if kind == "here")
        + ".",
    ]
    for sub in ("linalg", "fft"):
        lines += ["", f"`numpy.{sub}`: all functions but {', '.join(missing_of(sub)) or 'none'}."]
    for peer in PEERS:
        lines += peer_lines(peer)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/reference/names.md"))
    given = parser.parse_args()
    given.output.write_text(page(), encoding="utf-8")
    print(f"{share():.1%} of NumPy's main namespace is here; {given.output} has the table")
