"""Indices out of range, as kernels note them."""

import numpy as np
import pytest

from yosegi.codegen.c.stages import IndexBound
from yosegi.devices.kernel.faults import SITES, Faults, Watched
from yosegi.errors import IndexingError, Unsupported


def test_a_bound_has_one_site():
    faults = Faults()
    first, second = IndexBound(7, False, "take"), IndexBound(8, False, "take")
    assert [faults.site(b) for b in (first, second, first)] == [0, 1, 0]
    assert faults.used == 2


def test_the_mistake_is_that_of_the_bound():
    faults = Faults()
    faults.site(IndexBound(7, False, "take"))
    faults.site(IndexBound(3, True, "setitem"))
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
        faults.site(IndexBound(n, False, "take"))
    assert faults.site(IndexBound(0, False, "take")) == 0
    with pytest.raises(Unsupported, match=f"more than {SITES} different bounds"):
        faults.site(IndexBound(SITES, False, "take"))


class Value:
    """Data with nothing but its span."""

    def __init__(self):
        self.span = None


class Clock:
    """A table and its faults, with units that fail or not."""

    def __init__(self):
        self.faults = Faults()
        self.faults.site(IndexBound(7, False, "take"))
        self.table = np.zeros((1, 2), np.int64)

    def unit(self, *data, indexes=True, fails=False):
        def kernel(*data):
            if fails:
                self.table[0] = 1, 9
            return (Value(),)

        return Watched(kernel, self.faults, indexes)(*data)[0]

    def look(self, waited=None):
        waited = self.faults.tick() if waited is None else waited
        return self.faults.look(waited, lambda: self.table, lambda: self.table.fill(0))

    def is_wrong(self, value):
        try:
            self.faults.check(value.span)
        except IndexingError:
            return True
        return False


def test_a_look_settles_the_units_before_it():
    clock = Clock()
    before = clock.unit()
    assert not clock.faults.is_settled(before.span)
    assert clock.look() is None
    bad, beside = clock.unit(fails=True), clock.unit()
    derived, apart = clock.unit(bad, indexes=False), clock.unit(Value(), indexes=False)
    assert isinstance(clock.look(), IndexingError)
    assert clock.look() is None
    after = clock.unit()
    wrong = [clock.is_wrong(v) for v in (before, bad, beside, derived, apart, after)]
    assert wrong == [False, True, True, True, False, False]
    with pytest.raises(IndexingError, match="got 9"):
        clock.unit(derived, indexes=False)


def test_a_unit_that_runs_during_a_look_is_settled_by_the_next():
    clock = Clock()
    clock.unit()
    waited = clock.faults.tick()
    late = clock.unit()  # launched after the wait began: this look does not cover it
    assert clock.look(waited) is None
    assert not clock.faults.is_settled(late.span)
    begun = clock.faults.tick()
    clock.table[0] = 1, 9  # of a unit that has been launched, and has not ended
    assert clock.look() is not None
    late.span = clock.faults.end(begun)
    assert clock.is_wrong(late)


def test_many_mistakes_are_merged_and_none_is_forgotten():
    clock, values = Clock(), []
    for _ in range(200):
        values.append(clock.unit(fails=True))
        clock.look()
    assert all(map(clock.is_wrong, values))
    assert not clock.is_wrong(clock.unit())
    assert len(clock.faults._mistakes) <= 64
