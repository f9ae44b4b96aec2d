"""What once went wrong, each as the shortest program that showed it."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from native_code import NATIVES, RESULTS, needs_llvm
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.reference import bind
from yosegi._run import device as registry
from yosegi._run import evaluate, snapshots
from yosegi._run.device import Absent, chain_named
from yosegi._run.memory import Buffer
from yosegi._schedule.fuse import RegionKind, fuse
from yosegi._tensor.options import current
from yosegi.codegen.llvm import fused_product
from yosegi.devices.cpu import tiered
from yosegi.devices.cpu.variants import Variants
from yosegi.errors import ArgumentError, DTypeError, ShapeError, TraceError

# Writes inside jit ----------------------------------------------------------------------------------------------------


def test_a_jitted_in_place_operator() -> None:
    def f(x: Any) -> Any:
        x += 1
        return x

    x = ys.asarray([1.0, 2.0])
    g = ys.jit(f)
    assert [g(x).tolist(), g(x).tolist(), x.tolist()] == [[2.0, 3.0], [2.0, 3.0], [1.0, 2.0]]


def test_a_jitted_write_to_an_element() -> None:
    def f(x: Any) -> Any:
        x[0] = 9.0
        return x

    x = ys.asarray([1.0, 2.0])
    g = ys.jit(f)
    assert [g(x).tolist(), g(x).tolist(), x.tolist()] == [[9.0, 2.0], [9.0, 2.0], [1.0, 2.0]]


def test_a_jitted_swap() -> None:
    def swap(a: Any, b: Any) -> Any:
        a[:], b[:] = b[:], a[:]
        return a, b

    one, two = ys.asarray([1.0]), ys.asarray([2.0])
    for _ in range(2):
        assert [t.tolist() for t in ys.jit(swap)(one, two)] == [[2.0], [1.0]]
    assert [t.tolist() for t in swap(one.copy(), two.copy())] == [[2.0], [1.0]]
    assert (one.tolist(), two.tolist()) == ([1.0], [2.0])


def test_a_result_of_jit_is_not_the_memory_of_an_argument() -> None:
    a = np.zeros(3)
    same = ys.jit(lambda x: x)
    results = [same(a), same(a), ys.jit(lambda x: x[::-1])(a)]
    a += 1
    assert [r.tolist() for r in results] == [[0.0] * 3] * 3


# Numbers inside jit ---------------------------------------------------------------------------------------------------


def test_numbers_of_a_trace_leave_no_mark_on_promotion() -> None:
    assert ys.jit(lambda a, b: a * b)(2, 3).item() == 6
    total = ys.asarray(100) * ys.asarray(3) + ys.zeros(1, dtype=ys.int8)
    assert (total.dtype, total.tolist()) == (ys.int64, [300])


@pytest.mark.parametrize(
    "f", [lambda a, x: 2 * a * x, lambda a, x: (a + 1) * x, lambda a, x: (1 - a) * x, lambda a, x: a**2 * x]
)
def test_a_number_computed_from_a_traced_number_is_still_a_number(f: Any) -> None:
    x, one = ys.ones(2, dtype=ys.float32), ys.asarray(1.0)
    for known in (one * 2, one + 1, 1 - one, one**2):  # literals and calls that were met before, outside
        assert ys.jit(lambda t, a: t * a + a - t**a)(known, 0.1).dtype is ys.float64
    assert ys.jit(f)(0.1, x).dtype is f(0.1, x).dtype is ys.float32


def test_a_traced_number_that_does_not_fit() -> None:
    add = ys.jit(lambda x, n: x + n)
    assert add(ys.zeros(1, dtype=ys.uint8), 200).tolist() == [200]
    for n in (300, -1, 2**63):
        with pytest.raises(DTypeError, match=r"^\[jit\] expected a number that fits"):
            add(ys.zeros(1, dtype=ys.uint8), n).numpy()


# Signatures of jit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [((2,), (2.0,)), (0.0, -0.0), (1, True), ((0.0,), (-0.0,))])
def test_statics_that_are_equal_but_not_the_same(one: Any, other: Any) -> None:
    f = ys.jit(lambda x, s: repr(s), static_argnames="s")
    assert [f(ys.ones(1), s) for s in (one, other, one)] == [repr(one), repr(other), repr(one)]


def test_jit_of_jit_with_static_arguments() -> None:
    f = ys.jit(ys.jit(lambda x, n: x * len(n * "a"), static_argnames="n"), static_argnames="n")
    assert [f(ys.asarray(2.0), 3).item(), f(ys.asarray(2.0), n=4).item()] == [6.0, 8.0]


def test_jit_of_an_object_with_names_of_its_own() -> None:
    class Scale:
        def __init__(self) -> None:
            self._replays = self._function = "mine"

        def __call__(self, x: Any) -> Any:
            return x * 2

    f = ys.jit(Scale())
    assert [f(ys.asarray(1.0)).item(), f(ys.asarray(2.0)).item()] == [2.0, 4.0]


def test_a_static_that_cannot_be_hashed() -> None:
    with pytest.raises(ArgumentError, match=r"^\[jit\] expected arguments that are .* hashable, got list"):
        ys.jit(lambda x, s: x, static_argnames="s")(ys.ones(1), [1])


@pytest.mark.parametrize("returns", [lambda x: (x for _ in range(2)), lambda x: object()])
def test_results_that_could_hide_a_tensor(returns: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^\[jit\] expected the function to return tensors"):
        ys.jit(returns)(ys.ones(1))


def test_a_tensor_kept_from_a_trace() -> None:
    kept: list[Any] = []
    ys.jit(lambda x: kept.append(x * 2) or x)(ys.ones(1))
    with pytest.raises(TraceError, match="trace"):
        kept[0].numpy()
    with pytest.raises(TraceError, match="trace"):
        (kept[0] + 1).tolist()


# Gradients ------------------------------------------------------------------------------------------------------------


def test_other_threads_inside_a_gradient() -> None:
    def f(x: Any) -> Any:
        y = x * x
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: y.numpy(), range(4)))
        return ys.sum(y * 3)

    assert ys.grad(f)(ys.asarray([1.0, 2.0])).tolist() == [6.0, 12.0]


def test_the_gradient_of_a_zeroth_power_at_zero() -> None:
    assert float(ys.grad(lambda x: x**0)(ys.asarray(0.0))) == 0.0
    assert float(ys.grad(lambda x: x**0.0)(ys.asarray(0.0))) == 0.0


def test_argnums_that_repeat() -> None:
    with pytest.raises(ArgumentError, match="argnums"):
        ys.grad(lambda x: x, argnums=(0, 0))(ys.asarray(1.0))


# What one program leaves behind for the next --------------------------------------------------------------------------


def test_a_gradient_leaves_constants_as_they_were() -> None:
    y = ys.asarray([1.0, 2.0])
    before = str(ys.explain(ys.sin(y) * 1))
    assert float(ys.grad(lambda x: x + 3.0)(ys.asarray(2.0))) == 1.0
    after = str(ys.explain(ys.sin(y) * 1))
    assert after == before


def test_a_write_leaves_constants_as_they_were() -> None:
    x = ys.asarray([1 + 1j])
    assert (x * 1j).tolist() == [-1 + 1j]
    s = ys.asarray(1j)
    s[()] = 1
    assert s.item() == 1
    assert [(x * 1j).tolist(), (x * 1).tolist(), ys.asarray(1j).item()] == [[-1 + 1j], [1 + 1j], 1j]


def test_another_library_that_writes_to_zeros() -> None:
    torch = pytest.importorskip("torch")
    torch.from_dlpack(ys.zeros((3,)))[0] = 7
    assert ys.zeros((3,)).tolist() == [0.0, 0.0, 0.0]


def test_the_sign_of_a_zero_in_a_complex_number() -> None:
    assert ys.sqrt(ys.full((), complex(-4, 0.0))).item() == 2j
    assert ys.sqrt(ys.full((), complex(-4, -0.0))).item() == -2j


def test_attributes_that_are_equal_but_not_the_same() -> None:
    big = 2**53
    assert ys.arange(float(big), float(big + 4), 1.0).dtype is ys.float64
    assert ys.arange(big, big + 4, 1).tolist() == [big, big + 1, big + 2, big + 3]
    assert [math.copysign(1, ys.linspace(-1.0, end, 2).tolist()[1]) for end in (0.0, -0.0)] == [1, -1]
    x = ys.ones((2, 2))
    assert ys.sum(x, axis=1).tolist() == [2.0, 2.0]
    with pytest.raises(DTypeError, match="an axis as an integer"):
        ys.sum(x, axis=1.0)  # type: ignore[arg-type]


# Data from outside ----------------------------------------------------------------------------------------------------


def test_arrays_of_the_other_byte_order() -> None:
    a = np.array([1.5, -2.0], ">f8")
    x = ys.asarray([1.0, 1.0])
    for result in (x + a, a + x, ys.add(a, a), ys.asarray(a) + 1, ys.jit(lambda x: x + 1)(a)):
        assert result.dtype is ys.float64
    assert [(x + a).tolist(), (a - x).tolist(), ys.add(a, a).tolist()] == [[2.5, -1.0], [0.5, -3.0], [3.0, -4.0]]


def test_rounding_to_bfloat16_is_done_once() -> None:
    x = ys.asarray([1 + 2**-8 + 2**-30])
    assert [float(v) for v in (x.astype(ys.bfloat16)[0], (x * 1.0).astype(ys.bfloat16)[0])] == [1.0078125] * 2


def test_numpy_functions_of_a_tensor() -> None:
    x = ys.asarray([[1.0, 2.0], [3.0, 6.0]])
    assert [float(np.sum(x)), float(np.mean(x)), float(np.max(x))] == [12.0, 3.0, 6.0]  # type: ignore[call-overload]


def test_numpy_dtypes_and_ours() -> None:
    x = ys.ones(2)
    assert x.dtype == np.float64
    assert x.dtype == np.dtype("float64")
    assert x.dtype != np.float32
    assert np.zeros(2, dtype=x.dtype).dtype == np.float64


# Limits ---------------------------------------------------------------------------------------------------------------


def test_a_plan_cache_that_is_too_small_for_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    small = evaluate.PlanCache(chain_named(current().device), limit=2000)
    monkeypatch.setitem(evaluate._plans, current(), small)

    def work(n: int) -> list[float]:
        return [float(ys.sum(ys.ones(1 + i % 7) * n + i)) for i in range(60)]

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, range(6)))
    assert results == [[(1 + i % 7) * (n + i) for i in range(60)] for n in range(6)]
    assert 0 < len(small) <= 20


def test_many_indices_make_few_plans() -> None:
    v = ys.asarray(np.arange(20_000.0))
    float(v[0])
    before = sum(map(len, evaluate._plans.values()))
    start = time.perf_counter()
    assert all(float(v[i]) == i for i in range(20_000))
    taken = time.perf_counter() - start
    assert sum(map(len, evaluate._plans.values())) - before < 10
    assert taken / 20_000 < 60e-6  # a plan for each index took 112


def test_shapes_that_no_memory_holds() -> None:
    for make in (lambda: ys.reshape(ys.ones(1), (1,) * 65), lambda: ys.zeros((2**40, 2**40))):
        with pytest.raises(ShapeError, match=r"^\[\w+\] expected (at most 64 dimensions|a shape of at most)"):
            make()


@pytest.mark.parametrize("make", [lambda: ys.zeros(()), lambda: ys.full((), 3.7), lambda: ys.flip(ys.arange(4)) + 0])
def test_a_constant_gives_each_tensor_memory_of_its_own(make):
    first, second = make(), make()
    assert first.__dlpack__(copy=False) is not None  # an old consumer may insist on the memory, and write to it
    assert not np.shares_memory(first.numpy(), second.numpy())


@pytest.mark.parametrize("device", [d.name for d in ys.devices()])
def test_a_value_that_is_wanted_twice_from_a_device(device: str) -> None:
    x = ys.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    first, second = ys.permute_dims(x, (1, 0)), ys.permute_dims(x, (1, 0))
    with ys.options(device=device):
        ys.eval(first, second)
    assert first.tolist() == second.tolist() == x.numpy().T.tolist()


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16, ys.float32, ys.float64], ids=lambda d: d.name)
def test_of_two_zeros_nextafter_gives_the_second(dtype):
    """NumPy's own float16 gives the first."""
    plus, minus = (ys.asarray([v], dtype=dtype) for v in (0.0, -0.0))
    assert not bool(ys.signbit(ys.nextafter(minus, plus))[0])
    assert bool(ys.signbit(ys.nextafter(plus, minus))[0])


