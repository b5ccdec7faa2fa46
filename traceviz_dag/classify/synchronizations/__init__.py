"""Which stream or host call waits for which operation on the GPU, as far as a trace shows."""
