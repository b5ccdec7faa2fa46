"""The groups of assets, numbered in the order in which data goes through them: the UI sorts them by name."""

from __future__ import annotations

SOURCES = "1_sources"
TOPOLOGY = "2_topology"
RANKS = "3_ranks"
MEMORY = "4_memory"
ITERATIONS = "5_iterations"
ACROSS_RANKS = "6_across_ranks"
FIGURES = "7_figures"
NIGHTLY = "8_nightly"
DERIVED = "9_derived"
"""Tables of other packages; last, since most installations have none."""
