"""The layering holds, and the test of it can fail."""

import shutil
from pathlib import Path

import pytest

import yosegi
from layers import breaches

PACKAGE = Path(yosegi.__file__).parent


def test_the_package_keeps_its_layers():
    assert list(breaches(PACKAGE)) == []


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("dtype.py", "from .tensor import Tensor", "dtype: imports tensor, which is below it"),
        ("op.py", "from .run import evaluate", "op: imports run, which is below it"),
        ("ops/shape.py", "from .reduce import sum", "ops.shape: imports ops.reduce, which is below it"),
        ("ops/shape.py", "from ..graph import capture", "ops.shape: imports graph, which is below it"),
        ("run.py", "import yosegi.jit", "run: imports jit, which is below it"),
        ("place.py", "from .devices.cpu import discover", "place: imports devices.cpu, which is below it"),
        ("place.py", "PREFERRED = 'cuda:0'", "place: names the device 'cuda'"),
        ("dtype.py", "from yosegi.run import run_plan", "dtype: imports run, which is below it"),
        ("dtype.py", "from yosegi import run", "dtype: imports run, which is below it"),
        ("graph.py", "def to_metal(): pass", "graph: names the device 'metal'"),
        ("graph.py", "class Cuda: pass", "graph: names the device 'Cuda'"),
        ("graph.py", "def f(cuda=1): pass", "graph: names the device 'cuda'"),
        ("graph.py", "import cuda.bindings", "graph: names the device 'cuda'"),
        ("graph.py", "x = b'opencl'", "graph: names the device 'opencl'"),
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
