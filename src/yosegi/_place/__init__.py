"""Placement: candidates, costs, and the plan."""
