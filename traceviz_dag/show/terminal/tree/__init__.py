"""``traceviz nsys tui``: the NVTX ranges of a profile as a tree."""
