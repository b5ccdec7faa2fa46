"""The report: one HTML page of an iteration that opens from disk and asks nothing of a network."""
