"""Scalar rules: one primitive at a time, for all printers."""
