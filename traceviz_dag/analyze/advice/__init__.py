"""Advice: which other schedule, chunks or layers would make a measured step shorter, and what that cannot tell."""
