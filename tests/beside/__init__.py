"""Whole programs in plain user code, each beside the same program in PyTorch: see `bench_programs`."""
