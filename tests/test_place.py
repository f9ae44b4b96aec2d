"""Placement: the cheapest plan by all that is known, the priors before, and what users have put somewhere stays."""

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, ModelCompiler, installed
from measured import HOST, machine, numbers, speed
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._place.cost_model import DEVICE_PRIOR, HOST_PRIOR, Task, TransferCost, works_of
from yosegi._place.costs import costs
from yosegi._place.forecast import forecast_of
from yosegi._place.partition import units_of
from yosegi._place.place import place
from yosegi._place.plan import Plan, Step
from yosegi._place.table import CandidateTable
from yosegi._run.device import chain_named, host_device
from yosegi._run.run import run_plan, transfers
from yosegi._schedule.fuse import fuse
from yosegi._tensor.precision import IN_FULL

SLOW_WAY = TransferCost(latency=1e-4, bandwidth=1e10)


class Lacking(FakeDevice):
    """Lacks some ops."""

    def __init__(self, *lacks, **kwargs):
        super().__init__(**kwargs)
        self.lacks = lacks

    def supports(self, region):
        lacking = next((c.op.name for c in region.calls if c.op.name in self.lacks), None)
        return super().supports(region) if lacking is None else f"it has no {lacking}"


def layers(x, count=60):
    """A model with an op in each layer that the first device lacks."""
    for _ in range(count):
        x = ys.sort(ys.tanh(x @ x), axis=-1)
    return x


def graph_for(*tensors):
    return simplify(graph_of(capture([t._node for t in tensors])[0]))


def devices_of(plan):
    return [step.device.name for step in plan.steps]


def single(graph, device):
    """The plan that puts all it can on one device."""
    regions = fuse(graph)
    table = CandidateTable(graph, regions, works_of(graph, regions), (device, host_device()))
    units = units_of(graph, table.placed(table.single(device)))
    return Plan(graph, [Step.of(u, (device, host_device()), IN_FULL, is_named=False) for u in units])


# The case that breaks priority lists


def moved(plan, inputs):
    """How many values are copied in a run, and its results."""
    before = sum(transfers.traffic.count.values())
    made = run_plan(Plan(plan.graph, plan.steps), [t._node.buffer for t in inputs])
    return sum(transfers.traffic.count.values()) - before, made[0].data


def test_sixty_layers_with_an_op_that_the_first_device_lacks(monkeypatch, tmp_path):
    fast = Lacking("sort")
    with machine(monkeypatch, tmp_path, {fast: speed(10, way=SLOW_WAY)}):
        x = ys.asarray(numbers(128, 128))
        graph = graph_for(layers(x))
        plan = place(graph, (fast, host_device()))
        on_host, with_fallback = single(graph, host_device()), single(graph, fast)
        assert devices_of(with_fallback) == [n for _ in range(60) for n in (fast.name, fast.name, "cpu")]
        assert devices_of(plan) == ["cpu"]
        assert plan.forecast().total == on_host.forecast().total < with_fallback.forecast().total / 2
        copies, result = moved(plan, (x,))
        copies_with_fallback, other = moved(with_fallback, (ys.asarray(x.numpy()),))
        assert copies == 0
        assert copies_with_fallback == 2 * 60
        np.testing.assert_allclose(result, other, rtol=1e-3, atol=1e-3)


def test_sixty_layers_go_back_and_forth_where_that_is_cheaper(monkeypatch, tmp_path):
    fast = Lacking("sort")
    with machine(monkeypatch, tmp_path, {fast: speed(100, way=TransferCost(1e-7, 1e13))}):
        graph = graph_for(layers(ys.asarray(numbers(256, 256))))
        plan = place(graph, (fast, host_device()))
        assert plan.forecast().total < single(graph, host_device()).forecast().total / 1.2
        assert set(devices_of(plan)) == {fast.name, "cpu"}


def test_a_large_part_goes_to_the_fast_device_and_the_rest_stays(monkeypatch, tmp_path):
    fast = Lacking("sort")
    with machine(monkeypatch, tmp_path, {fast: speed(20, way=SLOW_WAY)}):
        x = ys.asarray(numbers(4_000_000))
        y = ys.sort(ys.sum((ys.tanh(x) * 2).reshape((4000, 1000)), axis=1))
        plan = place(graph_for(y), (fast, host_device()))
        assert devices_of(plan)[0] == fast.name
        assert devices_of(plan)[-1] == "cpu"


def rated(products, loops):
    rates = {(Task.PRODUCTS, "float32"): products, (Task.LOOPS, "float32"): loops}
    return replace(speed(1), rates=rates)


@pytest.mark.parametrize(("gain", "is_split"), [(1.1, False), (3.0, True)])
def test_a_program_is_split_only_for_a_clear_predicted_gain(monkeypatch, tmp_path, gain, is_split):
    fake = FakeDevice()
    with machine(monkeypatch, tmp_path, {fake: rated(gain * 1e9, 1e7)}, host=rated(1e9, 1e10)):
        x = ys.asarray(numbers(256, 256))
        graph = graph_for(ys.exp(ys.tanh(x @ x) @ x) @ x)
        assert set(devices_of(place(graph, (fake, host_device())))) == {"cpu", *([fake.name] if is_split else [])}


