"""What holds a tensor's values."""

from .buffer import HOST, Buffer

__all__ = ["HOST", "Buffer"]
