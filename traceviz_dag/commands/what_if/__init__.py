"""traceviz what-if: predictions from traces, and from records of pipeline operations."""
