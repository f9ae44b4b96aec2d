"""Measuring: autotuning, calibration, learning from runs, certificates of precision."""
