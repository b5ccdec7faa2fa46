"""Nsight Systems ranges as the classification's input."""
