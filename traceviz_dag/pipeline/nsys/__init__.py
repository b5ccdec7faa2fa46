"""Exports of Nsight Systems as ranks: what they hold, where they belong, what is read of each."""
