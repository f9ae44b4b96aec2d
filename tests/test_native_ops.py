"""The table in the docs is what the devices of this machine say."""

from pathlib import Path

import pytest

import yosegi as ys
from native_ops import cell, columns_of, graphs, table

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "native-ops.md"


def documented() -> dict[str, dict[str, str]]:
    """The cells of the table in the docs, by kinds of device and by ops."""
    return {device.partition(":")[0]: cells for device, cells in columns_of(PAGE).items()}


@pytest.mark.parametrize("device", ys.devices(), ids=str)
def test_the_documented_table_is_true(device):
    kind = device.name.partition(":")[0]
    if kind not in documented():
        pytest.skip(f"the table has no column for {kind}")
    found = {name: cell(name, graph, device) for name, graph in graphs()}
    lost = {name for name, word in found.items() if "was qualified" in word or "tried here" in word}
    assert {n: w for n, w in found.items() if n not in lost} == {
        n: w for n, w in documented()[kind].items() if n not in lost
    }


def test_the_command_prints_a_row_for_every_op():
    assert {line.split("`")[1] for line in table().splitlines() if line.startswith("| `")} == {n for n, _ in graphs()}
