"""Forward, backward, recompute, optimizer; micro-batches and chunks."""
