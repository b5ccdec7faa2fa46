"""Two sides of a comparison: found, read, and compared."""
