"""A pytest plugin: scikit-learn's array API tests with Yosegi as the namespace, in float64 and float32.

Test modules import the generator of namespaces by its name, so this replaces it before they are imported.
"""

from __future__ import annotations

from collections.abc import Iterator

from sklearn.utils import _array_api


def combinations(include_numpy_namespaces: bool = True) -> Iterator[tuple[str, None, str]]:
    """The namespace, no device, and a dtype."""
    for dtype in ("float64", "float32"):
        yield "yosegi", None, dtype


_array_api.yield_namespace_device_dtype_combinations = combinations
_array_api.yield_namespaces = lambda include_numpy_namespaces=True: iter(["yosegi"])
