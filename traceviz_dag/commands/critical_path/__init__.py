"""traceviz critical-path: what limits a step, from traces, and from records of pipeline operations."""
