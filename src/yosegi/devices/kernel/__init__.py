"""What all devices that run generated kernels share."""
