"""Every kernel template as MSL, compiled strictly: see `strict_msl`."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import apple_doubles
import strict_msl
from native_ops import graphs
from yosegi._graph.expand import expand
from yosegi._graph.simplify import simplify
from yosegi._schedule.fuse import fuse
from yosegi.devices.kernel.qualification import _needs, _specimens, families, region_of
from yosegi.devices.metal.device import DTYPES
from yosegi.devices.metal.dialect import MSL

pytestmark = [
    pytest.mark.skipif(strict_msl.MISSING is not None, reason=str(strict_msl.MISSING)),
    pytest.mark.skipif(apple_doubles.NO_METAL is not None, reason=str(apple_doubles.NO_METAL)),
]

PROLOGUE = "#include <metal_stdlib>\nusing namespace metal;\n"


MATHEMATICS = {
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clamp", "copysign", "cos", "cosh",
    "exp", "exp2", "fabs", "floor", "fma", "fmax", "fmin", "fmod", "isfinite", "isinf", "isnan", "log", "log10", "log2",
    "max", "min", "mulhi",
    "nextafter", "pow", "rint", "round", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
}  # fmt: skip
"""Functions of Metal's standard library (nextafter: from Metal 3.1)."""


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """The sources of all templates, and of every op that has kernels, from a device that compiles nothing."""
    device, made = apple_doubles.metal_device(garbage=False), dict[str, None]()

    def get(source: str) -> Any:
        made[source] = None
        return SimpleNamespace(maxTotalThreadsPerThreadgroup=lambda: 1024)

    device._queue.programs.get = get
    for specimen in _specimens():
        if _needs(specimen) <= device.limits.dtypes:
            region, _ = region_of(specimen, device)
            if device.supports(region) is None:
                device.compile(region)
                for make in device.variants(region.parts[0]).values() if specimen.has_variants else ():
                    make()
    for _, graph in graphs():
        for region in fuse(simplify(expand(graph, (device,)))):
            if device.supports(region) is None:
                device.compile(region)
    return list(made)


def test_every_template_compiles(sources: list[str]) -> None:
    assert len(sources) > len(families(DTYPES)) + len(MATHEMATICS)
    for kind in ("float", "half", "bfloat"):
        assert any(f"simdgroup_matrix<{kind}, 8, 8> left" in source for source in sources)
    refused = {source: why for source in sources if (why := strict_msl.refusal(source)) is not None}
    assert not refused, f"{len(refused)} of {len(sources)}\n" + "\n".join([*refused.values()][:3])


def test_every_function_is_metals_or_defined(sources: list[str]) -> None:
    """clang takes OpenCL's functions, of which Metal lacks some."""
    own = {"if", "for", "while", "return", "kernel_", "alignas", "buffer", "unroll", "threadgroup_barrier", "half",
           "float", "bfloat", "atomic_fetch_max_explicit", "atomic_fetch_add_explicit", "simdgroup_load",
           "simdgroup_store", "simdgroup_multiply_accumulate", "simdgroup_barrier"}  # fmt: skip
    types = set(MSL.types.values()) | set(MSL.stored.values())
    for source in sources:
        defined = set(re.findall(r"inline \w+ (\w+)\(", source))
        called = set(re.findall(r"\b([a-z_]\w*)\(", source))
        assert called <= MATHEMATICS | own | types | defined


@pytest.mark.parametrize(("body", "reason"), [
    ("constant float* p = a;", "cannot initialize"), ("threadgroup float* p = a;", "cannot initialize"),
    ("double x = a[0];", "double"), ("no_such_function(a);", "undeclared"),
    ("simdgroup_matrix<float, 8, 8> m; constant float* p = 0; simdgroup_load(m, p);", "no matching function"),
    ("simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, a);", "no matching function"),
    ("simdgroup_matrix<float, 16, 16> m;", "8 x 8"),
])  # fmt: skip
def test_what_metal_refuses_is_refused(body: str, reason: str) -> None:
    source = f"{PROLOGUE}kernel void f(device float* a [[buffer(0)]])\n{{ BODY }}\n"
    assert strict_msl.refusal(source.replace("BODY", "a[0] = 1.0f;")) is None
    refusal = strict_msl.refusal(source.replace("BODY", body))
    assert refusal is not None
    assert reason in refusal
