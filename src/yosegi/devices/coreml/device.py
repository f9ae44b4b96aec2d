"""Core ML as a device: the CPU, the GPU and, for float16, the Neural Engine of an Apple computer."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final, final

from ..._place.cost_model import compiler_prior
from ..._run.drivers import Driver
from ..._tensor.precision import Precision
from ..model.device import ModelDevice
from .compiler import CoreMLCompiler
from .library import machine
from .ops import TABLE

REDUCED: Final = (Precision.F16,)
"""The precision below float32: programs in it may run on the Neural Engine."""
_PRIOR: Final = compiler_prior(launch=2e-4, weighted=1.5)
"""A call costs what twenty of the host's kernels do: small partitions stay elsewhere."""


@final
class CoreML(ModelDevice):
    """Core ML, which chooses among the CPU, the GPU and the Neural Engine by itself."""

    rank = 190
    is_gpu = False  # it works without one

    def __init__(
        self, wrong: Mapping[str, str] | None = None, against: Mapping[str, str] | None = None,
        driver: Driver | None = None,
    ) -> None:  # fmt: skip
        """See `ModelDevice`."""
        what = f"Core ML on {platform.machine()}"
        compiler = CoreMLCompiler()
        super().__init__("coreml:0", what, TABLE, compiler, _PRIOR, REDUCED, wrong or {}, against or {}, driver)
        self.identity = "\n".join([machine(), *sorted(p.value for p in self.limits.precisions)])
