"""The memory of tensors: buffers, pools and transfers."""

from .buffer import HOST, Buffer, Method, Transfers

__all__ = ["HOST", "Buffer", "Method", "Transfers"]
