"""Execution: devices, memory, child processes, health, trace."""
