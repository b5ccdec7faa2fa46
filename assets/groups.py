"""The groups of assets, numbered in the order in which data goes through them: the UI sorts them by name."""

from __future__ import annotations

SOURCES = "1_sources"
TOPOLOGY = "2_topology"
RANKS = "3_ranks"
MEMORY = "4_memory"
ITERATIONS = "5_iterations"
ACROSS_RANKS = "6_across_ranks"
DERIVED = "7_derived"
FIGURES = "8_figures"
NIGHTLY = "9_nightly"
DOWNLOADS = "downloads"
