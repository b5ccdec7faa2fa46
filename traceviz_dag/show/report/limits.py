"""How much a page carries; apart from what draws it, so that the command's help can say it at no cost."""

MOST_KERNELS = 1_000_000
"""Kernels of the timeline; of more, the shortest are left out, and the page says so."""

MOST_REPLAYED = 300_000
"""Kernels of an iteration whose steps the page replays: some 1.5 MB, and a tenth of a second for an edit."""
