"""Analyses of a Nsight Systems export by itself."""
