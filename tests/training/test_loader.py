"""The loader: orders, kinds of data, threads, and resumption in the middle of an epoch."""

from __future__ import annotations

import threading
from itertools import chain

import numpy as np
import pytest

import yosegi as ys
from yosegi.errors import ArgumentError

DATA = {"x": np.arange(20).reshape(10, 2), "y": ys.arange(10)}


def batches(loader):
    return [batch["y"].tolist() for batch in loader]


def test_batches_in_order():
    loader = ys.training.Loader(DATA, 4)
    assert batches(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert next(iter(ys.training.Loader(DATA, 4)))["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    short = ys.training.Loader(DATA, 4, drop_last=True)
    assert (len(short), batches(short)) == (2, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_shuffling_is_deterministic():
    first, second = (ys.training.Loader(DATA, 4, shuffle=True, seed=3, workers=w) for w in (1, 4))
    epochs = [batches(first) for _ in range(3)]
    assert epochs == [batches(second) for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert all(sorted(chain(*epoch)) == list(range(10)) for epoch in epochs)
    assert batches(ys.training.Loader(DATA, 4, shuffle=True, seed=4)) != epochs[0]


@pytest.mark.parametrize("taken", range(8))
def test_resumption(taken):
    whole = ys.training.Loader(DATA, 4, shuffle=True)
    expected = [b for _ in range(3) for b in batches(whole)]
    loader, seen, state = ys.training.Loader(DATA, 4, shuffle=True, prefetch=3), [], (0, 0)
    while len(seen) < taken:
        for batch in loader:
            seen.append(batch["y"].tolist())
            state = loader.state
            if len(seen) == taken:
                break
    again = ys.training.Loader(DATA, 4, shuffle=True)
    again.state = state
    while again.state[0] < 3:
        seen += batches(again)
    assert seen == expected


def test_samples_and_iterables():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, n):
            return {"y": n * n}

    assert batches(ys.training.Loader(Squares(), 2)) == [[0, 1], [4, 9], [16]]
    assert sorted(chain(*batches(ys.training.Loader(Squares(), 2, shuffle=True)))) == [0, 1, 4, 9, 16]
    stream = ys.training.Loader(({"y": n} for n in range(5)), 2)
    stream.state = (0, 1)
    assert batches(stream) == [[2, 3], [4]]
    with pytest.raises(ArgumentError, match="an iterator serves one epoch"):
        list(stream)
    with pytest.raises(TypeError, match="expected arrays or a sequence for len"):
        len(stream)


def test_work_is_done_ahead_by_threads_and_sent_to_a_device():
    names, made = [], []

    def double(batch):
        names.append(threading.current_thread().name)
        made.append(1)
        return {"y": batch["y"] * 2}

    loader = iter(ys.training.Loader(DATA, 2, transform=double, prefetch=2, device="cpu"))
    assert next(loader)["y"].tolist() == [0, 2]
    for _ in range(1000):
        if len(made) == 3:
            break
        threading.Event().wait(0.01)
    assert len(made) == 3
    assert str(next(loader)["y"].device) == "cpu"
    assert all(name.startswith("yosegi-loader") for name in names)
    loader.close()


def test_an_error_of_the_transform_is_raised():
    def fail(batch):
        raise ValueError("bad sample")

    with pytest.raises(ValueError, match="bad sample"):
        list(ys.training.Loader(DATA, 2, transform=fail))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ys.training.Loader({"a": np.ones(2), "b": np.ones(3)}, 2), r"same first length, got lengths \[2, 3\]"),
        (lambda: ys.training.Loader(iter([1]), 2, shuffle=True), "to shuffle, got list_iterator; make it a list"),
        (lambda: ys.training.Loader(5, 2), "expected arrays, a sequence or an iterable, got int"),
        (lambda: ys.training.Loader(DATA, 0), "batch_size and workers of at least 1"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ArgumentError, match=rf"^\[Loader\] .*{text}"):
        make()
