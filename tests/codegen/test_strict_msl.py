"""Every kernel template as MSL, compiled strictly: see `strict_msl`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import metal_double
import strict_msl
from yosegi.devices.kernel.qualification import _needs, _specimens, families, region_of

pytestmark = [
    pytest.mark.skipif(strict_msl.MISSING is not None, reason=str(strict_msl.MISSING)),
    pytest.mark.skipif(metal_double.MISSING is not None, reason=str(metal_double.MISSING)),
]

PROLOGUE = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.fixture(scope="module")
def device() -> Any:
    """A device that compiles nothing, and keeps the sources."""
    made = metal_double.device(garbage=False)
    made.sources = {}

    def get(source: str) -> Any:
        made.sources[source] = None
        return SimpleNamespace(maxTotalThreadsPerThreadgroup=lambda: 1024)

    made._queue.programs.get = get
    return made


def test_every_template_compiles(device: Any) -> None:
    for specimen in _specimens():
        if _needs(specimen) <= device.limits.dtypes:
            region, _ = region_of(specimen, device)
            if device.supports(region) is None:
                device.compile(region)
                for make in device.variants(region.parts[0]).values() if specimen.has_variants else ():
                    make()
    assert len(device.sources) > len(families(device.limits.dtypes))
    refused = {source: why for source in device.sources if (why := strict_msl.refusal(source)) is not None}
    assert not refused, f"{len(refused)} of {len(device.sources)}\n" + "\n".join([*refused.values()][:3])


@pytest.mark.parametrize(("body", "reason"), [
    ("constant float* p = a;", "cannot initialize"), ("threadgroup float* p = a;", "cannot initialize"),
    ("double x = a[0];", "double"), ("no_such_function(a);", "undeclared"),
])  # fmt: skip
def test_what_metal_refuses_is_refused(body: str, reason: str) -> None:
    source = f"{PROLOGUE}kernel void f(device float* a [[buffer(0)]])\n{{ BODY }}\n"
    assert strict_msl.refusal(source.replace("BODY", "a[0] = 1.0f;")) is None
    refusal = strict_msl.refusal(source.replace("BODY", body))
    assert refusal is not None
    assert reason in refusal
