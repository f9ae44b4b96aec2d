"""A few random sharded programs; `make sharded-programs` runs 500."""

import pytest

import sharded_programs


@pytest.mark.parametrize("seed", range(16))
def test_a_random_program_has_the_values_of_one_process(seed):
    sharded_programs.check(seed)
