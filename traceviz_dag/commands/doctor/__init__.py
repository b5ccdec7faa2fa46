"""traceviz doctor: what can be told from an input, before it is analysed."""
