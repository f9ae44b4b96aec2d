"""The layering holds, and the test of it can fail."""

import shutil
from pathlib import Path

import pytest

import yosegi
from layers import breaches

PACKAGE = Path(yosegi.__file__).parent


def _lines(file):
    return len((PACKAGE / file).read_text(encoding="utf-8").splitlines())


def test_the_package_keeps_its_layers():
    assert list(breaches(PACKAGE)) == []


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("_tensor/dtype.py", "from .tensor import Tensor", "_tensor.dtype: imports _tensor.tensor, which is below it"),
        ("_tensor/op.py", "from .._run.run import evaluate", "_tensor.op: imports _run.run, which is below it"),
        ("ops/shape.py", "from .reduce import sum", "ops.shape: imports ops.reduce, which is below it"),
        ("ops/shape.py", "from .._graph.graph import capture", "ops.shape: imports _graph.graph, which is below it"),
        ("_run/run.py", "import yosegi._trace.jit", "_run.run: imports _trace.jit, which is below it"),
        (
            "_place/place.py",
            "from ..devices.cpu import discover",
            "_place.place: imports devices.cpu, which is below it",
        ),
        ("_place/place.py", "PREFERRED = 'cuda:0'", "_place.place: names the device 'cuda'"),
        (
            "_tensor/dtype.py",
            "from yosegi._run.run import run_plan",
            "_tensor.dtype: imports _run.run, which is below it",
        ),
        ("_tensor/dtype.py", "from yosegi._run import run", "_tensor.dtype: imports _run.run, which is below it"),
        ("_graph/graph.py", "def to_metal(): pass", "_graph.graph: names the device 'metal'"),
        ("_graph/graph.py", "class Cuda: pass", "_graph.graph: names the device 'Cuda'"),
        ("_graph/graph.py", "def f(cuda=1): pass", "_graph.graph: names the device 'cuda'"),
        ("_graph/graph.py", "import cuda.bindings", "_graph.graph: names the device 'cuda'"),
        ("_graph/graph.py", "x = b'opencl'", "_graph.graph: names the device 'opencl'"),
        (
            "errors.py",
            "def f(call): return call.op.name == 'sum'",
            f"errors: compares the name of an op on line {_lines('errors.py') + 2}; ask for its role",
        ),
        (
            "errors.py",
            "def f(op): return op.name in ('sum', 'max')",
            f"errors: compares the name of an op on line {_lines('errors.py') + 2}; ask for its role",
        ),
    ],
)
def test_a_breach_is_found(tmp_path, file, line, complaint):
    copy = tmp_path / "yosegi"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    assert complaint in list(breaches(copy))


def test_a_file_without_a_place_is_found(tmp_path):
    copy = tmp_path / "yosegi"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "shortcut.py").write_text("")
    assert "shortcut: has no place in the layers" in list(breaches(copy))
