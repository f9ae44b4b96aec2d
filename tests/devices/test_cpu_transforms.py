"""Fourier transforms of several threads, compared with those of float64."""

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from forks import holds_in_a_fork
from yosegi._graph.graph import capture, graph_of
from yosegi._tensor.role import Transform
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.transforms import Transforms

NATIVES = Natives()
pytestmark = pytest.mark.skipif(NATIVES.runtime is None, reason=str(NATIVES.reason))
RNG = np.random.default_rng(0)


def threaded(function: Any, x: Any) -> Any:
    """The body that replaces the reference's; `None` if there is none."""
    assert NATIVES.runtime is not None
    graph = graph_of(capture([function(ys.asarray(x))._node])[0])
    owner = Transforms(Runtime(NATIVES.runtime.compiler, 3), NATIVES.results)
    (entry,) = [n for n, call in enumerate(graph.calls) if isinstance(call.op.role, Transform)]
    return owner.body(graph, entry)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize(("name", "shape", "how"), [
    ("rfft", (5, 9000), {}), ("rfft", (9001, 7), {"axis": 0}), ("fft", (40, 1000), {}), ("ifft", (40, 997), {}),
    ("irfft", (40, 1001), {}), ("fftn", (6, 80, 90), {"axes": (0, 2)}),
])  # fmt: skip
def test_parts_make_the_whole(name, shape, how, norm):
    x = RNG.normal(size=shape)
    x = x + 1j * RNG.normal(size=shape) if name != "rfft" else x
    single = x.astype(np.complex64 if np.iscomplexobj(x) else np.float32)
    body = threaded(lambda t: getattr(ys.fft, name)(t, norm=norm, **how), single)
    expected = getattr(np.fft, name)(single.astype(x.dtype), norm=norm, **how)
    for _ in range(2):
        made = body(single)
        assert made.dtype == (np.float32 if name == "irfft" else np.complex64)
        assert np.linalg.norm(made - expected) < 1e-6 * np.linalg.norm(expected)


def test_transforms_without_examples_and_small_ones_keep_the_reference_body():
    assert threaded(ys.fft.rfft, np.zeros(100_000, np.float32)) is None
    assert threaded(ys.fft.rfft, np.zeros((4, 64), np.float32)) is None


def test_a_forked_child_has_threads_of_its_own():
    x = RNG.normal(size=(8, 9000)).astype(np.float32)
    body = threaded(ys.fft.rfft, x)
    expected = body(x)
    assert holds_in_a_fork(lambda: np.array_equal(body(x), expected))
