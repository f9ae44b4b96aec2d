"""Training steps keep their memory and their plans. `tests/memory_training.py` compares the peak with PyTorch's."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from yosegi.devices.cpu.results import LARGE, PAGE, Extents, Results

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


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library keeps no free pages, or says not"
)
def test_results_take_the_place_of_free_pages_of_the_c_library():
    """Compiling a step leaves tens of megabytes there."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(ctypes.c_size_t(16 << 10)) for _ in range(4000)]
    for address in blocks:
        ctypes.memset(address, 1, 16 << 10)
    for address in blocks[:-1]:  # the last one keeps the end of the heap
        libc.free(address)
    results, before = Results(), status("VmRSS")
    array = results.new((40 << 20,), np.dtype(np.uint8), 40 << 20)
    assert array.nbytes == 40 << 20
    assert status("VmRSS") < before - (40 << 20)
    libc.free(blocks[-1])


def test_growth_is_reported_a_few_times():
    calls = []
    extents = Extents(lambda nbytes: (None, 1 << 40), grows=lambda: calls.append(extents._used))
    for _ in range(1000):
        extents.take(256 * PAGE)
    assert calls[0] == 32 << 20
    assert 20 < len(calls) < 32
