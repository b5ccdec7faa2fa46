"""What a snapshot of CUDA memory tells: who holds the peak, what is lost to fragmentation, what leaks."""
