"""traceviz critical-path: what a step hangs on, from traces, and from records of pipeline operations."""
