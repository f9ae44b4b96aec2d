"""Programs of kernels on the host: an op's launches, rendered in a language and run on arrays full of garbage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import emulation
import yosegi as ys
from kernel_code import LANGUAGES
from values import Array
from yosegi._graph import reference
from yosegi._tensor.node import Call
from yosegi.codegen.c.dialect import Target
from yosegi.codegen.c.op_programs import program
from yosegi.codegen.c.stages import FAULTS, Setting
from yosegi.devices.kernel.faults import Faults

TARGETS = {
    "small": Target(group=8, cooperating=8, units=2),
    "large": Target(group=64, cooperating=64, units=64),
}
"""Small groups, so that few elements make many of them; and many units, so that what is short is cut into slices."""


@dataclass(frozen=True)
class Emulated:
    """Runs programs in one language."""

    language: str
    target: Target
    folder: Path
    ordered: bool = True

    def __call__(self, tensor: ys.Tensor) -> Array:
        """The value of a tensor that is one call on values. Raises the mistake, if an index is out of range."""
        return self.of(tensor, [n.buffer.data for n in tensor._node.inputs if n.buffer is not None])

    def of(self, tensor: ys.Tensor, arrays: Sequence[Array]) -> Array:
        """The same on other arrays."""
        (made,) = self.outputs(tensor._node.call, arrays)
        return made

    def outputs(self, call: Call, arrays: Sequence[Array]) -> list[Array]:
        """All outputs of a call."""
        faults, language = Faults(), LANGUAGES[self.language]
        made = program(call, Setting(language.HOSTED, self.target, faults.site, self.ordered))
        rooms = [*[(s.shape, s.dtype) for s in call.outputs], *made.scratch]
        slots = [emulation.padded(np.asarray(a, s.dtype.numpy)) for a, s in zip(arrays, call.inputs, strict=True)]
        slots += [emulation.padded(_garbage(shape, dtype.numpy)) for shape, dtype in rooms]
        slots.append(emulation.padded(np.zeros(Faults.shape, np.int64)))
        assert FAULTS == -1
        for stage in made.stages:
            language.run(stage.kernel, [slots[r] for r in stage.reads], [slots[w] for w in stage.writes], self.folder)
        assert all(map(emulation.is_intact, slots))
        mistake = faults.mistake(slots[FAULTS])
        if mistake is not None:
            raise mistake
        return slots[len(arrays) : len(arrays) + len(call.outputs)]


def _garbage(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[...] = 0x6B
    return made


def expected(tensor: ys.Tensor) -> Array:
    """The value of a tensor that is one call, by its reference body."""
    node = tensor._node
    arrays = [n.buffer.data for n in node.inputs if n.buffer is not None]
    with np.errstate(all="ignore"):
        return np.asarray(reference.bind(node.call)(*arrays))
