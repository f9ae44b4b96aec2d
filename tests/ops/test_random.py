"""Random numbers: the published vectors, distributions under fixed seeds, replays, threads."""

from __future__ import annotations

import copy
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from yosegi._tensor.op import REGISTRY
from yosegi.errors import ArgumentError, AxisError, DTypeError, ShapeError, TraceError, UserError
from yosegi.ops.philox import philox4x32

# The bits


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    arrays: Any = tuple(np.array([word], np.uint64) for word in counter)
    assert tuple(int(word[0]) for word in philox4x32(arrays, key)) == words


def test_element_i_of_draw_d_is_a_function_of_i_and_d() -> None:
    body = REGISTRY["philox"].body
    state = np.array([1, 2, 3, 4], np.uint32)
    whole = body(state, shape=(70000,), words=4)  # more than one chunk
    for i in (0, 1, 16384, 69999):
        alone = philox4x32(tuple(np.array([w], np.uint64) for w in (i, 0, 3, 4)), (1, 2))  # type: ignore[arg-type]
        assert [int(w[0]) for w in alone] == whole[:, i].tolist()
    np.testing.assert_array_equal(body(state, shape=(7, 10000), words=2), whole[:2].reshape(2, 7, 10000))


def test_what_a_draw_gives_is_settled_at_the_call() -> None:
    one, other = ys.random.default_rng(7), ys.random.default_rng(7)
    a, b = one.normal((5,)), one.normal((5,))
    second, first = b.numpy(), a.numpy()
    np.testing.assert_array_equal(first, other.normal((5,)).numpy())
    np.testing.assert_array_equal(second, other.normal((5,)).numpy())
    assert not (first == second).any()
    longer = ys.random.default_rng(7).normal((9,))
    np.testing.assert_array_equal(longer[:5].numpy(), first)


def test_values_are_the_same_for_ever() -> None:
    g = ys.random.default_rng(0)
    assert g.uniform((2,)).tolist()[0] == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53  # the published words
    np.testing.assert_allclose(g.normal((2,), dtype=ys.float32).numpy(), [1.0675902, 0.4049669], rtol=1e-5)
    assert g.integers(0, 1000, (4,)).tolist() == [24, 469, 865, 218]
    np.testing.assert_allclose(g.normal((2,)).numpy(), [-0.009739305664915463, 1.4508085806404885], rtol=1e-12)


# Distributions


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform(dtype: str) -> None:
    x = ys.random.default_rng(1).uniform((50000,), dtype=dtype)
    assert x.dtype == getattr(ys, dtype)
    values = x.numpy().astype(float)
    assert values.min() >= 0
    assert values.max() < 1
    coarse = 2.0**-8 if dtype == "bfloat16" else 2.0**-11 if dtype == "float16" else 0
    assert abs(values.mean() + coarse / 2 - 0.5) < 0.005
    assert abs(values.var() - 1 / 12) < 0.001
    counts = np.bincount((values * 16).astype(int), minlength=16)
    assert (np.abs(counts - 50000 / 16) < 5 * np.sqrt(50000 / 16)).all()


