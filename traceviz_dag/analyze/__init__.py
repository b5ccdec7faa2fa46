"""Pure functions on tables: intervals, overlap, micro-batches."""
