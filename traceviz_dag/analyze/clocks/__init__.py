"""Offsets and drifts of the ranks' clocks, or the reason for refusing."""