def test_uniform_between_bounds() -> None:
    x = ys.random.default_rng(1).uniform((1000,), low=-3, high=ys.asarray(5.0)).numpy()
    assert -3 <= x.min() < -2.9
    assert 4.9 < x.max() < 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_normal(dtype: str) -> None:
    x = ys.random.default_rng(2).normal((200, 500), dtype=dtype)
    assert (x.shape, x.dtype) == ((200, 500), getattr(ys, dtype))
    values = x.numpy().astype(float).ravel()
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.015
    assert abs(values.std() - 1) < 0.01
    assert abs((values**3).mean()) < 0.05
    assert abs((values**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.015
    for bound, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs((np.abs(values) < bound).mean() - share) < 0.006


def test_normal_with_parameters_has_gradients_to_them() -> None:
    def loss(mean: Any, std: Any) -> Any:
        return ys.mean(ys.random.default_rng(3).normal((1000,), mean=mean, std=std))

    z = ys.random.default_rng(3).normal((1000,)).numpy()
    to_mean, to_std = ys.grad(loss, (0, 1))(ys.asarray(10.0), ys.asarray(2.0))
    assert abs(float(loss(10.0, 2.0)) - (10 + 2 * z.mean())) < 1e-9
    np.testing.assert_allclose([float(to_mean), float(to_std)], [1.0, z.mean()])


def test_extreme_bits_give_finite_numbers() -> None:
    from yosegi.ops.draws import above_zero, unit_double

    words = ys.asarray(np.array([0, 1, 2**31, 2**32 - 1], np.uint32))
    for numbers in (above_zero(words), unit_double(words, words) + 2.0**-53):
        assert (numbers.numpy() > 0).all()
        assert (numbers.numpy() <= 1).all()
    assert (unit_double(words, words).numpy() < 1).all()


def test_exponential() -> None:
    for dtype in ("float32", "float64"):
        x = ys.random.default_rng(4).exponential((50000,), scale=2.0, dtype=dtype).numpy()
        assert x.min() >= 0
        assert abs(x.mean() - 2) < 0.05
        assert abs((x > 2).mean() - np.exp(-1)) < 0.01


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 6, "int64"), (-128, 128, "int8"), (5, 6, "uint8"), (-3, 2**31, "int64"), (-(2**63), 2**63, "int64"),
     (0, 2**64, "uint64"), (2**40, 2**62, "uint64"), (-(2**62), 2**33, "int64"), (0, 2**32, "uint32")],
)  # fmt: skip
def test_integers_fill_their_range(low: int, high: int, dtype: str) -> None:
    x = ys.random.default_rng(5).integers(low, high, (20000,), dtype=dtype)
    assert x.dtype == getattr(ys, dtype)
    values = [int(v) for v in x.numpy()]
    assert low <= min(values)
    assert max(values) < high
    parts = min(16, high - low)
    counts = np.bincount([(v - low) * parts // (high - low) for v in values], minlength=parts)
    assert (np.abs(counts - 20000 / parts) < 5 * np.sqrt(20000 / parts)).all()


def test_integers_are_the_product_of_a_random_fraction() -> None:
    n = 3 * 2**61 + 12345
    words = REGISTRY["philox"].body(np.array([5, 0, 0, 0], np.uint32), shape=(50,), words=4).astype(object)
    fractions = (words[0] << 96) | (words[1] << 64) | (words[2] << 32) | words[3]
    got = ys.random.default_rng(5).integers(0, n, (50,), dtype="uint64").numpy()
    assert [int(v) for v in got] == [int(f) * n >> 128 for f in fractions]
    got = ys.random.default_rng(5).integers(10, 1000, (50,)).numpy()
    assert [int(v) for v in got] == [10 + (int(f) >> 64) * 990 // 2**64 for f in fractions]


def test_integers_arguments() -> None:
    g = ys.random.default_rng(6)
    assert set(g.integers(3, shape=(100,)).tolist()) == {0, 1, 2}
    assert set(g.integers(1, 3, (100,), endpoint=True).tolist()) == {1, 2, 3}
    assert g.integers(4).shape == ()
    with pytest.raises(ArgumentError, match=r"\[integers\] expected low below high, got 3 and 3"):
        g.integers(3, 3)
    with pytest.raises(ArgumentError, match=r"\[integers\] expected bounds that fit int8, got 0 and 200"):
        g.integers(0, 200, dtype="int8")
    with pytest.raises(DTypeError, match=r"\[integers\] expected an integer dtype, got float32"):
        g.integers(0, 2, dtype="float32")


def test_bernoulli() -> None:
    g = ys.random.default_rng(7)
    x = g.bernoulli(0.3, (20000,))
    assert x.dtype is ys.bool
    assert abs(x.numpy().mean() - 0.3) < 0.02
    assert not g.bernoulli(0.0, (1000,)).numpy().any()
    assert g.bernoulli(1.0, (1000,)).numpy().all()
    each = ys.asarray([[0.0], [1.0]])
    assert g.bernoulli(each).tolist() == [[False], [True]]
    assert g.bernoulli(each, (2, 50)).numpy().sum(1).tolist() == [0, 50]
    with pytest.raises(ArgumentError, match=r"\[bernoulli\] expected a probability from 0 to 1, got 1.5"):
        g.bernoulli(1.5)


def test_permutation() -> None:
    g = ys.random.default_rng(8)
    assert sorted(g.permutation(100).tolist()) == list(range(100))
    x = ys.asarray(np.arange(12).reshape(3, 4))
    rows = g.permutation(x).numpy()
    assert sorted(rows.tolist()) == x.tolist()
    columns = g.permutation(x, axis=-1).numpy()
    assert sorted(columns[0].tolist()) == [0, 1, 2, 3]
    firsts = np.bincount([int(g.permutation(4)[0]) for _ in range(800)], minlength=4)
    assert (np.abs(firsts - 200) < 60).all()
    with pytest.raises(AxisError, match=r"\[permutation\] expected an axis"):
        g.permutation(x, axis=2)


def test_choice() -> None:
    g = ys.random.default_rng(9)
    x = ys.asarray([10, 20, 30, 40])
    assert set(g.choice(x, (3, 50)).numpy().ravel().tolist()) == {10, 20, 30, 40}
    assert sorted(g.choice(x, 4, replace=False).tolist()) == [10, 20, 30, 40]
    p = [0.5, 0.0, 0.2, 0.3]
    counts = np.bincount(g.choice(4, (20000,), p=p).numpy(), minlength=4) / 20000
    np.testing.assert_allclose(counts, p, atol=0.015)
    pairs = np.array([g.choice(4, 2, replace=False, p=p).tolist() for _ in range(1500)])
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert not (pairs == 1).any()
    np.testing.assert_allclose(np.bincount(pairs[:, 0], minlength=4) / 1500, p, atol=0.04)
    assert g.choice(ys.zeros((3, 5)), (2, 2), axis=1).shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "text"),
    [
        ((3, 4), {"replace": False}, ArgumentError, "expected at most 3 choices without replacement, got 4"),
        ((0,), {}, ArgumentError, "expected at least one element to choose from, got 0"),
        ((3,), {"p": [0.5, 0.5]}, ShapeError, r"expected 3 probabilities, got shape \(2,\)"),
        ((2,), {"p": [0.5, 0.6]}, ArgumentError, r"expected probabilities that add up to 1, got a sum of 1.1"),
        ((2,), {"p": [1.5, -0.5]}, ArgumentError, r"expected probabilities that add up to 1"),
        ((2, 2), {"p": [1.0, 0.0], "replace": False}, ArgumentError, "expected at least 2 probabilities above 0"),
    ],
)
def test_choices_that_cannot_be_made(args: Any, kwargs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=r"\[choice\] " + text):
        ys.random.default_rng(0).choice(*args, **kwargs)


def test_floating_distributions_have_floating_dtypes() -> None:
    g = ys.random.default_rng(0)
    for name in ("uniform", "normal", "exponential"):
        with pytest.raises(DTypeError, match=rf"\[{name}\] expected a real floating dtype, got int32"):
            getattr(g, name)((2,), dtype="int32")


# Replays


def test_a_jitted_function_draws_what_the_plain_one_draws() -> None:
    plain, jitted = ys.random.default_rng(11), ys.random.default_rng(11)

    def noisy(g: ys.random.Generator, x: Any) -> Any:
        return x + g.normal((3,)) * g.uniform((3,)), g.permutation(5)

    fast = ys.jit(lambda x: noisy(jitted, x))
    seen = []
    for _ in range(3):
        x = ys.zeros((3,))
        for got, expected in zip(fast(x), noisy(plain, x), strict=True):
            np.testing.assert_array_equal(got.numpy(), expected.numpy())
        seen.append(tuple(got.tolist()))
    assert len(set(seen)) == 3


def test_a_generator_made_inside_is_made_anew_at_every_replay() -> None:
    def f(x: Any) -> Any:
        first, second = ys.random.default_rng(3).split(2)
        return x + first.normal((2,)) + second.normal((2,)) + first.normal((2,))

    fast, x = ys.jit(f), ys.zeros((2,))
    for _ in range(3):
        np.testing.assert_array_equal(fast(x).numpy(), f(x).numpy())
    fresh = ys.jit(lambda x: x + ys.random.default_rng().normal(()))
    assert float(fresh(x[0])) != float(fresh(x[0]))


def test_what_a_trace_cannot_hold() -> None:
    outside = ys.random.default_rng(0)
    for change in (lambda: outside.split(2), lambda: ys.random.seed(0)):
        with pytest.raises(TraceError, match=r"expected a call outside of a traced function"):
            ys.jit(lambda x, change=change: (change(), x)[1])(ys.zeros((1,)))


# Generators


def test_the_global_generator() -> None:
    fast = ys.jit(lambda x: x + ys.random.normal(()))
    ys.random.seed(5)
    first = [ys.random.normal((2,)).tolist(), ys.random.integers(100), float(fast(ys.asarray(0.0)))]
    ys.random.seed(5)
    again = [ys.random.normal((2,)).tolist(), ys.random.integers(100), float(fast(ys.asarray(0.0)))]
    assert first[0] == again[0] == ys.random.default_rng(5).normal((2,)).tolist()
    assert int(first[1]) == int(again[1])
    assert first[2] == again[2]
    for name in ("uniform", "random", "exponential"):
        assert getattr(ys.random, name)((2,)).shape == (2,)
    assert ys.random.permutation(3).shape == ys.random.choice(3, 3).shape == ys.random.bernoulli(0.5, 3).shape
    ys.random.seed(None)


def test_split_generators_are_independent() -> None:
    g = ys.random.default_rng(12)
    children = [*g.split(3), *g.split(2), g]
    streams = np.array([c.normal((2000,)).numpy() for c in children])
    assert (np.abs(np.corrcoef(streams) - np.eye(6)) < 0.1).all()
    again = ys.random.default_rng(12).split(3)
    np.testing.assert_array_equal(again[2].normal((2000,)).numpy(), streams[2])


def test_generators_are_copied_with_their_place() -> None:
    g = ys.random.default_rng(13)
    g.normal((2,))
    twins = [pickle.loads(pickle.dumps(g)), copy.deepcopy(g), copy.copy(g)]
    expected = g.normal((3,)).tolist()
    assert [t.normal((3,)).tolist() for t in twins] == [expected] * 3
    assert repr(g) == "Generator(seed=13, draws=2)"
    assert ys.random.default_rng(g) is g


def test_threads_share_a_generator() -> None:
    g = ys.random.default_rng(14)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: tuple(g.integers(0, 2**62, (2,)).tolist()), range(200)))
    alone = ys.random.default_rng(14)
    assert set(made) == {tuple(alone.integers(0, 2**62, (2,)).tolist()) for _ in range(200)}


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_seeds_have_64_bits(seed: int) -> None:
    with pytest.raises(ArgumentError, match=r"\[default_rng\] expected an integer from 0 to 2\*\*64 - 1 as seed, got"):
        ys.random.default_rng(seed)


