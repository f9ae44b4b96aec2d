"""The memory of tensors: buffers, pools and transfers."""

from .buffer import HOST, Buffer
from .transfer import Method, Transfers

__all__ = ["HOST", "Buffer", "Method", "Transfers"]
