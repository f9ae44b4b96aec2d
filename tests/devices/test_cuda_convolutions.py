"""Convolutions through cuDNN: what it is told, and which of its engines are taken. It computes nothing here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fake_cudnn as fake
import yosegi as ys
from fake_cudnn import Library, Offered, Told, Versioned
from yosegi._graph.graph import capture, graph_of
from yosegi._schedule.fuse import Region, fuse
from yosegi._tensor.op import REGISTRY
from yosegi._tensor.precision import Precision
from yosegi.devices.cuda import cudnn
from yosegi.devices.cuda.convolutions import ENGINES, Convolutions
from yosegi.devices.cuda.engines import BEHAVIOUR, NUMERICS
from yosegi.devices.cuda.launch import WORKSPACE
from yosegi.devices.cuda.machine import CUDAMachine
from yosegi.errors import CompileFailure, LaunchFailure, NoSuchVariant, OutOfMemory
from yosegi.ops.conv import conv

IMAGE, KERNEL = (2, 6, 9, 10), (8, 6, 3, 3)
TENSOR_CORES, SHORT_INPUTS, SHORT_SUMS, FOURIER, NONDETERMINISTIC, WINOGRAD, KEEPS_NANS = 0, 1, 2, 3, 4, 5, 9
COMPILES, REORDERS_WEIGHTS, REORDERS_BIAS, NATIVE_GRAPH, BY_CUBLAS = 0, 1, 2, 3, 4


class Queue:
    """What convolutions want of a queue."""

    name, number, pointer = "cuda:0", 0, 5

    def __init__(self) -> None:
        self.lock = nullcontext()
        self.runtime = SimpleNamespace(setDevice=lambda number: None)
        self.memory = SimpleNamespace(new=lambda shape, dtype: SimpleNamespace(pointer=333))
        self.noted: list[Any] = []
        self.workspaces = 0

    @property
    def workspace(self) -> int:
        self.workspaces += 1
        return 4444

    def note(self, launch: Any, data: Any, written: int) -> None:
        self.noted.append((launch, written))


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts a library in the place of cuDNN."""

    def use(expected: list[Offered] | int, fallback: list[Offered] | int = fake.NOT_SUPPORTED) -> Library:
        library = Library(expected, fallback)
        monkeypatch.setattr(cudnn, "_found", lambda: library)
        return library

    yield use
    gc.collect()  # what a library of this test has made dies with it


def region_of(
    image: tuple[int, ...] = IMAGE, kernel: tuple[int, ...] = KERNEL, dtype: Any = ys.float32, **attrs: Any
) -> Region:
    x, w = (ys.asarray(np.zeros(shape, np.float32)).astype(dtype) for shape in (image, kernel))
    ys.eval(x, w)
    (region,) = fuse(graph_of(capture([conv(x, w, **attrs)._node])[0]))
    return region


def convolutions(queue: Any) -> Convolutions:
    return Convolutions(queue)


def taken(library: Library) -> list[int]:
    """The numbers of the engines that are plans."""
    return [told.offered.number for told in library.of(fake.PLAN) if told.offered is not None and told.is_finished]


def launched(kernel: Any, *pointers: int) -> None:
    kernel(*[SimpleNamespace(pointer=pointer) for pointer in pointers])


