"""Where the GPU does not compute: each gap, what ended it, and what the host did meanwhile."""
