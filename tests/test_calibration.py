"""Measuring devices: what is found, when it is done, and when it is not."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import yosegi as ys
import yosegi._tune.calibration as calibration
from fakes import FakeDevice, Slow, SlowCompiler, installed
from yosegi._place.cost_model import Speed, Task, TransferCost
from yosegi._place.costs import costs
from yosegi._run.background import background
from yosegi._run.device import host_device
from yosegi._tensor.precision import Precision
from yosegi.errors import LaunchFailure
from yosegi.tools.cli import main

LARGE = np.ones((1200, 1200), np.float32)


class Told(FakeDevice):
    """Says what it is."""

    identity = "a device of this test"


@pytest.fixture(autouse=True)
def _from_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("YOSEGI_CALIBRATE", "1")
    monkeypatch.setattr(calibration, "_asked", set())
    costs.clear()
    yield
    background.wait()
    costs.clear()


def test_a_device_is_found_as_fast_as_it_is():
    slow = Slow()  # 2 ms a call
    with installed(slow, alone=True):
        found = ys.calibrate([slow], seconds=0.3)[slow.name]
    assert 2e-3 < found.launch < 2e-2
    assert costs.speed(slow) is found


def test_everything_is_measured_on_the_host():
    host = host_device()
    found = ys.calibrate([host], seconds=4)["cpu"]  # half of which is for compiling, on a machine that does more
    measured = {task for task, _ in found.rates}
    assert measured == set(Task) - {Task.MESSAGES}  # their times are those of the network
    assert found.is_measured
    assert 0 < found.launch < 1e-3
    assert found.bandwidth > 1e8
    assert (Task.PRODUCTS, "float64") in found.rates
    assert str(found).startswith("launch ")


def test_ways_to_a_memory_of_its_own_are_measured(monkeypatch):
    class FarAway(Told):
        def from_host(self, array):
            threading.Event().wait(1e-3 + array.nbytes * 1e-9)
            return super().from_host(array)

    far = FarAway()
    with installed(far, alone=True):
        found = ys.calibrate([far], seconds=0.5)[far.name]
    assert 5e-4 < found.upload.latency < 1e-2
    assert found.upload.bandwidth < 1.2e9


def test_precisions_below_the_inputs_own_are_measured():
    class Reduced(Told):
        """Takes 20 ms for a square product in full precision, 2 ms in bf16, and a millisecond for a thin one."""

        def compile(self, region):
            shape = region.graph.calls[region.outputs[0]].spec.shape
            pauses = {(384, 384): 2e-3 if region.precision is Precision.BF16 else 2e-2, (8, 384): 1e-3}
            made = tuple(self.allocated(np.zeros(shape, np.float32)) for _ in region.outputs)

            def kernel(*data):
                threading.Event().wait(pauses.get(shape, 0.0))
                return made

            return kernel

    fake = Reduced()
    fake.limits = type(fake.limits)(fake.limits.dtypes, fake.limits.kinds, precisions=frozenset({Precision.BF16}))
    with installed(fake, alone=True):
        found = ys.calibrate([fake], seconds=3)[fake.name]
    assert found.rates[Task.PRODUCTS, "bf16"] > 2 * found.rates[Task.PRODUCTS, "float32"]
    assert found.conversion > 0


def test_what_a_device_lacks_or_fails_on_is_left_out():
    class Broken(Told):
        def supports(self, region):
            return "no products" if region.calls[-1].op.name == "matmul" else super().supports(region)

        def before_run(self, region):
            if region.calls[-1].op.name == "sort":
                raise LaunchFailure("it broke")
            if region.calls[-1].op.name == "sum":
                raise RuntimeError("a bug")

    broken = Broken()
    with installed(broken, alone=True):
        found = ys.calibrate([broken], seconds=0.3)[broken.name]
    assert {task for task, _ in found.rates} == {Task.LOOPS, Task.MOVEMENT, Task.CONVOLUTIONS}


def test_a_device_that_compiles_for_long_is_measured_all_the_same():
    """Its time was over before a product was timed, and products looked as if they cost nothing there."""

    class Cold(Told):
        def compile(self, region):
            time.sleep(0.06)
            return super().compile(region)

    cold = Cold()
    with installed(cold, alone=True):
        found = ys.calibrate([cold], seconds=0.1)[cold.name]
    assert {(Task.LOOPS, "float32"), (Task.PRODUCTS, "float32")} <= set(found.rates)


def test_a_device_that_cannot_do_anything_keeps_its_prior(caplog):
    class Dead(Told):
        def before_run(self, region):
            raise LaunchFailure("it is dead")

    dead = Dead()
    with installed(dead, alone=True):
        assert ys.calibrate([dead], seconds=0.1) == {}
        assert not costs.speed(dead).is_measured
    assert "could not be measured: priors stand for it" in caplog.text


# What times say


def rates_of(beyond_launch, line=Speed(launch=1e-5, bandwidth=1e10)):
    """The rates that follow from what probes take beyond their launch, in seconds."""
    meter = calibration._Meter(FakeDevice(), 1.0, lambda what: None)
    meter.probes = calibration.probes()
    meter.best = {name: line.launch + seconds for name, seconds in beyond_launch.items()}
    return dict(meter._rates(line))


def bytes_of(probe):
    return calibration.probes()[probe].work.nbytes / 1e10


def test_a_class_that_takes_as_long_as_its_bytes_has_no_operations():
    """A twentieth of the time was taken for operations, at rates that no machine has."""
    rates = rates_of({"movement": 1e-7, "reductions": 1.1 * bytes_of("reductions"), "loops": 5e-3})
    assert rates[Task.MOVEMENT, "float32"] == rates[Task.REDUCTIONS, "float32"] == float("inf")
    assert rates[Task.LOOPS, "float32"] < 1e10
    known = Speed(launch=1e-5, bandwidth=1e10, rates=rates)
    work = calibration.probes()["reductions"].work
    assert known.region(work, coalesces=False) == 1e-5 + work.nbytes / 1e10


def test_a_class_that_takes_longer_than_its_bytes_has_operations():
    work = calibration.probes()["movement"].work
    rates = rates_of({"movement": 1e-3 + bytes_of("movement")})
    assert rates[Task.MOVEMENT, "float32"] == pytest.approx(work.operations / 1e-3)


def test_a_probe_that_a_launch_hides_says_nothing_of_its_class():
    """The rate was that of a twentieth of a launch; the nearest class that was measured knows better."""
    rates = rates_of({"products": 1e-3, "convolutions": 1e-7})
    assert (Task.CONVOLUTIONS, "float32") not in rates
    picture = replace(calibration.probes()["convolutions"].work, nbytes=0)
    known = Speed(launch=1e-5, bandwidth=1e10, rates=rates)
    expected = 1e-5 + picture.operations / rates[Task.PRODUCTS, "float32"]
    assert known.region(picture, coalesces=False) == pytest.approx(expected)


def test_operations_that_outgrow_their_bytes_take_the_time_of_both():
    """In a cache, a small product is done before memory would have given its bytes: a large one is not free."""
    product = calibration.probes()["products"].work
    rates = rates_of({"products": bytes_of("products")})
    assert rates[Task.PRODUCTS, "float32"] == pytest.approx(product.operations / bytes_of("products"))


def test_a_precision_whose_two_products_contradict_each_other_is_as_fast_as_the_square_one():
    """If a thin product is slow for a reason of its own, nothing is left for the operations of the square one."""
    fake = FakeDevice()
    fake.limits = type(fake.limits)(fake.limits.dtypes, fake.limits.kinds, precisions=frozenset({Precision.BF16}))
    meter = calibration._Meter(fake, 1.0, lambda what: None)
    meter.probes, meter.best = calibration.probes(), {"products bf16": 1e-3, "thin bf16": 2e-2}
    rates, conversion = meter._reduced(Speed(launch=1e-9, bandwidth=1e10))
    operations = meter.probes["products"].work.operations
    assert rates == {(Task.PRODUCTS, "bf16"): pytest.approx(operations / 1e-3, rel=1e-3)}
    assert conversion == float("inf")


def test_a_way_whose_bytes_cost_nothing_has_a_latency_alone():
    """A memory that is shared was said to take 69,900 GB/s."""
    assert calibration._line((256, 4 << 20), (5e-6, 5.06e-6)) == TransferCost(5e-6, float("inf"))
    assert calibration._line((0, 4 << 20), (5e-6, 1e-3)).bandwidth == pytest.approx((4 << 20) / 995e-6)


def test_rates_are_shown_in_units_that_fit():
    """Movement was shown at 294,451 G/s, sorting at 0.0 G/s."""
    rates = {
        (Task.PRODUCTS, "float32"): 2.021e11, (Task.MOVEMENT, "float32"): float("inf"),
        (Task.REDUCTIONS, "float32"): float("inf"), (Task.OTHER, "float32"): 1.44e7,
    }  # fmt: skip
    shown = str(
        Speed(launch=1e-6, bandwidth=1e10, rates=rates, upload=TransferCost(5e-6), download=TransferCost(5e-5, 2e9))
    )
    assert shown == (
        "launch 1.0 µs, 10.0 GB/s, products 202.1 G/s in float32, other 14.4 M/s in float32, "
        "movement and reductions by their bytes alone, to it 5 µs, back 50 µs + 2.0 GB/s"
    )


def test_rates_without_operations_are_kept_on_disk():
    known = Speed(launch=1e-6, bandwidth=1e10, rates={(Task.MOVEMENT, "float32"): float("inf")}, is_measured=True)
    assert Speed.from_json(json.loads(json.dumps(known.to_json(), allow_nan=False)), "speed") == known


# On first use, of programs that no other test has planned


def test_the_first_plan_that_has_a_choice_and_much_to_do_measures():
    fake = Told()
    with installed(fake, alone=True), ys.options(device="auto"):
        ys.plan(ys.exp(ys.asarray(LARGE[:10, :10])))
        assert not costs.speed(fake).is_measured
        ys.plan(ys.exp(ys.asarray(LARGE)))
        assert costs.speed(fake).is_measured
        assert costs.speed(host_device()).is_measured
        runs = fake.runs
        ys.plan(ys.sin(ys.asarray(LARGE)))
        assert fake.runs == runs  # once


def test_a_later_process_reads_what_was_found():
    fake = Told()
    with installed(fake, alone=True), ys.options(device="auto"):
        ys.plan(ys.cos(ys.asarray(LARGE)))
        known, runs = costs.speed(fake), fake.runs
        costs.clear()
        calibration._asked.clear()
        ys.plan(ys.cos(ys.asarray(LARGE) * 2))
        assert costs.speed(fake) == known
        assert fake.runs == runs


def test_nothing_is_measured_where_there_is_no_choice():
    with installed(Told(), alone=True), ys.options(device="cpu"):
        ys.plan(ys.tan(ys.asarray(LARGE)))
        assert not costs.speed(host_device()).is_measured


def test_nothing_is_measured_when_it_is_switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("YOSEGI_CALIBRATE", "0")
    fake = Told()
    with installed(fake, alone=True), ys.options(device="auto"):
        plan = ys.plan(ys.sinh(ys.asarray(LARGE)))
        assert plan.watch is None
        assert not costs.speed(fake).is_measured
        assert plan.steps[0].device is fake  # the prior: it is over 1 MB
    assert not list(tmp_path.rglob("*.json"))


def test_devices_that_do_not_say_what_they_are_keep_their_priors():
    fake = FakeDevice()
    with installed(fake, alone=True), ys.options(device="auto"):
        ys.plan(ys.cosh(ys.asarray(LARGE)))
        assert not costs.speed(fake).is_measured


def test_a_slow_compiler_is_measured_in_the_background():
    class Told(SlowCompiler):
        identity = "a slow one"

    fake = Told()
    with installed(fake, alone=True), ys.options(device="auto", background=True):
        epoch = costs.epoch
        ys.plan(ys.log1p(ys.asarray(LARGE)))  # does not wait
        assert not costs.speed(fake).is_measured
        fake.go_on.set()
        background.wait()
        assert costs.speed(fake).is_measured
        assert costs.epoch > epoch + 1  # the host, then this one: plans made before are made again


# The command


def test_the_command_shows_what_it_does(capsys):
    fake = Told()
    with installed(fake, alone=True):
        assert main(["calibrate"]) == 0
        assert main(["calibrate", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"{fake.name}: launch bandwidth loops" in shown
    assert "cpu: launch" in shown
    assert "GB/s" in shown


def test_the_command_fails_if_a_device_cannot_be_measured(capsys):
    class Dead(Told):
        def before_run(self, region):
            raise LaunchFailure("it is dead")

    dead = Dead()
    with installed(dead, alone=True):
        assert main(["calibrate", "--device", dead.name]) == 1
        assert main(["calibrate", "--device", "quantum:0"]) == 2
    assert "could not be measured" in capsys.readouterr().out
