"""Kernels as LLVM IR, compiled in the process."""
