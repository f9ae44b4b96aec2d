"""One folder per device, and two that several share. Adding a device changes nothing outside its folder."""

from typing import Final

SHARED: Final = frozenset({"kernel", "model"})
"""The folders that are no device."""
HOST: Final = "cpu"
"""The folder of the device that is always there, and that ends every chain."""
