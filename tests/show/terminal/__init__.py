"""Screens in a terminal, driven by keys."""
