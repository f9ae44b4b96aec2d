"""A small share of `make transforms` in every test run: transforms of random programs against JAX's."""

import pytest

pytest.importorskip("jax", reason="JAX is not installed: there is nothing to compare with")

import transforms_vs_jax

PROGRAMS = {"vmap": 8, "jvp": 4, "jacobian": 4, "hessian": 2}
"""XLA compiles some programs for minutes: the rest are for `make transforms`."""


@pytest.mark.parametrize("kind", transforms_vs_jax.CHECKS)
@pytest.mark.parametrize("share", range(2))
def test_random_programs(kind, share):
    _, failures = transforms_vs_jax.run(kind, PROGRAMS[kind] // 2, first=500_000 + 1000 * share)
    assert failures == []
