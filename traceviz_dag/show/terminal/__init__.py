"""Screens in a terminal: a home while runs arrive, the tree of a profile, and the timeline."""
