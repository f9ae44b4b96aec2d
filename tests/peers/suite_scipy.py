"""A pytest plugin: SciPy's array API tests with Yosegi as the namespace, and with no other.

The fixture `xp` of SciPy's tests has the namespaces as parameters; this puts Yosegi in their place. Tests that SciPy
marks as NumPy's alone are skipped, as for every other namespace.
"""

from __future__ import annotations

import pytest

import yosegi


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run before pytest reads the parameters."""
    from scipy.conftest import xp_known_backends

    xp_known_backends.add("yosegi")
    for fixture in metafunc._arg2fixturedefs.get("xp", ()):
        fixture.params = (pytest.param(yosegi, id="yosegi", marks=pytest.mark.array_api_backends),)
