"""traceviz doctor: what an input can answer, before it is analysed."""
