"""Files of results: what is wrong with one is told with the file and the field."""

import json

import pytest

from runs import document, result
from yosegi.errors import ArgumentError
from yosegi.tools.bench.document import read

ROUNDS = [[1e-3, 2e-3], [3e-3, 4e-3]]


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "run.json"
    document([result("a", "numpy", None, ROUNDS), result("a", "one, jit", "one", ROUNDS)]).write(target)
    return target


def test_what_is_written_is_read_again(path):
    read_back = read(path)
    read_back.write(path)
    assert read(path) == read_back
    assert read_back.yardstick("a").timing.median == pytest.approx(2.5e-3)


def altered(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=0), "expected version 1, got 0"),
        (lambda d: d.update(format="other"), "expected format 'yosegi-bench', got 'other'"),
        (lambda d: d.pop("limits"), "expected a field limits, got none"),
        (lambda d: d["machine"].pop("fingerprint"), r"expected a field machine\.fingerprint, got none"),
        (lambda d: d["results"][1].pop("dtype"), r"expected a field results\[1\]\.dtype, got none"),
        (lambda d: d["results"][1].update(size="x"), r"expected results\[1\]\.size to be int, got str"),
        (lambda d: d["results"][1].update(size=True), r"expected results\[1\]\.size to be int, got bool"),
        (lambda d: d["results"][1].update(status="fine"), r"expected results\[1\]\.status among ok, .*, got 'fine'"),
        (lambda d: d["results"][1].update(sittings=[[1.0, -1.0]]), r"expected results\[1\]\.sittings to be lists of"),
        (lambda d: d["results"][1].update(sittings=[]), r"expected results\[1\]\.sittings for a result that is ok"),
    ],
)
def test_a_field_that_is_wrong_is_named(path, change, message):
    altered(path, change)
    with pytest.raises(ArgumentError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"text"', "\x00\x01"])
def test_a_file_that_is_no_run_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"run\.json: expected"):
        read(path)


def test_a_file_that_is_not_text_is_refused(path):
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match=r"run\.json: expected JSON"):
        read(path)
