"""Snapshots of GPU memory of a simulated job, with their truth."""