def test_seeds_differ_in_all_their_bits() -> None:
    first = {ys.random.default_rng(s).uniform(()).item() for s in (0, 1, 1 << 32, 1 << 63, np.int64(77))}
    assert len(first) == 5


@pytest.mark.parametrize("source", ["global", "own"])
@pytest.mark.parametrize(
    ("name", "text", "args", "attrs"),
    [
        ("uniform", "expected a tensor or a number, got str", (), {"low": "a"}),
        ("uniform", "expected high of a real dtype, got complex128", (), {"high": 1j}),
        ("random", r"expected lengths of at least 0, got \(-1,\)", ((-1,),), {}),
        ("random", "expected a real floating dtype, got int32", (), {"dtype": "int32"}),
        ("normal", r"expected lengths of at least 0, got \(-1,\)", ((-1,),), {}),
        ("normal", "expected a length as an integer, got 1.5", ((1.5,),), {}),
        ("normal", "expected a dtype among", (), {"dtype": "number"}),
        ("normal", "expected shapes that broadcast together", ((3,),), {"std": np.ones(2)}),
        ("exponential", "expected a tensor or a number, got str", (), {"scale": "a"}),
        ("integers", "expected a bound as an integer, got 1.5", (1.5,), {}),
        ("integers", "expected a bound as an integer, got 'a'", (0, "a"), {}),
        ("bernoulli", "expected a tensor or a number, got str", ("a",), {}),
        ("bernoulli", "expected a probability of a real dtype", (1j,), {}),
        ("permutation", "expected a tensor or a count as an integer, got 1.5", (1.5,), {}),
        ("permutation", "expected lengths of at least 0", (-1,), {}),
        ("permutation", "expected an axis as an integer, got 'a'", (np.ones(3),), {"axis": "a"}),
        ("choice", "expected a tensor or a count as an integer, got 'a'", ("a",), {}),
        ("choice", "expected numbers", (3,), {"p": "a"}),
    ],
)
def test_mistakes_are_told_at_the_call(source: str, name: str, text: str, args: Any, attrs: Any) -> None:
    with pytest.raises(UserError, match=rf"^\[{name}\] {text}"):
        getattr(ys.random if source == "global" else ys.random.default_rng(0), name)(*args, **attrs)


