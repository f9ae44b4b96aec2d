"""Fusion of a graph into regions, and of regions into units."""
