"""What a Nsight Systems export looks like."""
