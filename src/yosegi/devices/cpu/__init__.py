"""The CPU: native kernels where they can be had, NumPy's reference bodies for the rest. It ends every chain."""

from .device import discover

__all__ = ["discover"]
