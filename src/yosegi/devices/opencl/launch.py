"""A kernel that can be launched, again and again, from any thread."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, final

import numpy as np

from ...codegen.c.dialect import Target
from ...codegen.c.kernel_source import NAME
from ...codegen.c.kernel_source import Kernel as Generated
from ..kernel.memory import Data
from .cache import Programs
from .dialect import OPENCL
from .errors import translated
from .memory import Memory


@final
class Queue:
    """One device's in-order queue."""

    language = "OpenCL"
    dialect = OPENCL

    def __init__(self, cl: Any, queue: Any, programs: Programs, memory: Memory, name: str, target: Target) -> None:
        self.cl = cl
        self.queue = queue
        self.programs = programs
        self.memory = memory
        self.name = name
        self.target = target
        self.launched: set[str] | None = None
        """The sources of the launched programs."""

    def launch(self, kernel: Generated, buffers: int) -> Launch:
        """A generated kernel, to be put into the queue with its inputs and outputs, `buffers` in all."""
        return Launch(self, kernel, buffers)

    def undecided(self) -> None:
        """Nothing is recorded here."""


@final
class Launch:
    """A kernel that can be put into the queue, again and again, from any thread.

    Its sizes are set once; `buffers` come before them among its parameters.
    """

    def __init__(self, queue: Queue, generated: Generated, buffers: int) -> None:
        self._queue = queue
        self._source = generated.source
        cl = queue.cl
        program = queue.programs.get(generated.source)
        number = np.int64 if generated.long_sizes else np.int32
        with translated(cl, f"[{queue.name}] preparing a kernel"):
            self._kernel = cl.Kernel(program, NAME)
            for n, size in enumerate(generated.sizes):
                self._kernel.set_arg(buffers + n, number(size))
        groups = -(-generated.items // generated.group)
        self._range = ((groups * generated.group,), (generated.group,))
        self._lock = Lock()  # a kernel's parameters are part of it until it is in the queue

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the queue."""
        queue = self._queue
        inputs = queue.memory.finished(inputs)
        if queue.launched is not None:
            queue.launched.add(self._source)
        cl, kernel = queue.cl, self._kernel
        with translated(cl, f"[{queue.name}] launching a kernel"):
            with self._lock:
                for n, data in enumerate((*inputs, *outputs)):
                    kernel.set_arg(n, data.buffer)
                event = cl.enqueue_nd_range_kernel(queue.queue, kernel, *self._range)
            queue.queue.flush()
            queue.memory.keep(event, [data for data in inputs if data.block is None])
