"""`Loader`: batches of data in a fixed or a shuffled order, made ahead of time by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from .._tensor.tensor import Tensor
from .._tensor.tree import flatten, tree_map
from ..errors import ArgumentError
from ..ops.creation import asarray


class Loader:
    """Batches of data, one epoch for each `for` loop.

    The order depends only on the seed and the number of the epoch. `state` says where the loader stands, also in the
    middle of an epoch: a loader with the same arguments and this state goes on with the next batch.

    Parameters
    ----------
    data : tree of arrays, sequence or iterable
        Arrays with the same first length, such as `(images, labels)`; or a sequence of samples; or any iterable of
        samples, which cannot be shuffled. A sample is a tree of numbers or arrays.
    batch_size : int
        The number of samples of a batch.
    shuffle : bool
        True: a new order in each epoch.
    seed : int
        The seed of the orders.
    drop_last : bool
        True: leave out a last batch with fewer samples, for which a jitted step would need a plan of its own.
    transform : callable, optional
        A function of a batch of NumPy arrays that returns a tree of arrays. Threads call it, in any order.
    workers : int
        The number of threads that make batches.
    prefetch : int
        The number of batches that are made ahead of time.
    device : str or Device, optional
        The device to which batches are sent ahead of time.

    Examples
    --------
    >>> import yosegi as ys
    >>> loader = ys.training.Loader({"x": ys.arange(5)}, batch_size=2)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    >>> loader.state
    (1, 0)
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        transform: Callable[[Any], Any] | None = None,
        workers: int = 1,
        prefetch: int = 2,
        device: Any = None,
    ) -> None:
        if batch_size < 1 or workers < 1 or prefetch < 0:
            raise ArgumentError(
                f"[Loader] expected batch_size and workers of at least 1 and prefetch of at least 0, got {batch_size}, "
                f"{workers} and {prefetch}"
            )
        self._source = _source(data)
        if shuffle and isinstance(self._source, _Stream):
            raise ArgumentError(
                f"[Loader] expected arrays or a sequence to shuffle, got {type(data).__name__}; make it a list"
            )
        self._batch_size, self._shuffle, self._seed, self._drop_last = batch_size, shuffle, seed, drop_last
        self._transform, self._workers, self._prefetch, self._device = transform, workers, prefetch, device
        self._epoch = self._batch = 0

    @property
    def state(self) -> tuple[int, int]:
        """The number of the epoch and of the next batch in it. It can be assigned."""
        return self._epoch, self._batch

    @state.setter
    def state(self, value: tuple[int, int]) -> None:
        self._epoch, self._batch = value

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        count = self._source.count
        if count is None:
            raise TypeError("[Loader] expected arrays or a sequence for len(), got an iterable")
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of this epoch."""
        jobs = islice(self._source.batches(self._order(), self._batch_size, self._drop_last), self._batch, None)
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self._workers, thread_name_prefix="yosegi-loader") as pool:
            try:
                for job in jobs:
                    waiting.append(pool.submit(self._made, job))
                    if len(waiting) > self._prefetch:
                        yield self._next(waiting)
                while waiting:
                    yield self._next(waiting)
            finally:
                for future in waiting:
                    future.cancel()
        if not self._batch:
            raise ArgumentError("[Loader] expected data, got none; an iterator serves one epoch, a list serves many")
        self._epoch, self._batch = self._epoch + 1, 0

    def _next(self, waiting: deque[Future[Any]]) -> Any:
        """The next batch. It counts as taken: a checkpoint that is written while it is in use resumes behind it."""
        made = waiting.popleft().result()
        self._batch += 1
        return made

    def _order(self) -> Any:
        if not self._shuffle:
            return None
        return np.random.Generator(np.random.Philox([self._seed, self._epoch])).permutation(self._source.count)

    def _made(self, job: Callable[[], Any]) -> Any:
        batch = job()
        if self._transform is not None:
            batch = self._transform(batch)
        made = tree_map(asarray, batch)
        if self._device is not None:
            made = tree_map(lambda t: t.to_device(self._device), made)
        return made


class _Arrays:
    """Trees of arrays with the same first length."""

    def __init__(self, data: Any) -> None:
        self._data = tree_map(np.asarray, data)
        lengths = sorted({len(a) for a in flatten(self._data)[0]})
        if len(lengths) != 1:
            raise ArgumentError(f"[Loader] expected arrays with the same first length, got lengths {lengths}")
        self.count: int | None = lengths[0]

    def batches(self, order: Any, size: int, drop_last: bool) -> Iterator[Callable[[], Any]]:
        for places in _places(self.count, order, size, drop_last):
            yield lambda places=places: tree_map(lambda a: a[places], self._data)  # type: ignore[misc]


class _Samples:
    """A sequence of samples."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.count: int | None = len(data)

    def batches(self, order: Any, size: int, drop_last: bool) -> Iterator[Callable[[], Any]]:
        for places in _places(self.count, order, size, drop_last):
            yield lambda places=places: _stacked([self._data[int(i)] for i in places])  # type: ignore[misc]


class _Stream:
    """An iterable of samples."""

    count: int | None = None

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data

    def batches(self, order: Any, size: int, drop_last: bool) -> Iterator[Callable[[], Any]]:
        samples = iter(self._data)
        while len(group := list(islice(samples, size))) >= (size if drop_last else 1):
            yield lambda group=group: _stacked(group)  # type: ignore[misc]


def _source(data: Any) -> _Arrays | _Samples | _Stream:
    leaves = flatten(data)[0]
    if leaves and all(isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim for leaf in leaves):
        return _Arrays(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _Samples(data)
    if not isinstance(data, Iterable):
        raise ArgumentError(f"[Loader] expected arrays, a sequence or an iterable, got {type(data).__name__}")
    return _Stream(data)


def _places(count: int | None, order: Any, size: int, drop_last: bool) -> Iterator[Any]:
    assert count is not None
    order = np.arange(count) if order is None else order
    for start in range(0, count - size + 1 if drop_last else count, size):
        yield order[start : start + size]


def _stacked(samples: Sequence[Any]) -> Any:
    return tree_map(lambda *parts: np.stack([np.asarray(p) for p in parts]), *samples)
