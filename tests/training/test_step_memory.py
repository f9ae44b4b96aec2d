"""Training steps keep their memory and their plans. `tests/memory_training.py` compares the peak with PyTorch's."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from yosegi.devices.cpu.results import LARGE, Results

status = pytest.importorskip("memory_training", reason="PyTorch is not installed", exc_type=ImportError).status


def test_a_long_run_is_flat_and_makes_no_plan_again():
    code = "from memory_training import flat; made = flat(600); print(*made['sizes'], *made['plans'])"
    tests = Path(__file__).parents[1]
    made = subprocess.run([sys.executable, "-c", code], cwd=tests, stdout=subprocess.PIPE, text=True, check=True)
    early, late, plans, plans_later = map(int, made.stdout.split())
    assert late - early < 1 << 20
    assert plans_later == plans


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="no huge pages here")
@pytest.mark.parametrize("nbytes", [LARGE, 3 << 20, (4 << 20) + 4096])
def test_a_result_takes_no_more_memory_than_its_size(nbytes):
    results, before = Results(), status("VmRSS")
    arrays = [results.new((nbytes,), np.dtype(np.uint8), nbytes) for _ in range(8)]
    for array in arrays:
        array[:] = 1
    assert status("VmRSS") - before < 8 * nbytes + (2 << 20)
