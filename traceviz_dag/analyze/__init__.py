"""Pure functions on tables: intervals, overlap, micro-batches, and what only several ranks show."""
