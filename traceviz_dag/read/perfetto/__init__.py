"""Perfetto's trace processor: found or brought along, started and ended, fed exactly, asked with SQL."""