@pytest.mark.parametrize(
    ("image", "kernel", "attrs", "lengths"),
    [
        ((2, 6, 9, 10), (8, 6, 3, 2), {"padding": 1, "stride": (2, 1), "dilation": (1, 3)},
         [(1, 1), (1, 1), (2, 1), (1, 3)]),
        ((2, 6, 40), (8, 3, 5), {"padding": 4, "stride": 3, "dilation": 2, "groups": 2},
         [(0, 4), (0, 4), (1, 3), (1, 2)]),
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"padding": (1, 2, 0), "stride": (1, 2, 1)},
         [(1, 2, 0), (1, 2, 0), (1, 2, 1), (1, 1, 1)]),
        ((2, 5, 11, 6), (5, 1, 3, 3), {"groups": 5}, [(0, 0), (0, 0), (1, 1), (1, 1)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "kind", "sums", "scale"),
    [(ys.float32, 0, 0, 4), (ys.float64, 1, 1, 5), (ys.float16, 2, 0, 4), (ys.bfloat16, 9, 0, 4)],
)
def test_what_the_library_is_told(
    used: Any, queue: Queue, image: Any, kernel: Any, attrs: Any, lengths: Any, dtype: Any, kind: int, sums: int,
    scale: int,
) -> None:  # fmt: skip
    library = used([Offered()])
    region = region_of(image, kernel, dtype, **attrs)
    made = convolutions(queue)
    assert made.refusal(region.calls[-1]) is None
    run = made.compiled(region)
    (graph,), (operation,) = library.of(fake.GRAPH), library.of(fake.FORWARD)
    assert library.at(graph, 801) is operation
    shapes = image, kernel, region.calls[-1].spec.shape
    for number, (attribute, shape) in enumerate(zip((704, 703, 705), shapes, strict=True), 1):
        wide = shape if len(shape) > 3 else (*shape[:2], 1, shape[2])
        strides = [int(np.prod(wide[n + 1 :])) for n in range(len(wide))]
        tensor = library.at(operation, attribute)
        assert tensor.attributes == {901: [kind], 902: list(wide), 903: strides, 906: [number], 900: [16]}
    before, after, strides, dilations = map(list, lengths)
    assert library.at(operation, 702).attributes == {
        100: [sums], 101: [1], 102: dilations, 103: strides, 104: after, 105: before, 106: [len(strides)],
    }  # fmt: skip
    assert [operation.attributes[n] for n in (700, 701)] == [[1], [0]]
    assert [operation.types[n] for n in (700, 701)] == [scale, scale]
    del run


def noting(orders: list[Any]) -> Any:
    """A replacement for `transposed` that notes the order of axes and the reversed ones."""

    def transposed(queue: Any, shape: Any, order: Any, dtype: Any, reverses: Any = ()) -> Any:
        orders.append((order, *reverses))
        return lambda data: data

    return transposed


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("size", "padding", "dilation"), [(9, 1, 1), (10, 1, 1), (12, 0, 2)])
def test_the_gradient_by_the_weights_has_engines_of_its_own(
    used: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, stride: int, size: int, padding: int, dilation: int
) -> None:
    """It was computed as a convolution with weights of 32 by 32, in 1 ms where the engines for it take 0.2."""
    orders: list[Any] = []

    monkeypatch.setattr(import_module("yosegi.devices.cuda.convolutions"), "transposed", noting(orders))
    library = used([Offered()])
    x, w = ys.asarray(np.ones((2, 3, size, size), np.float32)), ys.asarray(np.ones((5, 3, 3, 3), np.float32))
    made = REGISTRY["conv"](x, w, stride=stride, padding=padding, dilation=dilation)
    gradient = ys.grad(lambda w: ys.sum(REGISTRY["conv"](x, w, stride=stride, padding=padding, dilation=dilation)))
    regions = fuse(graph_of(capture([gradient(w)._node])[0]))
    (region,) = [part for part in regions if part.calls[-1].op.name == "conv"]
    convolving = convolutions(queue)
    assert convolving.refusal(region.calls[-1]) is None
    run = convolving.compiled(region)
    (operation,) = library.of(fake.TO_WEIGHTS)
    for attribute, shape in ((716, x.shape), (717, made.shape), (715, w.shape)):
        assert library.at(operation, attribute).attributes[902] == list(shape)
    windows = library.at(operation, 714).attributes
    assert [windows[n][0] for n in (102, 103, 104, 105)] == [dilation, stride, padding, padding]
    assert orders == [((1, 0, 2, 3),)] * 3
    del run


