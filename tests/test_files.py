"""`save` and `load`: trees come back as they were, other libraries read the files, damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from yosegi._tensor.dtype import ALL
from yosegi.errors import ArgumentError


@dataclass
class Layer:
    weight: Any
    bias: Any = None


def test_a_tree_comes_back(tmp_path):
    file = tmp_path / "tree.safetensors"
    tree = {"layers": [(ys.ones((2, 3)), None), ys.asarray(5)], "name": "net", "rate": 0.1, "flag": True, "none": {}}
    ys.save(file, tree)
    made = ys.load(file)
    assert ys.tree_structure(made) == ys.tree_structure(tree)
    assert made["layers"][0][0].tolist() == [[1.0] * 3] * 2
    assert (int(made["layers"][1]), made["name"], made["rate"], made["flag"]) == (5, "net", 0.1, True)
    assert [p.name for p in tmp_path.iterdir()] == ["tree.safetensors"]


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    x = ys.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype)
    ys.save(tmp_path / "x", x)
    made = ys.load(tmp_path / "x")
    assert (made.dtype, made.shape) == (dtype, shape)
    assert made.tobytes() == x.tobytes()


def test_the_format_is_that_of_safetensors(tmp_path):
    ys.save(tmp_path / "x", {"a": {"b": [ys.asarray([1.0, 2.0], ys.float32)]}})
    content = (tmp_path / "x").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header["a.b.0"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert np.frombuffer(content[8 + length :], np.float32).tolist() == [1.0, 2.0]


def test_a_file_of_another_library_is_a_dict(tmp_path):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes([0x80, 0x3F, 0x00, 0x40]))
    made = ys.load(tmp_path / "x")
    assert made["w"].dtype is ys.bfloat16
    assert made["w"].tolist() == [1.0, 2.0]


def test_into_other_containers(tmp_path):
    model = [Layer(ys.zeros((2,)), ys.zeros(())), Layer(ys.zeros((3,)))]
    ys.save(tmp_path / "x", ys.tree_leaves(model)[:0] + [ys.ones((2,)), ys.asarray(4.0), ys.ones((3,))])
    made = ys.load(tmp_path / "x", like=model)
    assert isinstance(made[1], Layer)
    assert float(made[0].bias) == 4.0
    with pytest.raises(ArgumentError, match=r"\[load\] expected 1 leaves"):
        ys.load(tmp_path / "x", like=model[1])
    with pytest.raises(ArgumentError, match=r"\[load\] expected shape \(5,\) at \[0\]"):
        ys.load(tmp_path / "x", like=[ys.zeros((5,)), 1.0, ys.zeros((3,))])


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({1: ys.ones((2,))}, "expected dicts with string keys, got 1 at the root"),
        ({"m": Layer(ys.ones((2,)))}, "got Layer at m; save its parts in a dict"),
        ({"a.b": ys.ones((2,)), "a": {"b": ys.ones((2,))}}, r"got two leaves at a\.b"),
        ({"f": [print]}, r"got builtin_function_or_method at f\.0"),
    ],
)
def test_what_cannot_be_saved(tmp_path, tree, text):
    with pytest.raises(ArgumentError, match=rf"^\[save\] .*{text}"):
        ys.save(tmp_path / "x", tree)
    assert not list(tmp_path.iterdir())


def test_no_damaged_file_is_read(tmp_path):
    file = tmp_path / "x"
    ys.save(file, {"a": ys.arange(4), "b": [ys.ones((3,))]})
    whole = file.read_bytes()
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        with pytest.raises(ArgumentError, match=r"\[load\] expected a safetensors file"):
            ys.load(file)
    rng = np.random.default_rng(0)
    for _ in range(300):
        bad = bytearray(whole)
        bad[rng.integers(0, len(whole) - 56)] = rng.integers(0, 256)
        file.write_bytes(bytes(bad))
        try:
            made = ys.load(file)
        except ArgumentError:
            continue
        assert all(leaf.nbytes <= 64 for leaf in ys.tree_leaves(made) if isinstance(leaf, ys.Tensor))


def test_a_file_is_mapped(tmp_path):
    """A change of the file in place is seen: nothing was read before it was used."""
    file = tmp_path / "x"
    ys.save(file, ys.zeros((1000,), dtype=ys.uint8))
    made = ys.load(file)
    with file.open("r+b") as f:
        f.seek(-1000, 2)
        f.write(bytes([7]) * 1000)
    assert made.tolist() == [7] * 1000


def test_several_files_with_an_index(tmp_path):
    tree = {"layers": [ys.full((100,), float(n), dtype=ys.float32) for n in range(5)], "rate": 0.1}
    index = tmp_path / "model.safetensors.index.json"
    ys.save(index, tree, shard_bytes=900)
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == [*names, index.name]
    made = ys.load(index, verify=True)
    assert ys.tree_structure(made) == ys.tree_structure(tree)
    assert [float(t[99]) for t in made["layers"]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    written = json.loads(index.read_text())
    assert written["weight_map"]["layers.4"] == names[2]
    assert written["metadata"]["total_size"] == 2000
    del written["metadata"]
    index.write_text(json.dumps(written))
    assert sorted(ys.load(index)) == [f"layers.{n}" for n in range(5)]  # by another library
    written["weight_map"]["layers.9"] = names[0]
    index.write_text(json.dumps(written))
    with pytest.raises(ArgumentError, match=r"\[load\] .* its index is no JSON, or does not fit the files"):
        ys.load(index)
    with pytest.raises(ArgumentError, match=r"\[save\] expected a path that ends with \.index\.json"):
        ys.save(tmp_path / "x", tree, shard_bytes=10)


def test_every_changed_byte_is_found(tmp_path):
    file = tmp_path / "x"
    ys.save(file, {"a": ys.arange(4), "b": [ys.ones((3,)), 0.5]})
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for place in range(len(whole)):
        if whole[place] == ord(" ") and place < 8 + length:
            continue  # white space between the words of the header
        bad = bytearray(whole)
        bad[place] ^= 1
        file.write_bytes(bytes(bad))
        with pytest.raises(ArgumentError, match=r"\[load\]"):
            ys.load(file, verify=True)