def test_mistakes_in_seeds_and_splits() -> None:
    for name in ("default_rng", "seed", "Generator"):
        with pytest.raises(
            ArgumentError, match=rf"^\[{name}\] expected an integer from 0 to 2\*\*64 - 1 as seed, got -1"
        ):
            getattr(ys.random, name)(-1)
    for n in (1.5, (2, 3)):
        with pytest.raises(DTypeError, match=r"^\[split\] expected a length as an integer"):
            ys.random.default_rng(0).split(n)  # type: ignore[arg-type]


def test_numpy_arrays_are_taken_for_tensors() -> None:
    g = ys.random.default_rng(0)
    x = np.array([[1.0, 2.0, 3.0]])
    assert sorted(g.permutation(x, axis=1).tolist()[0]) == [1.0, 2.0, 3.0]
    assert g.choice(x, 2, axis=1).shape == (1, 2)
    assert g.bernoulli(x > 1).tolist() == [[False, True, True]]
    assert g.normal((2, 3), mean=x, std=0).tolist() == [[1.0, 2.0, 3.0]] * 2


def test_signatures_are_those_written() -> None:
    assert list(inspect.signature(ys.random.normal).parameters) == [
        "first", "scale", "size", "loc", "shape", "mean", "std", "dtype",
    ]  # fmt: skip
    assert list(inspect.signature(ys.random.Generator.choice).parameters)[:3] == ["self", "a", "size"]
