"""What holds a tensor's values."""

from .buffer import HOST, Buffer
from .transfer import Method, Transfers

__all__ = ["HOST", "Buffer", "Method", "Transfers"]
