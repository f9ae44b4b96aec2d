"""What is known of devices: the table, the lines, and the files in which they are kept."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import yosegi as ys
from caches import seeded
from fakes import FakeDevice
from yosegi._graph.graph import capture, graph_of
from yosegi._place.candidates import Candidate
from yosegi._place.cost_model import Speed, Task, TransferCost, works_of
from yosegi._place.costs import Costs
from yosegi._schedule.fuse import fuse
from yosegi._schedule.portable_region import digest
from yosegi._tensor.precision import Precision
from yosegi._tune.measurements import Page, path_of, read, write

SPEED = Speed(
    launch=1e-5, bandwidth=1e10, part=1e-6, rates={(Task.PRODUCTS, "float32"): 1e11, (Task.LOOPS, "float32"): 1e10},
    upload=TransferCost(1e-5, 1e9), download=TransferCost(2e-5, 2e9), wait=1e-5, compiling=0.1, is_measured=True,
)  # fmt: skip


class Known(FakeDevice):
    """Says what it is, so that what is measured of it is kept."""

    identity = "a device of this test, driver 1.0"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.name = "known:0"


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("YOSEGI_CACHE_DIR", seeded(tmp_path))


def region_of(function, *arrays):
    graph = graph_of(capture([function(*map(ys.asarray, arrays))._node])[0])
    (region,) = fuse(graph)
    return region, works_of(graph, (region,))


PRODUCT = region_of(lambda x, y: x @ y, np.ones((100, 200), np.float32), np.ones((200, 50), np.float32))
LOOP = region_of(lambda x: ys.exp(x), np.ones(1000, np.float32))


# Lines


def test_a_line_is_launch_and_bytes_and_operations():
    table, device = Costs(), Candidate.of(Known())
    table.set_speed(device.device, SPEED)
    nbytes = 4 * (100 * 200 + 200 * 50 + 100 * 50)
    assert table.predict(*PRODUCT, device).total == pytest.approx(1e-5 + nbytes / 1e10 + 2 * 100 * 200 * 50 / 1e11)
    assert table.predict(*LOOP, device).total == pytest.approx(1e-5 + 8000 / 1e10 + 8 * 1000 / 1e10)


def test_numbers_of_another_width_take_as_much_longer():
    double = region_of(lambda x, y: x @ y, np.ones((100, 200)), np.ones((200, 50)))
    table, device = Costs(), Candidate.of(Known())
    table.set_speed(device.device, replace(SPEED, bandwidth=float("inf"), launch=1e-9))
    ratio = table.predict(*double, device).total / table.predict(*PRODUCT, device).total
    assert ratio == pytest.approx(2, rel=1e-2)


def test_another_precision_has_its_own_rate_and_a_conversion():
    table, device = Costs(), Known()
    rates = {**SPEED.rates, (Task.PRODUCTS, "bf16"): 1e12}
    table.set_speed(device, replace(SPEED, rates=rates, conversion=1e10))
    full, reduced = (table.predict(*PRODUCT, Candidate.of(device, p)) for p in (Precision.FULL, Precision.BF16))
    assert full.conversion == 0
    assert reduced.conversion == pytest.approx(4 * (100 * 200 + 200 * 50) / 1e10)
    assert reduced.compute < full.compute


def test_a_measured_region_comes_before_the_line():
    table, device = Costs(), Candidate.of(Known())
    table.set_speed(device.device, SPEED)
    table.observe(*PRODUCT, device, 0.5)
    table.observe(*PRODUCT, device, 0.25)
    cost = table.predict(*PRODUCT, device)
    assert (cost.total, cost.is_measured) == (0.25, True)
    assert not table.predict(*LOOP, device).is_measured


def test_only_the_last_times_count():
    table, device = Costs(), Candidate.of(Known())
    for seconds in (0.1, 1.0, 1.0, 1.0, 1.0, 1.0):
        table.observe(*PRODUCT, device, seconds)
    assert table.measured(PRODUCT[0], device) == 1.0


def test_a_line_that_is_wrong_about_a_class_of_work_is_corrected():
    table, device = Costs(), Candidate.of(Known())
    table.set_speed(device.device, SPEED)
    shapes = [(64, 64), (96, 96), (128, 128)]
    for shape in shapes:
        region = region_of(lambda x: x @ x, np.ones(shape, np.float32))
        table.observe(*region, device, 20 * table.modelled(region[1], device).total)
        table.observe(*region, device, 20 * table.modelled(region[1], device).total)  # a region has one say
    other, before = Costs(), region_of(lambda x: x @ x, np.ones((160, 160), np.float32))
    other.set_speed(device.device, SPEED)
    assert table.predict(*before, device).total == pytest.approx(20 * other.predict(*before, device).total, rel=0.01)
    assert table.predict(*LOOP, device).total == other.predict(*LOOP, device).total


def test_a_correction_follows_later_measurements_of_the_same_regions():
    table, device = Costs(), Candidate.of(Known())
    table.set_speed(device.device, SPEED)
    regions = [region_of(lambda x: x @ x, np.ones((n, n), np.float32)) for n in (64, 96, 128)]
    modelled = [table.modelled(works, device).total for _, works in regions]
    for times in (20, 1):  # beside other work at first
        for region, seconds in zip(regions, modelled, strict=True):
            table.observe(*region, device, times * seconds)
    other, new = Costs(), region_of(lambda x: x @ x, np.ones((160, 160), np.float32))
    other.set_speed(device.device, SPEED)
    assert table.predict(*new, device).total == pytest.approx(other.predict(*new, device).total, rel=0.01)


def test_ways_between_memories_go_through_the_host():
    table = Costs()
    one, two = ys.devices()[-1], Known()
    table.set_speed(two, SPEED)
    assert table.transfer(one.space, one.space) == TransferCost()
    assert table.transfer("host", "host").seconds(1 << 30) == 0


# What makes two regions the same


def test_regions_of_one_structure_have_one_digest_whatever_their_constants_are():
    def weighted(w):
        f = ys.jit(lambda x: x @ ys.asarray(w) + 1.5)
        f(ys.asarray(np.ones((4, 4), np.float32)))
        return digest(f.plans[0].steps[0].region)

    first, second = np.eye(4, dtype=np.float32), np.ones((4, 4), np.float32)
    assert weighted(first) == weighted(second)
    assert weighted(first) != weighted(np.ones((4, 3), np.float32))


DIGEST = """
import numpy as np, yosegi as ys
from yosegi._schedule.portable_region import digest
x = ys.asarray(np.ones((3, 4), np.float32))
print(digest(ys.plan(ys.sum(ys.tanh(x * 2 + x), axis=1)).steps[0].region))
"""


def in_a_process(code, **environment):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_has_the_same_digest():
    x = ys.asarray(np.ones((3, 4), np.float32))
    here = digest(ys.plan(ys.sum(ys.tanh(x * 2 + x), axis=1)).steps[0].region)
    assert in_a_process(DIGEST) == here


# Files


def test_what_is_measured_is_there_for_the_next_process():
    device = Known()
    table = Costs()
    table.set_speed(device, SPEED)
    table.observe(*PRODUCT, Candidate.of(device), 0.125)
    table.save()
    later = Costs()
    assert later.load(device) == SPEED
    assert later.measured(PRODUCT[0], Candidate.of(device)) == 0.125
    data = json.loads(path_of(device).read_text())
    assert data["identity"] == device.identity


def test_another_driver_finds_nothing(monkeypatch):
    device = Known()
    table = Costs()
    table.set_speed(device, SPEED)
    monkeypatch.setattr(Known, "identity", "a device of this test, driver 1.1")
    assert Costs().load(device) is None


def test_nothing_is_kept_of_a_device_that_does_not_say_what_it_is(tmp_path):
    table = Costs()
    table.set_speed(FakeDevice(), SPEED)
    table.save()
    assert not list(tmp_path.glob("costs/*.json"))


GOOD = {"format": "yosegi-costs", "version": 1, "identity": Known.identity, "speed": SPEED.to_json(), "times": {},
        "ratios": {}}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00\xff", b"[]", b"3", b"null", b'{"format": "other"}',
        json.dumps({**GOOD, "version": 99}).encode(),
        json.dumps({**GOOD, "identity": "another machine"}).encode(),
        json.dumps({**GOOD, "speed": {**SPEED.to_json(), "launch": -1.0}}).encode(),
        json.dumps({**GOOD, "speed": {**SPEED.to_json(), "bandwidth": "fast"}}).encode(),
        json.dumps({**GOOD, "speed": {**SPEED.to_json(), "rates": {"juggling": {"float32": 1.0}}}}).encode(),
        json.dumps({**GOOD, "speed": []}).encode(),
        json.dumps({**GOOD, "times": {"a": {"full": [0.0]}}}).encode(),
        json.dumps({**GOOD, "times": {"a": {"full": []}}}).encode(),
        json.dumps({**GOOD, "times": {"a": {"full": ["1"]}}}).encode(),
        json.dumps({**GOOD, "times": []}).encode(),
        json.dumps({**GOOD, "ratios": {"loops": [None]}}).encode(),
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_file_that_is_something_else_is_set_aside_and_that_is_told(content, caplog):
    device = Known()
    path = path_of(device)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert read(device) == Page()
    assert "it was set aside" in caplog.text
    assert not path.exists()
    assert path.with_suffix(".damaged").read_bytes() == content
    caplog.clear()
    table = Costs()
    assert table.load(device) is None
    table.set_speed(device, SPEED)  # work goes on, and is kept again
    assert Costs().load(device) == SPEED
    assert not caplog.records


def test_a_folder_that_cannot_be_written_is_told_once(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("yosegi._run.progress._shown", set())
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path / "file"))
    table, device = Costs(), Known()
    for n in range(3):
        table.set_speed(device, SPEED)
        table.observe(*PRODUCT, Candidate.of(device), 0.1 + n)
        table.save()
    (line,) = capfd.readouterr().err.splitlines()
    assert "nothing can be kept" in line
    assert table.load(device) == SPEED


def test_a_full_disk_leaves_the_old_file(monkeypatch, capfd):
    monkeypatch.setattr("yosegi._run.progress._shown", set())
    device = Known()
    Costs().set_speed(device, SPEED)
    before = path_of(device).read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("yosegi._tune.store.os.replace", full)
    table = Costs()
    table.load(device)
    table.set_speed(device, replace(SPEED, launch=1.0))
    assert "No space left" in capfd.readouterr().err
    assert path_of(device).read_bytes() == before
    assert len(list(path_of(device).parent.iterdir())) == 1


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_costs import Candidate, Costs, Known, region_of, np
table, number = Costs(), int(sys.argv[1])
device = Known()
for n in range(20):
    table.observe(*region_of(lambda x: x * x, np.ones(1000 * number + n + 2, np.float32)), Candidate.of(device), 0.1)
    table.save()
"""


def test_several_processes_write_and_none_is_lost(tmp_path):
    code = WRITER.format(tests=os.path.dirname(__file__))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "YOSEGI_CACHE_DIR": seeded(tmp_path)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)], env=environment) for n in range(4)]
    assert [w.wait(120) for w in writers] == [0] * 4
    page = read(Known())
    assert len(page.times) >= 20  # each writes all it has: the last one's are all there
    assert not list(tmp_path.rglob("*.damaged"))
    write(Known(), page)
    assert read(Known()).times == page.times


def test_only_so_many_regions_are_kept():
    device = Known()
    times = {f"{n:024x}": {"full": [0.1]} for n in range(5000)}
    write(device, Page(SPEED, times))
    kept = read(device).times
    assert len(kept) == 4096
    assert f"{4999:024x}" in kept
    assert f"{0:024x}" not in kept


def test_a_speed_made_from_another_has_its_own_rates():
    table, device = Costs(), Candidate.of(Known())
    table.set_speed(device.device, SPEED)
    before = table.predict(*PRODUCT, device).total  # looks rates up
    table.set_speed(device.device, replace(SPEED, rates={(Task.PRODUCTS, "float32"): 1e9}))
    assert table.predict(*PRODUCT, device).total > 10 * before
