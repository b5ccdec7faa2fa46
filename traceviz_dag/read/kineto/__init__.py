"""PyTorch Profiler traces: text to typed columns."""
