"""Kernels as Metal compiles and launches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ..._tune.store import ProgramCache
from ...codegen.c.dialect import Target
from ...codegen.c.kernel_source import NAME
from ...codegen.c.kernel_source import Kernel as Generated
from ...errors import CompileFailure
from ..kernel.memory import Data
from .commands import Commands, metal, pool
from .dialect import MSL
from .memory import Memory


@final
class Programs(ProgramCache):
    """The pipelines of one device, in memory by their source. Metal itself keeps them on disk."""

    def __init__(self, device: Any, identity: str) -> None:
        self._device = device
        super().__init__(identity)

    def load(self, code: bytes) -> None:
        """There are no files: `build` gives nothing to keep."""

    def build(self, source: str) -> tuple[Any, None]:
        """The pipeline of a source. Fast mathematics would take it that there are no NaN."""
        with pool():
            options = metal()[0].MTLCompileOptions.alloc().init()
            options.setFastMathEnabled_(False)
            made, error = self._device.newLibraryWithSource_options_error_(source, options, None)
            if made is not None:
                function = made.newFunctionWithName_(NAME)
                made, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
            if made is None:
                raise CompileFailure(f"{error.localizedDescription()}\n{source}")
            return made, None


@final
@dataclass(slots=True)
class Queue:
    """One device's in-order queue."""

    name: str
    target: Target
    memory: Memory
    commands: Commands
    programs: Programs
    language = "Metal"
    dialect = MSL

    def launch(self, kernel: Generated, buffers: int) -> Launch:
        """A generated kernel, to be put into the queue with its inputs and outputs, `buffers` in all."""
        return Launch(self, kernel, buffers)


@final
class Launch:
    """A kernel that can be put into the queue, again and again, from any thread. Its sizes are behind its buffers."""

    def __init__(self, queue: Queue, generated: Generated, buffers: int) -> None:
        self._queue = queue
        self._pipeline = queue.programs.get(generated.source)
        most = int(self._pipeline.maxTotalThreadsPerThreadgroup())
        if generated.group > most:
            raise CompileFailure(f"[{queue.name}] this kernel runs in groups of {most}, not of {generated.group}")
        size = metal()[0].MTLSizeMake
        self._grid = size(-(-generated.items // generated.group), 1, 1), size(generated.group, 1, 1)
        self._sizes = np.array(generated.sizes, np.int64 if generated.long_sizes else np.int32).tobytes()
        self._buffers = buffers

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the queue."""
        queue = self._queue
        queue.memory.check()
        with queue.commands.encoding() as (command_buffer, encoder):
            encoder.setComputePipelineState_(self._pipeline)
            for n, data in enumerate((*inputs, *outputs)):
                encoder.setBuffer_offset_atIndex_(data.buffer, 0, n)
            if self._sizes:
                encoder.setBytes_length_atIndex_(self._sizes, len(self._sizes), self._buffers)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(*self._grid)
        queue.memory.keep(command_buffer, [data for data in inputs if data.block is None])
