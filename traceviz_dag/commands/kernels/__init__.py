"""``traceviz kernels``: operations against the roofline, and modules."""