@pytest.mark.parametrize(("size", "padding", "dilation"), [(9, 1, 1), (10, 1, 1), (12, 0, 2)])
def test_the_gradient_by_the_input_of_a_strided_convolution_has_engines_of_its_own(
    used: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, size: int, padding: int, dilation: int
) -> None:
    """A generated kernel multiplied the zeros between the elements, too."""
    orders: list[Any] = []
    monkeypatch.setattr(import_module("yosegi.devices.cuda.convolutions"), "transposed", noting(orders))
    library = used([Offered()])
    x, w = ys.asarray(np.ones((2, 3, size, size), np.float32)), ys.asarray(np.ones((5, 3, 3, 3), np.float32))
    made = REGISTRY["conv"](x, w, stride=2, padding=padding, dilation=dilation)
    gradient = ys.grad(lambda x: ys.sum(REGISTRY["conv"](x, w, stride=2, padding=padding, dilation=dilation)))
    regions = fuse(graph_of(capture([gradient(x)._node])[0]))
    (region,) = [part for part in regions if part.calls[-1].op.name == "conv"]
    convolving = convolutions(queue)
    assert convolving.refusal(region.calls[-1]) is None
    run = convolving.compiled(region)
    (operation,) = library.of(fake.TO_INPUT)
    for attribute, shape in ((711, made.shape), (709, w.shape), (710, x.shape)):
        assert library.at(operation, attribute).attributes[902] == list(shape)
    windows = library.at(operation, 708).attributes
    assert [windows[n][0] for n in (102, 103, 104, 105)] == [dilation, 2, padding, padding]
    assert orders == [(None,), ((1, 0, 2, 3), 2, 3), (None,)]
    del run


@pytest.mark.parametrize("dtype", [ys.float32, ys.float64, ys.float16, ys.bfloat16])
@pytest.mark.parametrize("precision", [Precision.FULL, Precision.TF32])
def test_engines_that_compute_less_precisely_are_not_taken(
    used: Any, queue: Queue, dtype: Any, precision: Precision
) -> None:
    unknown = max(NUMERICS) + 1
    library = used([Offered(10 + note, (note,)) for note in (*NUMERICS, unknown)])
    region, made, kernels = replace(region_of(dtype=dtype), precision=precision), convolutions(queue), []
    for rank in range(ENGINES):
        try:
            kernels.append(made.compiled(region, rank))
        except NoSuchVariant:
            break
    rounds = dtype is not ys.float32 or precision is Precision.TF32
    assert taken(library) == ([10 + TENSOR_CORES] if rounds else []) + [10 + KEEPS_NANS]


def test_one_note_that_is_not_harmless_is_enough(used: Any, queue: Queue) -> None:
    library = used(
        [
            Offered(1, (KEEPS_NANS, TENSOR_CORES, SHORT_SUMS)), Offered(2, (TENSOR_CORES, SHORT_INPUTS)),
            Offered(3, (WINOGRAD, TENSOR_CORES)), Offered(4, (), (COMPILES, REORDERS_WEIGHTS)),
            Offered(5, (), (REORDERS_BIAS,)), Offered(6, (FOURIER,)), Offered(7, (NONDETERMINISTIC,)),
            Offered(9, (), (COMPILES, max(BEHAVIOUR) + 1)),
            Offered(8, (KEEPS_NANS, TENSOR_CORES), (COMPILES, NATIVE_GRAPH, BY_CUBLAS)),
        ]
    )  # fmt: skip
    run = convolutions(queue).compiled(region_of(dtype=ys.float16))
    assert taken(library) == [8]
    del run


def test_without_an_engine_that_may_compute_it_there_is_none_and_it_says_why(used: Any, queue: Queue) -> None:
    library = used([Offered(1, (TENSOR_CORES,)), Offered(2, (WINOGRAD,)), Offered(3, (TENSOR_CORES,))])
    made, region = convolutions(queue), region_of()
    with pytest.raises(CompileFailure, match=r"may compute it: tensor cores; Winograd's way; .*CUDNN_STATUS_3000") as e:
        made.compiled(region)
    assert type(e.value) is CompileFailure
    with pytest.raises(NoSuchVariant):
        made.compiled(region, 1)
    assert library.asked == 2  # once in each mode


def test_engines_come_in_the_order_that_the_library_expects(used: Any, queue: Queue) -> None:
    library = used([Offered(n) for n in (30, 10, 30, 20)], [Offered(10), Offered(5), Offered(20), Offered(6)])
    made, region = convolutions(queue), region_of()
    kernels = [made.compiled(region), *[made.compiled(region, rank) for rank in range(1, ENGINES)]]
    assert taken(library) == [30, 10, 30, 20, 5, 6]
    assert library.asked == 2
    with pytest.raises(NoSuchVariant, match="6 engines"):
        made.compiled(region, ENGINES)
    assert len(kernels) == ENGINES