def test_devices_are_looked_for_once_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that asked at the same time each had devices of their own, which did not know each other's memory."""
    folder = registry._Folder("a")
    looks: list[int] = []

    def slowly() -> Any:
        looks.append(1)
        time.sleep(0.05)
        return (Absent("a:0", "a test"),)

    monkeypatch.setattr(folder, "_discovered", slowly)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: folder.listed(), range(6)))
    assert len(looks) == 1
    assert all(one is found[0] for one in found)


@pytest.mark.parametrize("name", [d.name for d in ys.devices()])
def test_constants_are_no_fallback(name: str) -> None:
    """What was folded to a number has nowhere to run, and was refused with `on_fallback="error"`."""
    w = ys.asarray(np.ones((2, 1, 3), np.float32))
    x = ys.asarray(np.ones((1, 1, 8), np.float32))
    with ys.options(device=name, on_fallback="error"):
        np.testing.assert_array_equal((ys.ones((4,), dtype=ys.float32) * 2).numpy(), [2, 2, 2, 2])
        slope = ys.jit(ys.grad(lambda x: ys.sum(x * 3)))
        np.testing.assert_array_equal(slope(x).numpy(), np.full((1, 1, 8), 3, np.float32))
        both = ys.jit(lambda x: (x * 2, w * 2))
        np.testing.assert_array_equal(both(x)[1].numpy(), 2 * w.numpy())


