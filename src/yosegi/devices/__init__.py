"""One folder per device. Adding one changes nothing outside its folder."""

from typing import Final

HOST: Final = "cpu"
"""The folder of the device that is always there, and that ends every chain."""
