"""Trace formats: how the ranks of each are placed in runs and iterations, read, and looked at."""
