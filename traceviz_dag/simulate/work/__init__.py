"""The work of a step: kernels and communications of layers, gradients and the optimizer."""
