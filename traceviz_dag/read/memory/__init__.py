"""Snapshots of PyTorch's CUDA memory: untrusted pickles become typed columns."""
