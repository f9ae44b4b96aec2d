"""The kernels of a whole training step: values computed again, the order of updates, and memory that is split."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import yosegi as ys
from yosegi import nn
from yosegi._graph.graph import capture, graph_of
from yosegi._run.device import host_device
from yosegi._schedule import recompute
from yosegi._schedule.fuse import Region, RegionKind, fuse
from yosegi._schedule.order import freeing_early
from yosegi._schedule.recompute import Recomputed, recomputed
from yosegi._tensor.op import constant, embedded, leaf
from yosegi.codegen.llvm.nest import _best
from yosegi.codegen.scalar.access import Dimension
from yosegi.devices.cpu import tiered
from yosegi.devices.cpu.results import PAGE, Extents
from yosegi.errors import OutOfMemory

WIDTH, LAYERS, ROWS = 96, 6, 4096


def region_of(*tensors):
    graph = graph_of(capture([t._node for t in tensors])[0])
    nodes = tuple(n for n, call in enumerate(graph.calls) if call.op not in (leaf, constant, embedded))
    return Region(graph, RegionKind.SEQUENCE, nodes, graph.inputs, tuple(dict.fromkeys(graph.outputs)))


def network(layers=LAYERS):
    rng = ys.random.default_rng(0)
    parts = [[nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, rng=rng), nn.GELU()] for _ in range(layers)]
    return nn.Sequential(*[m for part in parts for m in part])


def training_step():
    @ys.jit
    def step(optimizer, x):
        value, grads = nn.value_and_grad(optimizer.params, lambda m: ys.mean(m(x) ** 2))()
        return optimizer.step(grads), value

    return step


def batch():
    return ys.random.default_rng(1).normal((ROWS, WIDTH), dtype=ys.float32)


def values(optimizer):
    return {name: np.array(v) for name, v in optimizer.params.state_dict().items()}


def late_product(x):
    """A value, one that is an op away from it, and a product of both after a long chain of ops."""
    kept = ys.cumulative_sum(x)
    cheap = kept * 2.5
    y = kept + cheap
    for _ in range(recompute.FAR + 10):
        y = ys.sin(y)
    return y * cheap * kept


def test_late_readers_of_cheap_values_compute_them_again():
    region = region_of(late_product(ys.asarray(np.linspace(-1, 1, 1 << 12, dtype=np.float32))))
    made = recomputed(region, 1)
    names = [call.op.name for call in made.region.calls]
    assert names.count("cumulative_sum") == 1
    assert names.count("multiply") == [call.op.name for call in region.calls].count("multiply") + 1
    copies = [n for n in made.late if made.region.graph.calls[n].op.name == "multiply"]
    assert copies
    assert min(copies) > recompute.FAR
    assert all(a < n for n in made.region.nodes for a in made.region.graph.args[n])


def test_small_values_are_not_computed_again():
    region = region_of(late_product(ys.asarray(np.ones(1 << 12, np.float32))))
    assert recomputed(region, 1 << 20).region is region


def test_kernels_that_free_memory_run_early():
    x = ys.asarray(np.ones((64, 1000), np.float32))
    region = region_of(*[ys.cumulative_sum(ys.exp(x * n), axis=1)[:, :3] for n in (2.0, 3.0, 4.0)])
    late = [k for k in fuse(region.graph) if k.calls[-1].op.name != "exp"]
    kernels = [k for k in fuse(region.graph) if k.calls[-1].op.name == "exp"] + late
    order = [k.calls[-1].op.name for k in freeing_early(kernels, region.inputs, region.outputs)]
    assert sorted(order) == sorted(k.calls[-1].op.name for k in kernels)
    assert order.index("cumulative_sum") == 1, order


def test_a_training_step_takes_less_memory_and_gives_the_same(monkeypatch):
    cpu = host_device()

    def trained():
        x, optimizer, step = batch(), ys.optim.AdamW(network(), lr=1e-2), training_step()
        for _ in range(4):
            optimizer, _ = step(optimizer, x)
        cpu.trim()
        optimizer, _ = step(optimizer, x)
        return values(optimizer), cpu.statistics()["peak"]

    with ys.options(device="cpu"):
        made, peak = trained()
        with monkeypatch.context() as patch:
            patch.setattr(tiered, "recomputed", lambda region, least: Recomputed(region, frozenset()))
            patch.setattr(tiered, "freeing_early", lambda kernels, *_: kernels)
            expected, kept_peak = trained()
    assert peak < 0.8 * kept_peak
    for name, value in made.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_old_parameters_views_and_other_threads_never_see_a_change():
    with ys.options(device="cpu"):
        x, step = batch(), training_step()
        optimizer = ys.optim.AdamW(network(3), lr=1e-2)
        for _ in range(3):
            optimizer, _ = step(optimizer, x)
        before, views = values(optimizer), [np.asarray(v) for v in optimizer.params.state_dict().values()]
        copies = [v.copy() for v in views]

        def run(_):
            with ys.options(device="cpu"):
                made, loss = step(optimizer, x)
                return values(made), float(loss)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(run, range(8)))
        for made, loss in results:
            assert loss == results[0][1]
            assert all(np.array_equal(v, results[0][0][name]) for name, v in made.items())
        assert all(np.array_equal(v, before[name]) for name, v in values(optimizer).items())
        assert all(np.array_equal(v, c) for v, c in zip(views, copies, strict=True))


def test_a_step_that_fails_leaves_its_inputs_as_they_were():
    cpu = host_device()
    with ys.options(device="cpu"):
        x, step = batch(), training_step()
        optimizer = ys.optim.AdamW(network(3), lr=1e-2)
        for _ in range(3):
            optimizer, _ = step(optimizer, x)
        expected, before = values(step(optimizer, x)[0]), values(optimizer)
        taken = []

        def refuse(memory, nbytes):
            taken.append(nbytes)
            if len(taken) > 5:
                raise OutOfMemory("no more")

        cpu.results.pool.on_take = refuse
        try:
            with pytest.raises(OutOfMemory):
                step(optimizer, x)
        finally:
            cpu.results.pool.on_take = None
        assert all(np.array_equal(v, before[name]) for name, v in values(optimizer).items())
        assert all(np.array_equal(v, expected[name]) for name, v in values(step(optimizer, x)[0]).items())


def test_vectors_run_along_the_axis_of_most_elements():
    channels, inner = Dimension(64, (1024, 1, 1, 1), 64, False), Dimension(1024, (1, 0, 0, 0), 1024, True)
    assert _best([channels, inner]) is inner, "three arrays of 64 elements count less than one of 65,536"


@pytest.mark.parametrize("seed", range(20))
def test_extents_never_overlap_and_join_again(seed):
    rng, mapped, start = random.Random(seed), {}, [1 << 30]

    def more(nbytes):
        at = start[0]
        start[0] += nbytes + rng.choice([0, 1 << 20])
        mapped[at] = nbytes
        return None, at

    extents, live = Extents(more, most_free=rng.choice([None, 50 * PAGE])), {}
    for _ in range(300):
        if rng.random() < 0.55 or not live:
            made = extents.take(rng.randint(1, 20) * PAGE)
            behind = made.address + made.nbytes
            assert all(behind <= e.address or e.address + e.nbytes <= made.address for e in live.values())
            assert any(at <= made.address and behind <= at + nbytes for at, nbytes in mapped.items())
            live[made.address] = made
        else:
            extents.give_back(live.pop(rng.choice(list(live))))
    for extent in live.values():
        extents.give_back(extent)
    extents.trim()
    assert extents.free == 0
