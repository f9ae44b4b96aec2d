"""Benchmarks, reports, and the command line."""
