"""Elements at indices along neighbouring axes, read, replaced or added to by generated code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._run.trace import trace
from ..._tensor.dtype import int64
from ..._tensor.node import Call as OpCall
from ..._tensor.role import Indexing
from ...codegen.llvm.indexing import IndexSizes, index_source
from ...errors import NotReady
from .callables import Runtime
from .compiler import Code
from .results import Results


@dataclass(frozen=True, slots=True)
class IndexPolicy:
    """When indexing gets code of its own."""

    numpy_elements: int = 1 << 12
    """Elements moved up to which NumPy is fast enough."""
    threaded_bytes: int = 1 << 17
    """Bytes moved from which a second thread pays."""
    shared_row: int = 8
    """Elements of a row from which threads that each read all indices pay."""
    chunks_per_thread: int = 4
    """Chunks of a read for each thread."""


_POLICY: Final = IndexPolicy()


def is_indexing(call: OpCall) -> bool:
    """True for a call that has a kernel here."""
    return (
        isinstance(call.op.role, Indexing)
        and _moved(call) >= _POLICY.numpy_elements
        and IndexSizes.of(call) is not None
    )


def _moved(call: OpCall) -> int:
    """The elements that are read or written at indices."""
    return call.spec.size if call.op.role is Indexing.READ else call.inputs[1].size


class Indexed:
    """Compiles indexing for one machine."""

    def __init__(self, runtime: Runtime, results: Results) -> None:
        self.runtime = runtime
        self.results = results

    def code(self, call: OpCall) -> Code:
        """The kernel for a call."""
        does, target = call.op.role, self.runtime.compiler.machine.target
        assert isinstance(does, Indexing)
        index = call.inputs[-1].dtype if len(call.attrs["axes"]) == 1 else int64
        source = index_source(does, call.spec.dtype, index, target)
        return self.runtime.compiler.load(source, ("kernel",))

    def body(self, graph: Graph, entry: int) -> Callable[..., Any] | None:
        """The function that replaces the reference body of a call, or `None`. Raises `NotReady`."""
        call = graph.calls[entry]
        if not is_indexing(call):
            return None
        try:
            return self._body(call)
        except NotReady:
            raise
        except Exception as failure:  # NumPy can do the same work
            trace.failed(str(call), "cpu", failure)
            return None

    def _body(self, call: OpCall) -> Callable[..., Any]:
        does, sizes, reference, spec = call.op.role, IndexSizes.of(call), bind(call), call.spec
        assert isinstance(does, Indexing)
        assert sizes is not None
        given = 1 if does is Indexing.READ else 2
        launch = self.runtime.call(
            self.code(call), given + 3, sizes.words, count=sizes.units(does),
            chunk=self._chunk(call, does, sizes), lets_go=True,
        )  # fmt: skip
        results, lengths = self.results, [call.inputs[0].shape[a] for a in call.attrs["axes"]]

        def run(*arrays: Any) -> Any:
            places = arrays[-1] if len(lengths) == 1 else _joined(arrays[given:], lengths)
            if places is None:
                return reference(*arrays)
            wrong, out = np.zeros(1, np.uint8), results.any(spec.shape, spec.dtype.numpy)
            launch(*[np.require(a, requirements="CA") for a in (*arrays[:given], places)], wrong, out)
            return reference(*arrays) if wrong[0] else out  # the reference raises the mistake

        return run

    def _chunk(self, call: OpCall, does: Indexing, sizes: IndexSizes) -> int:
        """The units of work that a thread takes at a time."""
        units, threads = sizes.units(does), self.runtime.threads
        if _moved(call) * call.spec.dtype.itemsize < _POLICY.threaded_bytes:
            return units
        if does is Indexing.READ:
            return -(-units // (threads * _POLICY.chunks_per_thread))
        return -(-units // threads) if sizes.behind >= _POLICY.shared_row else units


def _joined(indices: Sequence[Any], lengths: Sequence[int]) -> Any:
    """Indices along several axes as indices along all of them as one axis; `None` if one is out of range."""
    made: Any = np.int64(0)
    for index, length in zip(indices, lengths, strict=True):
        least, most = (int(index.min()), int(index.max())) if index.size else (0, 0)
        if least < -length or most >= length:
            return None
        places = index.astype(np.int64, copy=False)
        made = made * length + (places if least >= 0 else np.where(places < 0, places + length, places))
    return made