# By its own prediction


def test_never_worse_than_a_single_device_by_its_own_prediction(monkeypatch, tmp_path):
    rng = np.random.default_rng(1)
    for _ in range(25):
        first, second = Lacking("sort", "matmul"), ModelCompiler("sort", "exp")
        variants = [TransferCost(float(10 ** rng.uniform(-7, -3)), float(10 ** rng.uniform(8, 12))) for _ in range(2)]
        speeds = {
            d: speed(float(10 ** rng.uniform(-1, 2)), launch=float(10 ** rng.uniform(-7, -3)), way=way)
            for d, way in zip((first, second), variants, strict=True)
        }
        with machine(monkeypatch, tmp_path, speeds):
            x = ys.asarray(numbers(300, 300))
            y = x
            for op in rng.integers(0, 5, 12):
                y = (ys.exp(-ys.abs(y)), y @ x, ys.sort(y, axis=0), ys.tanh(y) + x, y - ys.mean(y, axis=0))[op]
            graph = graph_for(y)
            plan = place(graph, (first, second, host_device()))
            for device in (first, second, host_device()):
                assert plan.forecast().total <= single(graph, device).forecast().total * (1 + 1e-9)


def test_it_is_the_best_of_all_placements_of_a_small_graph(monkeypatch, tmp_path):
    fast = Lacking("sort")
    with machine(monkeypatch, tmp_path, {fast: speed(10, launch=2e-5, way=TransferCost(3e-5, 1e10))}):
        x = ys.asarray(numbers(200, 200))
        graph = graph_for(ys.sum(ys.sort(ys.tanh(x @ x), axis=0) @ ys.exp(x), axis=0))
        regions = fuse(graph)
        table = CandidateTable(graph, regions, works_of(graph, regions), (fast, host_device()))
        totals = [table.layout(labels).forecast.total for labels in product(*table.candidates)]
        assert place(graph, (fast, host_device())).forecast().total == pytest.approx(min(totals))


def test_inputs_that_stay_the_same_are_moved_once(monkeypatch, tmp_path):
    fast = FakeDevice()
    with machine(monkeypatch, tmp_path, {fast: speed(20, way=TransferCost(1e-6, 1e9))}):
        graph = graph_for(ys.sum(ys.asarray(numbers(1_000_000)) * 2))
        chain = (fast, host_device())
        assert devices_of(place(graph, chain)) == ["cpu"]
        assert fast.name in devices_of(place(graph, chain, reused=range(len(graph.inputs))))


# Priors


