"""A device that OpenVINO has a plugin for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from ..._place.cost_model import compiler_prior
from ..._run.drivers import Driver
from ..model.device import ModelDevice
from .compiler import PluginCompiler, machine
from .library import REDUCED, threads
from .ops import TABLE

_PRIOR: Final = compiler_prior(launch=1e-4, weighted=1.5)
"""A call costs what ten of the host's kernels do, and of all it computes, models with constant weights gain."""


@final
class OpenVINO(ModelDevice):
    """One plugin of OpenVINO."""

    def __init__(
        self, plugin: str, number: int, description: str, wrong: Mapping[str, str], against: Mapping[str, str],
        driver: Driver | None = None,
    ) -> None:  # fmt: skip
        """See `ModelDevice`."""
        self.rank = 200 + number
        self.is_gpu = plugin.startswith("GPU")
        what, compiler = f"{plugin}: {description}", PluginCompiler(plugin)
        super().__init__(f"openvino:{number}", what, TABLE, compiler, _PRIOR, REDUCED, wrong, against, driver)

    @property
    def identity(self) -> str:  # type: ignore[override]  # read only
        """The processor, OpenVINO's version and this folder's, the plugin with its device, what it computes in, and the
        threads. Not what was measured when it was tried, which is another figure every time."""
        return "\n".join([machine(), self._what, *sorted(p.value for p in self.limits.precisions), str(threads())])
