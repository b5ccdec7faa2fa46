"""Which kernels of different ranks are one communication."""