def test_a_sum_of_strided_operands_under_jit() -> None:
    """The kernel for the operands' strides needed no workspace, was called with one, and fell back to itself."""
    x = np.random.default_rng(0).standard_normal((2000, 1000), np.float32)
    f = ys.jit(lambda x: ys.sum(x[:, ::2] * x[:, 1::2], axis=0))
    with ys.options(device="cpu"):
        for _ in range(4):
            got = f(ys.asarray(x)).numpy()
    np.testing.assert_allclose(got, np.sum(x[:, ::2] * x[:, 1::2], axis=0, dtype=np.float64), atol=1e-2)


@needs_llvm
def test_a_product_reads_no_further_than_its_region() -> None:
    """A product whose operand was a view made by another region read the array behind it, which was not there: all of
    the region was left to NumPy, in most training steps of more than 256 ops."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((80, 90), np.float32), rng.standard_normal((80, 70), np.float32)
    made = ys.permute_dims(ys.asarray(x) + 1, (1, 0)) @ ys.asarray(w)
    graph = graph_of(capture([made._node])[0])
    region = next(r for r in fuse(graph) if r.kind is RegionKind.CONTRACTION)
    kernel = tiered.native_function(replace(region, repeats=True), Variants(NATIVES, RESULTS))
    np.testing.assert_allclose(kernel((x + 1).T, w)[0], (x + 1).T @ w, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("k", [-(2**63), -4, 5, 2**63 - 1])
def test_a_diagonal_far_outside_of_a_matrix(k: int) -> None:
    """NumPy negates the number of a diagonal, and overflowed; an edited plan file found it."""
    np.testing.assert_array_equal(ys.eye(3, 4, k=k).numpy(), np.zeros((3, 4)))


@needs_llvm
def test_the_layout_of_an_operand_is_found_without_its_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast of memory that nobody has written, in the size of the operand, warned of its NaNs."""
    x = ys.astype(ys.permute_dims(ys.ones((30, 20), dtype=ys.float32) * 2, (1, 0)), ys.float64)
    graph = graph_of(capture([x._node])[0])
    ran: list[str] = []
    monkeypatch.setattr(fused_product, "bind", lambda call: ran.append(call.op.name) or bind(call))
    view = fused_product.view_of(graph, graph.outputs[0])
    assert (view.entry, view.shape, ran) == (graph.outputs[0], (20, 30), [])


