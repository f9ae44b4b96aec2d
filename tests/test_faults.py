"""Indices out of range, as kernels note them."""

import numpy as np
import pytest

from yosegi.codegen.c.stages import Bound
from yosegi.devices.kernel.faults import SITES, Faults
from yosegi.errors import IndexingError, Unsupported


def test_a_bound_has_one_site():
    faults = Faults()
    first, second = Bound(7, False, "take"), Bound(8, False, "take")
    assert [faults.site(b) for b in (first, second, first)] == [0, 1, 0]
    assert faults.used == 2


def test_the_mistake_is_that_of_the_bound():
    faults = Faults()
    faults.site(Bound(7, False, "take"))
    faults.site(Bound(3, True, "setitem"))
    table = np.zeros((faults.used, 2), np.int64)
    assert faults.mistake(table) is None
    table[1] = 1, -1
    mistake = faults.mistake(table)
    assert isinstance(mistake, IndexingError)
    assert str(mistake).startswith(
        "[setitem] expected indices from -3 to 2 for a dimension of length 3, got 184467440737"
    )


def test_sites_run_out():
    faults = Faults()
    for n in range(SITES):
        faults.site(Bound(n, False, "take"))
    assert faults.site(Bound(0, False, "take")) == 0
    with pytest.raises(Unsupported, match=f"more than {SITES} different bounds"):
        faults.site(Bound(SITES, False, "take"))