@pytest.mark.parametrize(("nbytes", "device"), [(900_000, "cpu"), (1_100_000, "fake")])
def test_without_measurements_the_size_decides(nbytes, device):
    fake = FakeDevice()
    x = ys.asarray(np.ones(nbytes // 8, np.float32))
    with installed(fake, alone=True), ys.options(device="auto"):
        (step,) = ys.plan(x + 1).steps
        assert step.device.name.rstrip("0123456789:") == device


def test_without_measurements_the_first_of_the_chain_comes_first():
    first, second = Lacking("sort"), FakeDevice()
    with installed(first, second, alone=True), ys.options(device="auto"):
        x = ys.asarray(numbers(1000, 1000))
        assert devices_of(ys.plan(ys.exp(x))) == [first.name]
        assert devices_of(ys.plan(ys.sort(x, axis=0))) == [second.name]


def test_small_work_on_what_a_device_has_made_stays_there_without_measurements():
    fake = FakeDevice()
    with installed(fake, alone=True), ys.options(device="auto"):
        x = ys.asarray(numbers(1000, 1000)) + 1
        ys.eval(x)
        assert x.device is fake
        assert devices_of(ys.plan(x[:3, :3] * 2)) == [fake.name] * 2


def test_priors_are_lines():
    assert not DEVICE_PRIOR.is_measured
    assert costs.speed(host_device()) is HOST_PRIOR


# What users have put somewhere


def test_pinned_tensors_are_worked_on_where_they_are(monkeypatch, tmp_path):
    slow = Lacking("sort")
    with machine(monkeypatch, tmp_path, {slow: speed(0.01, launch=1e-3, way=SLOW_WAY)}):
        x = ys.asarray(numbers(50, 50), device=slow)
        y = ys.exp(x) * 2
        ys.eval(y)
        assert y.device is slow
        z = y + 1  # made of what was put there, in another evaluation
        ys.eval(z)
        assert z.device is slow
        assert devices_of(ys.plan(ys.sort(ys.tanh(x), axis=0) + 1)) == [slow.name, "cpu"]
        np.testing.assert_allclose(z.numpy(), np.exp(x.numpy()) * 2 + 1, rtol=1e-5)


def test_what_only_happens_to_be_somewhere_is_moved_if_that_is_cheaper(monkeypatch, tmp_path):
    fast = FakeDevice()
    with machine(monkeypatch, tmp_path, {fast: speed(10)}):
        x = ys.asarray(numbers(1_000_000)) + 1
        ys.eval(x)
        assert x.device is fast
        costs.set_speed(fast, speed(0.01, launch=1e-2))
        assert devices_of(ys.plan(x[:1000] * 3)) == ["cpu"]


def test_a_device_that_was_named_gets_all_it_can_however_slow(monkeypatch, tmp_path):
    slow = Lacking("sort")
    known = {slow: speed(0.001, launch=1.0, way=TransferCost(1.0, 1e3))}
    with machine(monkeypatch, tmp_path, known), ys.options(device=slow.name):
        y = ys.sort(ys.tanh(ys.asarray(numbers(10, 10))) * 2, axis=0) + 1
        assert devices_of(ys.plan(y)) == [slow.name, "cpu", slow.name]


# Effort


def wide_network(regions):
    x = ys.asarray(np.ones((512, 512), np.float32))
    w = [ys.asarray(np.ones((512, 512), np.float32)) for _ in range(8)]
    for i in range(0, regions, 4):
        h = ys.tanh(x @ w[i % 8])
        x = x + (ys.sort(h, axis=-1) if i % 10 == 0 else h) @ w[(i + 1) % 8]
    return graph_for(x)


@pytest.mark.parametrize(("count", "most"), [(1, 0.1), (2, 0.2)])  # 45 and 70 ms on an idle machine
def test_a_thousand_regions_are_placed_in_a_tenth_of_a_second(monkeypatch, tmp_path, count, most):
    graph = wide_network(1000)
    assert len(fuse(graph)) >= 1000
    fakes = [Lacking("sort") for _ in range(count)]
    speeds = {fake: speed(3 + n, launch=2e-5, way=SLOW_WAY) for n, fake in enumerate(fakes)}
    with machine(monkeypatch, tmp_path, speeds):
        taken = []
        for _ in range(15):
            start = time.process_time()
            plan = place(graph, (*fakes, host_device()))
            taken.append(time.process_time() - start)
    print(f"\n{len(fuse(graph))} regions, {count + 1} labels: {min(taken) * 1e3:.0f} ms, {len(plan.steps)} steps")
    assert min(taken) < most


def test_small_programs_ask_no_device(monkeypatch):
    asked = []

    class Asked(FakeDevice):
        def supports(self, region):
            asked.append(region)
            return super().supports(region)

    with installed(Asked(), alone=True), ys.options(device="auto"):
        plan = ys.plan(ys.exp(ys.asarray(numbers(10)) * 2))
        assert plan.host_kernel is not None
        assert not asked


# What is told


def test_explain_tells_every_candidate_and_what_a_single_device_would_take(monkeypatch, tmp_path):
    fast, slow = Lacking("sort"), FakeDevice()
    with machine(
        monkeypatch, tmp_path, {fast: speed(20, way=TransferCost(1e-5, 1e11)), slow: speed(0.5, way=SLOW_WAY)}
    ):
        x = ys.asarray(numbers(2000, 2000))
        explanation = ys.plan(ys.sort(ys.exp(x) * 2, axis=1)).explain()
    told = explanation.to_json()
    assert {c["device"] for s in told["steps"] for c in s["candidates"]} <= {fast.name, slow.name, "cpu"}
    first = told["steps"][0]
    assert first["device"] == fast.name
    assert [c["device"] for c in first["candidates"]] == [fast.name, "cpu", slow.name]
    assert first["candidates"][0]["reason"] == ""
    assert "times as long" in first["candidates"][1]["reason"]
    assert told["predicted"]["total_ms"] == pytest.approx(
        sum(told["predicted"][f"{part}_ms"] for part in ("compute", "conversion", "transfer"))
    )
    assert told["predicted"]["transfer_ms"] > 0
    totals = {s["device"]: s["total_ms"] for s in told["singles"]}
    assert set(totals) == {fast.name, slow.name, "cpu"}
    assert told["predicted"]["total_ms"] <= min(totals.values()) * (1 + 1e-9)
    text, html = str(explanation), explanation._repr_html_()
    for shown in (text, html):
        assert f"all it can on {slow.name}: " in shown
        assert "in all: predicted " in shown
    assert f"not on {fast.name}: it has no sort" in text
    assert f"{fast.name}: it has no sort" in html


def test_a_region_that_is_cheaper_elsewhere_by_itself_says_so(monkeypatch, tmp_path):
    fast = Lacking("sort")
    with machine(monkeypatch, tmp_path, {fast: speed(10, way=SLOW_WAY)}):
        x = ys.asarray(numbers(200, 200))
        text = str(ys.explain(ys.exp(ys.sort(ys.tanh(x), axis=0))))
    assert text.startswith("step 0 on cpu")


def test_the_table_says_how_fast_the_host_is(monkeypatch, tmp_path):
    with machine(monkeypatch, tmp_path, {FakeDevice(): speed(2)}):
        assert costs.speed(host_device()) == HOST
        graph = graph_for(ys.exp(ys.asarray(numbers(100))))
        assert forecast_of(graph, place(graph, chain_named("auto")).steps).total > 0