def test_more_engines_than_are_measured_are_not_asked_for(used: Any, queue: Queue) -> None:
    library = used([Offered(n) for n in range(9)], [Offered(n) for n in range(20, 25)])
    made, region = convolutions(queue), region_of()
    kernels = [made.compiled(region, rank) for rank in range(ENGINES)]
    assert (taken(library), library.asked) == ([*range(ENGINES)], 1)
    with pytest.raises(NoSuchVariant):
        made.compiled(region, ENGINES)
    made.compiled(region_of(dtype=ys.float16))
    assert library.asked == 2
    del kernels


def test_an_engine_that_is_refused_in_the_end_makes_room_for_the_next(used: Any, queue: Queue) -> None:
    library = used([Offered(1, status=fake.NOT_SUPPORTED), Offered(2)])
    made, region = convolutions(queue), region_of()
    with pytest.raises(CompileFailure, match="cudnnBackendFinalize: CUDNN_STATUS_3000: Error: it said so; at line 3"):
        made.compiled(region, 0)
    run = made.compiled(region)
    assert taken(library) == [2]
    del run


def test_nothing_waits_for_the_garbage_collector_when_all_engines_are_refused(used: Any, queue: Queue) -> None:
    used([Offered(1, status=fake.NOT_SUPPORTED), Offered(2, status=fake.NOT_SUPPORTED)])
    made, region = convolutions(queue), region_of()
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(CompileFailure) as raised:
            made.compiled(region)
        first: BaseException = raised.value
        while first.__cause__ is not None:
            first = first.__cause__
        waiting = weakref.ref(first)
        del first, raised
        assert waiting() is None
    finally:
        gc.enable()


def test_an_engine_that_cannot_be_made_is_not_tried(used: Any, queue: Queue) -> None:
    library = used([Offered(1, tells=False), Offered(2)])
    made, region = convolutions(queue), region_of()
    run = made.compiled(region, 0)
    assert taken(library) == [2]
    with pytest.raises(NoSuchVariant, match="1 engines"):
        made.compiled(region, 1)
    del run


def test_a_mode_that_fails_leaves_the_other(used: Any, queue: Queue) -> None:
    library = used(fake.NOT_SUPPORTED, [Offered(4)])
    run = convolutions(queue).compiled(region_of())
    assert taken(library) == [4]
    del run


def test_engines_that_need_more_memory_than_there_is_are_not_taken(used: Any, queue: Queue) -> None:
    library = used([
        Offered(1, workspace=WORKSPACE + 1), Offered(2, workspace=WORKSPACE, more=1), Offered(3, workspace=WORKSPACE),
    ])  # fmt: skip
    made, region = convolutions(queue), region_of()
    with pytest.raises(CompileFailure, match=f"needs {WORKSPACE + 1} bytes"):
        made.compiled(region, 0)  # the second, which told less
    launched(made.compiled(region), 1, 2)
    assert [plan.offered.number for plan, _ in library.executed if plan.offered is not None] == [3]


def test_a_launch_has_its_tensors_its_stream_and_its_workspace(used: Any, queue: Queue) -> None:
    library = used([Offered(1, workspace=64), Offered(2)])
    made, region = convolutions(queue), region_of()
    first, second = made.compiled(region), made.compiled(region, 1)
    launched(first, 111, 222)
    launched(second, 111, 222)
    queue.pointer = 6
    launched(first, 112, 222)
    variants: list[Told] = [variant for _, variant in library.executed]
    assert [plan.offered.number for plan, _ in library.executed if plan.offered is not None] == [1, 2, 1]
    assert [v.attributes[1000] for v in variants] == [[1, 2, 3]] * 3
    assert [v.attributes[1001] for v in variants] == [[111, 222, 333], [111, 222, 333], [112, 222, 333]]
    assert [v.attributes[1003] for v in variants] == [[4444], [None], [4444]]
    assert library.streams == [5, 6]
    assert queue.workspaces == 2
    assert [written for _, written in queue.noted] == [1, 1, 1]
    assert library.of(fake.VARIANT) == []
    queue.noted[0][0].at([1, 2, 3])
    assert library.executed[-1][1].attributes[1001] == [1, 2, 3]


