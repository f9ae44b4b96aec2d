"""OpenVINO's compiled models: who shares them, how many live, and those on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from caches import seeded
from openvino_regions import in_a_process, needed, numbers, whole
from yosegi._tune.store import sealed
from yosegi.devices.model import models
from yosegi.devices.model.models import Models
from yosegi.devices.openvino.compiler import PluginCompiler
from yosegi.errors import CompileFailure

pytestmark = needed


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Models:
    """Models with a cache of their own."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return Models("openvino:0", PluginCompiler("CPU"))


def test_regions_that_are_the_same_work_share_a_model(own: Models) -> None:
    made = [own.get(whole(ys.asarray(numbers(3)) * ys.asarray(numbers(3)))[0]) for _ in range(2)]
    assert made[0] is made[1]
    assert own.compiled == 1


def test_only_so_many_models_live(own: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LIVE", 3)
    regions = [whole(ys.asarray(np.full(n + 1, 2, np.float32)) * ys.asarray(numbers(n + 1))) for n in range(5)]
    made = [own.get(region) for region, _ in regions]
    assert own.live() == made[2:]
    monkeypatch.setattr(models, "SOON", 0.0)
    for (_, data), model in zip(regions, made, strict=True):  # those put away come back
        np.testing.assert_array_equal(model(*data)[0], data[0] * data[1])
    assert len(own.live()) == 3
    assert own.loaded > 0


def test_models_that_would_take_turns_are_left_to_another_device(own: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LIVE", 1)
    (first, data), (second, _) = (whole(ys.asarray(numbers(n)) * 2) for n in (3, 4))
    put_away = own.get(first)
    kept = own.get(second)
    with pytest.raises(CompileFailure, match="models are in use"):
        put_away(*data)
    assert kept.is_live


def test_a_model_goes_with_the_last_who_needs_it(own: Models) -> None:
    model = own.get(whole(ys.asarray(numbers(3)) * 2)[0])
    assert own.live() == [model]
    del model
    assert own.live() == []


SECOND = """
import numpy as np, yosegi as ys
from yosegi._run.device import device_named
w = ys.asarray(np.arange(64, dtype=np.float32).reshape(8, 8))
f = ys.jit(lambda x: ys.tanh(x @ w) * 2)
with ys.options(device="openvino:0", background=False):
    y = f(ys.asarray(np.ones((4, 8), np.float32))).numpy()
m = device_named("openvino:0").models
print(m.compiled, m.loaded, float(y.sum()))
"""


def test_the_next_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = (in_a_process(SECOND, YOSEGI_CACHE_DIR=seeded(tmp_path)).split() for _ in range(2))
    assert (first[:2], second[:2]) == (["1", "0"], ["0", "1"])
    assert first[2] == second[2]


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:100], lambda b: b[:-50] + bytes(50), lambda b: bytes(len(b))]
)
def test_a_damaged_blob_is_compiled_again(own: Models, tmp_path: Path, damage: Any) -> None:
    region, data = whole(ys.exp(ys.asarray(numbers(9))))
    expected = own.get(region)(*data)[0].copy()
    (blob,) = (tmp_path / "openvino").glob("*.blob")
    blob.write_bytes(damage(blob.read_bytes()))
    again = Models("openvino:0", PluginCompiler("CPU"))
    np.testing.assert_array_equal(again.get(region)(*data)[0], expected)
    assert (again.compiled, again.loaded) == (1, 0)


def test_a_blob_that_openvino_does_not_take_is_compiled_again(own: Models, tmp_path: Path) -> None:
    region, data = whole(ys.exp(ys.asarray(numbers(9))))
    own.get(region)
    (blob,) = (tmp_path / "openvino").glob("*.blob")
    sealed(blob, b"not a model")
    again = Models("openvino:0", PluginCompiler("CPU"))
    assert again.get(region)(*data)[0].shape == (9,)
    assert (again.compiled, again.loaded) == (1, 0)


def test_blobs_of_other_constants_are_other_blobs(own: Models, tmp_path: Path) -> None:
    for n in (2.0, 3.0):
        x = ys.asarray(np.ones(4, np.float32))
        region, data = whole(x * (ys.arange(4, dtype=ys.float32) + n))
        np.testing.assert_array_equal(own.get(region)(*data)[0], np.arange(4) + n)
    assert len(list((tmp_path / "openvino").glob("*.blob"))) == 2
