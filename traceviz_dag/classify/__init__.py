"""Events become kernels with a phase, a dimension and a category, each with its evidence."""
