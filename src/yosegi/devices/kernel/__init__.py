"""Code that all devices with generated kernels share."""
