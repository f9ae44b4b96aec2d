"""Docstrings of the public namespace: complete, and with examples that run."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import yosegi as ys

NOT_OPS = (
    "Plan", "calibrate", "checkpoint", "custom_vjp", "deterministic", "devices", "eval", "eval_shape", "explain",
    "grad", "hessian", "jacfwd", "jacobian", "jacrev", "jit", "jvp", "linearize", "load_plan", "memory_stats",
    "options", "plan", "profile", "stop_gradient", "synchronize", "tree_map", "value_and_grad", "vjp", "vmap",
)  # fmt: skip
"""The public functions that evaluate, transform or configure."""
METHODS = ("astype", "block_until_ready", "copy", "flatten", "item", "numpy", "reshape", "to_device", "tolist")
NAMESPACES = {"ys": ys, "ys.nn": ys.nn, "ys.linalg": ys.linalg, "ys.fft": ys.fft, "ys.random": ys.random,
              "ys.debug": ys.debug, "ys.nn.init": ys.nn.init, "ys.optim": ys.optim,
              "ys.training": ys.training, "ys.distributed": ys.distributed}  # fmt: skip


def public(namespace):
    """The public callables of a namespace, by name. Ops are objects, which pytest's own collection does not see."""
    names = getattr(namespace, "__all__", dir(namespace))
    found = {n: getattr(namespace, n) for n in names if not n.startswith("_")}
    return {n: v for n, v in found.items() if callable(v) and v.__module__.startswith("yosegi")}


NN = sorted(public(ys.nn))
DOCUMENTED = {
    **{f"ys.{name}": getattr(ys, name) for name in NOT_OPS},
    **{f"Tensor.{name}": getattr(ys.Tensor, name) for name in METHODS},
    **{f"ys.nn.{name}": getattr(ys.nn, name) for name in NN},
    **{f"ys.nn.init.{name}": value for name, value in public(ys.nn.init).items()},
    **{f"ys.optim.{name}": value for name, value in public(ys.optim).items()},
    **{f"ys.training.{name}": value for name, value in public(ys.training).items()},
    **{f"ys.distributed.{name}": value for name, value in public(ys.distributed).items()},
}
WITH_EXAMPLES = {
    f"{space}.{name}": value
    for space, namespace in NAMESPACES.items()
    for name, value in public(namespace).items()
    if not inspect.isclass(value) and ">>>" in (value.__doc__ or "")
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_is_complete(name):
    """A summary, the parameters, the result, and examples or a link to them."""
    value = DOCUMENTED[name]
    text = inspect.cleandoc(value.__doc__ or "")
    summary, _, rest = text.partition("\n\n")
    assert summary.endswith("."), "the summary is one paragraph that ends with a full stop"
    parameters = [p for p in inspect.signature(value).parameters.values() if p.name != "self"]
    if not inspect.isclass(value):
        assert ("Parameters\n-------" in rest) == bool(parameters)
        for parameter in parameters:
            assert parameter.name in rest, f"{parameter.name} is not described"
    assert "Examples\n------" in rest


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(inspect.cleandoc(WITH_EXAMPLES[name].__doc__), {}, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


def test_examples_of_ops_are_found():
    """Ops are objects: `--doctest-modules` does not run their examples, this file does."""
    assert {"ys.nn.relu", "ys.nn.conv2d", "ys.nn.max_pool1d"} <= set(WITH_EXAMPLES)


def test_the_reference_has_every_public_function():
    pages = Path(__file__).parents[1] / "docs" / "reference"
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages.glob("*.md"))
    documented = r"auto(?:function|class):: yosegi\.(?:(?:optim|training|distributed)\.)?(\w+)$"
    shown = set(re.findall(documented, text, re.MULTILINE))
    modules = [importlib.import_module(name) for name in re.findall(r"```{functions} (\S+)", text)]
    for namespace in (ys, ys.nn, ys.optim, ys.training, ys.distributed):
        functions = {n: v for n, v in public(namespace).items() if not inspect.isclass(v) and n not in shown}
        missing = {n for n, v in functions.items() if not any(v is getattr(m, n, None) for m in modules)}
        assert missing == set(), "name their module in a page of docs/reference"


def test_the_reference_has_every_layer():
    text = (Path(__file__).parents[1] / "docs" / "reference" / "nn.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"```{classes} (\S+)", text))
    missing = {n for n, v in public(ys.nn).items() if inspect.isclass(v) and v.__module__ not in shown}
    assert missing == set(), "name their module in docs/reference/nn.md"
