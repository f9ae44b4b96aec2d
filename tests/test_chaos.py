"""A little of the chaos of `make chaos`, in every test run."""

import pytest

import chaos


@pytest.mark.parametrize("seed", range(10_000, 10_060))
def test_a_random_program_survives(seed):
    chaos.check(seed)
