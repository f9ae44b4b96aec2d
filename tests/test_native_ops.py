"""The table in the docs is the one that the command prints."""

from pathlib import Path

import pytest

import yosegi as ys
from native_ops import table

PAGE = Path(__file__).parents[1] / "docs" / "native-ops.md"


def test_the_documented_table_is_true():
    names = [d.name for d in ys.devices()]
    if names != ["openvino:0", "opencl:0", "cpu"]:
        pytest.skip(f"the table is of openvino:0, opencl:0 and cpu, this machine has {', '.join(names)}")
    assert PAGE.read_text(encoding="utf-8").endswith(table())
