"""Which dimension of the parallelism a communication serves."""