# Arrays of other libraries --------------------------------------------------------------------------------------------


class Foreign:
    """An array of another library: it is hashed by its identity, and its elements may change."""

    def __init__(self, values: Any) -> None:
        self.array = np.asarray(values)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __hash__(self) -> int:
        return id(self)


def test_jit_reads_arrays_of_other_libraries_at_every_call() -> None:
    """They were taken for constants, so that a replay went on with the old elements."""
    x = Foreign([1.0, 2.0])
    add, of_state = ys.jit(lambda a: ys.asarray(a) + 1), ys.jit(Holder(x).doubled)
    for value in (1.0, 5.0):
        x.array[:] = value
        assert (add(x).tolist(), of_state().tolist()) == ([value + 1] * 2, [2 * value] * 2)


class Holder:
    def __init__(self, x: Any) -> None:
        self.x = x

    def doubled(self) -> Any:
        return ys.asarray(self.x) * 2


@pytest.mark.parametrize(
    "call", [lambda x, y: x == y, lambda x, y: x + y, lambda x, y: y @ x, lambda x, y: x.__iadd__(y), ys.add]
)
def test_an_operand_of_another_library(call: Any) -> None:
    """A comparison was silently False, and other operators could not tell one Tensor from the other."""
    with pytest.raises(DTypeError, match=r"got \w+\.Foreign; convert it with ys.asarray$"):
        call(ys.ones(2), Foreign([1.0, 1.0]))


