"""What a snapshot of CUDA memory shows: who holds the peak, what is lost to fragmentation, what leaks."""
