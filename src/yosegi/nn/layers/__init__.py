"""Layers: modules with PyTorch's names, parameter names and layouts."""
