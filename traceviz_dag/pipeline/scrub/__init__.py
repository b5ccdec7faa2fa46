"""Traces that a site may give away: the same times, sizes and numbers, with no names of its own."""
