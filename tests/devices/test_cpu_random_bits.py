"""Random words of generated kernels, compared with the reference bodies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from yosegi._graph.reference import bind
from yosegi.codegen.llvm.random_bits import random_source
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.random_bits import RandomBits
from yosegi.ops.philox import philox, random_words

NATIVES = Natives()
pytestmark = pytest.mark.skipif(NATIVES.runtime is None, reason=str(NATIVES.reason))
STATES = [(0, 0, 0, 0), (7, 2**32 - 5, 2**32 - 1, 1)]


def check(call: Any, state: Any) -> None:
    assert NATIVES.runtime is not None
    native = RandomBits(NATIVES.runtime, NATIVES.results)._body(call)
    for _ in range(2):
        got = native(state)
        assert got.dtype == np.uint32
        np.testing.assert_array_equal(got, bind(call)(state))


@pytest.mark.parametrize("words", STATES)
@pytest.mark.parametrize("shape", [(257,), (1000,), (3, 5, 67), (20_003,), (70_000,)])
def test_kernels_give_the_words_of_the_reference(shape, words):
    state = np.array(words, np.uint32)
    for count in (1, 2, 3, 4):
        check(philox(ys.asarray(state), shape=shape, words=count)._node.call, state)
    check(random_words(ys.asarray(state), shape=shape)._node.call, state)


@pytest.mark.parametrize("planes", [0, 3])
def test_vectors_of_any_width_compile(planes):
    assert NATIVES.runtime is not None
    compiler = NATIVES.runtime.compiler
    for width in (16, 32, 64):
        target = replace(compiler.machine.target, vector_bytes=width)
        assert compiler.load(random_source(planes, target), ("kernel",))["kernel"]


def test_draws_of_a_jitted_function_are_those_of_the_reference():
    def draw(rng: Any) -> Any:
        return rng.normal((700,), dtype=ys.float32)

    rng, twin = ys.random.default_rng(3), ys.random.default_rng(3)
    jitted = ys.jit(lambda: draw(rng))
    for _ in range(3):
        np.testing.assert_allclose(jitted().numpy(), draw(twin).numpy(), rtol=1e-5, atol=1e-6)
