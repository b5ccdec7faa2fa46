"""``traceviz top``: a home while runs arrive."""