def test_what_the_library_was_told_goes_with_the_convolution(used: Any, queue: Queue) -> None:
    library = used([Offered(1), Offered(2), Offered(3, (WINOGRAD,))])
    made, region = convolutions(queue), region_of()
    run = made.compiled(region)
    made._known = None
    gc.collect()
    left = sorted(told.kind for told in library.alive.values())
    assert left == sorted([fake.PLAN, fake.CHOICE, fake.HEURISTICS, fake.GRAPH, fake.FORWARD, fake.CONVOLUTION,
                           fake.TENSOR, fake.TENSOR, fake.TENSOR])  # fmt: skip
    launched(run, 1, 2)
    queue.noted.clear()
    del run
    assert library.alive == {}


@pytest.mark.parametrize(
    ("status", "when", "kind"),
    [
        (fake.NOT_SUPPORTED, "preparing", CompileFailure),
        (fake.NO_DEVICE_MEMORY, "preparing", OutOfMemory),
        (5000, "convolving", LaunchFailure),
        (fake.NO_DEVICE_MEMORY, "convolving", OutOfMemory),
    ],
)
def test_errors_are_what_they_mean(used: Any, queue: Queue, status: int, when: str, kind: type[Exception]) -> None:
    library = used([Offered(status=status if when == "preparing" else 0)])
    library.status = status
    with pytest.raises(kind, match=rf"^\[cuda:0\] {when}.*: cudnnBackend\w+: CUDNN_STATUS_{status}: Error: it said so"):
        launched(convolutions(queue).compiled(region_of()), 1, 2)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"padding": ((1, 0), (0, 0))}, "pads one side more"),
        ({"padding": ((-1, -1), (0, 0))}, "cuts the sides off"),
        ({"spread": 2, "stride": 2}, "stand apart"),
    ],
)
def test_what_it_need_not_have_is_refused(used: Any, queue: Queue, attrs: Any, reason: str) -> None:
    used([Offered()])
    assert reason in (convolutions(queue).refusal(region_of(**attrs).calls[-1]) or "")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "cuDNN is not installed"),
        (8907, "cuDNN 8.9 is too old: it has to be 9.2 or newer"),
        (90101, "cuDNN 9.1 is too old: it has to be 9.2 or newer"),
        (90200, None),
        (91002, None),
    ],
)
def test_a_library_that_is_not_there_or_too_old_is_refused(
    monkeypatch: pytest.MonkeyPatch, queue: Queue, version: int | None, reason: str | None
) -> None:
    made: list[Versioned] = []

    def opened(place: str) -> Versioned:
        if version is None:
            raise OSError(place)
        made.append(Versioned(version))
        return made[-1]

    monkeypatch.setattr(cudnn, "CDLL", opened)
    cudnn._found.cache_clear()
    try:
        assert convolutions(queue).refusal(region_of().calls[-1]) == reason
    finally:
        cudnn._found.cache_clear()
    assert reason is not None or made[0].is_prepared()


def test_each_engine_is_a_way(used: Any, queue: Queue) -> None:
    library = used([Offered(7), Offered(8)])
    made: Any = SimpleNamespace(convolutions=convolutions(queue))
    made.refusal = made.convolutions.refusal
    target: Any = SimpleNamespace(**vars(queue), name="cuda:0", dialect=None, target=None)
    machine = CUDAMachine(target, made, made.convolutions.compiled, lambda region: None, 100)
    variants = machine.by_library(region_of())
    assert list(variants) == ["library", *[f"library, engine {n}" for n in range(2, ENGINES + 1)]]
    assert library.alive == {}  # nothing is asked before a way is wanted
    kernels = [variants["library"](), variants["library, engine 2"]()]
    assert (taken(library), len(kernels)) == ([7, 8], 2)
    with pytest.raises(NoSuchVariant):
        variants["library, engine 3"]()