def test_a_value_with_negative_strides_by_dlpack() -> None:
    """PyTorch ends the process when it gets negative strides."""
    x = ys.from_numpy(np.arange(6.0).reshape(2, 3))[::-1, ::-2]
    y = np.from_dlpack(x)
    assert min(y.strides) > 0
    np.testing.assert_array_equal(y, [[5, 3], [2, 0]])
    with pytest.raises(BufferError, match=r"^\[__dlpack__\] expected copy=None"):
        x.__dlpack__(max_version=(1, 0), copy=False)


@pytest.mark.parametrize("error", [BufferError, RuntimeError])
def test_an_array_that_its_library_does_not_export(error: type[Exception]) -> None:
    class Sparse(Foreign):
        def __dlpack__(self, **kwargs: Any) -> Any:
            raise error("no layout but strided")

    for make in (ys.asarray, ys.from_dlpack):
        with pytest.raises(BufferError, match=r"^\[from_dlpack\] expected an array .* got \w+\.Sparse: no layout but"):
            make(Sparse([1.0]))


# Values that are equal but not the same -------------------------------------------------------------------------------


def test_the_rest_of_a_registered_container_belongs_to_the_signature_exactly() -> None:
    class Power:
        def __init__(self, x: Any, exponent: Any) -> None:
            self.x, self.exponent = x, exponent

    ys.register_tree(Power, lambda p: ((p.x,), p.exponent), lambda exponent, parts: Power(parts[0], exponent))
    text: list[str] = []
    f = ys.jit(lambda p: text.append(repr(p.exponent)) or p.x**p.exponent)
    exponents = [2, 2.0, True, 1, 0.0, -0.0, (1,), (True,)]
    for exponent in exponents[:6]:
        f(Power(ys.ones(1), exponent))
    g = ys.jit(lambda p: text.append(repr(p.exponent)) or p.x)
    for exponent in exponents[6:]:
        g(Power(ys.ones(1), exponent))
    assert text == [repr(e) for e in exponents]


# Updates --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "max"])
def test_an_update_refuses_what_the_tensor_cannot_hold(name: str) -> None:
    """All but `set` cut off fractions."""
    x = ys.ones(3, dtype=ys.uint8)
    for value in (1.5, [1.5], ys.asarray(1.5), np.ones(1), 1j):
        with pytest.raises(DTypeError, match=rf"^\[{name}\] expected a value that a tensor of uint8 can hold"):
            getattr(x.at[:1], name)(value)
    for value in (300, -1, [300], [-1]):
        with pytest.raises(DTypeError, match=rf"^\[{name}\] expected (a number|numbers) that fit"):
            getattr(x.at[[0]], name)(value)
    assert getattr(x.at[[0]], name)(True).dtype is ys.uint8


# Threads --------------------------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_seen_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread was visible before it was started; another thread that waited for it then raised `RuntimeError`."""
    found: list[bool] = []

    class Observed(threading.Thread):
        def start(self) -> None:
            found.append(taken._lock.locked())
            super().start()

    monkeypatch.setattr(snapshots, "Thread", Observed)
    taken, kept = snapshots.Snapshots(), threading.Event()
    assert taken.begin([Buffer(np.ones(2))], 16, lambda arrays: kept.set())
    taken.wait()
    assert (found, kept.is_set()) == ([True], True)


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_snapshot_whose_thread_does_not_start(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise failure

    monkeypatch.setattr(snapshots, "Thread", Refused)
    taken = snapshots.Snapshots()
    with pytest.raises(KeyboardInterrupt) if isinstance(failure, KeyboardInterrupt) else nullcontext():
        assert not taken.begin([Buffer(np.ones(2))], 16, lambda arrays: None)
    taken.wait()
    assert taken.is_due


def test_threads_that_replay_one_function_have_inputs_of_their_own() -> None:
    """The history of a result took the calls of another thread's inputs."""

    class Contended(list[Any]):
        def __setitem__(self, place: Any, value: Any) -> None:
            super().__setitem__(place, ("another thread's",))

    f, x = ys.jit(lambda a, b: a + b), ys.ones(2)
    f(x, x)
    replay = replace(next(iter(f._replays.values())), input_calls=Contended([()]))
    nodes = [x._node, ys.zeros(2)._node]
    assert [n.call for n in replay._source(nodes, "a device's").inputs] == [n.call for n in nodes]
